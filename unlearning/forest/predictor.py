"""A forest that only answers: neither rows nor counts nor the key, so it cannot forget either."""

from __future__ import annotations

from os import PathLike
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from sklearn.base import BaseEstimator

from privml.errors import CorruptModelError, EmptyForestError, ModelVersionError
from privml.unlearning.forest import frames
from privml.unlearning.forest.audit import canonical_rows
from privml.unlearning.forest.flat import LEAF_ATTRIBUTE, FlatTrees, flatten
from privml.unlearning.forest.keys import CategoryKey
from privml.unlearning.forest.labels import LabelTable, check_label
from privml.unlearning.forest.model import ForestModel
from privml.unlearning.forest.params import MAX_DEPTH, MAX_TREES
from privml.unlearning.forest.persistence import (
    DEFAULT_LIMITS,
    Limits,
    read_model_file,
    write_model_file,
)
from privml.unlearning.forest.schema import Columns
from privml.unlearning.forest.scrub import wipe, wipe_rows
from privml.unlearning.forest.settings import Plain

VERSION = 1
_DESCRIPTION = "description"
_KINDS = {
    "roots": "int64",
    "attribute": "int32",
    "threshold": "float32",
    "left": "int64",
    "right": "int64",
    "missing_left": "bool",
    "kappa": "uint64",
    "draw": "int32",
    "values": "float64",
}


class PredictorDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a saved predictor has beside its arrays."""

    format: int
    version: int
    names: tuple[str, ...] | None
    categorical: tuple[bool, ...]
    category_key: bytes
    label_kind: str
    labels: tuple[Plain, ...]


class ForestPredictor(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """One version of a forest, for answering only; made by ``export_predictor()``.

    Parameters
    ----------
    trees
        Trees as flat arrays.
    columns
        Declared columns.
    category_key
        Hashes category names; independent of the forest's other secrets.
    labels
        Labels in sorted order; empty for regression.
    version
        Version of the model it was made from. A deletion makes it out of date.
    """

    def __init__(
        self,
        trees: FlatTrees,
        *,
        columns: Columns,
        category_key: CategoryKey,
        labels: LabelTable,
        version: int,
    ) -> None:
        self.trees, self.columns, self.category_key = trees, columns, category_key
        self.labels, self.version = labels, version
        self.n_features_in_ = len(columns.categorical)
        if columns.names is not None:
            self.feature_names_in_ = np.array(columns.names, dtype=object)

    @property
    def classes_(self) -> NDArray[Any]:
        """Sorted labels; empty for regression."""
        return self.labels.classes()

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return (n, classes) frequencies, equal to those of the forest bit for bit.

        Raises
        ------
        EmptyForestError
            The forest had no row.
        SchemaError
            The table does not fit the declared columns.
        """
        if not len(self.trees.roots):
            raise EmptyForestError("the predictor was made from a forest without rows")
        table = frames.read_table(self, X, reset=False, mixed=any(self.columns.categorical))
        return self.trees.predict(frames.encode_table(table, self.columns, self.category_key))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return (n,) labels or targets, equal to those of the forest bit for bit."""
        answers = self.predict_proba(X)
        if not self.labels.size:
            return answers[:, 0]
        labels: NDArray[Any] = self.classes_[answers.argmax(axis=1)]
        return labels

    def save(self, path: str | PathLike[str]) -> None:
        """Write the predictor as a safetensors file, durably, in place of an older one.

        Raises
        ------
        StorageError
            The file could not be written.
        """
        description = PredictorDescription(
            format=VERSION,
            version=self.version,
            names=self.columns.names,
            categorical=self.columns.categorical,
            category_key=self.category_key.secret,
            label_kind=self.labels.kind,
            labels=tuple(v for v in self.labels.values if v is not None),
        )
        text = np.frombuffer(msgspec.json.encode(description), dtype=np.uint8)
        arrays = {name: getattr(self.trees, name) for name in _KINDS}
        write_model_file(path, save({**arrays, _DESCRIPTION: text}))

    @classmethod
    def load(cls, path: str | PathLike[str], *, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Read a saved predictor; every index is checked before it is used.

        Raises
        ------
        CorruptModelError
            The file is damaged or is no predictor.
        ModelVersionError
            A newer version wrote it.
        StorageError
            It cannot be read.
        """
        try:
            arrays = load(bytes(read_model_file(path, limits)))
            text = arrays.pop(_DESCRIPTION).tobytes()
            description = msgspec.json.decode(text, type=PredictorDescription)
            if description.format > VERSION:
                raise ModelVersionError("a newer privml wrote this predictor; update privml")
            trees = FlatTrees(**arrays)
        except (SafetensorError, msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise CorruptModelError(f"this is no saved predictor: {error}") from error
        _check(trees, description)
        values = description.labels
        return cls(
            trees,
            columns=Columns(description.names, description.categorical),
            category_key=CategoryKey(description.category_key),
            labels=LabelTable(description.label_kind, values) if values else LabelTable(),
            version=description.version,
        )

    def __repr__(self) -> str:
        return f"ForestPredictor({len(self.trees.roots)} trees, version {self.version})"


def export_model(model: ForestModel) -> ForestPredictor:
    """Return the predictor of the current version of a model."""
    with model.frozen():
        body, labels, version = model.canonical(), model.labels, model.version
        params, rows = canonical_rows(model)
    wipe_rows(rows)
    trees = flatten(body, params, model.key)
    wipe(body)
    values = tuple(labels.values[c] for c in labels.order())
    return ForestPredictor(
        trees,
        columns=model.columns,
        category_key=model.key.category,
        labels=LabelTable(labels.kind, values),
        version=version,
    )


def _check(trees: FlatTrees, description: PredictorDescription) -> None:
    arrays = {name: getattr(trees, name) for name in _KINDS}
    nodes, p = len(trees.attribute), len(description.categorical)
    wrong = [n for n, a in arrays.items() if a.dtype != _KINDS[n] or a.ndim != 1 + (n == "values")]
    uneven = [n for n in _KINDS if n not in ("roots", "values") and len(arrays[n]) != nodes]
    if wrong or uneven:
        raise CorruptModelError(f"arrays of the predictor have wrong shapes: {wrong + uneven}")
    if len(trees.roots) > MAX_TREES or not (trees.roots < nodes).all():
        raise CorruptModelError("the predictor has too many trees, or trees without a root")
    leaf = trees.attribute == LEAF_ATTRIBUTE
    inner = np.flatnonzero(~leaf)
    ahead = [side[inner] for side in (trees.left, trees.right)]
    flags = np.array(description.categorical, dtype=bool)
    legal = (
        ((trees.attribute >= LEAF_ATTRIBUTE) & (trees.attribute < p)).all()
        and all(((side > inner) & (side < nodes)).all() for side in ahead)  # so no walk is endless
        and ((trees.left[leaf] >= 0) & (trees.left[leaf] < len(trees.values))).all()
        and ((trees.roots >= 0) & (trees.roots < nodes)).all()
        and ((trees.draw[inner] >= 0) == flags[trees.attribute[inner]]).all()
        and np.isfinite(trees.values).all()
        and not np.isnan(trees.threshold).any()
    )
    kind, labels = description.label_kind, description.labels
    named = all(check_label(kind, v) for v in labels) and list(labels) == sorted(set(labels))
    columns = description.names is None or len(description.names) == p
    width = trees.values.shape[1] == max(1, len(labels)) or not len(trees.roots)
    key = len(description.category_key) == 16
    if not (legal and named and columns and width and key and _shallow(trees)):
        raise CorruptModelError("the predictor's arrays or labels contradict each other")


def _shallow(trees: FlatTrees) -> bool:
    """Return whether no walk is longer than in a forest; asked when all indices are right."""
    level = np.unique(trees.roots)
    for _ in range(MAX_DEPTH + 1):
        level = level[trees.attribute[level] != LEAF_ATTRIBUTE]
        if not len(level):
            return True
        level = np.unique(np.concatenate([trees.left[level], trees.right[level]]))
    return not (trees.attribute[level] != LEAF_ATTRIBUTE).any()
