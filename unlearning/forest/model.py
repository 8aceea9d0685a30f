"""A fitted forest over encoded rows: core, key, labels and version behind one writer lock."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privml import _native
from privml._typing import Digest
from privml.errors import SchemaError
from privml.unlearning.forest.canonical import digest, head_bytes
from privml.unlearning.forest.certificate import Certificate, id_hashes
from privml.unlearning.forest.ids import Records, default_ids
from privml.unlearning.forest.interface import Core
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.labels import LabelTable
from privml.unlearning.forest.params import REGRESSION, ForestParams
from privml.unlearning.forest.reference import Floats
from privml.unlearning.forest.schema import SUM_LIMIT_BITS, Columns, check_target_sum
from privml.unlearning.forest.twin_core import TwinCore


def open_core(params: ForestParams, key: ForestKey) -> Core:
    """Return an empty native core, or the twin where the native library is missing."""
    if _native.load() is None:
        return TwinCore(params, key)
    from privml.unlearning.forest._core import ForestCore

    return ForestCore(params, key)


class ForestModel:
    """Rows, trees and labels that belong together.

    Parameters
    ----------
    params
        Parameters; ``n_classes`` is the number of label codes.
    key
        Key of the forest.
    columns
        Declared columns.
    labels
        Label table; empty for regression.
    version
        Number of changes so far.

    Notes
    -----
    Writers are serialised by a lock. Readers take none: the core answers from one version, and a
    reader whose class list changed meanwhile asks again.
    """

    def __init__(
        self,
        params: ForestParams,
        key: ForestKey,
        *,
        columns: Columns,
        labels: LabelTable,
        version: int = 0,
        core: Core | None = None,
    ) -> None:
        self.params, self.key, self.columns = params, key, columns
        self.labels, self.version = labels, version
        self.core = open_core(params, key) if core is None else core
        self._lock = threading.RLock()
        self._digest: tuple[int, Digest] | None = None
        self._largest = 0
        self._commitment = key.commitment().hex()
        self._parameters = self._parameters_digest()

    @property
    def regression(self) -> bool:
        """Whether targets are numbers."""
        return self.params.task == REGRESSION

    def fit(self, X: Floats, y: NDArray[Any], ids: Records | None, *, threads: int) -> None:
        """Train on rows; ``y`` holds labels or fixed-point targets."""
        with self._lock:
            table, target = self._encode(y)
            self.core.fit(X, target, default_ids(len(X)) if ids is None else ids, threads=threads)
            self.labels = table
            self.version += 1

    def learn(self, X: Floats, y: NDArray[Any], ids: Records | None) -> None:
        """Add rows; without ids they get the integers after the largest living one."""
        with self._lock:
            table, target = self._encode(y)
            self.core.learn(X, target, self._next_ids(len(X)) if ids is None else ids)
            self.labels = table
            self.version += 1

    def unlearn(self, ids: Records, *, with_digest: bool) -> Certificate:
        """Forget rows and return the certificate."""
        with self._lock:
            rows, classes = self.core.n_rows, self.n_classes
            change = self.core.unlearn(ids)
            self.version += 1
            if not self.regression and not self.labels.declared:
                self.labels = self.labels.living(self.core.class_counts().tolist())
            return Certificate(
                version_before=self.version - 1,
                version_after=self.version,
                id_hashes=id_hashes(ids, self.key),
                rows_before=rows,
                rows_after=rows - len(ids),
                classes_before=classes,
                classes_after=self.n_classes,
                trees_visited=change.trees,
                nodes_changed=change.nodes,
                tags_set=change.tags,
                bytes_scrubbed=change.scrubbed_bytes,
                bytes_pending=change.pending_bytes,
                key_commitment=self._commitment,
                parameters_digest=self._parameters,
                state_digest=self.digest().hex() if with_digest else None,
            )

    @property
    def n_classes(self) -> int:
        """Number of classes in use, 0 for regression."""
        return sum(label is not None for label in self.labels.values)

    def predict(self, X: Floats, *, threads: int) -> tuple[NDArray[np.float64], LabelTable]:
        """Return (n, classes) frequencies in label order, or (n,) targets, and their labels."""
        if self.regression:
            return self.core.predict(X, threads=threads), self.labels
        labels = self.labels
        out = self.core.predict(X, threads=threads)
        while labels is not self.labels or not _covers(out, labels):
            with self._lock:
                labels = self.labels
                out = self.core.predict(X, threads=threads)
        return np.ascontiguousarray(out[:, list(labels.order())]), labels

    def canonical(self) -> bytes:
        """Return the canonical form; resolves all tags."""
        with self._lock:
            return self.core.canonical(self.labels.order())

    def digest(self) -> Digest:
        """Return the SHA-256 of the canonical form, remembered until the next change."""
        with self._lock:
            if self._digest is None or self._digest[0] != self.version:
                self._digest = self.version, digest(self.canonical())
            return self._digest[1]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep writers out for a block."""
        with self._lock:
            yield

    def _encode(self, y: NDArray[Any]) -> tuple[LabelTable, NDArray[np.int64]]:
        if not self.regression:
            return self.labels.encode(y)
        total = self.core.n_rows + len(y)
        self._largest = max(self._largest, _largest(y))
        if self._largest * total >= 1 << SUM_LIMIT_BITS:  # a bound that never shrinks; look again
            self._largest = max(_largest(y), _largest(self.core.rows().y))
            check_target_sum(self._largest, total)
        return self.labels, y

    def _next_ids(self, n: int) -> Records:
        records = self.core.rows().ids
        integers = records[records[:, 0] == 0][:, 1].astype(np.int64)
        start = int(integers.max()) + 1 if len(integers) else 0
        if start + n > 1 << 63:
            raise SchemaError("no integer ids are left after the largest living one; give ids=")
        records = default_ids(n)
        records[:, 1] += np.uint64(start % (1 << 64))
        return records

    def _parameters_digest(self) -> str:
        head = head_bytes(self.params, self.key)[: -len(self.key.master)]
        fixed = head[: 12 + 8 * 8] + head[12 + 9 * 8 :]  # without the number of living classes
        return hashlib.sha256(fixed + repr(self.columns.names).encode()).hexdigest()


def _largest(y: NDArray[np.int64]) -> int:
    return int(np.abs(y).max()) if len(y) else 0


def _covers(out: NDArray[np.float64], labels: LabelTable) -> bool:
    """Return whether all codes with a non-zero frequency have a label."""
    if out.shape[1] > labels.size:
        return not out[:, labels.size :].any() and _covers(out[:, : labels.size], labels)
    free = [c for c, label in enumerate(labels.values[: out.shape[1]]) if label is None]
    return not free or not out[:, free].any()
