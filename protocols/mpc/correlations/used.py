"""Durable record, per host and user, of which runs of which pool were ever handed out.

One append-only file per (pool, rank), named ``<pool_id>-<rank>.used``. A record says: runs below
``next_index`` are spent, and the pool lives in the file with this inode number. It is on the
device before the pool hands out the material. Records are 128 bytes, each with its own check
value; the last valid one counts, since ``next_index`` only grows. A torn record is skipped.

The log tells a pool from its copies: the first file opened under a pool id is bound to it, and
any other file with that id is refused. A copy carried to another host is refused there once it
was opened anywhere, because its cursor slots say so and that host's log does not know it; a copy
made before the first use and opened on two hosts is beyond what either host can see.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from privml.errors import CorrelationExhausted, ParameterError, UntrustedArtifact
from privml.storage import fs

_MAGIC = b"PVMLUSED"
_BODY = struct.Struct("<8sII16sQQ32s16x")
_NO_NAME = bytes(32)
_RECORD_BYTES = _BODY.size + 32
_VERSION = 1


@dataclass(frozen=True)
class PoolKey:
    """Names one pool file: pool id (32 hex digits), rank, and inode number of the file."""

    pool_id: str
    rank: int
    inode: int


class UsedLog:
    """Append-only record of spent runs; safe for concurrent use by several processes.

    Parameters
    ----------
    directory
        Where the records live; created with mode 0700 on first use. Default:
        ``$XDG_STATE_HOME/privml/used``, or ``~/.local/state/privml/used``. Pools opened under
        one log are refused under another, so keep it on a disk that survives a restart.
    """

    def __init__(self, directory: Path | str | None = None) -> None:
        self.directory = Path(directory) if directory is not None else default_directory()

    def bind(self, key: PoolKey, *, opened_before: bool) -> int:
        """Tie the pool id to this file on its first use; return the first unspent index.

        Parameters
        ----------
        opened_before
            Whether the file itself says that it was opened before.

        Raises
        ------
        CorrelationExhausted
            The id is bound to another file, or the file was opened under a log that is not
            this one: it is a copy, and its runs may have been spent.
        """
        fs.ensure_dir(self.directory)
        with ExitStack() as stack:
            file = self._locked(key, stack)
            last = _last(file, key)
            if last is not None:
                _refuse_copy(last, key)
            elif opened_before:
                raise CorrelationExhausted(
                    f"pool {key.pool_id[:8]} was used before under another log of used pools: "
                    "it is a copy from elsewhere, or the log was removed; deal a new pool"
                )
            else:
                fs.durable_append(file, _encode(key, 0, _NO_NAME))
            if not opened_before:
                fs.sync_dirs(self.directory)
            return last.next_index if last is not None else 0

    def spend(self, key: PoolKey, next_index: int) -> None:
        """Record durably that all runs below ``next_index`` are spent.

        Raises
        ------
        CorrelationExhausted
            The record already says so (another holder took the run), or the id belongs to
            another file.
        """
        with ExitStack() as stack:
            file = self._locked(key, stack)
            last = _last(file, key)
            if last is None:
                raise CorrelationExhausted(
                    f"the log of used pools lost pool {key.pool_id[:8]}; deal a new pool"
                )
            _refuse_copy(last, key)
            if next_index <= last.next_index:
                raise CorrelationExhausted(
                    f"run {next_index - 1} of pool {key.pool_id[:8]} was handed out before; "
                    f"the next one is {last.next_index}"
                )
            fs.durable_append(file, _encode(key, next_index, last.name))

    def pin(self, key: PoolKey, name: bytes) -> None:
        """Tie the pool to one set of weights on the first call; refuse any other afterwards.

        Two matrices opened under one mask would give away their difference. The name (32 bytes)
        stands in the same records as the spent runs, so that losing one is losing both.

        Raises
        ------
        UntrustedArtifact
            The pool was opened for other weights.
        """
        with ExitStack() as stack:
            file = self._locked(key, stack)
            last = _last(file, key)
            if last is None or len(name) != len(_NO_NAME):
                raise CorrelationExhausted(
                    f"the log of used pools lost pool {key.pool_id[:8]}; deal a new pool"
                )
            _refuse_copy(last, key)
            if last.name == _NO_NAME:
                fs.durable_append(file, _encode(key, last.next_index, name))
            elif not hmac.compare_digest(last.name, name):
                raise UntrustedArtifact(
                    f"pool {key.pool_id[:8]} was opened for other weights than the loaded ones; "
                    "its mask must not cover two models: deal a new pool"
                )

    def _locked(self, key: PoolKey, stack: ExitStack) -> fs.File:
        if not re.fullmatch(r"[0-9a-f]{32}", key.pool_id) or key.rank not in (0, 1):
            raise ParameterError("a pool id is 32 lower-case hex digits and a rank is 0 or 1")
        path = self.directory / f"{key.pool_id}-{key.rank}.used"
        file = stack.enter_context(fs.File.open(path, create=True))
        file.lock(wait=True)
        return file


@dataclass(frozen=True)
class _Record:
    next_index: int
    inode: int
    name: bytes


def default_directory() -> Path:
    """Return the directory of the log for this user, from ``XDG_STATE_HOME`` or the home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    base = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return base / "privml" / "used"


def _encode(key: PoolKey, next_index: int, name: bytes) -> bytes:
    pool = bytes.fromhex(key.pool_id)
    body = _BODY.pack(_MAGIC, _VERSION, key.rank, pool, key.inode, next_index, name)
    return body + hashlib.sha256(body).digest()


def _last(file: fs.File, key: PoolKey) -> _Record | None:
    """Return the last valid record, reading backwards from the end of the file."""
    for position in reversed(range(file.size // _RECORD_BYTES)):
        record = file.read_at(position * _RECORD_BYTES, _RECORD_BYTES)
        body, check = record[: _BODY.size], record[_BODY.size :]
        if not hmac.compare_digest(hashlib.sha256(body).digest(), check):
            continue
        magic, version, rank, pool, inode, next_index, name = _BODY.unpack(body)
        if (magic, version, rank, pool.hex()) == (_MAGIC, _VERSION, key.rank, key.pool_id):
            return _Record(next_index, inode, name)
    return None


def _refuse_copy(last: _Record, key: PoolKey) -> None:
    if last.inode != key.inode:
        raise CorrelationExhausted(
            f"pool {key.pool_id[:8]} was first used from another file, so this one is a copy and "
            "its runs may have been spent; use the original file, or deal a new pool"
        )
