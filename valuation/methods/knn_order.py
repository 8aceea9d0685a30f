"""Training rows by distance to each validation row: exact ties, one order on every machine.

A squared distance is the sum of squared differences, feature by feature, in the precision asked
for; no shortcut through products, which loses digits and splits exact ties. Ties go to the smaller
row number. The native kernel and its numpy twin agree bit for bit.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml import _native
from privml._native import address
from privml.errors import internal
from privml.valuation.errors import ProblemError, SettingError
from privml.valuation.problem import Floats

Order = NDArray[np.int32]
Precision: TypeAlias = Literal["float64", "float32"]
PRECISIONS: Final = ("float64", "float32")
_PANEL: Final = 16
_DIGITS: Final = 1e6
_I32, _I64, _PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Training rows ready to be searched; made by :meth:`of`.

    Attributes
    ----------
    rows
        (n, d) training rows, float64 or float32.
    panels
        (ceil(n / 16), d, 16) the same, 16 rows side by side.
    tests
        (m, d) validation rows.
    """

    rows: NDArray[Any]
    panels: NDArray[Any]
    tests: NDArray[Any]

    @classmethod
    def of(cls, x: Floats, x_val: Floats, *, precision: Precision = "float64") -> Neighbours:
        """Take over (n, d) training and (m, d) validation rows.

        Raises
        ------
        SettingError
            The precision is unknown.
        ProblemError
            A number, or the square of a distance, does not fit into it.
        """
        if precision not in PRECISIONS:
            raise SettingError(f"precision={precision!r} is unknown; use one of {PRECISIONS}")
        kind = np.dtype(precision)
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(x, dtype=kind)
            tests = np.ascontiguousarray(x_val, dtype=kind)
        if not (np.isfinite(rows).all() and np.isfinite(tests).all()):
            raise ProblemError(f"a number is too large for {precision}; scale the columns")
        _check_range(rows, tests)
        n, d = rows.shape
        padded = np.zeros((-(-n // _PANEL) * _PANEL, d), dtype=kind)
        padded[:n] = rows
        panels = np.ascontiguousarray(padded.reshape(-1, _PANEL, d).transpose(0, 2, 1))
        return cls(rows, panels, tests)

    def nearest(self, start: int, stop: int, keep: int) -> tuple[Order, Floats]:
        """Return the nearest training rows of some validation rows.

        Parameters
        ----------
        start, stop
            Range of validation rows.
        keep
            Neighbours of each, 1..n.

        Returns
        -------
        order : ndarray
            (stop - start, keep) int32 training rows, nearest first.
        squares : ndarray
            (stop - start, keep) float64 squared distances.
        """
        tests = np.ascontiguousarray(self.tests[start:stop])
        internal(1 <= keep <= len(self.rows), "neighbours to keep lie in 1..n")
        if not available():
            return ref_nearest(self.rows, tests, keep)
        order = np.empty((len(tests), keep), dtype=np.int32)
        squares = np.empty((len(tests), keep), dtype=self.rows.dtype)
        name = "privml_knn_f64" if self.rows.dtype == np.float64 else "privml_knn_f32"
        code = _function(name)(
            _native.isa_level(),
            address(self.panels),
            len(self.rows),
            self.rows.shape[1],
            address(tests),
            len(tests),
            keep,
            address(order),
            address(squares),
        )
        _native.check(code, name)
        return order, squares.astype(np.float64, copy=False)


def _check_range(rows: NDArray[Any], tests: NDArray[Any]) -> None:
    """Refuse tables whose squared distances overflow in float32, or are all next to 0.

    In float64 those of a problem cannot overflow; infinite ones come last, by row number.
    """
    high = np.maximum(rows.max(axis=0), tests.max(axis=0))
    low = np.minimum(rows.min(axis=0), tests.min(axis=0))
    with np.errstate(over="ignore", under="ignore"):
        spread = high - low
        whole = (spread * spread).sum(dtype=rows.dtype)
    if rows.dtype == np.float32 and not np.isfinite(whole):
        raise ProblemError(f"squared distances are too large for {rows.dtype}; scale the columns")
    if spread.any() and whole < _DIGITS * np.finfo(rows.dtype).tiny:
        raise ProblemError(f"squared distances are too small for {rows.dtype}; scale the columns")


def ref_nearest(rows: NDArray[Any], tests: NDArray[Any], keep: int) -> tuple[Order, Floats]:
    """Return what :meth:`Neighbours.nearest` returns, from (n, d) and (m, d) rows, in numpy."""
    order = np.empty((len(tests), keep), dtype=np.int32)
    squares = np.empty((len(tests), keep))
    with np.errstate(over="ignore"):
        for at, test in enumerate(tests):
            total = np.zeros(len(rows), dtype=rows.dtype)
            for column, value in zip(rows.T, test, strict=True):
                gap = column - value
                total += gap * gap
            order[at] = np.argsort(total, kind="stable")[:keep]
            squares[at] = total[order[at]]
    return order, squares


def available() -> bool:
    """Return whether the native library is loaded and holds the search."""
    library = _native.load()
    return library is not None and hasattr(library, "privml_knn_shares")


def add_shares(
    order: Order,
    codes: Order,
    truth: Order,
    *,
    beyond: Floats,
    coefficient: Floats,
    values: Floats,
) -> None:
    """Add the values of matches to those of their rows; the native form of ``shares``.

    Parameters
    ----------
    order
        (b, s) int32 rows, nearest first, each in 0..n-1.
    codes, truth
        (n,) and (b,) int32 classes of training and validation rows.
    beyond
        (b,) what the rows farther than s take from every value.
    coefficient
        (s,) ``min(k, i) / (i k)``.
    values
        (n,) float64, changed.
    """
    fits = all(a.flags.c_contiguous for a in (order, codes, truth, beyond, coefficient, values))
    internal(fits and len(codes) == len(values) and codes.dtype == np.int32, "buffers of shares")
    code = _function("privml_knn_shares")(
        address(order),
        len(order),
        order.shape[1],
        address(codes),
        address(truth),
        address(beyond),
        address(coefficient),
        address(values),
    )
    _native.check(code, "privml_knn_shares")


_SEARCH: Final = [_I32, _PTR, _I64, _I64, _PTR, _I64, _I64, _PTR, _PTR]
_SIGNATURES: Final[dict[str, list[Any]]] = {
    "privml_knn_f64": _SEARCH,
    "privml_knn_f32": _SEARCH,
    "privml_knn_shares": [_PTR, _I64, _I64, _PTR, _PTR, _PTR, _PTR, _PTR],
}


@cache
def _function(name: str) -> Any:  # noqa: ANN401 - ctypes functions have no common static type
    library: Any = _native.load()
    function = library[name]
    function.argtypes, function.restype = _SIGNATURES[name], _I32
    return function
