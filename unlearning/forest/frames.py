"""Reading tables through scikit-learn's checks: names, shapes, numbers and categories."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    column_or_1d,
    validate_data,
)

from privml.errors import PrivmlError, SchemaError
from privml.unlearning.forest.keys import CategoryKey
from privml.unlearning.forest.messages import harmless, plain_labels, text_columns, undeclared
from privml.unlearning.forest.reference import Floats
from privml.unlearning.forest.schema import (
    Columns,
    Frame,
    categorical_flags,
    encode_categories,
    is_frame,
    is_text,
    to_float32,
)

_NUMBERS: Final[dict[str, Any]] = {
    "dtype": (np.float64, np.float32),
    "ensure_all_finite": "allow-nan",
    "order": "C",
}

INDEX: Final = "index"
_FEW: Final = 64
"""Below so many rows a column is encoded value by value."""

Table: TypeAlias = "NDArray[Any] | Frame"
"""A checked table: two-dimensional array or data frame."""


class WrongTypeError(SchemaError, TypeError):
    """A table or column of a type that holds no numbers; a ``TypeError`` as scikit-learn's is."""


@contextmanager
def schema_errors() -> Iterator[None]:
    """Turn the errors of a scikit-learn check into a :class:`SchemaError` that quotes no data."""
    try:
        yield
    except PrivmlError:
        raise
    except TypeError as error:
        raise WrongTypeError(harmless(error)) from None
    except OverflowError as error:
        raise SchemaError(f"{harmless(error)}; rescale the numbers by a constant") from None
    except ValueError as error:
        raise SchemaError(harmless(error)) from None


def refuse_dates(name: str, values: object) -> None:
    """Refuse dates, spans of time and masked values: as numbers they would be something else.

    Raises
    ------
    SchemaError
        The message says what to turn them into.
    """
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise SchemaError(
            f"{name} has masked values; use {name}.filled(np.nan) for missing features, and leave "
            "rows without a target out"
        )
    if getattr(getattr(values, "dtype", None), "kind", "") in tuple("mM"):
        raise WrongTypeError(
            f"{name} holds dates or spans of time; turn them into numbers, for example days"
        )


def read_table(estimator: BaseEstimator, X: ArrayLike, *, reset: bool, mixed: bool) -> Table:
    """Check shape and column names, and the numbers of a purely numeric table.

    Parameters
    ----------
    estimator
        Its ``n_features_in_`` and ``feature_names_in_`` are set or compared.
    X
        Array-like or data frame.
    reset
        Whether this is the table that defines the columns.
    mixed
        Whether categorical columns may occur, so that values are checked column by column.

    Raises
    ------
    SchemaError
        Shape, names, or a value that is no finite number (NaN is allowed).
    TypeError
        The table is sparse.
    """
    if not (reset or mixed) and isinstance(X, np.ndarray) and _plain(estimator, X):
        return X
    _refuse_odd_table(X)
    if not mixed:
        return _numbers(X, lambda: validate_data(estimator, X=X, reset=reset, **_NUMBERS))
    with schema_errors():
        table: Table
        if is_frame(X):
            table = X
        else:
            values = X if isinstance(X, np.ndarray) else np.array(X, dtype=object)
            table = check_array(values, dtype=None, ensure_all_finite=False, estimator=estimator)
        validate_data(estimator, X=table, reset=reset, skip_check_array=True)
        if not _length(table):
            raise SchemaError("Found array with 0 sample(s) while a minimum of 1 is required.")
    return table


