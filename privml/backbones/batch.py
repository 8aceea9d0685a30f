"""Tokenised batches as plain numpy arrays; this module never loads torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError


@dataclass(frozen=True, eq=False, repr=False)
class Encoded:
    """A batch of token sequences, all padded to one length.

    The arrays hold private text, so ``repr`` shows sizes only.

    Parameters
    ----------
    ids
        Token ids, shape ``(B, n)``, int64, not negative.
    mask
        True where a position holds a token and False where it is padding, shape ``(B, n)``, bool;
        each row has at least one token.
    type_ids
        Segment ids, shape ``(B, n)``, int64, not negative; 0 for single texts.

    Raises
    ------
    ParameterError
        If a shape, a dtype or a value breaks one of the rules above.
    """

    ids: NDArray[np.int64]
    mask: NDArray[np.bool_]
    type_ids: NDArray[np.int64]

    def __post_init__(self) -> None:
        problems = _problems(self.ids, self.mask, self.type_ids)
        if problems:
            raise ParameterError("not a token batch: " + "; ".join(problems))

    @classmethod
    def of(
        cls,
        ids: NDArray[np.int64],
        mask: NDArray[np.bool_] | None = None,
        *,
        type_ids: NDArray[np.int64] | None = None,
    ) -> Encoded:
        """Build a batch; a missing mask means "no padding", missing segment ids mean 0."""
        return cls(
            ids=ids,
            mask=np.ones(ids.shape, np.bool_) if mask is None else mask,
            type_ids=np.zeros(ids.shape, np.int64) if type_ids is None else type_ids,
        )

    @property
    def batch_size(self) -> int:
        """Number of rows B."""
        return int(self.ids.shape[0])

    @property
    def length(self) -> int:
        """Padded length n."""
        return int(self.ids.shape[1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each row, padding left out, shape ``(B,)``."""
        counts: NDArray[np.int64] = self.mask.sum(axis=1, dtype=np.int64)
        return counts

    @property
    def last(self) -> NDArray[np.int64]:
        """Position of the last token of each row, shape ``(B,)``; padding may be on both sides."""
        ends: NDArray[np.int64] = self.length - 1 - self.mask[:, ::-1].argmax(axis=1)
        return ends

    def rows(self, start: int, stop: int) -> Encoded:
        """Return rows ``start`` to ``stop - 1`` at the same padded length."""
        return Encoded(self.ids[start:stop], self.mask[start:stop], self.type_ids[start:stop])

    def padded(self, length: int, *, pad_id: int = 0) -> Encoded:
        """Return the batch padded on the right to ``length``.

        Raises
        ------
        ParameterError
            If ``length`` is shorter than the batch is now.
        """
        extra = length - self.length
        if extra < 0:
            raise ParameterError(
                f"cannot pad {self.length} positions to {length}; pad to at least {self.length}"
            )
        width = ((0, 0), (0, extra))
        return Encoded(
            ids=np.pad(self.ids, width, constant_values=pad_id),
            mask=np.pad(self.mask, width, constant_values=False),
            type_ids=np.pad(self.type_ids, width, constant_values=0),
        )

    def __repr__(self) -> str:
        return f"Encoded(rows={self.batch_size}, length={self.length})"


def _problems(
    ids: NDArray[np.int64], mask: NDArray[np.bool_], type_ids: NDArray[np.int64]
) -> list[str]:
    """List what is wrong with the three arrays of a batch."""
    found = [
        f"{name} has dtype {array.dtype}, expected {dtype}"
        for name, array, dtype in (
            ("ids", ids, "int64"),
            ("mask", mask, "bool"),
            ("type_ids", type_ids, "int64"),
        )
        if array.dtype != np.dtype(dtype)
    ]
    if ids.ndim != 2 or 0 in ids.shape:
        return [*found, f"ids has shape {ids.shape}, expected (rows, positions), none of them 0"]
    if mask.shape != ids.shape or type_ids.shape != ids.shape:
        return [*found, f"shapes differ: ids {ids.shape}, {mask.shape=}, {type_ids.shape=}"]
    if found:
        return found
    if int(ids.min()) < 0 or int(type_ids.min()) < 0:
        found.append("ids and type_ids must not be negative")
    if not mask.any(axis=1).all():
        found.append("a row has no token")
    return found
