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
from privml.errors import (
    DuplicateIdError,
    SchemaError,
    UnknownIdError,
    UnlearningError,
    UnsupportedError,
)
from privml.unlearning.forest._core import ForestCore, available
from privml.unlearning.forest.canonical import digest, head_bytes
from privml.unlearning.forest.certificate import (
    ALGORITHM,
    CONDITION,
    GUARANTEE,
    Certificate,
    id_hashes,
)
from privml.unlearning.forest.forking import watch
from privml.unlearning.forest.ids import (
    Records,
    default_ids,
    positions,
    repeated_message,
    repeats,
)
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


class Superseded(Exception):
    """Another model has taken over from this one; ask it instead."""


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
        self.lock = threading.RLock()
        self.successor: ForestModel | None = None
        self._under_way: tuple[LabelTable, int, int] | None = None  # by a change: see _recover
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
        with self.lock:
            table, target = self._encode(y)
            records = default_ids(len(X)) if ids is None else ids
            try:
                self.core.fit(X, target, records, threads=threads)
            finally:
                wipe(X, target, records)
            self.labels, self.n_rows = table, len(X)
            self._spare = 0  # unknown: the next deletion counts
            self.version += 1
        watch(self)

    def learn(self, X: Floats, y: NDArray[Any], ids: Records | None) -> None:
        """Add rows, by default under the integers after the largest living one; overwrites them."""
        with self.lock:
            self._require_current()
            table, target = self._encode(y)
            records = self._next_ids(len(X)) if ids is None else ids
            try:
                self._under_way = table, self.version, self.n_rows
                self.core.learn(X, target, records)
                if table is not self.labels:
                    self._spare = 0  # a new class may have fewer rows than any before
                self.labels = table
                self.n_rows += len(X)
                self.version += 1
                self._under_way = None
            except DuplicateIdError as error:
                self._under_way = None
                raise self._bad_request(error, records) from None
            except BaseException:
                self._recover()
                raise
            finally:
                wipe(X, target, records)

    def unlearn(self, ids: Records, *, with_digest: bool) -> Certificate:
        """Forget rows and return the certificate."""
        with self.lock:
            self._require_current()
            classes, before = self.labels.in_use, self.version
            try:
                self._under_way = self.labels, before, self.n_rows
                change = self.core.unlearn(ids)
                if len(ids):
                    self.version += 1
                    self.n_rows -= len(ids)
                    self._forget_labels(len(ids))
                self._under_way = None
            except (UnknownIdError, DuplicateIdError) as error:
                self._under_way = None
                raise self._bad_request(error, ids) from None
            except BaseException:
                self._recover()
                raise
            return Certificate(
                version_before=before,
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
        with self.lock:
            n = len(rows.y)
            try:
                self.core.fit(rows.X, rows.y, rows.ids, threads=threads)
            finally:
                wipe_rows(rows)
            self.n_rows, self._spare = n, 0
        watch(self)

    def rekeyed(self, *, threads: int) -> ForestModel:
        """Return the model of the same rows under a fresh key, which takes over from this one.

        Raises
        ------
        UnsupportedError
            Ids or categories are texts, of which only hashes under the old key are left.
        """
        with self.frozen():
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
            self.successor = fresh
            return fresh

    def predict(self, X: Floats, *, threads: int) -> tuple[NDArray[np.float64], LabelTable]:
        """Return (n, classes) frequencies in label order, or (n,) targets, and their labels."""
        if self.regression:
            return self.core.predict(X, threads=threads), self.labels
        labels = self.labels
        out = self.core.predict(X, threads=threads)
        while labels is not self.labels or not _covers(out, labels):
            with self.frozen():
                labels = self.labels
                out = self.core.predict(X, threads=threads)
        return np.ascontiguousarray(out[:, list(labels.order())]), labels

    def canonical(self) -> bytearray:
        """Return the canonical form; resolves all tags. Overwrite it when done."""
        with self.frozen():
            return self.core.canonical(self.labels.order())

    def digest(self) -> Digest:
        """Return the SHA-256 of the canonical form, remembered until the next change."""
        with self.frozen():
            if self._digest is None or self._digest[0] != self.version:
                body = self.canonical()
                self._digest = self.version, digest(body)
                wipe(body)
            return self._digest[1]

    def verify(self, certificate: Certificate) -> tuple[str, ...]:
        """Return what in this model contradicts a certificate, one line each."""
        with self.frozen():
            rows = self.core.rows()
            living = set(id_hashes(rows.ids, self.key))
            wipe_rows(rows)
            named = sum(hashed in living for hashed in certificate.id_hashes)
            claim = certificate.algorithm, certificate.guarantee, certificate.condition
            forgotten = certificate.rows_before - certificate.rows_after
            checks = {
                "it states another guarantee": claim == (ALGORITHM, GUARANTEE, CONDITION),
                "it belongs to another key": certificate.key_commitment == self._commitment,
                "it belongs to other hyper-parameters or columns": (
                    certificate.parameters_digest == self._parameters
                ),
                "its rows and ids do not add up": forgotten == len(certificate.id_hashes),
                f"{named} of its ids live in the model": not named,
                "the model is older than it": self.version >= certificate.version_after,
            }
            if self.version == certificate.version_after:
                classes = 0 if self.regression else self.labels.in_use
                checks["the model has another number of rows or classes"] = (
                    certificate.rows_after == self.n_rows and certificate.classes_after == classes
                )
                if certificate.state_digest is not None:
                    same = certificate.state_digest == self.digest().hex()
                    checks["the model has another state digest"] = same
            return tuple(wrong for wrong, right in checks.items() if not right)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Keep writers out for a block."""
        with self.lock:
            if self._under_way is not None:
                self._recover()
            yield

    def contradictions(self) -> tuple[str, ...]:
        """Return how the label table and the row count disagree with the rows; empty if not."""
        with self.frozen():
            found = [] if self.n_rows == self.core.n_rows else ["the number of rows is wrong"]
            if not self.regression:
                found += self.labels.contradictions(self.core.class_counts().tolist())
            return tuple(found)

    def _require_current(self) -> None:
        if self._under_way is not None:
            self._recover()
        if self.successor is not None:
            raise Superseded

    def _recover(self) -> None:
        """Bring what is remembered about the rows in line with them after a change broke off.

        An interrupt reaches Python at any line, so also between the change itself, which is done as
        a whole or not at all, and the lines that note it. May be interrupted and repeated.
        """
        if self._under_way is None:
            return
        table, version, rows = self._under_way
        now = self.core.n_rows
        if now != rows:
            counts = self.core.class_counts().tolist()
            self.labels = table if self.regression else table.living(counts)
            self._spare, self._digest = 0, None
        self.n_rows, self.version = now, version + (now != rows)
        self._under_way = None

    def _bad_request(self, error: UnlearningError, ids: Records) -> UnlearningError:
        """Return an error that says which positions of a request are wrong, never which ids."""
        repeated = repeats(ids)
        if len(repeated):
            return DuplicateIdError(repeated_message(repeated, len(ids)))
        living = self.core.contains(ids)
        if isinstance(error, UnknownIdError):
            return UnknownIdError(
                f"no living row has the id at {positions(np.flatnonzero(~living))} of {len(ids)}: "
                "never seen, or forgotten already; 7 and '7' are different ids, contains(ids) "
                "tells which live. Nothing was changed"
            )
        return DuplicateIdError(
            f"a living row has the id at {positions(np.flatnonzero(living))} of {len(ids)}; "
            "unlearn it first, or give another id. Nothing was changed"
        )

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
