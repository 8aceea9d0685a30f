"""The core that runs where the native library is missing: the twin, rebuilt after each change."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from privml.errors import DuplicateIdError, EmptyForestError, UnknownIdError
from privml.unlearning.forest import canonical, reference
from privml.unlearning.forest.ids import Records, require_distinct
from privml.unlearning.forest.interface import Change
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.params import REGRESSION, ForestParams
from privml.unlearning.forest.reference import Floats, Forest, Rows
from privml.unlearning.forest.scrub import wipe_rows

_WORDS: Final = 3


class TwinCore:
    """A slow forest core in pure Python; same answers as the native one, bit for bit.

    Parameters
    ----------
    params
        Parameters; the number of class codes grows with ``learn``.
    key
        Key of the forest.
    """

    def __init__(self, params: ForestParams, key: ForestKey) -> None:
        self._params, self._key = params, key
        p = params.n_features
        self._rows = Rows(
            np.zeros((0, _WORDS), np.uint64), np.zeros((0, p), np.float32), np.zeros(0, np.int64)
        )
        self._built: Forest | None = None
        self._lock = threading.RLock()

    @property
    def n_rows(self) -> int:
        """Number of living rows."""
        return len(self._rows.y)

    def fit(self, X: Floats, y: NDArray[np.int64], ids: Records, *, threads: int = 1) -> None:
        """Replace all rows."""
        del threads
        require_distinct(ids)
        self._set(Rows(ids.copy(), X.copy(), y.copy()))

    def learn(self, X: Floats, y: NDArray[np.int64], ids: Records) -> None:
        """Add rows."""
        require_distinct(ids)
        with self._lock:
            if self.contains(ids).any():
                raise DuplicateIdError("an id to learn is that of a living row; unlearn it first")
            old, join = self._rows, np.concatenate
            self._set(Rows(join((old.ids, ids)), join((old.X, X)), join((old.y, y))))

    def unlearn(self, ids: Records) -> Change:
        """Remove rows."""
        require_distinct(ids)
        with self._lock:
            gone = set(map(tuple, ids.tolist()))
            keep = np.array([tuple(r) not in gone for r in self._rows.ids.tolist()], dtype=bool)
            unknown = len(ids) - int((~keep).sum())
            if unknown:
                raise UnknownIdError(f"{unknown} of {len(ids)} ids belong to no living row")
            old = self._rows
            self._set(Rows(old.ids[keep], old.X[keep], old.y[keep]))
        return Change(len(ids) * self._params.trees_per_row, 0, 0, 0, 0)

    def predict(self, X: Floats, *, threads: int = 1) -> NDArray[np.float64]:
        """Return class frequencies or targets."""
        del threads
        forest = self._forest()
        if not len(forest.rows.y):
            raise EmptyForestError("the forest has no row left; fit or learn rows first")
        return reference.predict(forest, X)

    def contains(self, ids: Records) -> NDArray[np.bool_]:
        """Return which ids are those of living rows."""
        living = set(map(tuple, self._rows.ids.tolist()))
        return np.array([tuple(r) in living for r in ids.tolist()], dtype=bool)

    def affected(self, ids: Records) -> NDArray[np.uint32]:
        """Return the trees of each id, sorted."""
        trees = [
            sorted(reference.trees_of(self._key, self._params, record=(kind, low, high)))
            for kind, low, high in ids.tolist()
        ]
        return np.array(trees, dtype=np.uint32).reshape(-1, self._params.trees_per_row)

    def class_counts(self) -> NDArray[np.int64]:
        """Return the number of living rows per class code."""
        if self._params.task == REGRESSION:
            return np.zeros(0, dtype=np.int64)
        return np.bincount(self._rows.y, minlength=self._params.n_classes).astype(np.int64)

    def rows(self) -> Rows:
        """Return the living rows in canonical order."""
        return self._rows.canonical()

    def canonical(self, class_order: Sequence[int]) -> bytearray:
        """Return the canonical form."""
        params, rows = self._params, self._rows
        if params.task != REGRESSION:
            place = np.zeros(max(params.n_classes, 1), dtype=np.int64)
            place[list(class_order)] = np.arange(len(class_order))
            rows = Rows(rows.ids, rows.X, place[rows.y])
            params = replace(params, n_classes=len(class_order))
        return bytearray(canonical.canonical_bytes(reference.build_forest(rows, self._key, params)))

    def resolve(self, budget_s: float | None = None) -> bool:
        """Do nothing: the twin leaves nothing undecided."""
        del budget_s
        return True

    def purge(self) -> None:
        """Drop the built trees."""
        self._built = None

    def audit(self, level: int) -> Sequence[str]:
        """Return no findings: the twin has no state beside the rows."""
        del level
        return ()

    def hold(self) -> None:
        """Keep other threads out."""
        self._lock.acquire()

    def release(self) -> None:
        """Let other threads in again."""
        self._lock.release()

    renew = release  # the lock belongs to the thread that forked, which is the child's only one

    def memory(self) -> Mapping[str, int]:
        """Return the bytes of the rows."""
        size = self._rows.ids.nbytes + self._rows.X.nbytes + self._rows.y.nbytes
        return {"rows": size, "total": size}

    def _set(self, rows: Rows) -> None:
        classes = self._params.n_classes
        if self._params.task != REGRESSION and len(rows.y):
            classes = max(classes, int(rows.y.max()) + 1)
        with self._lock:
            self._params = replace(self._params, n_classes=classes)
            wipe_rows(self._rows)
            if self._built is not None:
                wipe_rows(self._built.rows)
            self._rows, self._built = rows, None

    def _forest(self) -> Forest:
        with self._lock:
            if self._built is None:
                self._built = reference.build_forest(self._rows, self._key, self._params)
            return self._built
