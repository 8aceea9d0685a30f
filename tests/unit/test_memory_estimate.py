"""The plan's estimate of peak memory against what was measured of the two processes."""

from __future__ import annotations

import pytest

from privml.backbones.loader import load_encoder
from privml.protocols.mpc.model import PrivateModel
from privml.protocols.mpc.spec import EmbeddingMode, Spec

# Peak resident MB of `privml serve` and `privml query` with minilm-l6, one thread each, first run.
MEASURED = [
    (16, 3, "released", 712, 422),
    (32, 4, "released", 1042, 859),
    (24, 10, "released", 1448, 1316),
    (128, 4, "released", 3817, 3825),
    (128, 8, "released", 4906, 6257),
    (32, 4, "private", 1180, 932),
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
