"""A fitted forest over encoded rows: core, key, labels and version behind one writer lock."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privml._typing import Digest
from privml.errors import SchemaError, UnsupportedError
from privml.unlearning.forest._core import ForestCore, available
from privml.unlearning.forest.canonical import digest, head_bytes
from privml.unlearning.forest.certificate import Certificate, id_hashes
from privml.unlearning.forest.ids import Records, default_ids
from privml.unlearning.forest.interface import Core
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.labels import LabelTable
from privml.unlearning.forest.params import REGRESSION, ForestParams
from privml.unlearning.forest.reference import Floats, Rows
from privml.unlearning.forest.schema import (
    SUM_LIMIT_BITS,
    TEXT_CODES,
    Columns,
    check_target_sum,
)
from privml.unlearning.forest.scrub import wipe, wipe_rows
from privml.unlearning.forest.twin_core import TwinCore


def open_core(params: ForestParams, key: ForestKey) -> Core:
    """Return an empty native core, or the twin where the native library is missing."""
    return ForestCore(params, key) if available() else TwinCore(params, key)


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
        self._largest = 0  # no target is larger in absolute value
        self._spare = 0  # no living class has fewer rows
        self.n_rows = self.core.n_rows
        self._commitment = key.commitment().hex()
        self._parameters = self._parameters_digest()

    @property
    def regression(self) -> bool:
        """Whether targets are numbers."""
        return self.params.task == REGRESSION

    def fit(self, X: Floats, y: NDArray[Any], ids: Records | None, *, threads: int) -> None:
        """Train on rows; ``y`` holds labels or fixed-point targets. Features are overwritten."""
        with self._lock:
            table, target = self._encode(y)
            records = default_ids(len(X)) if ids is None else ids
            try:
                self.core.fit(X, target, records, threads=threads)
            finally:
                wipe(X, target, records)
            self.labels, self.n_rows = table, len(X)
            self._spare = 0
            self.version += 1

    def learn(self, X: Floats, y: NDArray[Any], ids: Records | None) -> None:
        """Add rows, by default under the integers after the largest living one; overwrites them."""
        with self._lock:
            table, target = self._encode(y)
            records = self._next_ids(len(X)) if ids is None else ids
            try:
                self.core.learn(X, target, records)
            finally:
                wipe(X, target, records)
            self.labels = table
            self.n_rows += len(X)
            self.version += 1

    def unlearn(self, ids: Records, *, with_digest: bool) -> Certificate:
        """Forget rows and return the certificate."""
        with self._lock:
            classes = self.labels.in_use
            change = self.core.unlearn(ids)
            self.version += 1
            self.n_rows -= len(ids)
            self._forget_labels(len(ids))
            return Certificate(
                version_before=self.version - 1,
                version_after=self.version,
                id_hashes=id_hashes(ids, self.key),
                rows_before=self.n_rows + len(ids),
                rows_after=self.n_rows,
                classes_before=classes,
                classes_after=self.labels.in_use,
                trees_visited=change.trees,
                nodes_changed=change.nodes,
                tags_set=change.tags,
                bytes_scrubbed=change.scrubbed_bytes,
                bytes_pending=change.pending_bytes,
                key_commitment=self._commitment,
                parameters_digest=self._parameters,
                state_digest=self.digest().hex() if with_digest else None,
            )

    def adopt(self, rows: Rows, *, threads: int) -> None:
        """Fit rows that are encoded already, targets included; overwrites them."""
        with self._lock:
            n = len(rows.y)
            try:
                self.core.fit(rows.X, rows.y, rows.ids, threads=threads)
            finally:
                wipe_rows(rows)
            self.n_rows, self._spare = n, 0

    def rekeyed(self, *, threads: int) -> ForestModel:
        """Return the model of the same rows under a fresh key.

        Raises
        ------
        UnsupportedError
            Ids or categories are texts, of which only hashes under the old key are left.
        """
        with self._lock:
            rows = self.core.rows()
            codes = rows.X[:, list(self.params.categorical)]
            if rows.ids[:, 0].any() or (codes >= TEXT_CODES).any():
                wipe_rows(rows)
                raise UnsupportedError(
                    "textual ids and categories are held as hashes under the old key; "
                    "fit the living rows again instead"
                )
            fresh = ForestModel(
                self.params,
                ForestKey.fresh(),
                columns=self.columns,
                labels=self.labels,
                version=self.version + 1,
            )
            fresh.adopt(rows, threads=threads)
            return fresh

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

    def canonical(self) -> bytearray:
        """Return the canonical form; resolves all tags. Overwrite it when done."""
        with self._lock:
            return self.core.canonical(self.labels.order())

    def digest(self) -> Digest:
        """Return the SHA-256 of the canonical form, remembered until the next change."""
        with self._lock:
            if self._digest is None or self._digest[0] != self.version:
                body = self.canonical()
                self._digest = self.version, digest(body)
                wipe(body)
            return self._digest[1]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep writers out for a block."""
        with self._lock:
            yield

    def _forget_labels(self, removed: int) -> None:
        """Drop labels without rows; counts are looked at only when a class may have died."""
        if self.regression or self.labels.declared:
            return
        self._spare -= removed
        if self._spare < 1:
            counts = self.core.class_counts().tolist()
            self.labels = self.labels.living(counts)
            self._spare = min((n for n in counts if n), default=0)

    def _encode(self, y: NDArray[Any]) -> tuple[LabelTable, NDArray[np.int64]]:
        if not self.regression:
            return self.labels.encode(y)
        total = self.n_rows + len(y)
        self._largest = max(self._largest, _largest(y))
        if self._largest * total >= 1 << SUM_LIMIT_BITS:  # a bound that never shrinks; look again
            rows = self.core.rows()
            self._largest = max(_largest(y), _largest(rows.y))
            wipe_rows(rows)
            check_target_sum(self._largest, total)
        return self.labels, y

    def _next_ids(self, n: int) -> Records:
        rows = self.core.rows()
        integers = rows.ids[rows.ids[:, 0] == 0, 1].astype(np.int64)
        start = int(integers.max()) + 1 if len(integers) else 0
        wipe_rows(rows)
        wipe(integers)
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
