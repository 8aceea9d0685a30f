"""Limits that a worker puts on itself before it loads a library or reads a request."""

from __future__ import annotations

import ctypes
import math
import platform
import resource
import signal
import struct
import sys
from typing import Final

_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER, _SET_PDEATHSIG = 38, 22, 2, 1
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _DENY = 0x7FFF0000, 0x80000000, 0x00050000 | 13  # permission denied
_NUMBER, _ARCHITECTURE = 0, 4
_IO_URING_SETUP, _X32 = 425, 0x40000000
_SYSTEMS: Final = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Machine name to the kernel's name of it and the number of its call ``socket``."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def limit(*, memory_bytes: int, file_bytes: int) -> None:
    """Limit private memory and file sizes, and leave no core file (it would hold keys)."""
    for name, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_DATA, memory_bytes),
    ):
        resource.setrlimit(name, (most, most))


def allow_cpu(seconds: float) -> None:
    """Give one request its own processor time; beyond it the kernel ends this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used + seconds), resource.RLIM_INFINITY))


def end_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def cut_network() -> bool:
    """Make every later ``socket`` call fail, in this process and its children.

    Returns
    -------
    bool
        Whether the kernel took the filter: on Linux, on x86-64 and 64-bit ARM.
    """
    if sys.platform != "linux" or platform.machine() not in _SYSTEMS:
        return False
    architecture, call = _SYSTEMS[platform.machine()]
    steps = (
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 3, 0, _X32),
        (_EQUAL, 2, 0, call),
        (_EQUAL, 1, 0, _IO_URING_SETUP),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _DENY),
    )
    code = b"".join(struct.pack("<HBBI", *step) for step in steps)
    program = _Program(len(steps), code)
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return False
    return bool(library.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0) == 0)
