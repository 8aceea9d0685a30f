"""How many runs a pool file has left, read without lock, log or any change to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from privml.errors import Corrupt
from privml.protocols.mpc.correlations import layout
from privml.protocols.mpc.correlations.layout import PoolHeader
from privml.storage import fs


@dataclass(frozen=True)
class PoolState:
    """What a pool file says about itself.

    Attributes
    ----------
    header
        What the dealer promised.
    spent
        Runs that are spent. After a crash the log of used pools may know of one more, and the next
        opening writes it down.
    nbytes
        Size of the file; spent runs take no room on the disk where the file system allows it.
    """

    header: PoolHeader
    spent: int
    nbytes: int

    @property
    def remaining(self) -> int:
        """Number of runs that are not spent."""
        return self.header.runs - self.spent


def peek(path: Path | str) -> PoolState:
    """Read the state of a pool, which another process may have open.

    Raises
    ------
    Corrupt, StorageError
        Not a pool, damaged, or not accessible.
    """
    with fs.File.open(Path(path)) as file:
        try:
            header, digest = layout.decode_header(file.read_at(0, layout.HEADER_BYTES))
            blocks = (file.read_at(offset, layout.BLOCK) for offset in layout.SLOT_OFFSETS)
            slots = [layout.decode_slot(block, digest, runs=header.runs) for block in blocks]
            valid = [slot for slot in slots if slot is not None]
            if not valid:
                raise Corrupt("both of its cursor slots are damaged")
        except Corrupt as error:
            raise Corrupt(f"cannot use the pool {path}: {error}; deal a new one") from error
        newest = max(valid, key=lambda slot: slot.sequence)
        return PoolState(header, newest.cursor, file.size)
