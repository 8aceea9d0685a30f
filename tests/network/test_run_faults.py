"""A whole inference under every fault, at sampled messages and (cuts, nightly) at every one.

The model is a small random encoder; the machinery (pools, handshake, set-up, program, reveal) is
the real one. After each fault: both parties raise within the deadline, the client has no output,
and the run is spent in both pools if material was handed out to either.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from privml.backbones.batch import Encoded
from privml.backbones.loader import random_encoder
from privml.errors import (
    CorrelationExhausted,
    HandshakeMismatch,
    PrivmlError,
    UntrustedArtifact,
)
from privml.protocols import mpc
from privml.protocols.mpc.quantise import quantise
from privml.transport import memory
from privml.transport.channel import Channel
from privml.transport.faulty import Fault, FaultyChannel

RUNS = 160
DEADLINE_S = 0.4


class World:
    """A model, a plan, dealt pools, and one attempt at a time."""

    def __init__(self, root: Path) -> None:
        encoder = random_encoder(
            layers=1, hidden=8, heads=2, ffn=16, vocab=30, max_positions=8, seed=3
        )
        self.model = mpc.PrivateModel(encoder)
        self.plan = self.model.plan(n=4, rows=1)
        self.batch = Encoded.of(np.array([[5, 6, 7]]))
        self.params = self.model.weights(self.plan)
        mpc.deal(self.plan, runs=RUNS, server=root / "s.pool", client=root / "c.pool")
        used = mpc.UsedLog(root / "used")
        digest = self.plan.digest
        self.pools = [
            mpc.Pool.open(root / f"{name}.pool", plan_digest=digest, used=used) for name in "sc"
        ]
        self.cache = mpc.ClientCache(root / "cache")

    def attempt(
        self, wrap: tuple[Fault, int] | None = None, *, side: int = 0, plan: mpc.Plan | None = None
    ) -> tuple[list[object], list[BaseException | None], float]:
        """Run both sides in threads; return outputs, errors and seconds."""
        ends: list[Channel] = list(memory.pair())
        self.ends = ends
        if wrap is not None:
            ends[side] = FaultyChannel(ends[side], wrap[0], at=wrap[1])
        out: list[object] = [None, None]
        errors: list[BaseException | None] = [None, None]

        def server() -> object:
            with mpc.ServerRun(
                ends[0], self.plan, self.pools[0], params=self.params,
                public=self.model.public_bytes, deadline_s=DEADLINE_S,
            ) as run:  # fmt: skip
                return run.serve()

        def client() -> object:
            with mpc.ClientRun(
                ends[1], plan or self.plan, self.pools[1], cache=self.cache, deadline_s=DEADLINE_S
            ) as run:
                return run.execute(self.batch)

        def work(rank: int) -> None:
            try:
                out[rank] = (server, client)[rank]()
            except PrivmlError as error:
                errors[rank] = error

        threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in threads)
        return out, errors, time.monotonic() - began


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("faults"))
    out, errors, _ = world.attempt()
    assert errors == [None, None]
    clear = world.model(world.batch)
    assert np.abs(np.asarray(out[1]) - clear).max() < 0.02
    return world


def frames(world: World) -> int:
    """Outgoing frames of a server in a run without set-up blobs."""
    return world.plan.cost.flights + 4


@pytest.mark.parametrize("side", [0, 1], ids=["server", "client"])
@pytest.mark.parametrize("fault", list(Fault), ids=lambda f: f.value)
def test_every_fault_ends_both_sides_without_output(world: World, fault: Fault, side: int) -> None:
    count = 2 if fault is Fault.STALL else 4
    for at in np.linspace(0, frames(world) - 12, count).astype(int):
        before = [pool.cursor for pool in world.pools]
        out, errors, seconds = world.attempt((fault, int(at)), side=side)
        assert out[1] is None, f"{fault} at {at} still gave an output"
        assert errors[1] is not None
        assert seconds < 2 * DEADLINE_S + 2
        after = [pool.cursor for pool in world.pools]
        assert all(b <= a <= b + 2 for b, a in zip(before, after, strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize("side", [0, 1], ids=["server", "client"])
def test_a_peer_that_vanishes_at_any_message_leaves_no_output(world: World, side: int) -> None:
    world.attempt((Fault.CUT, 10**9), side=side)  # a clean run that counts its frames
    assert isinstance(world.ends[side], FaultyChannel)
    total = world.ends[side]._count
    for at in range(total):
        out, errors, seconds = world.attempt((Fault.CUT, at), side=side)
        if out[1] is not None:
            # Only the client's own last comparison and the goodbye may get lost: by then it has
            # verified the server's transcript.
            assert at >= total - 2
            assert errors[1] is None
            continue
        assert errors[1] is not None
        assert seconds < 2 * DEADLINE_S + 2


def test_a_cut_after_the_claim_burns_the_run_and_the_next_one_works(world: World) -> None:
    before = max(pool.cursor for pool in world.pools)
    _, errors, _ = world.attempt((Fault.CUT, 20), side=1)
    assert errors[0] is not None
    assert [pool.cursor for pool in world.pools] == [before + 1] * 2
    with pytest.raises(CorrelationExhausted):
        world.pools[0].claim(before)
    out, errors, _ = world.attempt()
    assert errors == [None, None]
    assert out[1] is not None
    assert [pool.cursor for pool in world.pools] == [before + 2] * 2


def test_another_program_is_refused_before_anything_is_shared(world: World) -> None:
    before = [pool.cursor for pool in world.pools]
    other = world.model.plan(n=5, rows=1)
    out, errors, _ = world.attempt(plan=other)
    assert out == [None, None]
    assert all(isinstance(e, HandshakeMismatch) for e in errors)
    assert any("program" in str(e) for e in errors)
    assert [pool.cursor for pool in world.pools] == before


def test_one_pool_never_covers_two_sets_of_weights(world: World) -> None:
    before = [pool.cursor for pool in world.pools]
    other = random_encoder(layers=1, hidden=8, heads=2, ffn=16, vocab=30, max_positions=8, seed=4)
    params, world.params = world.params, quantise(world.plan.program, other.params())
    try:
        out, errors, _ = world.attempt()
    finally:
        world.params = params
    assert out == [None, None]
    assert isinstance(errors[0], UntrustedArtifact)
    assert [pool.cursor for pool in world.pools] == before
