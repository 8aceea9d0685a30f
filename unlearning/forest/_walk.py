"""The native walk of exported predictors behind ctypes."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privml import _native
from privml._native import address
from privml.errors import internal
from privml.unlearning.forest.reference import Floats

LEAF: Final = 1 << 31
CODE: Final = 1 << 30
MISSING: Final = 1 << 29
"""Flags beside the column of a packed node, as in ``native/flat.cpp``."""

PACKED: Final = np.dtype(
    [("threshold", "<f4"), ("column", "<u4"), ("left", "<u4"), ("right", "<u4"), ("base", "<u8")]
)
"""A node: 24 bytes without padding. A leaf points to itself, its ``base`` to a row of values."""


class _Flat(ctypes.Structure):
    """Mirror of ``FlatAbi`` in ``native/flat.cpp``."""

    _fields_ = (
        ("nodes", ctypes.c_void_p),
        ("roots", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("trees", ctypes.c_uint64),
        ("features", ctypes.c_uint64),
        ("width", ctypes.c_uint64),
        ("codes", ctypes.c_uint64),
    )


@cache
def function() -> Any:  # noqa: ANN401 - a ctypes function, or None where it is missing
    """Return the native function, or None if the library is missing."""
    library: Any = _native.load()
    found = getattr(library, "privml_forest_flat", None)
    if found is not None:
        pointer, number = ctypes.c_void_p, ctypes.c_uint64
        found.argtypes = [pointer, number, pointer, pointer, ctypes.c_uint32]
        found.restype = ctypes.c_int32
    return found


def walk(
    nodes: NDArray[np.void],
    roots: NDArray[np.uint32],
    values: NDArray[np.float64],
    X: Floats,
    *,
    codes: bool,
) -> NDArray[np.float64]:
    """Return (n, width) the mean over trees of the leaves that rows fall into.

    Parameters
    ----------
    nodes
        (nodes,) :data:`PACKED`; children stand behind their parents.
    roots
        (T,) first node of each tree, T >= 1.
    values
        (leaves, width) answers.
    X
        (n, p) features; columns of all nodes are below p.
    codes
        Whether categorical nodes occur.
    """
    X = np.ascontiguousarray(X)
    internal(X.dtype == np.float32 and values.flags.c_contiguous, "buffers of the native walk")
    out = np.empty((len(X), values.shape[1]))
    places = address(nodes), address(roots), address(values)
    record = _Flat(*places, len(roots), X.shape[1], values.shape[1], codes)
    code = function()(ctypes.byref(record), len(X), address(X), address(out), 1)
    _native.check(code, "forest_flat")
    return out