def _numbers(X: object, check: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Return what a check gives; if columns hold texts, say so rather than what it says."""
    try:
        with schema_errors():
            return check()
    except SchemaError:
        named = text_columns(X)
        if not named:
            raise
    raise SchemaError(undeclared(named))


def _refuse_odd_table(X: object) -> None:
    if hasattr(X, "toarray"):
        raise WrongTypeError(
            "Sparse data was passed for X, but dense data is required; use X.toarray()"
        )
    refuse_dates("X", X)
    if is_frame(X):
        for a, dtype in enumerate(X.dtypes):
            if getattr(dtype, "kind", "") in tuple("mM"):
                refuse_dates(f"column {str(X.columns[a])!r}", X.iloc[:, a])


def _plain(estimator: BaseEstimator, X: NDArray[Any]) -> bool:
    """Return whether a table needs no further check: spares a single row 50 microseconds."""
    return (
        type(X) is np.ndarray
        and X.dtype in (np.float32, np.float64)
        and X.ndim == 2
        and X.shape[0] > 0
        and X.shape[1] == estimator.n_features_in_
        and not hasattr(estimator, "feature_names_in_")
        and not np.isinf(X).any()
    )


def row_names(X: object, ids: Iterable[Any] | None) -> Iterable[Any] | None:
    """Return the ids of the rows of ``X``: its index if ``ids`` is ``"index"``.

    Raises
    ------
    SchemaError
        The index is asked for and ``X`` has none.
    """
    if isinstance(ids, str) and ids == INDEX:
        if not is_frame(X):
            raise SchemaError(f"ids='index' needs a data frame, not {type(X).__name__}")
        return list(X.index)
    if ids is None and is_frame(X) and not _counts_from_zero(X.index):
        warnings.warn(
            "the index of the data frame is not used: rows without ids are numbered; give "
            "ids='index' to name rows by it, or ids=range(len(X))",
            UserWarning,
            stacklevel=5,
        )
    return ids


def _counts_from_zero(index: Any) -> bool:  # noqa: ANN401 - an index of a foreign frame
    return getattr(index.dtype, "kind", "") in "iu" and np.array_equal(index, np.arange(len(index)))


def declare_columns(estimator: BaseEstimator, table: Table, spec: object) -> Columns:
    """Return the columns of the table that defines them; see ``categorical_features``."""
    p = int(estimator.n_features_in_)
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None and not all(map(is_text, names)):
        raise SchemaError("a column name is no valid Unicode text; rename the column")
    flags = categorical_flags(spec, table, p=p)
    return Columns(None if names is None else tuple(map(str, names)), flags)


def encode_table(table: Table, columns: Columns, key: CategoryKey) -> Floats:
    """Return a checked table as (n, p) float32 in C order, categories as codes.

    Raises
    ------
    SchemaError
        A value does not fit its column; the message names it.
    """
    everything = range(len(columns.categorical))
    numeric = [a for a in everything if not columns.categorical[a]]
    if (
        isinstance(table, np.ndarray)
        and table.dtype.kind == "f"
        and len(numeric) == len(everything)
    ):
        return to_float32(table, columns, positions=everything)
    out = np.empty((_length(table), len(everything)), dtype=np.float32)
    if numeric:
        for a in numeric:
            refuse_dates(columns.label(a), _plain_column(table, a))
        taken = _take(table, numeric)
        part = _numbers(taken, partial(check_array, taken, input_name="X", **_NUMBERS))
        out[:, numeric] = to_float32(part, columns, positions=numeric)
    for a in everything:
        if columns.categorical[a]:
            out[:, a] = _codes(table, columns, key, column=a)
    return out


def _codes(table: Table, columns: Columns, key: CategoryKey, *, column: int) -> Floats:
    """Return the codes of one categorical column; a typed frame column by its distinct values."""
    if isinstance(table, np.ndarray) or _length(table) < _FEW:
        return encode_categories(_column(table, column), columns, key, column=column)
    values = table.iloc[:, column]
    if isinstance(values.dtype, np.dtype):
        return encode_categories(_column(table, column), columns, key, column=column)
    places, distinct = values.factorize()  # those that occur; missing ones at place -1
    coded = encode_categories(np.asarray(distinct, dtype=object), columns, key, column=column)
    out: Floats = np.append(coded, np.float32(np.nan))[places]
    return out


def read_labels(y: ArrayLike, *, n: int) -> NDArray[Any]:
    """Return (n,) class labels.

    Raises
    ------
    SchemaError
        Missing, of wrong length or shape, continuous, NaN or infinite.
    """
    with schema_errors():
        labels = _column_of(y, n)
        check_classification_targets(labels)
    return labels


def read_targets(y: ArrayLike, *, n: int) -> NDArray[np.float64]:
    """Return (n,) finite float64 targets.

    Raises
    ------
    SchemaError
        Missing, of wrong length or shape, not a number, NaN or infinite.
    """
    with schema_errors():
        targets = _column_of(y, n)
        if targets.dtype.kind not in "biuf":
            targets = targets.astype(np.float64)
            check_array(targets, ensure_2d=False, input_name="y")
        return targets.astype(np.float64, copy=False)


def _column_of(y: ArrayLike, n: int) -> NDArray[Any]:
    if y is None:
        raise SchemaError("the estimator requires y to be passed, but the target y is None")
    refuse_dates("y", y)
    column: NDArray[Any] = column_or_1d(plain_labels(y), warn=True)
    refuse_dates("y", column)
    if column.dtype.kind in "fc":
        check_array(column, ensure_2d=False, dtype=None, input_name="y")
    check_consistent_length(range(n), column)
    return column


def _length(table: Table) -> int:
    return len(table) if isinstance(table, np.ndarray) else len(table.iloc[:, 0])


def _take(table: Table, columns: list[int]) -> Any:  # noqa: ANN401 - a part of a foreign frame
    return table[:, columns] if isinstance(table, np.ndarray) else table.iloc[:, columns]


def _plain_column(table: Table, column: int) -> object:
    return table if isinstance(table, np.ndarray) else table.iloc[:, column]


def _column(table: Table, column: int) -> NDArray[Any]:
    if isinstance(table, np.ndarray):
        return table[:, column]
    values = table.iloc[:, column]
    kind = getattr(values.dtype, "kind", "O") if isinstance(values.dtype, np.dtype) else "O"
    return np.asarray(values) if kind in "iufb" else np.asarray(values, dtype=object)
