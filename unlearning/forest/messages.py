"""Messages about tables and labels that name places and kinds, never values of the data."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privml.errors import SchemaError
from privml.unlearning.forest.schema import is_frame

SHOWN: Final = 5
_HARMLESS: Final = (
    "Complex data not supported", "Found array with", "Found input variables", "Input X contains",
    "Input y contains", "Input contains", "Sparse data was passed", "Unknown label type",
    "X does not contain", "X has", "dtype='numeric'", "y should be a 1d array",
    "float() argument must be", "must be real number, not", "int too large",
)  # fmt: skip
"""Beginnings of texts of scikit-learn and numpy that show shapes, names and types only."""


def harmless(error: Exception) -> str:
    """Return what an error of a foreign check says, without any value of the data.

    Texts of scikit-learn and numpy may quote what they were given, and error messages end in logs.
    """
    text = str(error)
    first = text.split("\n", 1)[0]
    if first.startswith("The feature names should match"):
        return text
    if first.startswith(("Expected 2D array", "Expected 2D input")):
        kind = first.partition(", got")[2].strip(" :")
        return (
            f"Expected 2D array, got {kind}. Reshape your data: X[None, :] if it is one row, "
            "X[:, None] if it is one column"
        )
    if first.startswith(_HARMLESS) and "array(" not in first:
        return first
    if "string to float" in first:
        return "a value is a text and no number"
    return f"values that cannot be used as numbers or labels ({type(error).__name__})"


def text_columns(X: object) -> list[str]:
    """Return how messages name the columns of a table that hold texts which are no numbers."""
    if is_frame(X):
        names = [repr(str(name)) for name in X.columns]
        columns = [X.iloc[:, a] for a in range(len(names))]
    else:
        table = X if isinstance(X, np.ndarray) else _table(X)
        if table is None or table.ndim != 2 or table.dtype.kind not in "OUS":
            return []
        names = [str(a) for a in range(table.shape[1])]
        columns = list(table.T)
    return [
        name for name, column in zip(names, columns, strict=True)
        if any(map(_is_word, np.asarray(column, dtype=object).tolist()))
    ]  # fmt: skip


def undeclared(names: list[str]) -> str:
    """Return the message about columns of texts that were not declared."""
    shown = ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
    return (
        f"column{'s' if len(names) > 1 else ''} {shown}: texts where numbers are expected; name "
        f"columns of texts at the fit, categorical_features=[{shown}], or with a data frame say "
        "categorical_features='from_dtype'"
    )


def plain_labels(y: Any) -> Any:  # noqa: ANN401 - whatever holds labels
    """Return labels of a foreign or object dtype as a plain array of their one type.

    Raises
    ------
    SchemaError
        Labels are missing, or of different types.
    """
    dtype = getattr(y, "dtype", None)
    if dtype is None or (isinstance(dtype, np.dtype) and dtype.kind != "O"):
        return y
    values = np.asarray(y)
    if values.dtype.kind != "O" or values.ndim != 1:
        return values
    missing = np.array([v is None or v != v or _is_na(v) for v in values.tolist()], dtype=bool)
    if missing.any():
        where = np.flatnonzero(missing)
        shown = ", ".join(map(str, where[:SHOWN].tolist()))
        raise SchemaError(
            f"y: {len(where)} labels are missing, for example at position {shown}; leave rows "
            "without a label out. NaN and None are no classes"
        )
    kinds = {type(v) for v in values.tolist()}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise SchemaError(f"y: labels are of different types ({names}); use one type")
    return np.array(values.tolist()) if kinds & {bool, int, float, str} else values


def _table(X: object) -> NDArray[Any] | None:
    try:
        return np.array(X, dtype=object)
    except (TypeError, ValueError):
        return None


def _is_word(value: object) -> bool:
    if not isinstance(value, str | bytes):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False


def _is_na(value: object) -> bool:
    return type(value).__name__ in ("NAType", "NaTType")
