"""Token batches: what is refused, padding, and that texts do not leak through ``repr``."""

from __future__ import annotations

import numpy as np
import pytest

from privml.backbones.batch import Encoded
from privml.errors import ParameterError

IDS = np.array([[7, 8, 9], [4, 5, 0]], np.int64)
MASK = np.array([[True, True, True], [True, True, False]])


def test_sizes_and_defaults() -> None:
    batch = Encoded.of(IDS, MASK)
    assert (batch.batch_size, batch.length) == (2, 3)
    assert batch.lengths.tolist() == [3, 2]
    assert not batch.type_ids.any()
    assert Encoded.of(IDS).mask.all()


def test_rows_and_padding() -> None:
    batch = Encoded.of(IDS, MASK).rows(1, 2).padded(5, pad_id=3)
    assert batch.ids.tolist() == [[4, 5, 0, 3, 3]]
    assert batch.mask.tolist() == [[True, True, False, False, False]]
    with pytest.raises(ParameterError, match="pad to at least 5"):
        batch.padded(4)


def test_repr_shows_sizes_only() -> None:
    assert repr(Encoded.of(IDS, MASK)) == "Encoded(rows=2, length=3)"


@pytest.mark.parametrize(
    ("ids", "mask", "match"),
    [
        (IDS.astype(np.int32), MASK, "ids has dtype int32"),
        (IDS, MASK.astype(np.int64), "mask has dtype int64"),
        (IDS[0], MASK[0], "expected \\(rows, positions\\)"),
        (IDS[:0], MASK[:0], "none of them 0"),
        (IDS, MASK[:, :2], "shapes differ"),
        (-IDS, MASK, "negative"),
        (IDS, MASK & False, "no token"),
    ],
)
def test_malformed_batches_are_refused(ids: np.ndarray, mask: np.ndarray, match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        Encoded.of(ids, mask)
