"""Columns and targets: what a caller hands over, turned into float32 features and int64 targets.

Nothing here is fitted to data. A numeric value is rounded to float32; a category is a code of its
own value: an integer is its own code, a text is hashed with the key. So an encoded row depends on
that row, the key and the declared columns alone, and no row has to be forgotten here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from privml.errors import SchemaError
from privml.unlearning.forest.keys import CategoryKey
from privml.unlearning.forest.reference import Floats
from privml.unlearning.forest.scrub import wipe

TEXT_CODES: Final = 1 << 23
"""Codes below are integers given by the caller; hashed texts take the codes above, up to 2^24."""
FROM_DTYPE: Final = "from_dtype"
TARGET_LIMIT_BITS: Final = 47
SUM_LIMIT_BITS: Final = 62
_SHOWN: Final = 5
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


@dataclass(frozen=True)
class Columns:
    """Declared columns: public metadata of a model.

    Attributes
    ----------
    names
        Column names of the data frame it was fitted on, or None.
    categorical
        One flag per column.
    """

    names: tuple[str, ...] | None
    categorical: tuple[bool, ...]

    def label(self, column: int) -> str:
        """Return how messages name a column."""
        return f"column {column}" if self.names is None else f"column {self.names[column]!r}"


class Frame(Protocol):
    """The part of a data frame that is used: names, dtypes, index, access by position."""

    columns: Any
    dtypes: Any
    iloc: Any
    index: Any


def is_frame(X: object) -> TypeGuard[Frame]:
    """Return whether ``X`` is a data frame with columns by name and position."""
    return hasattr(X, "iloc") and hasattr(X, "columns")


def categorical_flags(spec: object, X: object, *, p: int) -> tuple[bool, ...]:
    """Return which columns are categorical.

    Parameters
    ----------
    spec
        None, ``"from_dtype"`` (text, object and category columns of a data frame), a mask of p
        booleans, or a list of column positions or names.
    X
        The data that is fitted; asked for names and dtypes only.
    p
        Number of columns.

    Raises
    ------
    SchemaError
        Unknown columns, or names and dtypes asked of something without them.
    """
    if spec is None:
        return (False,) * p
    if isinstance(spec, str):
        if spec != FROM_DTYPE or not is_frame(X):
            raise SchemaError(
                f"categorical_features={spec!r}: give a list, or 'from_dtype' with a data frame"
            )
        return tuple(getattr(dtype, "kind", "") == "O" for dtype in X.dtypes)
    if isinstance(spec, Iterator):
        raise SchemaError("categorical_features is read more than once; give a list")
    given = list(spec) if isinstance(spec, Iterable) else [spec]
    if given and all(isinstance(v, bool | np.bool_) for v in given):
        if len(given) != p:
            raise SchemaError(f"categorical_features has {len(given)} flags for {p} columns")
        return tuple(bool(v) for v in given)
    chosen = {_position(v, X, p) for v in given}
    return tuple(a in chosen for a in range(p))


def encode_categories(
    values: NDArray[Any], columns: Columns, key: CategoryKey, *, column: int
) -> Floats:
    """Return the codes of one categorical column as float32; missing values become NaN.

    Parameters
    ----------
    values
        (n,) integers 0 .. 2^23 - 1, texts, booleans and missing values (None, NaN, NA), mixed.

    Raises
    ------
    SchemaError
        Another value; the message names the column.
    """
    if values.dtype.kind in "iufb":
        return _numeric_codes(values.astype(np.float64), columns, column)
    given = values.tolist()
    if not all(kind in _PLAIN or kind.__name__ == "NAType" for kind in set(map(type, given))):
        return np.array([_code(value, columns, key, column) for value in given], dtype=np.float32)
    known = dict.fromkeys(given, 0.0)  # equal values, as 1 and True, have equal codes
    for value in known:
        known[value] = _code(value, columns, key, column)
    return np.fromiter(map(known.__getitem__, given), dtype=np.float32, count=len(given))


def to_float32(values: NDArray[Any], columns: Columns, *, positions: Sequence[int]) -> Floats:
    """Round finite or missing numbers to float32, zeros to +0.

    Raises
    ------
    SchemaError
        A value beyond the range of float32; the message names its column.
    """
    rounded = np.empty(values.shape, dtype=np.float32)
    with np.errstate(over="ignore"):
        np.copyto(rounded, values, casting="same_kind")
    rounded += np.float32(0)
    over = np.isinf(rounded).any(axis=0)
    if over.any():
        named = ", ".join(columns.label(positions[i]) for i in np.flatnonzero(over)[:_SHOWN])
        raise SchemaError(f"{named}: a value exceeds float32 (3.4e38); rescale it by a constant")
    return rounded


def fixed_point(y: NDArray[np.float64], bits: int) -> NDArray[np.int64]:
    """Return regression targets as integers: round-half-even(y * 2^bits).

    Raises
    ------
    SchemaError
        A target that is not below 2^(47 - bits) in absolute value.
    """
    with np.errstate(over="ignore"):  # refused below
        scaled = np.ldexp(y, bits)
    np.rint(scaled, out=scaled)
    if len(y) and not float(np.abs(scaled).max()) < 2.0**TARGET_LIMIT_BITS:
        raise SchemaError(
            f"y: with target_bits={bits} targets lie below 2^{TARGET_LIMIT_BITS - bits} in "
            "absolute value; lower target_bits or rescale y by a constant"
        )
    fixed = scaled.astype(np.int64)
    wipe(scaled)
    return fixed


def check_target_sum(largest: int, n: int) -> None:
    """Refuse targets whose sum over ``n`` rows might leave the exact range.

    Raises
    ------
    SchemaError
        ``n * largest`` reaches 2^62.
    """
    if n * largest >= 1 << SUM_LIMIT_BITS:
        raise SchemaError(
            f"y: {n} targets of this size can add up beyond 2^{SUM_LIMIT_BITS}; "
            "lower target_bits or rescale y by a constant"
        )


def text_code(key: CategoryKey, text: str) -> int:
    """Return the category code of a text, 2^23 <= code < 2^24."""
    return TEXT_CODES + key.hash(text) % TEXT_CODES


def is_text(value: object) -> bool:
    """Return whether ``value`` is a str that has a UTF-8 form: one without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _position(column: object, X: object, p: int) -> int:
    if isinstance(column, str):
        names = list(X.columns) if is_frame(X) else []
        if column not in names:
            raise SchemaError(f"categorical_features names {column!r}, which is not a column")
        return names.index(column)
    if isinstance(column, int | np.integer) and -p <= column < p:
        return int(column) % p
    raise SchemaError(f"categorical_features: {column!r} is not one of the {p} columns")


def _numeric_codes(values: NDArray[np.float64], columns: Columns, column: int) -> Floats:
    present = values[~np.isnan(values)]
    if not ((present >= 0) & (present < TEXT_CODES)).all() or (present % 1).any():
        raise SchemaError(_bad_category(columns, column))
    return values.astype(np.float32) + np.float32(0)


def _code(value: object, columns: Columns, key: CategoryKey, column: int) -> float:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value).__name__ == "NAType":
        return float("nan")
    if isinstance(value, str) and is_text(value):
        return float(text_code(key, value))
    if isinstance(value, int | float) and 0 <= value < TEXT_CODES and value % 1 == 0:
        return float(value) + 0.0
    if isinstance(value, float) and value != value:
        return value
    raise SchemaError(_bad_category(columns, column))


def _bad_category(columns: Columns, column: int) -> str:
    return (
        f"{columns.label(column)} is categorical: its values are texts, integers from 0 to "
        f"{TEXT_CODES - 1} or missing"
    )
