"""The pruning step alone: 128 to 55 tokens of width 768 with residual, between two parties."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from cipherprune_runs import OURS
from frame import Bar, Options, Report, at_most, reported

from privml.protocols.cipherprune.attention import stacked
from privml.protocols.cipherprune.prune import Rows, decide, move
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.engine import Engine, Known, Planner, Val
from privml.protocols.mpc.primitive import Words
from privml.rng import ScienceSeed
from privml.testing.programs import Run, clear, function, three_ways

TOKENS, KEPT, HIGH, WIDTH, HEADS = 128, 55, 28, 768, 12
SWAP_BYTES = 78_900
"""One adjacent swap of the published code, both directions, from its sample run."""
LIMITS = {"MB": 4.0, "flights": 6.0}


@dataclass(frozen=True)
class Sizes:
    """Token counts and width of a step; row 0 counts."""

    tokens: int = TOKENS
    kept: int = KEPT
    high: int = HIGH
    width: int = WIDTH


def bubble_swaps(tokens: int, kept: int) -> int:
    """Return the dependent adjacent swaps that bubble every dropped token to the end."""
    return sum(tokens - 1 - k for k in range(tokens - kept))


def bitonic(tokens: int) -> tuple[int, int]:
    """Return comparators and stages of one bitonic pass over a power of two of tokens."""
    depth = tokens.bit_length() - 1
    stages = depth * (depth + 1) // 2
    return tokens // 2 * stages, stages


def specs(sizes: Sizes) -> dict[str, PruneSpec]:
    """Return the ways to prune: what is opened, and whether importance has two classes."""
    whole, halves = (sizes.kept, sizes.kept), (sizes.kept, sizes.high)
    return {
        "count": PruneSpec(reveal="count", reduce=False),
        "count_reduced": PruneSpec(reveal="count"),
        "bucket": PruneSpec(reveal="bucket", reduce=False),
        "bucket_reduced": PruneSpec(reveal="bucket"),
        "schedule": PruneSpec(reveal="schedule", reduce=False, schedule=(whole,)),
        "schedule_reduced": PruneSpec(reveal="schedule", schedule=(halves,)),
    }


def step(spec: PruneSpec, sizes: Sizes) -> Run:
    """Plan, simulate and execute one step between two threads.

    Raises
    ------
    ValueError
        Execution and simulation differ in a bit, a flight or a byte was not declared, or the rows
        that came out are not the ones that had to stay, in order.
    """
    scores, classes = _scores(sizes)
    generator = ScienceSeed(11).child("step", "rows").generator()
    top, shape = np.iinfo(np.uint64).max, (sizes.tokens, sizes.width)
    x, ctx = (generator.integers(0, top, shape, np.uint64, endpoint=True) for _ in range(2))
    raw = np.array([2 << fn.F, 4 << fn.F], np.uint64)

    def body(e: Engine, first: Val, second: Val, third: Val, known: Known) -> Val:
        decision = decide(
            e, spec, Rows(first, sizes.tokens, None), third, known.bias, layer=0,
            capacity=sizes.tokens, causal=False,
        )  # fmt: skip
        rows, context = move(e, decision, second, sizes.tokens)
        if spec.reveal != "schedule":
            e.found.append((rows.n, rows.high))
        return stacked([rows.x, context], axis=1)

    limit = 1.1 * HEADS * sizes.tokens
    inputs = [Val(shape, fn.F, 1.0, words) for words in (x, ctx)]
    whole = function(body, *inputs, Val((sizes.tokens,), fn.F, limit, scores))
    planner = Planner()
    whole(planner, {"thresholds": Known()}, "plan")
    dealt = None if spec.reveal == "schedule" else planner.steps
    run = three_ways(whole, {"thresholds": Known(None, raw)}, dealt=dealt)
    problems = run.problems()
    if not _as_it_must_be(spec, clear(run.executed), np.hstack([x, ctx]), classes):
        problems.append("other rows than those of high score came out, or in another order")
    if problems:
        raise ValueError("; ".join(problems))
    return run


def _scores(sizes: Sizes) -> tuple[Words, Words]:
    """Raw scores of distinct values, and the class of each row: 2 high, 1 low, 0 dropped."""
    classes = np.zeros(sizes.tokens, np.uint64)
    order = ScienceSeed(11).child("step", "scores").generator().permutation(sizes.tokens - 1) + 1
    classes[order[: sizes.kept - 1]] = 1
    classes[order[: sizes.high - 1]] = 2
    classes[0] = 2
    spread = np.arange(sizes.tokens, dtype=np.uint64)
    return (classes * np.uint64(2) << np.uint64(fn.F)) + spread, classes


def _as_it_must_be(spec: PruneSpec, found: Words, rows: Words, classes: Words) -> bool:
    """Compare the real rows of the result with those of the input, class by class."""
    size = int((classes > 0).sum())
    if spec.reveal == "schedule":  # by rank: the set of rows counts
        expected = rows[classes > 0]
        return {row.tobytes() for row in found} == {row.tobytes() for row in expected}
    if spec.reduce:
        order = np.concatenate([np.flatnonzero(classes == 2), np.flatnonzero(classes == 1)])
    else:
        order = np.flatnonzero(classes)
    return bool(np.array_equal(found[:size], rows[order]))


def step_bars(name: str, spec: PruneSpec, sizes: Sizes, *, judged: bool) -> list[Bar]:
    """Run one step and return its bars."""
    run = step(spec, sizes)
    megabytes = sum(wire.sent for wire in run.wires) / 1e6
    swaps = bubble_swaps(sizes.tokens, sizes.kept)
    detail = {"sent_by_rank": [wire.sent for wire in run.wires], "opened": run.found,
              "offline_MB": run.cost.corrections / 1e6}  # fmt: skip
    against = f"executed between two parties, {spec.reveal} mode; {OURS}"
    values = {
        "MB": (megabytes, "MB", f"{against}; bubble {swaps * SWAP_BYTES / 1e6:,.0f} MB"),
        "flights": (float(run.wires[0].flights), "",
                    f"{against}; bubble {swaps:,} dependent swaps"),
    }  # fmt: skip
    bars = []
    for kind, (value, unit, said) in values.items():
        full = f"prune.{name}.{kind}"
        bars.append(
            at_most(full, value, LIMITS[kind], unit=unit, against=said, detail=detail)
            if judged else reported(full, value, unit=unit, against=said, detail=detail)
        )  # fmt: skip
    return bars


def step_section(report: Report, options: Options) -> None:
    """Add ``prune.*``; ``count`` mode has the targets, the other modes are reported."""
    sizes, modes = Sizes(), specs(Sizes())
    names = [f"prune.{name}.{kind}" for name in modes for kind in LIMITS]
    references = ["prune.bubble.swaps", "prune.bubble.MB", "prune.bitonic.comparators"]
    with report.section("pruning step, 128 to 55 tokens", *names, *references):
        for name, spec in modes.items():
            report.add(*step_bars(name, spec, sizes, judged=spec.reveal == "count"))
        swaps = bubble_swaps(sizes.tokens, sizes.kept)
        comparators, stages = bitonic(sizes.tokens)
        published = "computed; the published code moves rows by adjacent oblivious swaps, no dealer"
        report.add(
            reported("prune.bubble.swaps", swaps, against=f"{published}; one after the other"),
            reported("prune.bubble.MB", swaps * SWAP_BYTES / 1e6, unit="MB",
                     against=f"{published}; {SWAP_BYTES / 1e3:g} kB per swap in its sample run"),
            reported("prune.bitonic.comparators", 2 * comparators,
                     against=f"computed; word elimination in BOLT: 2 passes of {comparators} "
                             f"comparators in {stages} stages, no dealer"),
        )  # fmt: skip
