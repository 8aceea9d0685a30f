"""What this machine has."""

from __future__ import annotations

import os


def memory_bytes() -> int:
    """Return the size of the main memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def unused_bytes() -> int:
    """Return the memory that nothing uses at the moment."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
