"""Pools of correlations: what is written is read once, and spent is spent."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from privml.errors import (
    CorrelationExhausted,
    Locked,
    ParameterError,
    StorageError,
    UntrustedArtifact,
)
from privml.protocols.mpc.correlations.pool import Pool, PoolWriter, UsedLog, read_header
from privml.storage import fs
from privml.testing.pools import CLIENT, PLAN, SERVER, SETUP, corrections_of, seed_of, write_pool


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_pool(tmp_path / "client.pool")


@pytest.fixture
def used(tmp_path: Path) -> UsedLog:
    return UsedLog(tmp_path / "state" / "used")


@pytest.fixture
def pool(path: Path, used: UsedLog) -> Iterator[Pool]:
    with Pool.open(path, plan_digest=PLAN, used=used) as opened:
        yield opened


def test_reads_back_what_the_dealer_wrote(pool: Pool) -> None:
    assert pool.header == CLIENT
    assert (pool.cursor, pool.remaining) == (0, 5)
    assert bytes(pool.read_setup(expect=len(SETUP))) == SETUP
    for index in range(5):
        with pool.claim(index) as run:
            assert run.seed == seed_of(index)
            assert bytes(run.read(CLIENT.correction_bytes)) == corrections_of(index)
            assert run.remaining == 0
    assert (pool.cursor, pool.remaining) == (5, 0)


def test_rank_0_has_seeds_only(tmp_path: Path, used: UsedLog) -> None:
    path = write_pool(tmp_path / "server.pool", SERVER)
    with Pool.open(path, plan_digest=None, used=used) as pool:
        assert pool.header.setup == "ef" * 32
        assert pool.setup_bytes == 0
        run = pool.claim(0)
        assert run.seed == seed_of(0)
        assert bytes(run.read(0)) == b""
        with pytest.raises(CorrelationExhausted, match="0 correction bytes left"):
            run.read(1)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(appends=st.lists(st.integers(0, 5000), max_size=12), reads=st.lists(st.integers(0, 4000)))
def test_any_split_of_writes_and_reads_gives_one_stream(
    tmp_path_factory: pytest.TempPathFactory, appends: list[int], reads: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("split")
    total = sum(appends)
    header = dataclasses.replace(CLIENT, runs=2, correction_bytes=total)
    with PoolWriter(folder / "p", header) as writer:
        for index in range(2):
            writer.add_run(seed_of(index))
            stream, at = corrections_of(index, total), 0
            for size in appends:
                writer.append(memoryview(stream)[at : at + size])
                at += size
        writer.commit()
    used = UsedLog(folder / "u")
    with Pool.open(folder / "p", plan_digest=None, used=used) as pool, pool.claim(1) as run:
        expected, views = corrections_of(1, total), []
        for size in (*reads, total):
            views.append(run.read(min(size, run.remaining)))  # noqa: PERF401
        assert b"".join(views) == expected  # earlier views are unchanged by later reads


def test_large_appends_and_reads_cross_every_buffer(tmp_path: Path, used: UsedLog) -> None:
    total = (9 << 20) + 24
    header = dataclasses.replace(CLIENT, runs=1, correction_bytes=total)
    words = np.random.default_rng(1).integers(0, 1 << 63, total // 8, dtype=np.uint64)
    with PoolWriter(tmp_path / "big", header) as writer:
        writer.add_run(seed_of(0))
        for part in np.split(words, [1, 2, 1000, 300_000, 300_001]):
            writer.append(part)
        writer.commit()
    with Pool.open(tmp_path / "big", plan_digest=None, used=used) as pool, pool.claim(0) as run:
        got = [np.frombuffer(run.read(n), np.uint64) for n in (8, 4096, 5 << 20, 8)]
        assert all(part.ctypes.data % 8 == 0 for part in got)
        got.append(np.frombuffer(run.read(run.remaining), np.uint64))
        np.testing.assert_array_equal(np.concatenate(got), words)


def test_skipped_runs_are_spent_and_erased(pool: Pool, path: Path) -> None:
    run = pool.claim(3)
    assert run.seed == seed_of(3)
    content = path.read_bytes()
    for index in range(4):
        assert seed_of(index) not in content
    for index in range(3):
        assert corrections_of(index) not in content
        with pytest.raises(CorrelationExhausted, match=f"run {index} .* the next one is 4"):
            pool.claim(index)
    assert bytes(run.read(CLIENT.correction_bytes)) == corrections_of(3)
    assert pool.claim(4).seed == seed_of(4)


def test_closing_a_run_destroys_it(pool: Pool, path: Path) -> None:
    run = pool.claim(0)
    assert corrections_of(0) in path.read_bytes()
    run.close()
    run.close()
    assert corrections_of(0) not in path.read_bytes()
    for use in (lambda: run.seed, lambda: run.read(0)):
        with pytest.raises(CorrelationExhausted, match="closed"):
            use()


def test_two_open_runs_do_not_disturb_each_other(path: Path, used: UsedLog) -> None:
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        first, second = pool.claim(0), pool.claim(1)
        second.close()
        assert bytes(first.read(CLIENT.correction_bytes)) == corrections_of(0)
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        assert pool.cursor == 2
        assert bytes(pool.claim(2).read(CLIENT.correction_bytes)) == corrections_of(2)
    with pytest.raises(CorrelationExhausted, match="closed"):
        first.read(0)


def test_reading_past_the_end_or_backwards(pool: Pool) -> None:
    run = pool.claim(0)
    run.read(CLIENT.correction_bytes - 1)
    for nbytes in (2, -1, 1 << 62):
        with pytest.raises(CorrelationExhausted, match="1 correction bytes left"):
            run.read(nbytes)
    assert bytes(run.read(1)) == corrections_of(0)[-1:]


@pytest.mark.parametrize("index", [-1, True])
def test_index_that_is_no_index(pool: Pool, index: int) -> None:
    with pytest.raises(ParameterError, match="from 0 on"):
        pool.claim(index)


def test_index_beyond_the_pool(pool: Pool) -> None:
    with pytest.raises(CorrelationExhausted, match="has 5 runs and no run 5"):
        pool.claim(5)
    assert pool.cursor == 0


def test_claims_survive_a_restart(path: Path, used: UsedLog) -> None:
    for index in range(5):
        with Pool.open(path, plan_digest=PLAN, used=used) as pool:
            assert pool.cursor == index
            pool.claim(index)
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        assert pool.remaining == 0
        assert bytes(pool.read_setup(expect=len(SETUP))) == SETUP


def test_threads_never_share_a_run(tmp_path: Path, used: UsedLog) -> None:
    header = dataclasses.replace(CLIENT, runs=200, correction_bytes=8)
    path, seeds = write_pool(tmp_path / "many.pool", header), list[bytes]()

    def claim(pool: Pool) -> None:
        for _ in range(10):
            try:
                seeds.append(pool.claim(pool.cursor).seed)
            except CorrelationExhausted:
                continue

    with Pool.open(path, plan_digest=None, used=used) as pool:
        threads = [threading.Thread(target=claim, args=(pool,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(seeds) == len(set(seeds)) > 0


def test_second_holder_is_locked_out(pool: Pool, path: Path, used: UsedLog) -> None:
    with pytest.raises(Locked, match="in use by another process"):
        Pool.open(path, plan_digest=PLAN, used=used)
    hard_link = path.with_name("other-name")
    os.link(path, hard_link)
    with pytest.raises(Locked):
        Pool.open(hard_link, plan_digest=PLAN, used=used)
    pool.close()
    pool.close()
    Pool.open(path, plan_digest=PLAN, used=used).close()


def test_a_closed_pool_gives_nothing(pool: Pool) -> None:
    pool.close()
    with pytest.raises(StorageError, match="closed"):
        pool.claim(0)


def test_a_forked_child_gives_nothing(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pool.claim(0)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with pytest.raises(Locked, match="belongs to the process that opened it"):
            pool.claim(1)
        for use in (lambda: run.seed, lambda: run.read(1)):
            with pytest.raises(CorrelationExhausted, match="belongs to the process that claimed"):
                use()
    assert run.seed == seed_of(0)


def test_other_plan(path: Path, used: UsedLog) -> None:
    with pytest.raises(UntrustedArtifact, match="dealt for plan cdcd"):
        Pool.open(path, plan_digest="00" * 32, used=used)
    assert not used.directory.exists()  # a refused pool is not bound


def test_other_party(path: Path, used: UsedLog) -> None:
    with pytest.raises(ParameterError, match="is the client's pool; this side needs the server's"):
        Pool.open(path, plan_digest=PLAN, used=used, rank=0)
    assert not used.directory.exists()
    with Pool.open(path, plan_digest=PLAN, used=UsedLog(used.directory / "own"), rank=1) as pool:
        assert pool.remaining == pool.header.runs


def test_nothing_secret_is_shown(pool: Pool, tmp_path: Path) -> None:
    run = pool.claim(0)
    assert seed_of(0).hex()[:8] not in repr(run) + repr(vars(run)["index"])
    assert SERVER.setup not in repr(SERVER)


def test_read_header_needs_no_lock_and_changes_nothing(pool: Pool, path: Path) -> None:
    before = path.read_bytes()
    assert read_header(path) == CLIENT
    assert path.read_bytes() == before
    with pytest.raises(StorageError, match="No such file"):
        read_header(path.with_name("none"))


def test_a_map_that_is_still_referred_to_does_not_hold_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(4096))
    first = fs.File.open(path, writable=True)
    first.lock()
    held = first.map(0, 4096)
    first.close()
    with fs.File.open(path, writable=True) as second:
        second.lock()
    assert len(held) == 4096
