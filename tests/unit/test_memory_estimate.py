"""The plan's estimate of peak memory against what was measured of the two processes."""

from __future__ import annotations

import pytest

from privml.backbones.loader import load_encoder
from privml.protocols.mpc.model import PrivateModel
from privml.protocols.mpc.spec import EmbeddingMode, Spec

# Peak resident MB of `privml serve` and `privml query` with minilm-l6, one thread each, first run.
MEASURED = [
    (16, 3, "released", 699, 421),
    (32, 4, "released", 1036, 800),
    (24, 10, "released", 1464, 1275),
    (128, 4, "released", 3468, 3421),
    (128, 8, "released", 4809, 5599),
    (32, 4, "private", 1160, 903),
]


@pytest.fixture(scope="module")
def models() -> dict[str, PrivateModel]:
    encoder = load_encoder("minilm-l6")
    return {
        "released": PrivateModel(encoder),
        "private": PrivateModel(encoder, Spec(embedding="private")),
    }


@pytest.mark.parametrize(("n", "rows", "embedding", "server", "client"), MEASURED)
def test_close_to_the_measured_peak(
    models: dict[str, PrivateModel], n: int, rows: int, embedding: EmbeddingMode, server: int,
    client: int,
) -> None:  # fmt: skip
    estimate = [x / 1e6 for x in models[embedding].plan(n=n, rows=rows).memory_bytes()]
    assert estimate == pytest.approx([server, client], rel=0.06)
