"""A pruned run between two parties under forged lengths, counts and keys, flips and cuts.

After every fault: no output, both sides raise in time, and the run is spent in both pools if
material was handed out to either.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from privml.backbones.batch import Encoded
from privml.backbones.encoder import Encoder
from privml.errors import (
    CorrelationExhausted,
    MalformedMessage,
    ParameterError,
    PrivmlError,
    ProtocolError,
    TranscriptMismatch,
    UntrustedArtifact,
)
from privml.protocols import mpc
from privml.protocols.cipherprune.compact import Compact
from privml.protocols.cipherprune.prune import OpenBits
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.cipherprune.thresholds import Thresholds
from privml.protocols.mpc.engine import Known
from privml.protocols.mpc.primitive import Context, Words
from privml.protocols.mpc.quantise import THRESHOLDS, Weights
from privml.testing.openings import patched
from privml.testing.pruned import ENCODER, LENGTH, pruned_model, sentence, thresholds
from privml.transport import memory
from privml.transport.channel import Channel
from privml.transport.faulty import Fault, FaultyChannel

RUNS, DEADLINE_S = 70, 2.0
GRID = (1, 4, 6)
_TAG_BEGIN = 3
ROOT = Path(__file__).resolve().parents[2]


def learned() -> Thresholds:
    raw = [[int(x) for x in column] for column in thresholds(ENCODER).T]
    return Thresholds.of_raw(raw[0], raw[1], heads=ENCODER.heads)


class World:
    """One pruned model with pools, and one attempt at a time over memory."""

    def __init__(self, root: Path, prune: PruneSpec, encoder: Encoder | None = None) -> None:
        if encoder is None:
            floats = dict(pruned_model(ENCODER, replace(prune, thresholds=None)).floats)
            encoder = Encoder(ENCODER, floats)
        self.model = mpc.PrivateModel(encoder, mpc.Spec(prune=prune))
        self.plan = self.model.plan(n=LENGTH)
        self.params = self.model.weights(self.plan)
        self.batch = sentence(LENGTH - 1, 1)
        mpc.deal(self.plan, runs=RUNS, server=root / "s.pool", client=root / "c.pool")
        used, digest = mpc.UsedLog(root / "used"), self.plan.digest
        self.pools = [
            mpc.Pool.open(root / f"{k}.pool", plan_digest=digest, used=used) for k in "sc"
        ]
        self.cache = mpc.ClientCache(root / "cache")
        self.ends: list[Channel] = []
        self.bills: list[mpc.Bill | None] = [None, None]

    def attempt(
        self, *, begin: bytes | None = None, cut: tuple[int, int] | None = None,
        batch: Encoded | None = None,
    ) -> tuple[object, list[BaseException | None]]:  # fmt: skip
        """Run both sides; return the client's output and what both raised.

        Parameters
        ----------
        begin
            Sent in place of the length.
        cut
            Side and number of the message after which it vanishes.
        """
        self.ends = list(memory.pair())
        if cut is not None:
            self.ends[cut[0]] = FaultyChannel(self.ends[cut[0]], Fault.CUT, at=cut[1])
        out: list[object] = [None, None]
        errors: list[BaseException | None] = [None, None]
        self.bills = [None, None]

        def server() -> object:
            with mpc.ServerRun(
                self.ends[0], self.plan, self.pools[0], params=self.params,
                public=self.model.public_bytes, deadline_s=DEADLINE_S,
            ) as run:  # fmt: skip
                self.bills[0] = run.serve()
                return None

        def client() -> object:
            with mpc.ClientRun(
                self.ends[1], self.plan, self.pools[1], cache=self.cache, deadline_s=DEADLINE_S
            ) as run:
                if begin is None:
                    result = run.execute(self.batch if batch is None else batch)
                    self.bills[1] = run.bill
                    return result
                run.session.send_blob(_TAG_BEGIN, begin)
                run.session.recv(1, expect=1)
                return None

        def work(rank: int) -> None:
            try:
                out[rank] = (server, client)[rank]()
            except PrivmlError as error:
                errors[rank] = error

        threads = [threading.Thread(target=work, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=40)
        assert not any(thread.is_alive() for thread in threads)
        return out[1], errors

    @property
    def cursors(self) -> list[int]:
        return [pool.cursor for pool in self.pools]


@pytest.fixture(scope="module", params=["count", "bucket"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    prune = PruneSpec(learned(), reveal=request.param, grid=GRID)
    world = World(tmp_path_factory.mktemp("pruned"), prune)
    out, errors = world.attempt()
    assert errors == [None, None]
    assert np.isfinite(np.asarray(out)).all()
    return world


def test_bills_of_both_sides_agree_and_the_price_is_the_declared_one(world: World) -> None:
    _, errors = world.attempt()
    assert errors == [None, None]
    mine, theirs = world.bills
    assert mine is not None
    assert theirs is not None
    assert (mine.length, mine.counts) == (theirs.length, theirs.counts)
    cost = world.plan.cost_of(mine.length, mine.counts)
    assert mine.flights == theirs.flights == cost.flights
    assert (mine.sent, theirs.sent) == cost.sent


def wrong_lengths(world: World) -> Iterator[bytes]:
    lengths = [0, LENGTH + 1, 2**31, 2**32 - 1]
    if world.plan.spec.prune is not None and world.plan.spec.prune.reveal == "bucket":
        lengths += [n for n in range(2, LENGTH) if n not in GRID]
    yield from (struct.pack("<I", n) for n in lengths)
    yield from (b"", b"\x04", b"\x04\0\0", b"\x04\0\0\0\0", bytes(1000))


def test_a_wrong_length_is_refused_before_anything_is_spent(world: World) -> None:
    for begin in wrong_lengths(world):
        before = world.cursors
        out, errors = world.attempt(begin=begin)
        assert out is None
        assert isinstance(errors[0], MalformedMessage), begin
        assert isinstance(errors[1], ProtocolError)
        assert world.cursors == before


Forge = Callable[[str, list[Words]], list[Words]]


def forging(kind: type, change: Forge, *, rank: int, apart: bool) -> Callable[..., object]:
    """Run of a primitive in which one party changes the last array of each opening it sends.

    With ``apart`` it goes on with the value it should have got, so that the parties differ.
    """
    honest = kind.run

    class Forger(Context):
        def __init__(self, ctx: Context) -> None:
            self.wire, self.rank, self._real = ctx.wire, ctx.rank, ctx

        def _swap(self, parts: list[Words]) -> list[Words]:
            return self._real._swap(parts)

        def open(self, *shares: Words) -> list[Words]:
            sent = change("open", list(shares))
            out = self._real.open(*sent)
            if apart:
                out = [o - s + h for o, s, h in zip(out, sent, shares, strict=True)]
            return out

        def open_bits(self, *shares: Words) -> list[Words]:
            sent = change("open_bits", list(shares))
            out = self._real.open_bits(*sent)
            if apart:
                out = [o ^ s ^ h for o, s, h in zip(out, sent, shares, strict=True)]
            return out

    def run(self: object, ctx: Context, *rest: object) -> object:
        return honest(self, Forger(ctx) if ctx.rank == rank else ctx, *rest)

    return run


def counted(delta: int) -> Forge:
    """Add to the first opened count of a compaction."""

    def change(verb: str, parts: list[Words]) -> list[Words]:
        if len(parts) == 2 and parts[1].size == 2:
            parts[1] = parts[1] + np.array([delta, 0], np.int64).view(np.uint64)
        return parts

    return change


@pytest.mark.parametrize("world", ["count"], indirect=True)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("delta", [LENGTH, -LENGTH, 1 << 62, -(1 << 63), 1 << 32])
def test_a_forged_count_out_of_range_ends_the_run(world: World, rank: int, delta: int) -> None:
    with patched(Compact, "run", forging(Compact, counted(delta), rank=rank, apart=False)):
        spent(world, world.attempt)


@pytest.mark.parametrize("world", ["count"], indirect=True)
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("delta", [1, -1])
def test_a_party_that_goes_on_with_another_count_ends_the_run(
    world: World, rank: int, delta: int
) -> None:
    with patched(Compact, "run", forging(Compact, counted(delta), rank=rank, apart=True)):
        spent(world, world.attempt)


@pytest.mark.parametrize("rank", [0, 1])
def test_forged_keys_end_the_run(world: World, rank: int) -> None:
    def change(verb: str, parts: list[Words]) -> list[Words]:
        if len(parts) == 2 and parts[0].ndim == 1:
            parts[0] = parts[0] + np.arange(parts[0].size, dtype=np.uint64)
        return parts

    with patched(Compact, "run", forging(Compact, change, rank=rank, apart=False)):
        spent(world, world.attempt)


@pytest.mark.parametrize("world", ["bucket"], indirect=True)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_party_that_goes_on_with_another_bucket_ends_the_run(world: World, rank: int) -> None:

    def change(verb: str, parts: list[Words]) -> list[Words]:
        return [p ^ np.uint64(3) for p in parts]

    with patched(OpenBits, "run", forging(OpenBits, change, rank=rank, apart=True)):
        spent(world, world.attempt)


def spent(world: World, attempt: Callable[[], tuple[object, list[BaseException | None]]]) -> None:
    """Attempt a run that must fail at both sides, without output, and cost one pool run."""
    before, began = max(world.cursors), time.monotonic()
    out, errors = attempt()
    assert out is None
    assert all(isinstance(e, ProtocolError) for e in errors), errors
    assert world.cursors == [before + 1] * 2
    assert time.monotonic() - began < 2 * DEADLINE_S + 6
    with pytest.raises(CorrelationExhausted):
        world.pools[0].claim(before)


@pytest.mark.parametrize("side", [0, 1], ids=["server", "client"])
def test_a_cut_at_any_sampled_message_leaves_no_output(
    world: World, side: int, rng: np.random.Generator
) -> None:
    world.attempt(cut=(side, 10**9))  # a clean run that counts its messages
    counter = world.ends[side]
    assert isinstance(counter, FaultyChannel)
    for at in sorted(rng.integers(0, counter._count - 2, 5).tolist()):
        before = world.cursors
        out, errors = world.attempt(cut=(side, at))
        assert out is None
        assert errors[0] is not None
        assert errors[1] is not None
        claimed = [a - b for a, b in zip(world.cursors, before, strict=True)]
        assert all(0 <= c <= 2 for c in claimed)
        if at > 12:  # well behind the claim
            assert world.cursors == [max(before) + 1] * 2


def test_a_flipped_bit_on_the_way_ends_the_run(world: World) -> None:
    for at in (20, 60, 90):
        ends = memory.pair()
        broken = FaultyChannel(ends[0], Fault.FLIP, at=at)
        with patched(memory, "pair", lambda broken=broken, ends=ends: (broken, ends[1])):
            out, errors = world.attempt()
        assert out is None
        assert isinstance(errors[1], MalformedMessage | TranscriptMismatch | ProtocolError)


def test_thresholds_stay_out_of_all_that_leaves_the_server(world: World) -> None:
    secret = learned()
    marks = [raw.to_bytes(8, order) for raw in (*secret.raw_theta, *secret.raw_beta)
             for order in ("little", "big")]  # fmt: skip
    marks += [repr(value)[:8].encode() for value in (*secret.theta, *secret.beta)]
    heard: list[bytes] = []
    swap = Context._swap

    def listening(self: Context, parts: list[Words]) -> list[Words]:
        if self.rank == 0:
            heard.extend(np.ascontiguousarray(p).tobytes() for p in parts)
        return swap(self, parts)

    with patched(Context, "_swap", listening):
        _, errors = world.attempt()
    assert errors == [None, None]
    shown = [world.plan.to_json(), world.model.public_bytes, repr(world.bills[1]).encode()]
    for text in heard + shown:
        assert not any(mark in text for mark in marks)


def test_a_sentence_with_padding_before_a_token_is_refused(world: World) -> None:
    """Padding in front must not push tokens out of the run."""
    ids = sentence(4, 3).ids
    holes = Encoded.of(
        np.concatenate([np.zeros((1, 2), np.int64), ids], axis=1),
        np.array([[False, False, True, True, True, True]]),
    )
    before = world.cursors
    out, errors = world.attempt(batch=holes)
    assert out is None
    assert isinstance(errors[1], ParameterError)
    assert world.cursors == before


def test_one_pool_never_covers_two_sets_of_thresholds(world: World) -> None:
    before, params = world.cursors, world.params
    raw = params[THRESHOLDS].bias
    assert raw is not None
    world.params = Weights({**params, THRESHOLDS: Known(None, raw + np.uint64(1))})
    try:
        out, errors = world.attempt()
    finally:
        world.params = params
    assert out is None
    assert isinstance(errors[0], UntrustedArtifact)
    assert world.cursors == before


def test_reveal_mode_and_grid_are_bound_and_printed(world: World) -> None:
    prune = world.plan.spec.prune
    assert prune is not None
    assert f"reveal={prune.reveal}" in str(world.plan.claim)
    other = replace(world.plan, spec=replace(world.plan.spec, prune=replace(prune, grid=(2, 4))))
    assert other.digest != world.plan.digest
