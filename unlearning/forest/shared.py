"""What both estimators share: fitting, learning, forgetting, evidence and files."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags

from privml.errors import SchemaError
from privml.unlearning.base import Impact
from privml.unlearning.forest import frames
from privml.unlearning.forest.audit import AuditReport, Level, audit_model
from privml.unlearning.forest.certificate import Certificate, id_hashes
from privml.unlearning.forest.ids import Records, decode_ids, encode_ids, require_distinct
from privml.unlearning.forest.keys import ForestKey, resolve_key
from privml.unlearning.forest.labels import LabelTable
from privml.unlearning.forest.model import ForestModel, Superseded
from privml.unlearning.forest.params import REGRESSION
from privml.unlearning.forest.persistence import (
    DEFAULT_LIMITS,
    Kind,
    Limits,
    dump_model,
    load_model,
    read_model_file,
    write_model_file,
)
from privml.unlearning.forest.predictor import ForestPredictor, export_model
from privml.unlearning.forest.reference import Floats
from privml.unlearning.forest.scrub import wipe, wipe_copy, wipe_rows
from privml.unlearning.forest.settings import (
    Settings,
    constructor_arguments,
    forest_params,
    settings_of,
    thread_count,
    time_budget,
)

Ids: TypeAlias = Iterable[Any] | Literal["index"]
"""Ids of rows, or where to take them from."""

_COLUMNS = ("n_features_in_", "feature_names_in_")


class DynForest(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the two estimators; use one of them."""

    n_estimators: int
    occurrence: float
    max_depth: int | None
    n_thresholds: int
    max_features: int | float | str | None
    min_samples_split: int
    categorical_features: Iterable[Any] | str | None
    random_state: int | None
    key: Any
    n_jobs: int | None

    def fit(self, X: ArrayLike, y: ArrayLike, *, ids: Ids | None = None) -> Self:
        """Train on a table; everything learned before is dropped.

        Parameters
        ----------
        X
            (n, p) numbers, NaN where missing; float64 is rounded to float32. Categorical columns
            as declared. Arrays and data frames.
        y
            (n,) labels, or finite targets.
        ids
            n distinct ids, integers, texts or UUIDs, in the order of the rows; ``"index"`` for
            the index of the data frame; None for 0..n-1, **whatever the index is** (a warning says
            so if it is another).

        Raises
        ------
        SchemaError
            Table, targets, ids or hyper-parameters are not usable; the message names which.
        DuplicateIdError
            An id occurs twice.
        """
        mine = self.__dict__
        before = {name: mine[name] for name in _COLUMNS if name in mine}
        try:
            model = self._trained(X, y, ids)
            self._settings = settings_of(self.get_params(deep=False))
            self._model = model
        except BaseException:
            for name in _COLUMNS:
                mine.pop(name, None)
            mine.update(before)
            raise
        return self

    def learn(self, X: ArrayLike, y: ArrayLike, ids: Ids | None = None) -> Self:
        """Add rows; the forest is then the one that a fit on all living rows gives.

        Parameters
        ----------
        X, y
            As for :meth:`fit`, with the same columns.
        ids
            Ids of the new rows, ``"index"`` for the index of the data frame. None takes the
            integers after the largest living integer id, which may be one that was used and
            forgotten; give ids if certificates must name rows for good.

        Raises
        ------
        SchemaError
            Table, targets or ids are not usable. Nothing was learned.
        DuplicateIdError
            An id is repeated or that of a living row. Nothing was learned.
        """
        ids = _kept(ids)
        while True:
            model = self._fitted()
            features = self._encode(X, model)
            target = self._read_y(y, n=len(features), bits=model.params.target_bits)
            records = _records(X, ids, model.key, n=len(features))
            try:
                model.learn(features, target, records)
            except Superseded:
                wipe(features)
            else:
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
        ids = _kept(ids)
        while True:
            model = self._fitted()
            records = encode_ids(ids, model.key)
            try:
                return model.unlearn(records, with_digest=digest)
            except Superseded:
                continue
            finally:
                wipe(records)

    def affected(self, ids: Iterable[Any]) -> Impact:
        """Return the trees that hold each id, or would hold it; changes nothing."""
        model = self._fitted()
        records = encode_ids(ids, model.key)
        trees = model.core.affected(records)
        wipe(records)
        return Impact("tree", trees)

    def contains(self, ids: Iterable[Any]) -> NDArray[np.bool_]:
        """Return which ids are those of living rows."""
        model = self._fitted()
        records = encode_ids(ids, model.key)
        living = model.core.contains(records)
        wipe(records)
        return living

    def id_hashes(self, ids: Iterable[Any]) -> tuple[str, ...]:
        """Return the keyed hashes under which certificates of this model name ``ids``."""
        model = self._fitted()
        records = encode_ids(ids, model.key)
        hashes = id_hashes(records, model.key)
        wipe(records)
        return hashes

    def verify(self, certificate: Certificate) -> tuple[str, ...]:
        """Compare this model with a certificate of a deletion.

        Key, hyper-parameters and columns must be those of the certificate, none of its ids may
        live here, and the model must not be older. If it has the certificate's version, numbers of
        rows and classes are compared as well, and the state digest if the certificate has one.

        Returns
        -------
        tuple of str
            What contradicts the certificate, one line each; empty if nothing does.
        """
        return self._fitted().verify(certificate)

    def state_digest(self) -> str:
        """Return the SHA-256 of the canonical form (rows, key, parameters, every tree), in hex.

        64 digits, as certificates and audit reports hold them. Resolves all tags. Equal digests
        mean equal models, bit for bit.
        """
        return self._fitted().digest().hex()

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
        return self._fitted().core.resolve(time_budget(budget_s))

    def purge(self) -> None:
        """Overwrite all memory that deletions freed and lay the forest out as a fresh fit does."""
        model = self._fitted()
        with model.frozen():
            model.core.purge()

    def compact(self) -> None:
        """Do the same as :meth:`purge`."""
        self.purge()

    def export_predictor(self) -> ForestPredictor:
        """Return a model of this version that only answers: no rows, no counts, no key.

        It cannot forget. Issue a new one after a deletion and have the old one destroyed.
        """
        return export_model(self._fitted())

    def rekey(self) -> Self:
        """Retrain on the living rows under a fresh secret key, ``key_`` from then on.

        Raises
        ------
        UnsupportedError
            Ids or categories are texts, of which only hashes under the old key are left.
        """
        self._model = self._fitted().rekeyed(threads=thread_count(self.n_jobs))
        return self

    def memory_usage(self) -> Mapping[str, int]:
        """Return bytes per part of the forest, and under ``"total"`` their sum."""
        return self._fitted().core.memory()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the model durably, in place of an older file; mode 0600.

        The file holds the living rows and the key. Rows that were forgotten are not in it.
        Arguments are saved as they were at the fit, whatever ``set_params`` did since.

        Raises
        ------
        ModelUnusable
            The model contradicts itself, so that no reader would accept the file.
        StorageError
            The file could not be written; the old one, if any, is whole.
        """
        data = dump_model(self._fitted(), self._settings)
        try:
            write_model_file(path, data)
        finally:
            wipe(data)

    @classmethod
    def load(
        cls, path: str | PathLike[str], *, limits: Limits = DEFAULT_LIMITS, n_jobs: int = 1
    ) -> Self:
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
        estimator = cls()
        kind: Kind = "regressor" if estimator._task() == REGRESSION else "classifier"
        threads, data = thread_count(n_jobs), read_model_file(path, limits)
        try:
            model, description = load_model(data, limits=limits, threads=threads, kind=kind)
        finally:
            wipe(data)
        arguments = constructor_arguments(description.settings, model.key)
        known = estimator.get_params(deep=False)
        estimator.set_params(**{name: v for name, v in arguments.items() if name in known})
        estimator._adopt(model, description.settings)
        return estimator

    @property
    def key_(self) -> ForestKey:
        """Key of the fitted forest; shown redacted."""
        return self._fitted().key

    @property
    def ids_(self) -> NDArray[Any]:
        """Ids of the living rows in canonical order; a text, which is not kept, as its hash."""
        rows = self._fitted().core.rows()
        ids = decode_ids(rows.ids)
        wipe_rows(rows)
        return ids

    @property
    def n_live_(self) -> int:
        """Number of living rows."""
        return self._fitted().n_rows

    @property
    def version_(self) -> int:
        """Number of changes since and including the fit."""
        return self._fitted().version

    @abstractmethod
    def _task(self) -> int: ...

    @abstractmethod
    def _labels(self) -> LabelTable: ...

    @abstractmethod
    def _read_y(self, y: ArrayLike, *, n: int, bits: int) -> NDArray[Any]: ...

    def _trained(self, X: ArrayLike, y: ArrayLike, ids: Ids | None) -> ForestModel:
        key = resolve_key(self.key, self.random_state)
        mixed = self.categorical_features is not None
        table = frames.read_table(self, X, reset=True, mixed=mixed)
        columns = frames.declare_columns(self, table, self.categorical_features)
        features = frames.encode_table(table, columns, key.category)
        wipe_copy(table, X)
        labels, given = self._labels(), self.get_params(deep=False)
        params = forest_params(given, task=self._task(), columns=columns, labels=labels)
        target = self._read_y(y, n=len(features), bits=params.target_bits)
        model = ForestModel(params, key, columns=columns, labels=labels)
        records = _records(X, ids, key, n=len(features))
        model.fit(features, target, records, threads=thread_count(self.n_jobs))
        return model

    def _fitted(self) -> ForestModel:
        model: ForestModel | None = getattr(self, "_model", None)
        if model is None:
            raise NotFittedError(f"this {type(self).__name__} is not fitted yet; call fit first")
        while model.successor is not None:
            model = model.successor
        return model

    def _encode(self, X: ArrayLike, model: ForestModel) -> Floats:
        mixed = any(model.columns.categorical)
        table = frames.read_table(self, X, reset=False, mixed=mixed)
        features = frames.encode_table(table, model.columns, model.key.category)
        wipe_copy(table, X)
        return features

    def _predict(self, X: ArrayLike) -> tuple[NDArray[np.float64], LabelTable]:
        model = self._fitted()
        return model.predict(self._encode(X, model), threads=thread_count(self.n_jobs))

    def _adopt(self, model: ForestModel, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self.n_features_in_ = model.params.n_features
        if model.columns.names is not None:
            self.feature_names_in_ = np.array(model.columns.names, dtype=object)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_model")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """Return constructor arguments and the file form, so that nothing forgotten rides along."""
        params = self.get_params(deep=False)
        model: ForestModel | None = getattr(self, "_model", None)
        saved = None if model is None else bytes(dump_model(model, self._settings))
        return {"params": params, "model": saved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore through the validating loader."""
        for name, value in state["params"].items():
            setattr(self, name, value)
        if state["model"] is not None:
            threads = thread_count(self.n_jobs)
            model, found = load_model(state["model"], limits=DEFAULT_LIMITS, threads=threads)
            self._adopt(model, found.settings)


def _kept(ids: Any) -> Any:  # noqa: ANN401 - whatever the caller named rows with
    """Return ids that can be read twice."""
    return list(ids) if isinstance(ids, Iterator) else ids


def _records(X: object, ids: Ids | None, key: ForestKey, *, n: int) -> Records | None:
    given = frames.row_names(X, ids)
    if given is None:
        return None
    records = encode_ids(given, key)
    if len(records) != n:
        raise SchemaError(f"ids has {len(records)} entries for {n} rows; give one per row")
    require_distinct(records)
    return records
