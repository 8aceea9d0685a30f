"""What both estimators share: fitting, learning, forgetting, evidence and files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from math import isqrt
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags

from privml._typing import Digest
from privml.errors import SchemaError
from privml.unlearning.base import Impact
from privml.unlearning.forest import frames
from privml.unlearning.forest.audit import AuditReport, Level, audit_model
from privml.unlearning.forest.certificate import Certificate, id_hashes
from privml.unlearning.forest.ids import Records, decode_ids, encode_ids, require_distinct
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.labels import LabelTable
from privml.unlearning.forest.model import ForestModel
from privml.unlearning.forest.params import REGRESSION, ForestParams, trees_per_row
from privml.unlearning.forest.persistence import Limits, dump_model, load_model
from privml.unlearning.forest.schema import Columns
from privml.storage.publish import atomic_write


class DynForest(BaseEstimator):
    """Base of the two estimators; use one of them."""

    n_estimators: int
    occurrence: float
    max_depth: int
    n_thresholds: int
    max_features: int | None
    min_samples_split: int
    categorical_features: Iterable[Any] | str | None
    random_state: int | None
    key: Any
    n_jobs: int | None

    def fit(self, X: ArrayLike, y: ArrayLike, *, ids: Iterable[Any] | None = None) -> Self:
        """Train on a table; everything learned before is dropped.

        Parameters
        ----------
        X
            (n, p) numbers, NaN where missing; float64 is rounded to float32. Categorical columns
            as declared. Arrays and data frames.
        y
            (n,) labels, or finite targets.
        ids
            n distinct ids, integers or texts, in the order of the rows; None for 0..n-1.

        Raises
        ------
        SchemaError
            Table, targets, ids or hyper-parameters are not usable; the message names which.
        DuplicateIdError
            An id occurs twice.
        """
        key = resolve_key(self.key, self.random_state)
        mixed = self.categorical_features is not None
        table = frames.read_table(self, X, reset=True, mixed=mixed)
        columns = frames.declare_columns(self, table, self.categorical_features)
        features = frames.encode_table(table, columns, key)
        target = self._read_y(y, len(features))
        labels = self._labels()
        model = ForestModel(
            self._parameters(columns, labels), key, columns=columns, labels=labels
        )
        records = None if ids is None else _named(ids, key, n=len(features))
        model.fit(features, target, records, threads=thread_count(self.n_jobs))
        self._model = model
        return self

    def learn(self, X: ArrayLike, y: ArrayLike, ids: Iterable[Any] | None = None) -> Self:
        """Add rows; the forest is then the one that a fit on all living rows gives.

        Parameters
        ----------
        X, y
            As for :meth:`fit`, with the same columns.
        ids
            Ids of the new rows. None takes the integers after the largest living integer id, which
            may be one that was used and forgotten; give ids if certificates must name rows for
            good.

        Raises
        ------
        SchemaError
            Table, targets or ids are not usable. Nothing was learned.
        DuplicateIdError
            An id is repeated or that of a living row. Nothing was learned.
        """
        model = self._fitted()
        features = self._encode(X)
        target = self._read_y(y, len(features))
        records = None if ids is None else _named(ids, model.key, n=len(features))
        model.learn(features, target, records)
        return self

    def unlearn(self, ids: Iterable[Any], *, digest: bool = False) -> Certificate:
        """Forget rows, all or none; the forest is then the one that a fit on the rest gives.

        Parameters
        ----------
        ids
            Ids of living rows.
        digest
            Put the state digest into the certificate. It resolves all tags, which takes far
            longer than the deletion.

        Returns
        -------
        Certificate
            Evidence; ``persisted`` is false until a file without the rows was saved.

        Raises
        ------
        UnknownIdError
            An id is not that of a living row. Nothing was forgotten.
        DuplicateIdError
            An id is repeated. Nothing was forgotten.
        SchemaError
            Something that cannot be an id.
        """
        model = self._fitted()
        return model.unlearn(encode_ids(ids, model.key), with_digest=digest)

    def affected(self, ids: Iterable[Any]) -> Impact:
        """Return the trees that hold each id, or would hold it; changes nothing."""
        model = self._fitted()
        return Impact("tree", model.core.affected(encode_ids(ids, model.key)))

    def contains(self, ids: Iterable[Any]) -> NDArray[np.bool_]:
        """Return which ids are those of living rows."""
        model = self._fitted()
        return model.core.contains(encode_ids(ids, model.key))

    def id_hashes(self, ids: Iterable[Any]) -> tuple[str, ...]:
        """Return the keyed hashes under which certificates of this model name ``ids``."""
        model = self._fitted()
        return id_hashes(encode_ids(ids, model.key), model.key)

    def state_digest(self) -> Digest:
        """Return the SHA-256 of the canonical form: rows, key, parameters and every tree.

        Resolves all tags. Equal digests mean equal models, bit for bit.
        """
        return self._fitted().digest()

    def audit(self, level: Level = "structure") -> AuditReport:
        """Check the forest against its definition; see :data:`privml.unlearning.forest.Level`."""
        return audit_model(self._fitted(), level)

    def resolve(self, budget_s: float | None = None) -> bool:
        """Make decisions that deletions put off, for at most ``budget_s`` seconds.

        Returns
        -------
        bool
            Whether none is left. The model is the same before and after.
        """
        return self._fitted().core.resolve(budget_s)

    def purge(self) -> None:
        """Overwrite all memory that deletions freed and lay the forest out as a fresh fit does."""
        model = self._fitted()
        with model.frozen():
            model.core.purge()

    def compact(self) -> None:
        """Do the same as :meth:`purge`."""
        self.purge()

    def memory_usage(self) -> Mapping[str, int]:
        """Return bytes per part of the forest, and under ``"total"`` their sum."""
        return self._fitted().core.memory()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model durably, in place of an older file; mode 0600.

        The file holds the living rows and the key. Rows that were forgotten are not in it.

        Raises
        ------
        StorageError
            The file could not be written; the old one, if any, is whole.
        """
        atomic_write(Path(path), dump_model(self._fitted(), self._settings()))

    @classmethod
    def load(cls, path: str | PathLike[str], *, limits: Limits = Limits(), n_jobs: int = 1) -> Self:
        """Read a saved model, retrain it from its rows and compare every byte.

        Parameters
        ----------
        path
            File written by :meth:`save`.
        limits
            Largest file and forest that are accepted.
        n_jobs
            Threads for retraining.

        Raises
        ------
        CorruptModelError
            The file is damaged, not a model of this class, beyond the limits, or its trees do not
            follow from its rows and key.
        ModelVersionError
            A newer version wrote it.
        StorageError
            It cannot be read.
        """
        return cls._from_bytes(read_model_file(path, limits), limits, thread_count(n_jobs))
