"""What every exact unlearner keeps, whatever it trains.

After ``unlearn`` the state digest equals that of a fresh ``fit`` without those rows under the same
key and hyper-parameters, whatever the history and the order of requests was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Impact:
    """Which parts of a model a deletion would touch.

    Attributes
    ----------
    unit
        What the numbers count: ``"tree"`` for forests.
    per_id
        (n, k) numbers of the parts that hold, or would hold, each id; sorted in each row.
    """

    unit: str
    per_id: NDArray[np.uint32]

    def union(self) -> NDArray[np.uint32]:
        """Return the distinct parts touched by all ids together, sorted."""
        return np.unique(self.per_id)


class CertificateLike(Protocol):
    """Evidence of one deletion; its JSON form holds no raw id and no duration."""

    @property
    def version_before(self) -> int:
        """Model version the request was applied to."""

    @property
    def version_after(self) -> int:
        """Model version without the rows."""

    def to_json(self) -> bytes:
        """Return the canonical JSON form."""


@runtime_checkable
class Unlearner(Protocol):
    """A model that forgets rows exactly. Key and hyper-parameters are given to the constructor."""

    def fit(self, X: ArrayLike, y: ArrayLike, *, ids: Iterable[Any] | None = None) -> Self:
        """Train on rows named by ``ids``, 0..n-1 if not given."""

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return one answer per row."""

    def affected(self, ids: Iterable[Any]) -> Impact:
        """Return what deleting ``ids`` would touch; has no side effect."""

    def unlearn(self, ids: Iterable[Any]) -> CertificateLike:
        """Forget all ``ids`` or, if one is unknown or repeated, none and raise."""

    def state_digest(self) -> str:
        """Return 64 hex digits that are equal exactly if the models are."""
