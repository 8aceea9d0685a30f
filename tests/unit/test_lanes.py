"""Lanes merge flights, end together, never wait for ever, and leave no thread behind."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from privml.errors import PeerAborted, PrivmlError
from privml.protocols.mpc.lanes import Lane, run_lanes
from privml.protocols.mpc.primitive import Context
from privml.session import Session
from privml.testing.parties import Outcome, run_parties, run_sessions

DEADLINE_S = 5.0
Sizes = Sequence[Sequence[int]]
"""Payload of every exchange of every lane."""


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    uncaught: list[object] = []
    hook, threading.excepthook = threading.excepthook, uncaught.append
    yield
    threading.excepthook = hook
    until = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < until:
        time.sleep(0.01)
    assert set(threading.enumerate()) - before == set()
    assert uncaught == []


def talker(number: int, sizes: Sequence[int]) -> Callable[[Lane], int]:
    """Exchange messages that both parties can check, and return their number."""

    def job(lane: Lane) -> int:
        for step, size in enumerate(sizes):
            mine = bytes([(7 * number + step + lane.rank) % 256]) * size
            theirs = bytes([(7 * number + step + 1 - lane.rank) % 256]) * size
            assert bytes(lane.exchange(0, mine, expect=size)) == theirs
        return len(sizes)

    return job


def over_session(
    jobs: Callable[[int], Sequence[Callable[[Lane], int]]],
) -> tuple[Outcome[list[int]], Outcome[list[int]]]:
    def program(session: Session) -> list[int]:
        return run_lanes(jobs(session.rank), session.rank, Context(session).swap)

    return run_sessions(program, deadline_s=DEADLINE_S)


def over(sizes: Sizes) -> list[list[int]]:
    outcomes = over_session(lambda rank: [talker(n, s) for n, s in enumerate(sizes)])
    return [outcome.unwrap() for outcome in outcomes]


@pytest.mark.parametrize(
    "sizes",
    [[[3]], [[], [5]], [[5], []], [[], []], [[1], [], [2, 3], [4] * 9], [[0, 0], [0]],
     [[100_000] * 3, [1] * 5], [[1]] * 12],
    ids=lambda s: "-".join(str(len(x)) for x in s),
)  # fmt: skip
def test_lanes_of_any_number_and_length(sizes: Sizes) -> None:
    assert over(sizes) == [[len(s) for s in sizes]] * 2


def test_flights_are_those_of_the_longest_lane() -> None:
    def program(session: Session) -> int:
        jobs = [talker(n, [4] * k) for n, k in enumerate((2, 7, 0, 5))]
        run_lanes(jobs, session.rank, Context(session).swap)
        return session.measured().total.flights

    assert [o.unwrap() for o in run_sessions(program, deadline_s=DEADLINE_S)] == [7, 7]


def test_no_deadlock_under_random_delays(rng: np.random.Generator) -> None:
    for _ in range(12):
        sizes = [list(rng.integers(0, 50, rng.integers(0, 9))) for _ in range(rng.integers(1, 6))]
        plain = [[int(x) for x in s] for s in sizes]
        naps = rng.random((2, len(plain))) * 0.004

        def jobs(rank: int, plain: Sizes = plain, naps: np.ndarray = naps) -> list[object]:
            def slow(n: int) -> Callable[[Lane], int]:
                def job(lane: Lane) -> int:
                    time.sleep(naps[rank, n])
                    done = talker(n, plain[n])(lane)
                    time.sleep(naps[1 - rank, n])
                    return done

                return job

            return [slow(n) for n in range(len(plain))]

        for outcome in over_session(jobs):
            assert outcome.unwrap() == [len(s) for s in plain]
            assert outcome.seconds < DEADLINE_S


@pytest.mark.nightly
def test_no_deadlock_in_a_thousand_random_merges(rng: np.random.Generator) -> None:
    for _ in range(1000):
        sizes = [[1] * int(rng.integers(0, 12)) for _ in range(rng.integers(1, 8))]
        assert over(sizes) == [[len(s) for s in sizes]] * 2


class _Fault(Exception):
    pass


def failing(number: int, after: int, error: BaseException) -> Callable[[Lane], int]:
    def job(lane: Lane) -> int:
        talker(number, [3] * after)(lane)
        raise error

    return job


@pytest.mark.parametrize("lane", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 2, 9])
@pytest.mark.parametrize("kind", [_Fault, KeyboardInterrupt, SystemExit, PrivmlError])
def test_a_failing_lane_ends_both_parties(kind: type[BaseException], lane: int, after: int) -> None:
    def jobs(rank: int) -> list[Callable[[Lane], int]]:
        out = [talker(n, [3] * 5) for n in range(3)]
        if rank == 0:
            out[lane] = failing(lane, min(after, 5), kind("here"))
        else:
            out[lane] = talker(lane, [3] * 7)  # waits for messages that never come
        return out

    bad, good = over_session(jobs)
    assert isinstance(bad.error, kind)
    assert isinstance(good.error, PeerAborted)
    assert good.value is None
    assert max(bad.seconds, good.seconds) < DEADLINE_S


@pytest.mark.parametrize("late", [0, 1])
def test_a_link_that_fails_when_a_lane_without_messages_ends(late: int) -> None:
    """The exchange then happens while a lane leaves; its error must still reach the caller."""

    def swap(mine: object, expect: int) -> memoryview:
        raise PeerAborted("gone")

    def silent(lane: Lane) -> int:
        time.sleep(0.05)
        return 0

    jobs = [talker(0, [1]), talker(1, [1])]
    jobs[late] = silent
    with pytest.raises(PeerAborted, match="gone"):
        run_lanes(jobs, 0, swap)


def test_an_interrupt_while_the_others_are_waited_for() -> None:
    """The first lane is done, the second one computes; Ctrl-C must not be swallowed or hang."""
    heeded = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    begun, main = threading.Event(), threading.main_thread().ident or 0

    def long(lane: Lane) -> int:
        begun.wait(5)
        signal.pthread_kill(main, signal.SIGINT)
        give_up = time.monotonic() + 5
        while lane._junction.failure is None and time.monotonic() < give_up:
            time.sleep(0.01)
        return len(lane.exchange(0, b"x", expect=1))

    def short(lane: Lane) -> int:
        begun.set()
        return 0

    exchanged: list[int] = []

    def swap(mine: object, expect: int) -> memoryview:
        exchanged.append(expect)
        return memoryview(bytes(expect))

    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_lanes([short, long], 0, swap)
    finally:
        signal.signal(signal.SIGINT, heeded)
    assert time.monotonic() - began < 4  # not the five seconds of a lane that nobody stopped
    assert exchanged == []  # a stopped run sends nothing any more


def test_parties_with_different_lanes_stop() -> None:
    """One more message in a lane at one side: sizes differ, nobody waits for ever."""

    def jobs(rank: int) -> list[Callable[[Lane], int]]:
        return [talker(0, [3] * (2 + rank)), talker(1, [4] * 3)]

    outcomes = over_session(jobs)
    assert all(isinstance(o.error, PrivmlError) for o in outcomes)


@pytest.mark.parametrize("verb", ["send", "recv", "checkpoint"])
def test_one_way_messages_are_refused_in_a_lane(verb: str) -> None:
    def job(lane: Lane) -> int:
        arguments = {"send": (1, b"x"), "recv": (1,), "checkpoint": ()}[verb]
        getattr(lane, verb)(*arguments, **({"expect": 1} if verb == "recv" else {}))
        return 0

    with pytest.raises(AssertionError, match="a lane only exchanges"):
        run_lanes([job, talker(1, [])], 0, lambda mine, expect: memoryview(bytes(expect)))


def test_two_groups_in_one_process_do_not_meet() -> None:
    first, second = run_parties(lambda: over([[1, 2], [3]]), lambda: over([[], [4, 5, 6]]))
    assert first.unwrap() == [[2, 1]] * 2
    assert second.unwrap() == [[0, 3]] * 2
