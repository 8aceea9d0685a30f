"""Time and bytes of the pruned classifier on real sentences, against runs without pruning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from cipherprune_artefact import Sentences
from cipherprune_runs import (
    OURS,
    NoRoom,
    Runs,
    Variant,
    bill_bars,
    both_ways,
    in_turn,
    ratios,
    running,
    times,
)
from cipherprune_sst2 import NotNamed, inputs
from frame import Bar, Options, Report, absent, at_least, reported
from numpy.typing import NDArray
from product import Measured

LIMITS = {"padded": 5.0, "unpadded": 1.5}
SENTENCES, TURNS = 20, 5
MAIN = ("pruned", "padded")
OTHERS: dict[str, dict[str, Any]] = {"count": {"reveal": "count"}, "exact": {"reduce": False}}
"""Further ways to prune, run once per sentence: what differs from the main one."""
TARGETS = {
    **{f"speedup_{k}": f">= {limit:g} x" for k, limit in LIMITS.items()},
    **{f"bytes_{k}": f">= {limit:g} x" for k, limit in LIMITS.items()},
    **{f"{name}.{kind}": "" for name in (*MAIN, "unpadded", *OTHERS)
       for kind in ("online_s", "MB")},
    **{f"pruned.{kind}": "" for kind in ("flights", "offline_GB", "offline_s")},
}  # fmt: skip
Found = dict[int, Runs]
"""By row of the data: runs of each way."""


def speed_section(report: Report, options: Options) -> None:
    """Add ``sst2.speedup_*``, ``sst2.bytes_*`` and the figures behind them."""
    with report.section("speed of the pruned model", *(f"sst2.{name}" for name in TARGETS)):
        try:
            artefact, data = inputs(report, options, TARGETS)
        except NotNamed:
            return
        base = [
            Variant(
                "pruned", artefact.pruned, data.n, f"{artefact.prune.reveal} mode", artefact.prune
            ),
            Variant("padded", artefact.unpruned, data.n, f"no pruning, {data.n} positions"),
        ]
        others = [
            Variant(name, artefact.pruned, data.n, name, replace(artefact.prune, **changes))
            for name, changes in OTHERS.items()
        ]
        rows = data.spread(3 if options.quick else SENTENCES)
        try:
            found, bills = _measure(
                report, base, others, data, rows, turns=options.repeats(TURNS, 1)
            )
        except NoRoom as error:
            report.add(*(absent(f"sst2.{name}", target, against="", reason=str(error))
                         for name, target in TARGETS.items()))  # fmt: skip
            return
        report.add(*bills, *speed_bars(found, data))


def _measure(
    report: Report, base: Sequence[Variant], others: Sequence[Variant], data: Sentences,
    rows: NDArray[np.intp], *, turns: int,
) -> tuple[Found, list[Bar]]:  # fmt: skip
    """Run each sentence `turns` times every main way, once every other way."""
    found: Found = {}
    with running([*base, *others], turns=turns) as products:
        batch = data.padded(int(rows[0]))
        for product in products.values():
            product.run(batch)  # also pays the set-up
        first = {v.name: products[v.name] for v in base}
        for n, group in by_length(data, rows):
            alone = Variant("unpadded", base[1].model, n, "no pruning, no padding")
            with running([alone], turns=turns * len(group)) as short:
                short["unpadded"].run(data.batch(group[0]))
                for row in group:
                    batches = {v.name: data.padded(row) for v in (*base, *others)}
                    batches["unpadded"] = data.batch(row)
                    taken = in_turn(first | short, batches, turns, warm=False)
                    rest = {v.name: products[v.name] for v in others}
                    found[row] = taken | in_turn(rest, batches, 1, warm=False)
                    report.progress(f"  {n} tokens: {said(found[row])}")
        bills = bill_bars("sst2.pruned", first["pruned"], _all(found, "pruned"), base[0].about)
    return found, bills


def by_length(data: Sentences, rows: NDArray[np.intp]) -> list[tuple[int, list[int]]]:
    """Group rows by their number of tokens, short ones first."""
    lengths = data.lengths
    out: dict[int, list[int]] = {}
    for row in rows:
        out.setdefault(int(lengths[row]), []).append(int(row))
    return sorted(out.items())


def said(runs: Runs) -> str:
    """Return the median seconds of each way in words."""
    return ", ".join(f"{name} {times(found).median:.2f} s" for name, found in runs.items())


def _all(found: Found, name: str) -> list[Measured]:
    return [run for runs in found.values() for run in runs[name]]


def total_s(found: Found, name: str) -> float:
    """Sum over the sentences of the median on-line seconds."""
    return sum(times(runs[name]).median for runs in found.values())


def total_bytes(found: Found, name: str) -> int:
    """Sum over the sentences of the bytes of a run, both directions."""
    return sum(both_ways(runs[name][-1]) for runs in found.values())


def speed_bars(found: Found, data: Sentences) -> list[Bar]:
    """Return speed-ups, byte ratios, and the mean cost of a sentence each way."""
    bars = []
    rule = f"{len(found)} sentences at evenly spaced length quantiles, sum of medians"
    for kind, limit in LIMITS.items():
        against = f"our engine without pruning, {kind}; {rule}; {OURS}"
        speed = total_s(found, kind) / total_s(found, "pruned")
        nbytes = total_bytes(found, kind) / total_bytes(found, "pruned")
        bars += [
            at_least(f"sst2.speedup_{kind}", speed, limit, unit="x", against=against,
                     detail={"by_sentence": per_sentence(found, data, kind)}),
            at_least(f"sst2.bytes_{kind}", nbytes, limit, unit="x", against=against),
        ]  # fmt: skip
    for name in (*MAIN, "unpadded", *OTHERS):
        many = len(found)
        bars += [
            reported(f"sst2.{name}.online_s", total_s(found, name) / many, unit="s",
                     against=f"mean of the sentences; {OURS}",
                     detail={"runs": len(_all(found, name))}),
            reported(f"sst2.{name}.MB", total_bytes(found, name) / many / 1e6, unit="MB",
                     against="mean of the sentences, both directions"),
        ]  # fmt: skip
    return bars


def per_sentence(found: Found, data: Sentences, kind: str) -> list[Mapping[str, object]]:
    """Return length, counts, seconds and ratios of each sentence, short ones first."""
    out: list[Mapping[str, object]] = []
    for row, runs in sorted(found.items(), key=lambda item: len(data.ids[item[0]])):
        each = ratios(runs[kind], runs["pruned"])
        out.append({
            "row": row, "tokens": len(data.ids[row]), "counts": runs["pruned"][-1].counts,
            "pruned_s": times(runs["pruned"]).median, f"{kind}_s": times(runs[kind]).median,
            "speedup": float(median(each)), "speedup_min": float(each.min()),
            "speedup_max": float(each.max()),
            "bytes_ratio": both_ways(runs[kind][-1]) / both_ways(runs["pruned"][-1]),
        })  # fmt: skip
    return out
