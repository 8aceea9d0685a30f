"""Every step of durable storage may stop, tear, fail or be forgotten; the promises hold."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from privml.errors import Full, StorageError
from privml.storage import failpoints, fs
from privml.storage.failpoints import Kind, Op
from privml.storage.publish import NewFile, atomic_write
from privml.testing.crashfs import Crashed, CrashFs, Fault, Loss

EXPECTED = {
    Fault.STOP_BEFORE: {"stopped"},
    Fault.STOP_AFTER: {"stopped"},
    Fault.TORN: {"stopped"},
    Fault.EIO: {"failed"},
    Fault.ENOSPC: {"full"},
}
OLD, NEW = b"old content", b"new content, somewhat longer" * 3
RECORD = 16

Workload = Callable[[Path], None]


def replace(folder: Path) -> None:
    atomic_write(folder / "f", NEW)


def publish(folder: Path) -> None:
    atomic_write(folder / "n", NEW, replace=False)


def append(folder: Path) -> None:
    with fs.File.open(folder / "log", create=True) as file:
        file.lock()
        for index in range(2):
            fs.durable_append(file, bytes([index + 1]) * RECORD)


def make_dirs(folder: Path) -> None:
    fs.ensure_dir(folder / "a" / "b")


def steps(workload: Workload, folder: Path, scratch: Path) -> list[Op]:
    disk = CrashFs(scratch)
    with disk.running():
        workload(folder)
    return disk.ops


def prepared(tmp_path: Path, name: str) -> tuple[Path, Path]:
    """Return a folder with one old file, all of it durable, and a scratch folder."""
    folder, scratch = tmp_path / name / "disk", tmp_path / name / "scratch"
    folder.mkdir(parents=True)
    scratch.mkdir()
    (folder / "f").write_bytes(OLD)
    return folder, scratch


def lives(workload: Workload, tmp_path: Path, kinds: set[Kind]) -> list[tuple[str, Path, bool]]:
    """Run the workload once per step, fault and loss; return label, folder, whether it finished.

    A stop ends the workload, EIO is a storage error and ENOSPC is ``Full``: nothing goes on
    after a failed step as if it had worked.
    """
    ops = steps(workload, *prepared(tmp_path, "count"))
    assert {op.kind for op in ops} == kinds
    results = []
    for at in range(1, len(ops) + 1):
        for fault in EXPECTED:
            for salt, loss in enumerate((Loss.NONE, Loss.ALL, Loss.PART, Loss.PART)):
                label = f"{at}-{fault}-{loss}-{salt}"
                folder, scratch = prepared(tmp_path, label)
                disk = CrashFs(scratch, at=at, fault=fault, loss=loss, salt=salt)
                outcome = "stopped"
                with disk.running():
                    outcome = attempt(workload, folder)
                assert outcome in EXPECTED[fault], label
                results.append((label, folder, outcome == "finished"))
    return results


def attempt(workload: Workload, folder: Path) -> str:
    try:
        workload(folder)
    except Full:
        return "full"
    except StorageError:
        return "failed"
    return "finished"


def test_atomic_replace_shows_the_old_or_the_new_content(tmp_path: Path) -> None:
    kinds = {Kind.CREATE, Kind.WRITE, Kind.FSYNC, Kind.RENAME, Kind.DIRSYNC}
    for label, folder, finished in lives(replace, tmp_path, kinds):
        content = (folder / "f").read_bytes()
        assert content in ((NEW,) if finished else (OLD, NEW)), label
        replace(folder)
        assert (folder / "f").read_bytes() == NEW
        assert [p.name for p in folder.iterdir()] == ["f"], label  # leftovers are swept


def test_new_file_is_whole_or_absent(tmp_path: Path) -> None:
    kinds = {Kind.CREATE, Kind.WRITE, Kind.FSYNC, Kind.LINK, Kind.UNLINK, Kind.DIRSYNC}
    for label, folder, finished in lives(publish, tmp_path, kinds):
        path = folder / "n"
        assert path.exists() or not finished, label
        if path.exists():
            assert path.read_bytes() == NEW, label
        elif any(word in label for word in ("eio", "enospc")):
            names = sorted(p.name for p in folder.iterdir())
            left_by_a_failed_unlink = len(names) == 2 and names[0].endswith(".part")
            assert names == ["f"] or left_by_a_failed_unlink, label


def test_appended_records_are_kept_and_torn_ones_stay_apart(tmp_path: Path) -> None:
    kinds = {Kind.CREATE, Kind.WRITE, Kind.FSYNC}
    for label, folder, finished in lives(append, tmp_path, kinds):
        fs.sync_dir(folder)
        if not (folder / "log").exists():
            continue
        before = (folder / "log").read_bytes()
        append(folder)
        after = (folder / "log").read_bytes()
        assert after.startswith(before), label
        assert len(after) % RECORD == 0, label
        assert after[-2 * RECORD :] == b"\1" * RECORD + b"\2" * RECORD, label
        if finished:
            assert before[-2 * RECORD :] == after[-2 * RECORD :], label


def test_directories_can_be_made_again_after_any_crash(tmp_path: Path) -> None:
    for label, folder, finished in lives(make_dirs, tmp_path, {Kind.MKDIR, Kind.DIRSYNC}):
        assert (folder / "a" / "b").is_dir() or not finished, label
        make_dirs(folder)
        assert (folder / "a" / "b").is_dir(), label


def test_the_harness_loses_what_was_never_synced(tmp_path: Path) -> None:
    def careless(folder: Path) -> None:
        with fs.File.open(folder / "f", writable=True) as file:
            file.write_at(0, NEW)
        fs.rename(folder / "f", folder / "g")
        fs.unlink(folder / "none")

    folder, scratch = prepared(tmp_path, "careless")
    with CrashFs(scratch, at=3, loss=Loss.ALL).running():
        careless(folder)
    assert [p.name for p in folder.iterdir()] == ["f"]
    assert (folder / "f").read_bytes() == OLD


@pytest.mark.parametrize("dropped", [Kind.FSYNC, Kind.DIRSYNC])
def test_the_harness_catches_a_missing_sync(tmp_path: Path, dropped: Kind) -> None:
    """Mutant: one kind of sync does nothing. Some crash must then break a promise."""

    class Forgetful(CrashFs):
        def __call__(self, op: Op, do: Callable[[], None]) -> None:
            if op.kind is not dropped:
                super().__call__(op, do)

    broken = 0
    for at in range(1, 8):
        folder, scratch = prepared(tmp_path, str(at))
        finished = False
        with Forgetful(scratch, at=at, loss=Loss.ALL).running():
            publish(folder)
            finished = True
            fs.unlink(folder / "later")
        path = folder / "n"
        broken += path.exists() and path.read_bytes() != NEW
        broken += finished and not path.exists()
    assert broken


def test_after_a_stop_nothing_more_reaches_the_disk(tmp_path: Path) -> None:
    folder, scratch = prepared(tmp_path, "stop")
    with CrashFs(scratch, at=2).running(), NewFile(folder / "n") as new:
        with pytest.raises(Crashed):
            new.file.write_at(0, NEW)
        with pytest.raises(Crashed):
            fs.unlink(folder / "f")
    assert (folder / "f").exists()


def test_one_hook_at_a_time(tmp_path: Path) -> None:
    hook = CrashFs(tmp_path)
    with (
        failpoints.install(hook),
        pytest.raises(RuntimeError, match="already"),
        failpoints.install(hook),
    ):
        pass
    with failpoints.install(hook):
        pass


def test_punch_falls_back_to_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"x" * (3 << 20))
    kinds: list[Kind] = []

    def hook(op: Op, do: Callable[[], None]) -> None:
        kinds.append(op.kind)
        if op.kind is Kind.PUNCH:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        do()

    with fs.File.open(path, writable=True) as file, failpoints.install(hook):
        file.punch(1, (2 << 20) + 5)
        file.punch(0, 0)
    assert kinds == [Kind.PUNCH, *[Kind.WRITE] * 3]
    expected = b"x" + bytes((2 << 20) + 5) + b"x" * ((1 << 20) - 6)
    assert path.read_bytes() == expected


def test_punch_frees_blocks_and_keeps_the_length(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"x" * (1 << 20))
    with fs.File.open(path, writable=True) as file:
        file.sync()
        file.punch(4096, (1 << 20) - 4096)
        assert file.size == 1 << 20
        assert file.read_at(4096, 16) == bytes(16)
        assert file.read_at((1 << 20) - 3, 16) == bytes(3)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.ENOSPC, Full), (errno.EDQUOT, Full), (errno.EFBIG, Full), (errno.EIO, StorageError)],
)
def test_errors_name_the_file_and_the_reason(tmp_path: Path, code: int, kind: type) -> None:
    def fail(op: Op, do: Callable[[], None]) -> None:
        raise OSError(code, os.strerror(code))

    with failpoints.install(fail), pytest.raises(StorageError) as caught:
        fs.unlink(tmp_path / "x")
    assert type(caught.value) is kind
    assert str(tmp_path / "x") in str(caught.value)
    assert os.strerror(code) in str(caught.value)


def test_a_file_system_without_links_is_explained(tmp_path: Path) -> None:
    def hook(op: Op, do: Callable[[], None]) -> None:
        if op.kind is Kind.LINK:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        do()

    with failpoints.install(hook), pytest.raises(StorageError, match="has no hard links"):
        publish(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_steps_show_no_data(tmp_path: Path) -> None:
    ops = steps(publish, *prepared(tmp_path, "repr"))
    shown = " ".join(map(repr, ops))
    assert "write" in shown
    assert "content" not in shown
