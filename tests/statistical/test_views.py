"""Nobody can tell two secrets apart from a view: every primitive, both parties, many sessions.

Alarm budget: each search below is wrong on an honest protocol with probability 1e-8 at most, the
whole file with less than 1e-6.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from privml.protocols.mpc.arithmetic.matmul import Linear
from privml.protocols.mpc.engine import Known
from privml.protocols.mpc.fields import Seeds
from privml.protocols.mpc.primitive import Wire
from privml.rng import Csprng
from privml.session import Session
from privml.testing.cases import PAIRS, Case, fresh_seeds, one_party, play, ring
from privml.testing.checks import HONEST, SAMPLES, queries, view
from privml.testing.parties import run_parties
from privml.testing.simulate import LocalSupply, split
from privml.testing.views import Column, Limits, View, alike, gathered, repeated, search, signs
from privml.transport import memory

SESSIONS, ROWS = 50, 64


@pytest.mark.parametrize("name", PAIRS)
def test_ten_thousand_runs_of_two_secrets_look_alike(name: str) -> None:
    assert SAMPLES >= 10_000
    assert view(HONEST, name) == []


@pytest.mark.parametrize("name", ["truncate", "mul", "linear", "linear_exact", "affine", "and"])
def test_two_queries_of_one_run_tell_nothing_together(name: str) -> None:
    assert queries(HONEST, name) == []


class RecordingWire:
    """A session as a link that keeps what it receives."""

    def __init__(self, session: Session) -> None:
        self.session, self.rank = session, session.rank
        self.received: list[bytes] = []

    def _keep(self, data: memoryview) -> memoryview:
        self.received.append(bytes(data))
        return data

    def exchange(self, tag: int, mine: memoryview, *, expect: int) -> memoryview:
        return self._keep(self.session.exchange(tag, mine, expect=expect))

    def send(self, tag: int, payload: memoryview) -> None:
        self.session.send(tag, payload)

    def recv(self, tag: int, *, expect: int) -> memoryview:
        return self._keep(self.session.recv(tag, expect=expect))

    def checkpoint(self) -> None:
        self.session.checkpoint()


Views = Mapping[str, View]


def one_session(cases: Mapping[str, Case]) -> tuple[list[Views], list[bytes]]:
    """Run all cases one after the other in one real session with fresh keys."""
    seeds: Seeds = fresh_seeds()
    shares = {
        name: [split(x, Csprng.fresh(), xor=i in case.xor) for i, x in enumerate(case.inputs)]
        for name, case in cases.items()
    }
    ends = memory.pair()

    def party(rank: int) -> tuple[Views, list[bytes]]:
        with Session.open(ends[rank], rank=rank, binding={}, offer={}, deadline_s=60.0,
                          insecure=False) as session:  # fmt: skip
            wire = RecordingWire(session)
            typed: Wire = wire
            views = {}
            for item, (name, case) in enumerate(cases.items()):
                corr = LocalSupply(rank, seeds).take(case.prim, item)
                mine = tuple(s[rank] for s in shares[name])
                _, views[name] = one_party(case, typed, corr, mine, seeds)
            session.checkpoint()
            return views, wire.received

    first, second = (end.unwrap() for end in run_parties(lambda: party(0), lambda: party(1)))
    return [first[0], second[0]], first[1] + second[1]


@pytest.fixture(scope="module")
def sessions() -> tuple[list[list[list[Views]]], list[bytes]]:
    """Views of 50 sessions for either secret, and every message of all of them."""
    messages: list[bytes] = []
    views: list[list[list[Views]]] = []
    for secret in (0, 1):
        cases = {name: pair.of(ROWS)[secret] for name, pair in PAIRS.items()}
        runs = [one_session(cases) for _ in range(SESSIONS)]
        views.append([[run[0][rank] for run in runs] for rank in (0, 1)])
        messages += [m for run in runs for m in run[1]]
    return views, messages


@pytest.mark.parametrize("name", PAIRS)
def test_fifty_sessions_of_two_secrets_look_alike(
    name: str, sessions: tuple[list[list[list[Views]]], list[bytes]]
) -> None:
    views, _ = sessions
    for rank in PAIRS[name].ranks:
        first, second = (
            gathered([run[name] for run in views[secret][rank]], ROWS) for secret in (0, 1)
        )
        assert search(first, second, samples=SESSIONS * ROWS) == []


def test_no_sixteen_bytes_occur_in_two_places(
    sessions: tuple[list[list[list[Views]]], list[bytes]],
) -> None:
    _, messages = sessions
    assert len(messages) > 2 * SESSIONS * len(PAIRS)
    assert repeated(messages) == 0


def client_of_a_layer(weight: int, *, honest: bool = True) -> View:
    """The client's view of a layer and its revealed output, which is the same for all weights."""
    x = np.tile(np.array([5 << 16, -(5 << 16)], np.int64), (SAMPLES, 1)).view(np.uint64)
    known = Known(ring(weight, (2, 1)), ring(77 << 12, (1,)))
    case = Case(Linear(SAMPLES, 2, 1, 12, "w"), (x,), known=known, samples=SAMPLES)
    played = play(case, fresh_seeds())
    share = played.outputs[0] if honest else played.outputs[0] + np.uint64(weight & 1)
    assert np.array_equal(played.outputs[0] + played.outputs[1], ring(77, (SAMPLES, 1)))
    view = {k: c for k, c in played.views[1].items() if k != "own.input0"}
    return {**view, "received.result": Column(share), "own.share": Column(played.outputs[1])}


def test_client_of_a_layer_learns_its_output_and_no_weight() -> None:
    first, second = client_of_a_layer(1), client_of_a_layer(-(3 << 12) - 2)
    assert alike(first, second, samples=SAMPLES) == []
    told = client_of_a_layer(1, honest=False)
    assert alike(told, second, samples=SAMPLES) != []


def test_padding_bits_of_opened_planes_are_masked() -> None:
    """Planes of 1 element have 63 padding bits; what is opened there is uniform as well."""
    pair = PAIRS["compare3"].of(1)[0]
    opened = [
        c.array
        for _ in range(300)
        for c in play(pair, fresh_seeds()).views[0].values()
        if c.planes and c.array.ndim == 3
    ]
    bits = np.concatenate([p.reshape(-1) for p in opened])
    sums = signs(Column(bits), bits.size).sum(axis=1)
    assert np.abs(sums).max() < Limits.of(1e-8, 64).bits(bits.size)


def test_the_search_sees_what_it_should() -> None:
    """The instrument itself: a constant, a known mask, a copied word, a shifted distribution."""
    n = 4096
    rng = Csprng.fresh()
    a, b = rng.words(n, 0), rng.words(n, 1)
    honest = {"opened.0": Column(a), "own.r": Column(b)}
    other = {"opened.0": Column(rng.words(n, 2)), "own.r": Column(rng.words(n, 3))}
    assert search(honest, other, samples=n) == []
    broken: list[View] = [
        {"opened.0": Column(np.full(n, 5, np.uint64)), "own.r": Column(b)},
        {"opened.0": Column(b + np.uint64(77)), "own.r": Column(b)},
        {"opened.0": Column(a ^ (b & np.uint64(1 << 40))), "own.r": Column(a)},
        {"opened.0": Column(a >> np.uint64(1)), "own.r": Column(b)},
        {"opened.0": Column(a | np.uint64(1)), "own.r": Column(b)},
    ]
    for bad in broken:
        assert search(honest, bad, samples=n) != []
