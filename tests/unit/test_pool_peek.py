"""Looking at a pool from outside: right while it is in use, and without touching it."""

from __future__ import annotations

from pathlib import Path

import pytest

from privml.errors import Corrupt, StorageError
from privml.protocols.mpc.correlations import layout
from privml.protocols.mpc.correlations.layout import PoolHeader
from privml.protocols.mpc.correlations.peek import peek
from privml.protocols.mpc.correlations.pool import Pool, PoolWriter, UsedLog

HEADER = PoolHeader(
    pool_id="ab" * 16, plan_digest="cd" * 32, rank=1, runs=3, correction_bytes=100, setup="",
    claim="test",
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pool"
    with PoolWriter(path, HEADER) as writer:
        for run in range(HEADER.runs):
            writer.add_run(bytes([run + 1]) * 32)
            writer.append(bytes(HEADER.correction_bytes))
        writer.commit()
    return path


def test_a_pool_in_use(path: Path, tmp_path: Path) -> None:
    assert (peek(path).header, peek(path).remaining) == (HEADER, 3)
    with Pool.open(path, plan_digest=None, used=UsedLog(tmp_path / "used")) as pool:
        for run in range(HEADER.runs):
            pool.claim(run).close()
            before = path.read_bytes()
            assert peek(path).remaining == pool.remaining == 2 - run
            assert path.read_bytes() == before
    assert (peek(path).spent, peek(path).nbytes) == (3, path.stat().st_size)


def test_one_damaged_slot_leaves_the_other(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for offset in layout.SLOT_OFFSETS[1:]:
        data[offset] ^= 1
    path.write_bytes(data)
    assert peek(path).remaining == 3


def test_what_is_no_pool(path: Path, tmp_path: Path) -> None:
    data = bytearray(path.read_bytes())
    for offset in layout.SLOT_OFFSETS:
        data[offset] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corrupt, match="both of its cursor slots"):
        peek(path)
    path.write_bytes(b"short")
    with pytest.raises(Corrupt, match="deal a new one"):
        peek(path)
    with pytest.raises(StorageError):
        peek(tmp_path / "none")
