"""Overwriting of buffers that held rows, so that freed memory does not remember them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privml.unlearning.forest.reference import Rows


def wipe(*buffers: NDArray[Any] | bytearray | None) -> None:
    """Overwrite buffers of our own with zeros; None is skipped."""
    for buffer in buffers:
        if isinstance(buffer, bytearray):
            buffer[:] = bytes(len(buffer))
        elif buffer is not None:
            buffer.fill(0)


def wipe_rows(rows: Rows) -> None:
    """Overwrite ids, features and targets of a copy of rows."""
    wipe(rows.ids, rows.X, rows.y)


def wipe_copy(copy: object, source: object) -> None:
    """Overwrite ``copy`` if it was made from ``source`` and certainly shares no memory with it.

    A converted array is ours unless it is a view; from a data frame or another container we cannot
    tell, so its conversion is left alone.
    """
    if not isinstance(copy, np.ndarray) or copy is source or not copy.flags.writeable:
        return
    apart = isinstance(source, np.ndarray) and not np.may_share_memory(copy, source)
    if apart or isinstance(source, list | tuple):
        copy.fill(0)
