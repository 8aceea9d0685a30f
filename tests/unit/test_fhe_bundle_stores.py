"""Key store, board of images, key ring, job file and messages: bounds, fairness, hostile bytes."""

from __future__ import annotations

import hashlib
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from privml.errors import (
    Corrupt,
    MalformedMessage,
    ParameterError,
    SecurityError,
    StorageError,
    UnsupportedError,
    UntrustedArtifact,
)
from privml.protocols.fhe import messages, pipe, toolkit
from privml.protocols.fhe.board import Board, Task
from privml.protocols.fhe.job_file import job_of
from privml.protocols.fhe.key_ring import KeyRing, load_evaluation
from privml.protocols.fhe.key_store import KeyStore, Owner
from privml.protocols.fhe.launcher import Launcher, Limits
from privml.protocols.fhe.messages import Refused
from privml.protocols.fhe.secrets_scan import MAGIC, holds_secret_keys
from privml.testing.fhe_parts import fake_part

A, B, C = (Owner(c * 64, "0" * 64) for c in "abc")
JOB = "1" * 32


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(store: KeyStore, owner: Owner, data: bytes) -> list[Owner]:
    return store.put(owner, data, digest=digest(data))


# ---------------------------------------------------------------------------------- key store


def test_keys_come_back_also_after_a_restart(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys")
    assert store.get(A) is None
    assert put(store, A, b"a" * 1000) == []
    assert put(store, A, b"b" * 900) == []
    again = KeyStore(tmp_path / "keys")
    assert again.get(A) == b"b" * 900
    assert again.digest(A) == digest(b"b" * 900)
    assert again.get(replace(A, program="1" * 64)) is None
    again.remove(A)
    assert again.get(A) is None
    assert not list((tmp_path / "keys").iterdir())


def test_the_least_recently_used_keys_are_evicted(tmp_path: Path) -> None:
    store = KeyStore(tmp_path, max_clients=2)
    put(store, A, b"a")
    put(store, B, b"b")
    assert store.get(A) == b"a"
    assert put(store, C, b"c") == [B]
    assert (store.get(A), store.get(B), store.get(C)) == (b"a", None, b"c")
    assert len(list(tmp_path.iterdir())) == len(store) == 2


def test_bytes_are_bounded(tmp_path: Path) -> None:
    store = KeyStore(tmp_path, max_bytes=2500)
    put(store, A, b"a" * 1000)
    put(store, B, b"b" * 1000)
    assert put(store, C, b"c" * 2000) == [A, B]
    assert store.used_bytes <= 2500
    with pytest.raises(ParameterError, match="exceed the store"):
        put(store, A, b"a" * 2500)
    assert store.get(C) == b"c" * 2000


def test_damaged_keys_count_as_absent(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    for harm in (b"x", b"y" * 5000):
        put(store, A, b"a" * 1000)
        (tmp_path / A.file_name).write_bytes(harm)
        assert store.get(A) is None
        assert store.digest(A) is None
    (tmp_path / A.file_name).write_bytes(b"cut")
    assert KeyStore(tmp_path).get(A) is None


def test_keys_of_another_digest_or_with_a_secret_are_refused(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    with pytest.raises(ParameterError, match="not those that were named"):
        store.put(A, b"a", digest=digest(b"b"))
    bits = np.random.default_rng(2).integers(0, 2, 500).astype("<u8").tobytes()
    with pytest.raises(SecurityError, match="secret key"):
        put(store, A, b"head" + bits)
    assert not list(tmp_path.iterdir())


def test_foreign_files_stop_the_store(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"hello")
    with pytest.raises(StorageError, match="not a file of the key store"):
        KeyStore(tmp_path)
    (tmp_path / "notes.txt").unlink()
    KeyRing("0" * 64, b"s" * 50, b"e" * 50).save(tmp_path / "ring")
    (tmp_path / "ring" / "secret.keys").rename(tmp_path / "secret.keys")
    for path in (tmp_path / "ring").iterdir():
        path.unlink()
    (tmp_path / "ring").rmdir()
    with pytest.raises(SecurityError, match="secret key"):
        KeyStore(tmp_path)


def test_leftovers_of_a_killed_writer_go(tmp_path: Path) -> None:
    (tmp_path / f".{A.file_name}.0011.part").write_bytes(b"half")
    KeyStore(tmp_path)
    assert not list(tmp_path.iterdir())


@given(st.binary(max_size=3000).filter(lambda data: not data.startswith(MAGIC)))
def test_random_bytes_are_no_secret_key(data: bytes) -> None:
    assert not holds_secret_keys(data)


@pytest.mark.parametrize("shift", range(8))
def test_secret_keys_are_found_at_any_offset(shift: int) -> None:
    bits = np.random.default_rng(shift).integers(0, 2, 450).astype("<u8").tobytes()
    assert holds_secret_keys(b"\xaa" * shift + bits + b"\xbb" * 9)
    assert not holds_secret_keys(bytes(shift + 8 * 450))
    assert not holds_secret_keys(np.arange(450).astype("<u8").tobytes())


# -------------------------------------------------------------------------------------- board


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def take(board: Board) -> Task:
    task = board.take(0.0)
    assert task is not None
    return task


def test_clients_take_turns() -> None:
    board = Board()
    board.submit(A, JOB, [(i, b"q") for i in range(4)])
    board.submit(B, JOB, [(0, b"q"), (1, b"q")])
    order = []
    for _ in range(6):
        task = take(board)
        order.append(task.owner)
        board.finish(task, b"answer")
    assert order == [A, B, A, B, A, A]
    assert board.take(0.0) is None


def test_images_go_from_waiting_to_finished_and_are_kept(clock: Clock) -> None:
    board = Board(keep_s=100, clock=clock)
    assert board.submit(A, JOB, [(0, b"q0"), (1, b"q1"), (2, b"q2")]) == 3
    assert board.submit(A, JOB, [(0, b"again")]) == 0
    board.finish(take(board), b"a0")
    board.fail(take(board), "malformed")
    running = take(board)
    state = board.state(A, JOB)
    assert (state.waiting, state.finished, state.failed) == ((2,), (0,), {1: "malformed"})
    assert board.answer(A, JOB, 0) == b"a0"
    assert [board.answer(A, JOB, i) for i in (1, 2, 3)] == [None] * 3
    assert board.answer(B, JOB, 0) is None
    assert board.submit(A, JOB, [(1, b"q1")]) == 1  # what failed may be tried again
    board.finish(running, b"a2")
    board.finish(take(board), b"a1")
    assert board.state(A, JOB).finished == (0, 1, 2)
    assert board.used_bytes == (0, 6)
    board.drop(A, JOB)
    assert board.used_bytes == (0, 0)
    assert board.state(A, JOB).finished == ()


def test_answers_expire(clock: Clock) -> None:
    board = Board(keep_s=100, clock=clock)
    board.submit(A, JOB, [(0, b"q"), (1, b"q")])
    board.finish(take(board), b"a0")
    clock.now = 60
    board.finish(take(board), b"a1")
    clock.now = 101
    assert board.state(A, JOB).finished == (1,)
    clock.now = 161
    assert board.state(A, JOB).finished == ()
    assert board.used_bytes == (0, 0)
    assert not board._clients


def test_answers_are_bounded_in_bytes(clock: Clock) -> None:
    board = Board(max_bytes=250, clock=clock)
    for i in range(4):
        clock.now = i
        board.submit(A, JOB, [(i, b"q")])
        board.finish(take(board), bytes(100))
        assert board.used_bytes[1] <= 250
    assert board.state(A, JOB).finished == (2, 3)
    assert board.submit(A, JOB, [(0, b"q")]) == 1  # an evicted one is computed again


def test_a_client_cannot_fill_the_server() -> None:
    board = Board(window=3, max_bytes=100)
    board.submit(A, JOB, [(0, b"q"), (1, b"q")])
    with pytest.raises(Refused, match="at most 3") as caught:
        board.submit(A, JOB, [(2, b"q"), (3, b"q")])
    assert caught.value.reason == "busy"
    with pytest.raises(Refused, match="room"):
        board.submit(B, JOB, [(0, bytes(99))])
    running = take(board)
    with pytest.raises(Refused, match="at most 3"):  # one that is computed counts
        board.submit(A, JOB, [(2, b"q"), (3, b"q")])
    board.finish(running, b"")
    board.submit(A, JOB, [(2, b"q"), (3, b"q")])


def test_a_client_keeps_a_bounded_number_of_jobs() -> None:
    board = Board()
    for i in range(64):
        board.submit(A, f"{i:032x}", [(0, b"q")])
        board.finish(take(board), b"")
    with pytest.raises(Refused, match="at most 64 jobs"):
        board.submit(A, JOB, [(0, b"q")])
    board.drop(A, f"{5:032x}")
    board.submit(A, JOB, [(0, b"q")])


def test_dropping_a_running_job_leaves_nothing() -> None:
    board = Board()
    board.submit(A, JOB, [(0, b"q"), (1, b"q")])
    running = take(board)
    board.drop(A)
    assert board.take(0.0) is None
    board.finish(running, b"late")
    assert board.used_bytes == (0, 0)
    assert board.unfinished == 0
    assert not board._clients


def test_a_late_answer_is_not_taken_for_the_query_sent_anew() -> None:
    board = Board()
    board.submit(A, JOB, [(0, b"old")])
    late = take(board)
    board.drop(A, JOB)
    board.submit(A, JOB, [(0, b"new")])
    board.finish(late, b"of old")
    assert board.answer(A, JOB, 0) is None
    board.finish(take(board), b"of new")
    assert board.answer(A, JOB, 0) == b"of new"
    assert board.used_bytes == (0, 6)


@given(st.data())
def test_the_board_counts_right(data: st.DataObject) -> None:
    board, running = Board(window=5, max_bytes=60), []
    for _ in range(data.draw(st.integers(0, 25))):
        owner = data.draw(st.sampled_from([A, B]))
        match data.draw(st.sampled_from(["submit", "take", "finish", "fail", "drop"])):
            case "submit":
                image = (data.draw(st.integers(0, 6)), bytes(data.draw(st.integers(0, 9))))
                with suppress(Refused):
                    board.submit(owner, JOB, [image])
            case "take":
                running += [task for task in [board.take(0.0)] if task is not None]
            case "finish" if running:
                board.finish(running.pop(0), bytes(data.draw(st.integers(0, 30))))
            case "fail" if running:
                board.fail(running.pop(0), "why")
            case "drop":
                board.drop(owner, data.draw(st.sampled_from([JOB, None])))
    queued = [t for c in board._clients.values() for t in c.queue]
    settled = [one.answer for *_, one in board._every()]
    assert board.used_bytes == (
        sum(len(t.query) for t in [*queued, *running]), sum(map(len, settled))
    )  # fmt: skip
    assert board.used_bytes[1] <= 60
    assert board.unfinished == len(queued) + len(running)


@pytest.mark.parametrize("bad", [{"window": 0}, {"window": 5000}, {"keep_s": 0}, {"max_bytes": 0}])
def test_the_board_needs_room(bad: dict[str, int]) -> None:
    with pytest.raises(ParameterError):
        Board(**bad)  # type: ignore[arg-type]


# ------------------------------------------------------------------------ key ring and job file


def test_a_key_ring_comes_back_and_is_private(tmp_path: Path) -> None:
    ring = KeyRing("ab" * 32, b"secret" * 50, b"public" * 50)
    assert "secret" not in repr(ring)
    ring.save(tmp_path / "new" / "ring")
    found = KeyRing.load(tmp_path / "new" / "ring")
    assert (found.program, found.secret, found.evaluation) == (
        ring.program, ring.secret, ring.evaluation
    )  # fmt: skip
    secret = tmp_path / "new" / "ring" / "secret.keys"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert load_evaluation(secret.with_name("evaluation.keys")) == ("ab" * 32, b"public" * 50)
    assert holds_secret_keys(secret.read_bytes())
    with pytest.raises(StorageError, match="never overwritten"):
        ring.save(tmp_path / "new" / "ring")


def test_a_readable_or_damaged_key_ring_is_refused(tmp_path: Path) -> None:
    KeyRing("ab" * 32, b"s" * 50, b"e" * 50).save(tmp_path / "ring")
    secret, public = (tmp_path / "ring" / f"{n}.keys" for n in ("secret", "evaluation"))
    secret.chmod(0o640)
    with pytest.raises(UntrustedArtifact, match="other users"):
        KeyRing.load(tmp_path / "ring")
    secret.chmod(0o600)
    data = secret.read_bytes()
    for bad in (data[:-1], data[:60], b"", public.read_bytes()):
        secret.write_bytes(bad)
        with pytest.raises(Corrupt, match="damaged"):
            KeyRing.load(tmp_path / "ring")
    secret.write_bytes(data)
    KeyRing("cd" * 32, b"s" * 50, b"e" * 50).save(tmp_path / "other")
    public.write_bytes((tmp_path / "other" / "evaluation.keys").read_bytes())
    with pytest.raises(UntrustedArtifact, match="different programs"):
        KeyRing.load(tmp_path / "ring")


def test_a_job_is_found_again_only_for_the_same_batch(tmp_path: Path) -> None:
    images = np.arange(6).reshape(2, 3)
    path = tmp_path / "job.json"
    job, again = job_of(path, program=A.program, keys=b"k", images=images)
    assert not again
    assert job_of(path, program=A.program, keys=b"k", images=images) == (job, True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for other in (
        {"program": "1" * 64, "keys": b"k", "images": images},
        {"program": A.program, "keys": b"j", "images": images},
        {"program": A.program, "keys": b"k", "images": images + 1},
        {"program": A.program, "keys": b"k", "images": images.reshape(3, 2)},
    ):
        with pytest.raises(UntrustedArtifact, match="another program"):
            job_of(path, **other)  # type: ignore[arg-type]
    path.write_bytes(b"{}")
    with pytest.raises(Corrupt, match="no batch"):
        job_of(path, program=A.program, keys=b"k", images=images)


# ----------------------------------------------------------------------------------- messages


@given(st.binary(max_size=200))
def test_decoders_raise_one_error_only(data: bytes) -> None:
    for decode in (messages.decode_request, messages.decode_reply):
        with pytest.raises(MalformedMessage):
            decode(memoryview(data))


def test_messages_come_back_and_are_strict() -> None:
    for message in (
        messages.Submit(JOB, (0, 4), (7, 8)), messages.Watch(JOB, 3), messages.Bye(),
        messages.Open("0" * 64, "1" * 64), messages.SendKeys(1 << 30),
    ):  # fmt: skip
        assert messages.decode_request(memoryview(messages.encode(message))) == message
    state = messages.State((1,), (0,), {2: "malformed"}, 4)
    assert messages.decode_reply(memoryview(messages.encode(state))) == state
    for bad in (
        messages.Submit("x" * 32, (0,), (1,)), messages.Submit(JOB, (4096,), (1,)),
        messages.Submit(JOB, (-1,), (1,)), messages.Watch(JOB, -1), messages.Open("0", "1"),
    ):  # fmt: skip
        with pytest.raises(MalformedMessage):
            messages.decode_request(memoryview(messages.encode(bad)))
    with pytest.raises(MalformedMessage):
        messages.decode_request(memoryview(messages.encode(state)))


def test_a_refusal_prints_nothing_odd() -> None:
    error = Refused("busy\x1b[2J", "come\nback\x00")
    assert str(error).isprintable()


def test_bytes_are_cut_as_announced() -> None:
    assert messages.split(memoryview(b"abcde"), (2, 0, 3)) == [b"ab", b"", b"cde"]
    with pytest.raises(MalformedMessage):
        messages.split(memoryview(b"abcde"), (2, 2))


# -------------------------------------------------------------------------- pipe to the child


def reader(data: bytes):  # type: ignore[no-untyped-def]
    left = bytearray(data)

    def read(count: int) -> bytes:
        part = bytes(left[:count])
        del left[:count]
        return part

    return read


def test_orders_and_replies_cross_the_pipe() -> None:
    order = pipe.encode(pipe.Keys(1), 3) + b"abc"
    assert pipe.read_order(reader(order), limit=3) == (pipe.Keys(1), b"abc")
    assert pipe.read_order(reader(b""), limit=3) is None
    reply = pipe.encode(pipe.Failed("bug", "why"), 0)
    assert pipe.read_reply(reader(reply), limit=0) == (pipe.Failed("bug", "why"), b"")
    for bad in (order[:5], b"XXXX" + order[4:], pipe.encode(pipe.Keys(1), 4)):
        with pytest.raises(MalformedMessage):
            pipe.read_order(reader(bad), limit=3)
    with pytest.raises(MalformedMessage):
        pipe.read_reply(reader(order), limit=3)


@given(st.binary(max_size=60))
def test_the_pipe_refuses_noise(data: bytes) -> None:
    head = pipe.HEAD.pack(pipe.MAGIC, len(data), 0)
    with pytest.raises(MalformedMessage):
        pipe.read_order(reader(head + data), limit=100)


def test_limits_of_the_child_must_be_positive() -> None:
    fine = Limits.of(fake_part().manifest)
    assert fine.memory_bytes > 1 << 30
    for name in ("memory_bytes", "cpu_s", "wall_s", "start_s", "loaded_keys", "threads"):
        with pytest.raises(ParameterError):
            replace(fine, **{name: 0})


@pytest.mark.skipif(toolkit.missing() is None, reason="concrete-python is installed")
def test_a_child_without_the_toolkit_says_so() -> None:
    part = fake_part()
    with (
        Launcher(part.artefact, part.manifest) as launcher,
        pytest.raises(UnsupportedError, match="concrete-python"),
    ):
        launcher.start()
    assert launcher._folder is None
