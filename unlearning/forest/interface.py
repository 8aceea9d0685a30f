"""What the estimators ask of a forest core; the native core and the twin core both keep it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from privml.unlearning.forest.ids import Records
from privml.unlearning.forest.reference import Floats, Rows


class Change(msgspec.Struct, frozen=True):
    """What one deletion did inside the forest.

    Attributes
    ----------
    trees
        Trees visited, counted once per row.
    nodes
        Nodes whose split or leaf status changed.
    tags
        Nodes left to be decided when next needed.
    scrubbed_bytes
        Bytes overwritten with zeros.
    pending_bytes
        Freed bytes that ``purge()`` will overwrite.
    """

    trees: int
    nodes: int
    tags: int
    scrubbed_bytes: int
    pending_bytes: int


class Core(Protocol):
    """A forest over encoded rows.

    Features are (n, p) float32 in C order, targets (n,) int64 class codes or fixed-point values,
    ids (n, 3) uint64 records. A call that raises changed nothing.
    """

    def fit(self, X: Floats, y: NDArray[np.int64], ids: Records, *, threads: int = 1) -> None:
        """Replace all rows."""

    def learn(self, X: Floats, y: NDArray[np.int64], ids: Records) -> None:
        """Add rows; raises ``DuplicateIdError`` for a living or repeated id."""

    def unlearn(self, ids: Records) -> Change:
        """Remove rows; raises ``UnknownIdError`` or ``DuplicateIdError``."""

    def predict(self, X: Floats, *, threads: int = 1) -> NDArray[np.float64]:
        """Return (n, codes) class frequencies or (n,) targets; raises ``EmptyForestError``."""

    def contains(self, ids: Records) -> NDArray[np.bool_]:
        """Return which ids are those of living rows."""

    def affected(self, ids: Records) -> NDArray[np.uint32]:
        """Return (n, k) the trees that hold, or would hold, each id; sorted."""

    def class_counts(self) -> NDArray[np.int64]:
        """Return the number of living rows per class code; empty for regression."""

    def rows(self) -> Rows:
        """Return a copy of the living rows in canonical order."""

    def canonical(self, class_order: Sequence[int]) -> bytearray:
        """Return the canonical form after resolving all tags, classes in the given code order.

        The caller overwrites the buffer when done: it holds all living rows.
        """

    def resolve(self, budget_s: float | None = None) -> bool:
        """Decide tagged nodes for at most ``budget_s`` seconds; return whether none is left."""

    def purge(self) -> None:
        """Overwrite everything freed and rebuild the layout a fresh fit has."""

    def audit(self, level: int) -> Sequence[str]:
        """Recompute the invariants of the structure; return what is violated."""

    def hold(self) -> None:
        """Keep all other calls out, once those in progress are done, until :meth:`release`."""

    def release(self) -> None:
        """Let other calls in again, after :meth:`hold`."""

    def renew(self) -> None:
        """Do what :meth:`release` does, in a forked child: the threads that wait are not there."""

    def memory(self) -> Mapping[str, int]:
        """Return bytes per part, and under ``"total"`` their sum."""

    @property
    def n_rows(self) -> int:
        """Number of living rows."""
