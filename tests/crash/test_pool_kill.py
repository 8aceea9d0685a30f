"""Real ``kill -9`` of claimers and dealers: nothing is handed out twice, no half pool appears."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from privml.protocols.mpc.correlations.pool import Pool, PoolHeader, UsedLog, read_header
from privml.testing.pools import CLIENT, SERVER, corrections_of, seed_of, write_pool

PATIENCE_S = 60.0

CLAIMER = """
import os, sys, time
from privml.errors import CorrelationExhausted, Locked
from privml.protocols.mpc.correlations.pool import Pool, UsedLog

path, used, out = sys.argv[1:]
log = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
while True:
    try:
        pool = Pool.open(path, plan_digest=None, used=UsedLog(used))
    except Locked:
        time.sleep(0.001)
        continue
    with pool:
        for _ in range(3):
            try:
                run = pool.claim(pool.cursor)
            except CorrelationExhausted:
                sys.exit()
            data = bytes(run.read(run.remaining))
            os.write(log, f"{run.index} {run.seed.hex()} {data[:8].hex() or '-'}\\n".encode())
            run.close()
"""

STOPPER = """
import sys
from pathlib import Path
from privml.protocols.mpc.correlations.pool import Pool, UsedLog
from privml.storage import failpoints
from privml.testing.crashfs import CrashFs, Fault

folder, at, fault = Path(sys.argv[1]), int(sys.argv[2]), Fault(sys.argv[3])
with failpoints.install(CrashFs(folder, at=at, fault=fault)):
    with Pool.open(folder / "p.pool", plan_digest=None, used=UsedLog(folder / "used")) as pool:
        for _ in range(2):
            run = pool.claim(pool.cursor)
            print(run.index, run.seed.hex(), run.read(8).hex(), flush=True)
            run.close()
"""

DEALER = """
import sys
from privml.protocols.mpc.correlations.pool import PoolHeader, PoolWriter

header = PoolHeader("ab" * 16, "cd" * 32, 1, 4, 4 << 20, "", "")
part = bytes(range(256)) * 256
print("begun", flush=True)
with PoolWriter(sys.argv[1], header) as writer:
    for index in range(4):
        writer.add_run(bytes([index]) * 32)
        for _ in range(64):
            writer.append(part)
    writer.append_setup(part)
    writer.commit()
print("done", flush=True)
"""


@contextmanager
def child(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a Python process and kill it with signal 9 on leaving the block."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the child made no progress"
        time.sleep(0.002)


def handed_in(lines: list[str], header: PoolHeader) -> list[int]:
    """Return the indices that children reported, after checking what they were given."""
    indices = []
    for line in lines:
        index, seed, data = line.split()
        assert bytes.fromhex(seed) == seed_of(int(index))
        if header.rank == 1:
            assert bytes.fromhex(data) == corrections_of(int(index), 8)
        indices.append(int(index))
    return indices


def finish(folder: Path, header: PoolHeader) -> list[int]:
    """Claim all that remains in this process; also check that no spent seed is left."""
    content = (folder / "p.pool").read_bytes()
    with Pool.open(folder / "p.pool", plan_digest=None, used=UsedLog(folder / "used")) as pool:
        first = pool.cursor
        assert not any(seed_of(index) in content for index in range(first - 1))
        claimed = []
        for index in range(first, min(first + 20, header.runs)):
            with pool.claim(index) as run:
                claimed.append(index)
                assert run.seed == seed_of(index)
                assert bytes(run.read(header.correction_bytes)) == corrections_of(
                    index, header.correction_bytes
                )
    return claimed


def kill_claimers(folder: Path, header: PoolHeader, rng: np.random.Generator, kills: int) -> None:
    """Kill two competing claimers again and again, at random moments of their work."""
    write_pool(folder / "p.pool", header)
    out = folder / "handed"
    out.touch()
    for _ in range(kills // 2):
        size = out.stat().st_size
        arguments = (folder / "p.pool", folder / "used", out)
        with child(CLAIMER, *arguments) as first, child(CLAIMER, *arguments) as second:
            wait_until(lambda size=size: out.stat().st_size > size)  # type: ignore[misc]
            time.sleep(rng.uniform(0, 0.02))
            first.kill()
            time.sleep(rng.uniform(0, 0.02))
            assert second.poll() is None, "the pool of this test is too small"
    handed = handed_in(out.read_text().splitlines(), header) + finish(folder, header)
    repeated = [index for index, times in Counter(handed).items() if times > 1]
    assert not repeated
    assert len(handed) > kills // 2


def test_twenty_killed_claimers(tmp_path: Path, rng: np.random.Generator) -> None:
    header = dataclasses.replace(CLIENT, runs=4000, correction_bytes=8)
    kill_claimers(tmp_path, header, rng, 20)


@pytest.mark.nightly
def test_two_hundred_killed_claimers(tmp_path: Path, rng: np.random.Generator) -> None:
    header = dataclasses.replace(SERVER, runs=40_000)
    kill_claimers(tmp_path, header, rng, 200)


@pytest.mark.parametrize("fault", ["kill-before", "kill-after"])
def test_a_claimer_killed_at_a_chosen_step(tmp_path: Path, fault: str) -> None:
    """Sixteen more kills, each at a step that random moments seldom hit."""
    header = dataclasses.replace(CLIENT, correction_bytes=8)
    for at in range(2, 26, 3):
        folder = tmp_path / str(at)
        folder.mkdir()
        write_pool(folder / "p.pool", header)
        with child(STOPPER, folder, at, fault) as process:
            lines = process.communicate(timeout=PATIENCE_S)[0].splitlines()
        assert process.returncode == -signal.SIGKILL, at
        handed = handed_in(lines, header) + finish(folder, header)
        assert len(handed) == len(set(handed)), at
        assert max(handed) == header.runs - 1, at


def kill_dealers(path: Path, rng: np.random.Generator, kills: int) -> None:
    """Kill dealers at random moments, up to a little past the time that a whole deal takes."""
    with child(DEALER, path) as process:
        assert process.stdout is not None
        process.stdout.readline()
        begun = time.monotonic()
        assert process.stdout.readline() == "done\n"
        enough_s = 1.2 * (time.monotonic() - begun)
    check_dealt(path)
    path.unlink()
    whole = 0
    for _ in range(kills):
        with child(DEALER, path) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            time.sleep(rng.uniform(0, enough_s))
        whole += path.exists()
        if path.exists():
            check_dealt(path)
            path.unlink()
    assert whole < kills, "no dealer was killed before its end"
    with child(DEALER, path) as process:
        assert process.communicate(timeout=PATIENCE_S)[0] == "begun\ndone\n"
    check_dealt(path)
    assert list(path.parent.iterdir()) == [path]  # what the killed ones left is swept


def check_dealt(path: Path) -> None:
    header = read_header(path)
    part = bytes(range(256)) * 256
    with contextlib.ExitStack() as stack:
        used = UsedLog(path.parent.with_name(f"used-{time.monotonic_ns()}"))
        pool = stack.enter_context(Pool.open(path, plan_digest=None, used=used))
        assert bytes(pool.read_setup(expect=len(part))) == part
        for index in range(header.runs):
            with pool.claim(index) as run:
                assert run.seed == bytes([index]) * 32
                assert bytes(run.read(run.remaining)) == part * 64


def test_twenty_killed_dealers(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "pools").mkdir()
    kill_dealers(tmp_path / "pools" / "p.pool", rng, 20)


@pytest.mark.nightly
def test_two_hundred_killed_dealers(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "pools").mkdir()
    kill_dealers(tmp_path / "pools" / "p.pool", rng, 200)
