"""The dealer's side: a pool appears whole or not at all."""

from __future__ import annotations

import dataclasses
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from privml.errors import Full, ParameterError, StorageError
from privml.protocols.mpc.correlations.pool import PoolWriter, UsedLog
from privml.testing.pools import CLIENT, PLAN, SERVER, seed_of, write_pool


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_pool(tmp_path / "client.pool")


@pytest.fixture
def used(tmp_path: Path) -> UsedLog:
    return UsedLog(tmp_path / "state" / "used")


def test_nothing_is_visible_before_commit(tmp_path: Path) -> None:
    path = tmp_path / "new" / "p.pool"
    with PoolWriter(path, SERVER) as writer:
        for index in range(5):
            writer.add_run(seed_of(index))
        assert not path.exists()
        writer.commit()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ParameterError), PoolWriter(tmp_path / "p.pool", CLIENT) as writer:
        writer.add_run(b"short")
    assert list(tmp_path.iterdir()) == []


def test_no_commit_leaves_nothing(tmp_path: Path) -> None:
    with PoolWriter(tmp_path / "p.pool", CLIENT):
        pass
    assert list(tmp_path.iterdir()) == []


def test_never_overwrites(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(StorageError, match="exists already"):
        write_pool(path)
    assert path.read_bytes() == before


def test_never_overwrites_what_appeared_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "p.pool"
    header = dataclasses.replace(SERVER, runs=1)
    with PoolWriter(path, header) as writer:
        writer.add_run(seed_of(0))
        path.write_bytes(b"other")
        with pytest.raises(StorageError, match="exists already"):
            writer.commit()
    assert [p.name for p in tmp_path.iterdir()] == ["p.pool"]
    assert path.read_bytes() == b"other"


def test_never_follows_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(StorageError, match="exists already"):
        PoolWriter(tmp_path / "link", CLIENT)


def test_counts_are_kept(tmp_path: Path) -> None:
    with PoolWriter(tmp_path / "p.pool", CLIENT) as writer:
        with pytest.raises(ParameterError, match="do not fit"):
            writer.append(b"x")
        with pytest.raises(ParameterError, match="32 bytes, not 31"):
            writer.add_run(bytes(31))
        with pytest.raises(ParameterError, match="5 runs were announced, 0 written"):
            writer.commit()
        writer.add_run(seed_of(0))
        writer.append(bytes(CLIENT.correction_bytes - 1))
        with pytest.raises(ParameterError, match="2 more do not fit after 9999"):
            writer.append(bytes(2))
        for call in (lambda: writer.add_run(seed_of(1)), writer.commit):
            with pytest.raises(ParameterError, match="run 0 has 9999 correction bytes"):
                call()
        for index in range(1, 5):
            writer.append(bytes(CLIENT.correction_bytes if index > 1 else 1))
            writer.add_run(seed_of(index))
        writer.append(bytes(CLIENT.correction_bytes))
        with pytest.raises(ParameterError, match="announces 5 runs"):
            writer.add_run(seed_of(5))
        writer.commit()


def test_rank_0_takes_no_setup_bytes(tmp_path: Path) -> None:
    writer = PoolWriter(tmp_path / "p.pool", SERVER)
    with writer, pytest.raises(ParameterError, match="only the seed"):
        writer.append_setup(b"x")


def test_headers_out_of_range_are_named(tmp_path: Path) -> None:
    bad = dataclasses.replace(
        SERVER, pool_id="x", plan_digest="", runs=0, correction_bytes=1, setup="0", claim="\n"
    )
    with pytest.raises(ParameterError) as caught:
        PoolWriter(tmp_path / "p.pool", bad)
    for name in ("pool_id", "plan_digest", "runs", "correction_bytes", "setup", "claim"):
        assert name in str(caught.value)
    assert "setup" in dataclasses.replace(CLIENT, setup="ef" * 32).problems()[0]
    assert "rank" in dataclasses.replace(CLIENT, rank=2).problems()[0]


def test_a_pool_larger_than_the_disk_is_refused_at_once(tmp_path: Path) -> None:
    huge = dataclasses.replace(CLIENT, runs=1 << 20, correction_bytes=1 << 40)
    with pytest.raises(Full, match="free space, or deal fewer runs"):
        PoolWriter(tmp_path / "p.pool", huge)
    assert list(tmp_path.iterdir()) == []


def test_a_real_quota_leaves_no_file(tmp_path: Path) -> None:
    script = f"""
import resource
from pathlib import Path
from privml.errors import Full
from privml.protocols.mpc.correlations.pool import PoolHeader, PoolWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
header = PoolHeader({"ab" * 16!r}, {PLAN!r}, 1, 1, 4 << 20, "", "")
try:
    with PoolWriter(Path({str(tmp_path / "p.pool")!r}), header) as writer:
        writer.add_run(bytes(32))
        writer.append(bytes(4 << 20))
        writer.commit()
except Full as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "no space left while writing" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_sweeps_what_a_killed_writer_left_but_not_a_live_one(tmp_path: Path) -> None:
    path = tmp_path / "a[1].pool"
    stale = tmp_path / ".a[1].pool.0123456789abcdef.part"
    stale.write_bytes(b"left over")
    with PoolWriter(path, CLIENT):
        assert not stale.exists()
        with PoolWriter(path, CLIENT):
            assert len(list(tmp_path.iterdir())) == 2
