"""A pruned run opens what its reveal mode lists, and broken programs are caught by a named check.

Each mutant below is one mistake in the pruning program (not in a primitive); the check that must
see it is named beside it, and the honest program passes the same checks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.backbones.encoder import Encoder
from privml.backbones.pruned import pruned_forward
from privml.protocols import mpc
from privml.protocols.cipherprune import program as program_module
from privml.protocols.cipherprune import prune as prune_module
from privml.protocols.cipherprune.compact import Compact
from privml.protocols.cipherprune.prune import Decision, OpenBits, Rows
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.cipherprune.thresholds import Thresholds
from privml.protocols.mpc import inputs as inputs_module
from privml.protocols.mpc.arithmetic.truncate import Truncate
from privml.protocols.mpc.engine import Engine, Executor, Val
from privml.protocols.mpc.inputs import fit, outputs
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.primitive import Context, Words
from privml.protocols.mpc.program import Reveal
from privml.protocols.mpc.quantise import THRESHOLDS
from privml.protocols.mpc.runtime import Bill
from privml.testing.openings import PERMITTED, patched, unlisted, watched
from privml.testing.programs import TinyModel, clear
from privml.testing.pruned import (
    DECODER,
    ENCODER,
    LENGTH,
    MEAN,
    counts_of,
    pruned_model,
    sentence,
    thresholds,
)
from privml.testing.pruned_views import sample, tell_apart

GRID = (1, 4, LENGTH)
Patch = Callable[[], Iterator[None]]


def options(mode: str, *, reduce: bool = True) -> PruneSpec:
    if mode == "schedule":
        pairs = ((6, 3), (3, 2)) if reduce else ((6, 6), (3, 3))
        return PruneSpec(reveal="schedule", schedule=pairs, reduce=reduce)
    return PruneSpec(reveal=mode, grid=GRID, reduce=reduce)


@cache
def batch(tokens: int, seed: int) -> Encoded:
    return sentence(tokens, seed)


def pair(config: EncoderConfig, mode: str) -> tuple[Encoded, Encoded]:
    """Two sentences that reveal the same numbers; in bucket mode their exact counts differ."""
    shown = pruned_model(config, options(mode))
    exact = pruned_model(config, options("count"))
    seen: dict[object, dict[object, Encoded]] = {}
    for seed in range(60):
        tokens = LENGTH if mode == "count" else LENGTH - seed % 3
        one = batch(tokens, seed)
        same = seen.setdefault(counts_of(shown, one), {})
        key = seed if mode == "count" else counts_of(exact, one)
        if same and key not in same:
            return next(iter(same.values())), one
        same[key] = one
    raise AssertionError("no two sentences reveal the same numbers")


# Checks: each returns what it found, nothing for an honest program.


def listed(mode: str, config: EncoderConfig = ENCODER) -> list[str]:
    """Every opening is masked, a shuffled key, a count or bucket of the mode, or the output."""
    model = pruned_model(config, options(mode))
    with watched() as watch:
        run = model.run(fit(model.plan, batch(LENGTH, 1)))
    found = unlisted(watch, mode)
    shuffles = {o.words.size for o in watch.openings if o.purpose == "shuffled"}
    if not shuffles <= {LENGTH - 1}:
        found.append("row 0 is in the shuffle")
    return found + run.problems()


def apart(mode: str, runs: int = 2) -> list[str]:
    """Two inputs with the same revealed numbers look alike."""
    first, second = _pairs(mode)
    model = pruned_model(ENCODER, options(mode))
    return tell_apart(
        [sample(model, first) for _ in range(runs)], [sample(model, second) for _ in range(runs)]
    )


@cache
def _pairs(mode: str) -> tuple[Encoded, Encoded]:
    return pair(ENCODER, mode)


@torch.no_grad()
def twin(mode: str, *, reduce: bool = False, config: EncoderConfig = MEAN) -> list[str]:
    """Counts and outputs follow the clear model with the same thresholds."""
    spec = options(mode, reduce=reduce)
    model = pruned_model(config, spec)
    raw = thresholds(config).astype(np.float64) / (config.heads * 128 << 16)
    found: list[str] = []
    for seed in range(3):
        one = batch(LENGTH - seed, seed)
        clear_run = pruned_forward(
            Encoder(config, dict(model.floats)), one, tuple(raw[:, 0]), tuple(raw[:, 1]),
            reduce=reduce, schedule=spec.schedule or None,
        )  # fmt: skip
        run = model.run(fit(model.plan, one))
        found += run.problems()
        kept = clear_run.kept[1:, 0].sum(dim=1).tolist()
        shown = [n for n, _ in run.found]
        if mode == "count" and shown != kept:
            found.append(f"{kept} rows are kept in the clear, {shown} under the protocol")
        got = outputs(model.plan, clear(run.executed), fit(model.plan, one), rows=1)[0]
        error = float(np.abs(got - clear_run.output[0].numpy()).max())
        if error > 5e-3:
            found.append(f"the output is off by {error:.3f}")
    return found


def secret_to_server() -> list[str]:
    """The client never needs the thresholds, and nothing it is given holds them."""
    server = owner()
    plan = server.plan(n=LENGTH)
    run = TinyModel(plan, server.encoder.params(), server.weights(plan), server.public)
    try:
        found = run.run(fit(plan, batch(LENGTH, 1))).problems()
    except AssertionError as error:  # the parties and the simulator went apart
        found = [str(error)]
    bill = Bill(length=LENGTH, counts=((5, 3), (4, 2)))
    texts = {
        "plan": plan.to_json(), "public part": server.public_bytes, "bill": repr(bill).encode(),
        "bill values": repr(bill.as_dict()).encode(), "repr of the plan": repr(plan).encode(),
        "repr of the options": repr(server.spec).encode(), "claim": str(plan.claim).encode(),
        "repr of the options' dict": repr(server.spec.as_dict()).encode(),
        "leakage": " ".join(plan.leakage).encode(), "summary": repr(plan.summary()).encode(),
        "repr of the thresholds": repr(SECRET).encode(),
        "constants": b"".join(s.primitive.constants() for s in plan.steps),
        "program": repr([s.primitive for s in plan.steps]).encode(),
    }  # fmt: skip
    marks = {form for value in (*SECRET.theta, *SECRET.beta) for form in forms(value)}
    found += [f"{what} holds a threshold" for what, text in texts.items()
              if any(mark in text for mark in marks)]  # fmt: skip
    if THRESHOLDS in {name for name, _ in plan.secret_weights()}:
        found.append("the set-up message holds the thresholds")
    return found


SECRET = Thresholds.of_raw((104711, 104729), (144203, 144223), heads=ENCODER.heads)


def forms(value: float) -> list[bytes]:
    """Ways to write a threshold down: its decimal digits and its raw ring integer."""
    raw = round(value * SECRET.unit)
    return [
        repr(value)[:8].encode(), str(raw).encode(), raw.to_bytes(8, "little"),
        raw.to_bytes(8, "big"), np.float32(value).tobytes(), np.float64(value).tobytes(),
    ]  # fmt: skip


@cache
def encoder() -> Encoder:
    return Encoder(ENCODER, dict(pruned_model(ENCODER, options("count")).floats))


def owner() -> mpc.PrivateModel:
    return mpc.PrivateModel(encoder(), mpc.Spec(prune=PruneSpec(SECRET, reveal="count")))


def leaky_owner() -> mpc.PrivateModel:
    model = honest_owner()
    model.public_bytes += np.array(SECRET.raw_theta).tobytes()
    return model


honest_owner = owner

# Mutants: each replaces one part of the program while the block runs.

real_decide, real_move, real_above = (
    prune_module.decide, prune_module.move, prune_module._above
)  # fmt: skip


def replacing(owner: object, name: str, change: object) -> Patch:
    """Replace one part of the program."""
    return lambda: patched(owner, name, change)


def counts_in_bucket_mode(e: Engine, *, spec: PruneSpec, **rest: Any) -> Decision:
    return real_decide(e, spec=replace(spec, reveal="count"), **rest)


def turned(e: Engine, v: Val) -> Val:
    """Rows moved up by one place, the first one to the end."""
    return e.map(v, lambda w: np.roll(w, -1, axis=0), v.shape)


def other_row_decides(e: Engine, *, rows: Rows, scores: Val, **rest: Any) -> Decision:
    mask = None if rows.mask is None else turned(e, rows.mask)
    moved = replace(rows, x=turned(e, rows.x), mask=mask)
    return real_decide(e, rows=moved, scores=turned(e, scores), **rest)


@contextmanager
def other_row_protected() -> Iterator[None]:
    """Row 1 is protected, row 0 is compared and shuffled like any other."""

    def move(e: Engine, d: Decision, ctx: Val, capacity: int) -> tuple[Rows, Val]:
        return real_move(e, d, turned(e, ctx), capacity)

    with patched(program_module, "decide", other_row_decides), patched(
        program_module, "move", move
    ):  # fmt: skip
        yield


def residual_stays(e: Engine, d: Decision, ctx: Val, capacity: int) -> tuple[Rows, Val]:
    out, moved = real_move(e, d, ctx, capacity)
    first = e.map(d.rows.x, lambda w: w[: out.n], (out.n, d.rows.x.shape[1]))
    return replace(out, x=first), moved


def fillers_count(e: Engine, d: Decision, ctx: Val, capacity: int) -> tuple[Rows, Val]:
    out, moved = real_move(e, d, ctx, capacity)
    return replace(out, mask=None), moved


def _scaled(e: Engine, scores: Val, secret: Words | None, bits: int) -> Val:
    if secret is not None:
        secret = secret * np.uint64(scores.shape[0] + 1) // np.uint64(2 * LENGTH)
    return real_above(e, scores, secret, bits)


def _in_order(e: Engine, scores: Val, secret: Words | None, bits: int) -> Val:
    planes = real_above(e, scores, secret, bits)
    e.apply(OpenBits(1, planes.shape[0]), planes)
    return planes


def _client_subtracts(e: Engine, scores: Val, secret: Words | None, bits: int) -> Val:
    if isinstance(e, Executor) and e.rank == 0:
        secret = None  # left to the client, which does not have them
    return real_above(e, scores, secret, bits)


@contextmanager
def one_permutation() -> Iterator[None]:
    """Every run has a fresh permutation, but all its layers have the same."""
    orders: dict[bytes, Words] = {}

    def permutation(self: Compact, free: dict[str, Words]) -> np.ndarray:
        order = free["order"]
        fresh = order.tobytes() not in orders and len(orders) % 2 == 0
        if fresh:
            orders[order.tobytes()] = order
        elif order.tobytes() not in orders:
            orders[order.tobytes()] = list(orders.values())[-1]
        return np.argsort(orders[order.tobytes()], kind="stable")

    with patched(Compact, "permutation", permutation):
        yield


def true_length(plan: Plan, one: Encoded) -> int:
    return int(one.mask.sum())


def _opens_scores(e: Engine, *, scores: Val, **rest: Any) -> Decision:
    if isinstance(e, Executor):
        e.ctx.open(scores.words)
    return real_decide(e, scores=scores, **rest)


def _reveals_scores(e: Engine, d: Decision, ctx: Val, capacity: int) -> tuple[Rows, Val]:
    e.apply(Reveal(ctx.shape), ctx)
    return real_move(e, d, ctx, capacity)


@dataclass(frozen=True)
class Mutant:
    """What is wrong, how, and the check that must see it with words of its finding."""

    name: str
    patch: Patch
    check: Callable[[], list[str]]
    words: str


STEP, COMPARISON = program_module, prune_module

MUTANTS = (
    Mutant("exact count opened in bucket mode", replacing(STEP, "decide", counts_in_bucket_mode),
           lambda: listed("bucket"), "opens count"),
    Mutant("exact count shows in sizes", replacing(STEP, "decide", counts_in_bucket_mode),
           lambda: apart("bucket"), "depend"),
    Mutant("row 0 in the shuffle", other_row_protected, lambda: twin("count"), "off by"),
    Mutant("score divided by the current n", replacing(COMPARISON, "_above", _scaled),
           lambda: twin("count"), "rows are kept in the clear"),
    Mutant("residual not moved", replacing(STEP, "move", residual_stays),
           lambda: twin("count"), "off by"),
    Mutant("fillers not masked", replacing(STEP, "move", fillers_count),
           lambda: twin("bucket"), "off by"),
    Mutant("classes opened in sentence order", replacing(COMPARISON, "_above", _in_order),
           lambda: listed("bucket"), "not on the list"),
    Mutant("classes in order differ", replacing(COMPARISON, "_above", _in_order),
           lambda: apart("count"), "depend"),
    Mutant("client subtracts the thresholds", replacing(COMPARISON, "_above", _client_subtracts),
           secret_to_server, "found the same sizes"),
    Mutant("one permutation for two layers", one_permutation, lambda: apart("count", 16),
           "against"),
    Mutant("text length shown in schedule mode",
           replacing(inputs_module, "revealed_length", true_length), lambda: apart("schedule"),
           "depend"),
    Mutant("scores opened outside of primitives", replacing(STEP, "decide", _opens_scores),
           lambda: listed("bucket"), "no primitive"),
    Mutant("scores revealed to the client", replacing(STEP, "move", _reveals_scores),
           lambda: listed("schedule"), "not on the list"),
    Mutant("thresholds in the plan",
           replacing(PruneSpec, "as_dict", lambda self: {"theta": list(SECRET.theta)}),
           secret_to_server, "plan holds"),
    Mutant("thresholds in the plan's options", replacing(PruneSpec, "public", lambda self: self),
           lambda: kept_by_the_plan(), "the plan's options"),
    Mutant("thresholds in repr",
           replacing(PruneSpec, "__repr__", lambda self: f"PruneSpec({SECRET.theta})"),
           secret_to_server, "repr"),
    Mutant("thresholds in their own repr",
           replacing(Thresholds, "__repr__", lambda self: f"{self.raw_theta}"),
           secret_to_server, "repr of the thresholds"),
    Mutant("thresholds in the bill",
           replacing(Bill, "as_dict", lambda self: {"theta": SECRET.raw_theta}),
           secret_to_server, "bill values"),
    Mutant("thresholds in the public part", replacing(sys.modules[__name__], "owner", leaky_owner),
           secret_to_server, "public part"),
)  # fmt: skip


def kept_by_the_plan() -> list[str]:
    prune = owner().plan(n=LENGTH).spec.prune
    return ["the plan's options have thresholds"] if prune and prune.thresholds else []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    for mode in PERMITTED:
        _pairs(mode)  # found with the honest program, once
    with mutant.patch():
        found = mutant.check()
    assert any(mutant.words in line for line in found), found


@pytest.mark.parametrize("mode", ["count", "bucket", "schedule"])
def test_honest_program_passes_every_check(mode: str) -> None:
    assert listed(mode) == []
    assert apart(mode, 16 if mode == "count" else 2) == []
    assert twin(mode) == []
    assert secret_to_server() == kept_by_the_plan() == []


@pytest.mark.parametrize("config", [MEAN, DECODER], ids=lambda c: c.name)
@pytest.mark.parametrize("mode", sorted(PERMITTED))
def test_openings_of_other_shapes_are_listed(mode: str, config: EncoderConfig) -> None:
    assert listed(mode, config) == []


def test_an_opening_too_many_inside_a_primitive_shows_in_its_cost() -> None:
    model = pruned_model(ENCODER, options("bucket"))
    with patched(Truncate, "run", _loud(Truncate.run)):
        problems = model.run(fit(model.plan, batch(LENGTH, 1))).problems()
    assert any("flights" in line for line in problems)


def _loud(run: Callable[..., Words]) -> Callable[..., Words]:
    def louder(self: Truncate, ctx: Context, corr: dict[str, Words], x: Words) -> Words:
        ctx.open(x)
        return run(self, ctx, corr, x)

    return louder
