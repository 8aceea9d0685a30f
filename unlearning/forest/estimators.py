"""Forests that forget: scikit-learn estimators over the exactly unlearnable forest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin, RegressorMixin

from privml.unlearning.forest.frames import read_labels, read_targets
from privml.unlearning.forest.labels import LabelTable
from privml.unlearning.forest.params import CLASSIFICATION, REGRESSION
from privml.unlearning.forest.schema import fixed_point
from privml.unlearning.forest.shared import DynForest


class DynForestClassifier(ClassifierMixin, DynForest):  # type: ignore[misc]
    """A forest classifier that forgets rows exactly and in microseconds.

    The fitted forest is a pure function of its living rows (with their ids), its key and its
    hyper-parameters: after any sequence of :meth:`learn` and :meth:`unlearn` each tree is
    bit-identical to a fresh :meth:`fit` on the remaining rows, and :meth:`state_digest` says so.

    Parameters
    ----------
    n_estimators
        Number of trees, 1 to 65536.
    occurrence
        Share of the trees that hold a row, 0 < q <= 1. 0.2 is accurate with 100 trees or more;
        0.1 halves the cost of everything for some tenths of a point of accuracy (see the guide).
    max_depth
        Deepest level of a node, 0 to 255; None for 255.
    n_thresholds
        Candidate thresholds per attribute of a node.
    max_features
        Attributes per node: a number, a share of the p columns (float in (0, 1]), ``"sqrt"``,
        ``"log2"``, or None for floor(sqrt(p)) + 1.
    min_samples_split
        Smallest node that is split, at least 2.
    categorical_features
        Categorical columns: list of names or positions, mask, ``"from_dtype"`` or None.
        Their values are texts, integers from 0 to 2^23 - 1, or missing.
    classes
        Public list of all classes that may ever occur; None for the classes of the living rows.
    random_state
        None, or an integer from which the key is derived reproducibly. **A key from a number that
        others can guess is not secret.**
    key
        None, 32 bytes, or the ``key_`` of another model; takes precedence over ``random_state``.
    n_jobs
        Threads for fitting and for predictions on many rows; -1 for all cores.

    Attributes
    ----------
    classes_
        Sorted labels of the living rows, or the declared ones. Shrinks with its rows.
    key_
        The key in use; ``DynForestClassifier(..., key=model.key_).fit(remaining)`` is the retrain
        oracle.
    ids_, n_live_, version_
        Ids of the living rows (a text only as its hash), their number, number of changes.
    n_features_in_, feature_names_in_
        Declared columns.

    Notes
    -----
    Ids are integers or texts and name rows; a row is deleted by its id, never by its values. A row
    that is learned again under its old id gives the old model again. ``sample_weight`` is not
    offered: each row lives in trees of its own, so weight two is not the same as a second copy.
    Nor is ``class_weight``: balanced weights follow the class counts, so that one deletion would
    change the weight of every row and thereby every tree. Shift the threshold on
    :meth:`predict_proba` instead.
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        occurrence: float = 0.2,
        max_depth: int | None = 20,
        n_thresholds: int = 10,
        max_features: int | float | str | None = None,
        min_samples_split: int = 10,
        categorical_features: Iterable[Any] | str | None = None,
        classes: Iterable[Any] | None = None,
        random_state: int | None = None,
        key: Any = None,  # noqa: ANN401 - bytes or ForestKey, checked at fit
        n_jobs: int | None = 1,
    ) -> None:
        self.n_estimators = n_estimators
        self.occurrence = occurrence
        self.max_depth = max_depth
        self.n_thresholds = n_thresholds
        self.max_features = max_features
        self.min_samples_split = min_samples_split
        self.categorical_features = categorical_features
        self.classes = classes
        self.random_state = random_state
        self.key = key
        self.n_jobs = n_jobs

    @property
    def classes_(self) -> NDArray[Any]:
        """Sorted labels of the living rows, or the declared ones."""
        return self._fitted().labels.classes()

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return (n, classes) float64: the mean over non-empty trees of the leaf's frequencies.

        Raises
        ------
        EmptyForestError
            No row is left.
        SchemaError
            The table does not fit the declared columns.
        """
        return self._predict(X)[0]

    def predict_log_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the natural logarithm of :meth:`predict_proba`, -inf where that is 0."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return (n,) labels: the most frequent class, the first of equal ones.

        Raises
        ------
        EmptyForestError
            No row is left.
        SchemaError
            The table does not fit the declared columns.
        """
        frequencies, labels = self._predict(X)
        answer: NDArray[Any] = labels.classes()[frequencies.argmax(axis=1)]
        return answer

    def _task(self) -> int:
        return CLASSIFICATION

    def _labels(self) -> LabelTable:
        return LabelTable() if self.classes is None else LabelTable.declare(self.classes)

    def _read_y(self, y: ArrayLike, *, n: int, bits: int) -> NDArray[Any]:
        del bits
        return read_labels(y, n=n)


class DynForestRegressor(RegressorMixin, DynForest):  # type: ignore[misc]
    """A forest regressor that forgets rows exactly and in microseconds.

    See :class:`DynForestClassifier` for the guarantee and the common parameters.

    Parameters
    ----------
    target_bits
        Fractional bits of the targets, 0 to 40: they are held as integers round(y * 2^target_bits)
        below 2^47, because sums of integers forget exactly and sums of floats do not.

    Attributes
    ----------
    key_, ids_, n_live_, version_, n_features_in_, feature_names_in_
        As for the classifier.
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        occurrence: float = 0.2,
        max_depth: int | None = 20,
        n_thresholds: int = 10,
        max_features: int | float | str | None = None,
        min_samples_split: int = 10,
        categorical_features: Iterable[Any] | str | None = None,
        target_bits: int = 20,
        random_state: int | None = None,
        key: Any = None,  # noqa: ANN401 - bytes or ForestKey, checked at fit
        n_jobs: int | None = 1,
    ) -> None:
        self.n_estimators = n_estimators
        self.occurrence = occurrence
        self.max_depth = max_depth
        self.n_thresholds = n_thresholds
        self.max_features = max_features
        self.min_samples_split = min_samples_split
        self.categorical_features = categorical_features
        self.target_bits = target_bits
        self.random_state = random_state
        self.key = key
        self.n_jobs = n_jobs

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return (n,) float64: the mean over non-empty trees of the leaf's mean target.

        Raises
        ------
        EmptyForestError
            No row is left.
        SchemaError
            The table does not fit the declared columns.
        """
        return self._predict(X)[0]

    def _task(self) -> int:
        return REGRESSION

    def _labels(self) -> LabelTable:
        return LabelTable()

    def _read_y(self, y: ArrayLike, *, n: int, bits: int) -> NDArray[Any]:
        return fixed_point(read_targets(y, n=n), bits)
