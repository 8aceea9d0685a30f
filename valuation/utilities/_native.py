"""The native linear models behind ctypes: buffers and error codes, nothing else."""

from __future__ import annotations

import ctypes
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privml import _native
from privml._native import address
from privml.errors import internal
from privml.valuation.problem import Floats, Ints

PAD: Final = 8
"""Rows are padded with zeros to a multiple of this many doubles."""

_I32, _I64, _F64, _PTR = ctypes.c_int32, ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_SIGNATURES: Final[dict[str, list[Any]]] = {
    "privml_ridge_walk": [_I32, _PTR, _PTR, _F64, _I32],
    "privml_logistic_walk": [_I32, _PTR, _PTR, _F64, _F64, _I32, _PTR],
}


class _Table(ctypes.Structure):
    """Mirror of ``Table`` in ``native/models.hpp``."""

    _fields_ = (
        ("x", _PTR),
        ("target", _PTR),
        ("columns", _PTR),
        ("d", _I64),
        ("dp", _I64),
        ("c", _I64),
        ("mp", _I64),
    )


class _Walk(ctypes.Structure):
    """Mirror of ``Walk`` in ``native/models.hpp``."""

    _fields_ = (
        ("rows", _PTR),
        ("mark", _PTR),
        ("steps", _I64),
        ("marks", _I64),
        ("out", _PTR),
    )


@dataclass(frozen=True, eq=False)
class Table:
    """Padded copies of a problem's rows.

    Attributes
    ----------
    x
        (n, dp) float64 rows.
    target
        (n, c) float64 targets.
    columns
        (d, mp) float64 validation rows, transposed.
    d, m
        Features and validation rows without padding.
    """

    x: Floats
    target: Floats
    columns: Floats
    d: int
    m: int

    @classmethod
    def of(cls, x: Floats, target: Floats, x_val: Floats) -> Table:
        """Pad (n, d) rows, (n, c) targets and (m, d) validation rows."""
        n, d = x.shape
        m = len(x_val)
        rows, columns = np.zeros((n, padded(d))), np.zeros((d, padded(m)))
        rows[:, :d], columns[:, :m] = x, x_val.T
        return cls(rows, np.ascontiguousarray(target, dtype=np.float64), columns, d, m)

    @property
    def targets(self) -> int:
        """Number of targets of each row."""
        return int(self.target.shape[1])

    def _record(self) -> _Table:
        places = address(self.x), address(self.target), address(self.columns)
        return _Table(*places, self.d, self.x.shape[1], self.targets, self.columns.shape[1])


def padded(count: int) -> int:
    """Return ``count`` rounded up to whole vectors."""
    return -(-count // PAD) * PAD


def available() -> bool:
    """Return whether the native library is loaded and holds the linear models."""
    library = _native.load()
    return library is not None and _complete()


@cache
def _complete() -> bool:
    """Return whether the loaded library has all kernels; warn once if it is an older one."""
    library = _native.load()
    if all(hasattr(library, name) for name in _SIGNATURES):
        return True
    warnings.warn(
        "the native library is older than this package, linear utilities run on slow numpy "
        "kernels; run `pip install -e .` with a C++20 compiler",
        stacklevel=4,
    )
    return False


def ridge_walk(
    table: Table, rows: Ints, mark: NDArray[np.uint8], *, alpha: float, free: bool
) -> Floats:
    """Return (marks, c, m) decisions of the ridge models of the marked prefixes of ``rows``."""
    record, out = _walk(table, rows, mark)
    code = _function("privml_ridge_walk")(
        _native.isa_level(), ctypes.byref(table._record()), ctypes.byref(record), alpha, free
    )
    _native.check(code, "ridge_walk")
    return out[:, :, : table.m]


def logistic_walk(
    table: Table, rows: Ints, mark: NDArray[np.uint8], *, c: float, tol: float, most_steps: int
) -> tuple[Floats, int]:
    """Return (marks, m) decisions of logistic models, and how many missed the tolerance."""
    record, out = _walk(table, rows, mark)
    failed = _I32()
    code = _function("privml_logistic_walk")(
        _native.isa_level(),
        ctypes.byref(table._record()),
        ctypes.byref(record),
        c,
        tol,
        most_steps,
        ctypes.byref(failed),
    )
    _native.check(code, "logistic_walk")
    return out[:, 0, : table.m], failed.value


def _walk(table: Table, rows: Ints, mark: NDArray[np.uint8]) -> tuple[_Walk, Floats]:
    fits = rows.dtype == np.int64 and mark.dtype == np.uint8 and rows.shape == mark.shape
    internal(fits and rows.flags.c_contiguous and mark.flags.c_contiguous, "buffers of a walk")
    internal(not len(rows) or 0 <= rows.min() <= rows.max() < len(table.x), "rows lie in the table")
    marks = int(np.count_nonzero(mark))
    out = np.empty((marks, table.targets, table.columns.shape[1]))
    record = _Walk(address(rows), address(mark), len(rows), marks, address(out))
    return record, out


@cache
def _function(name: str) -> Any:  # noqa: ANN401 - ctypes functions have no common static type
    library: Any = _native.load()
    function = library[name]
    function.argtypes, function.restype = _SIGNATURES[name], _I32
    return function
