"""Small pools with known content, for tests of storage and of protocols."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from privml.protocols.mpc.correlations.pool import PoolHeader, PoolWriter

PLAN = "cd" * 32
CLIENT = PoolHeader(
    pool_id="ab" * 16,
    plan_digest=PLAN,
    rank=1,
    runs=5,
    correction_bytes=10_000,
    setup="",
    claim="semi-honest, dealer",
)
SERVER = PoolHeader(
    pool_id="ab" * 16,
    plan_digest=PLAN,
    rank=0,
    runs=5,
    correction_bytes=0,
    setup="ef" * 32,
    claim="semi-honest, dealer",
)
SETUP = hashlib.shake_256(b"setup").digest(5_000)


def seed_of(index: int) -> bytes:
    """Return the 32-byte seed of run ``index``."""
    return hashlib.sha256(f"seed {index}".encode()).digest()


@functools.cache
def corrections_of(index: int, nbytes: int = CLIENT.correction_bytes) -> bytes:
    """Return the corrections of run ``index``."""
    return hashlib.shake_256(f"corrections {index}".encode()).digest(nbytes)


def write_pool(path: Path, header: PoolHeader = CLIENT) -> Path:
    """Write a pool with the content above and return its path."""
    with PoolWriter(path, header) as writer:
        for index in range(header.runs):
            writer.add_run(seed_of(index))
            writer.append(corrections_of(index, header.correction_bytes))
        if header.rank == 1:
            writer.append_setup(SETUP)
        writer.commit()
    return path
