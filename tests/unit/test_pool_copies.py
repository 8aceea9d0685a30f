"""A copied or rewound pool never gives a run that was handed out before."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path

import pytest

from privml.errors import CorrelationExhausted, ParameterError
from privml.protocols.mpc.correlations import layout
from privml.protocols.mpc.correlations.pool import Pool, UsedLog
from privml.protocols.mpc.correlations.used import PoolKey, default_directory
from privml.testing.pools import PLAN, seed_of, write_pool


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_pool(tmp_path / "client.pool")


@pytest.fixture
def used(tmp_path: Path) -> UsedLog:
    return UsedLog(tmp_path / "state" / "used")


def test_copy_before_first_use(path: Path, used: UsedLog) -> None:
    copy = path.with_name("copy.pool")
    copy.write_bytes(path.read_bytes())
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        with pytest.raises(CorrelationExhausted, match="is a copy"):
            Pool.open(copy, plan_digest=PLAN, used=used)
        pool.claim(0)
    with pytest.raises(CorrelationExhausted, match="is a copy"):
        Pool.open(copy, plan_digest=PLAN, used=used)


def test_copy_after_use(path: Path, used: UsedLog) -> None:
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        pool.claim(1)
    copy = path.with_name("copy.pool")
    copy.write_bytes(path.read_bytes())
    with pytest.raises(CorrelationExhausted, match="is a copy"):
        Pool.open(copy, plan_digest=PLAN, used=used)
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        assert pool.cursor == 2


def test_used_copy_under_another_log(path: Path, used: UsedLog, tmp_path: Path) -> None:
    Pool.open(path, plan_digest=PLAN, used=used).close()
    copy = path.with_name("copy.pool")
    copy.write_bytes(path.read_bytes())
    with pytest.raises(CorrelationExhausted, match="another log of used pools"):
        Pool.open(copy, plan_digest=PLAN, used=UsedLog(tmp_path / "elsewhere"))


def test_content_rewound_in_place(path: Path, used: UsedLog) -> None:
    before = path.read_bytes()
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        pool.claim(2)
    path.write_bytes(before)  # same inode, old cursor, old seeds
    with Pool.open(path, plan_digest=PLAN, used=used) as pool:
        assert pool.cursor == 3
        with pytest.raises(CorrelationExhausted):
            pool.claim(2)
        assert pool.claim(3).seed == seed_of(3)
    assert seed_of(2) not in path.read_bytes()


def test_cursor_and_log_rewound_but_seeds_erased(path: Path, tmp_path: Path) -> None:
    fresh = path.read_bytes()[: layout.SEEDS_OFFSET]
    with Pool.open(path, plan_digest=PLAN, used=UsedLog(tmp_path / "log1")) as pool:
        pool.claim(2)
    with path.open("r+b") as file:
        file.write(fresh)
    with Pool.open(path, plan_digest=PLAN, used=UsedLog(tmp_path / "log2")) as pool:
        assert pool.cursor == 0
        for index in range(3):
            with pytest.raises(CorrelationExhausted, match="was erased"):
                pool.claim(index)
        assert pool.claim(3).seed == seed_of(3)


def test_log_refuses_what_it_knows(used: UsedLog) -> None:
    key = PoolKey("ab" * 16, 1, 77)
    assert used.bind(key, opened_before=False) == 0
    used.spend(key, 3)
    for again in (0, 2, 3):
        with pytest.raises(CorrelationExhausted, match="handed out before"):
            used.spend(key, again)
    with pytest.raises(CorrelationExhausted, match="copy"):
        used.spend(dataclasses.replace(key, inode=78), 4)
    assert UsedLog(used.directory).bind(key, opened_before=True) == 3
    other_rank = dataclasses.replace(key, rank=0)
    assert used.bind(other_rank, opened_before=False) == 0


def test_log_that_lost_the_pool(used: UsedLog) -> None:
    used.bind(PoolKey("ab" * 16, 1, 77), opened_before=False)
    with pytest.raises(CorrelationExhausted, match="lost pool"):
        used.spend(PoolKey("cd" * 16, 1, 77), 1)


@pytest.mark.parametrize("pool_id", ["../../x", "", "AB" * 16, "ab" * 16 + "\n"])
def test_log_names_no_file_after_a_bad_id(used: UsedLog, pool_id: str) -> None:
    with pytest.raises(ParameterError):
        used.bind(PoolKey(pool_id, 1, 1), opened_before=False)


@pytest.mark.parametrize("tail", [1, 40, 127, 128, 300])
def test_log_skips_torn_records(used: UsedLog, tail: int) -> None:
    key = PoolKey("ab" * 16, 1, 77)
    used.bind(key, opened_before=False)
    used.spend(key, 2)
    (file,) = used.directory.iterdir()
    file.write_bytes(file.read_bytes() + b"\x5a" * tail)
    assert used.bind(key, opened_before=True) == 2
    used.spend(key, 4)
    assert used.bind(key, opened_before=True) == 4


def test_log_is_private(used: UsedLog) -> None:
    used.bind(PoolKey("ab" * 16, 1, 77), opened_before=False)
    (file,) = used.directory.iterdir()
    assert stat.S_IMODE(used.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_default_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_directory() == UsedLog().directory == tmp_path / "privml" / "used"
    for unset in ("", "relative/path"):
        monkeypatch.setenv("XDG_STATE_HOME", unset)
        assert default_directory() == Path.home() / ".local/state/privml/used"
