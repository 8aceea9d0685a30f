"""Writing a pool file: the dealer's side."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import Self

from privml._typing import Buffer
from privml.errors import Full, ParameterError, StorageError
from privml.protocols.mpc.correlations import layout
from privml.protocols.mpc.correlations.layout import PoolHeader
from privml.storage import fs
from privml.storage.publish import NewFile

_BUFFER_BYTES = 1 << 20


class PoolWriter:
    """Writes one party's pool; nothing is at ``path`` before :meth:`commit`, all of it after.

    Use as a context manager: leaving without a commit removes the temporary file. The file has
    mode 0600. Per run: :meth:`add_run`, then :meth:`append` up to ``header.correction_bytes``.
    Setup material may be appended at any time between.

    Raises
    ------
    ParameterError
        The header has fields out of range.
    Full
        The disk has no room for the pool; seen here, before anything is dealt.
    StorageError
        The path exists, or its directory cannot be written.
    """

    def __init__(self, path: Path | str, header: PoolHeader) -> None:
        if problems := header.problems():
            raise ParameterError(f"pool header: {'; '.join(problems)}")
        self.header = header
        self._layout = layout.Layout(header.runs, header.correction_bytes)
        self._runs = 0
        self._run_bytes = header.correction_bytes
        self._setup_bytes = 0
        self._setup_hash = hashlib.sha256()
        self._pending = bytearray()
        self._seeds = bytearray()
        self._failed = False
        block = layout.encode_header(header)
        self._digest = layout.decode_header(block)[1]
        self._check_room(Path(path))
        self._new = NewFile(Path(path))
        try:
            self._write(0, block)
        except BaseException:
            self._new.discard()
            raise

    def _check_room(self, path: Path) -> None:
        fs.ensure_dir(path.parent)
        if fs.exists(path):
            raise StorageError(f"{path} exists already; choose another path or remove it first")
        need, room = self._layout.setup, fs.free_bytes(path.parent)
        if need > room:
            raise Full(
                f"the pool needs {need / 1e9:.2f} GB and the disk of {path.parent} has "
                f"{room / 1e9:.2f} GB; free space, or deal fewer runs"
            )

    def add_run(self, seed: bytes) -> None:
        """Begin the next run with its 32-byte seed; the run before it must be complete."""
        self._require_complete()
        if self._runs == self.header.runs:
            raise ParameterError(f"the header announces {self.header.runs} runs, not more")
        if len(seed) != layout.SEED_BYTES:
            raise ParameterError(f"a seed has {layout.SEED_BYTES} bytes, not {len(seed)}")
        self._seeds += layout.encode_entry(seed, self._digest, self._runs)
        self._runs += 1
        self._run_bytes = 0

    def append(self, correction: Buffer) -> None:
        """Append corrections to the current run, in the order they will be read.

        Raises
        ------
        ParameterError
            No run was begun, or the run would exceed ``header.correction_bytes``.
        Full, StorageError
            The system failed; leave the ``with`` block, nothing will be at the path.
        """
        view = fs.byte_view(correction)
        if self._runs == 0 or self._run_bytes + len(view) > self.header.correction_bytes:
            raise ParameterError(
                f"a run of this pool holds {self.header.correction_bytes} correction bytes; "
                f"{len(view)} more do not fit after {self._run_bytes if self._runs else 0}"
            )
        if len(self._pending) + len(view) > _BUFFER_BYTES:
            self._flush()
        if len(view) > _BUFFER_BYTES:
            self._write(self._layout.run(self._runs - 1) + self._run_bytes, view)
        else:
            self._pending += view
        self._run_bytes += len(view)
        if self._run_bytes == self.header.correction_bytes:
            self._flush()

    def append_setup(self, data: Buffer) -> None:
        """Append once-per-pool material (rank 1 only); its SHA-256 goes into the seal."""
        if self.header.rank != 1:
            raise ParameterError("rank 0 keeps only the seed of its setup material, in the header")
        view = fs.byte_view(data)
        self._write(self._layout.setup + self._setup_bytes, view)
        self._setup_hash.update(view)
        self._setup_bytes += len(view)

    def commit(self) -> None:
        """Make the pool appear at its path: sync, name, sync the directory.

        Raises
        ------
        ParameterError
            Runs or corrections are missing.
        Full, StorageError
            The system failed or the path exists by now; nothing of this pool is left.
        """
        self._require_complete()
        if self._runs != self.header.runs:
            raise ParameterError(f"{self.header.runs} runs were announced, {self._runs} written")
        slot = layout.encode_slot(layout.Slot(0, 0, 0), self._digest)
        for offset in layout.SLOT_OFFSETS:
            self._write(offset, slot)
        seal = layout.Seal(self._setup_bytes, self._setup_hash.digest())
        self._write(layout.SEAL_OFFSET, layout.encode_seal(seal, self._digest))
        self._write(layout.SEEDS_OFFSET, self._seeds)
        self._new.file.truncate(self._layout.setup + self._setup_bytes)
        self._new.commit()
        self._wipe()

    def _write(self, offset: int, data: Buffer) -> None:
        """Write through; after one failed write nothing of this pool can be committed."""
        if self._failed:
            raise StorageError(f"an earlier write of {self._new.path} failed; deal the pool anew")
        self._failed = True
        self._new.file.write_at(offset, data)
        self._failed = False

    def _require_complete(self) -> None:
        if self._run_bytes != self.header.correction_bytes:
            raise ParameterError(
                f"run {self._runs - 1} has {self._run_bytes} correction bytes, the header "
                f"announces {self.header.correction_bytes}"
            )

    def _flush(self) -> None:
        """Write what is pending; it ends where the current run's bytes end."""
        if self._pending:
            start = self._layout.run(self._runs - 1) + self._run_bytes - len(self._pending)
            self._write(start, self._pending)
            self._pending = bytearray()

    def _wipe(self) -> None:
        self._seeds[:] = bytes(len(self._seeds))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._wipe()
        self._new.discard()
