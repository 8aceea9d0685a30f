"""Speed bars: our figures, and their ratios to DynFrs where its binary is named."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import forest_dynfrs as dynfrs
from forest_data import DataMissing
from forest_modes import figure_names
from forest_settings import SPEED
from forest_speed import Case, Figures, measure, memory, seed_number
from frame import Bar, Options, Report, absent, at_most, reported

from privml.rng import ScienceSeed

LIMITS: dict[str, tuple[float, float, tuple[str, ...]]] = {
    "delete": (1 / 3, 1 / 8, ("delete_us",)),
    "train": (1 / 3, 1 / 6, ("train_s",)),
    "memory": (1 / 5, 1 / 8, ("memory_mb",)),
    "clean_query": (1 / 5, 1 / 7, ("query_us",)),
    "query_after_delete": (1 / 2, 1 / 4, ("query_after_us",)),
    "delete_and_query": (1 / 2, 1 / 4, ("delete_then_us", "query_after_us")),
}
"""Quantity: largest ratio to DynFrs, further aim, figures that are added up."""
WITHIN = 0.003
OVERHEAD_US = 5
OWN = {
    "delete": "delete_us", "clean_query": "query_us", "query_after_delete": "query_after_us",
    **{name: name for name in figure_names()},
}  # fmt: skip
"""Bar: figure, us."""
RUNS = 5
"""Runs of each side; fewer say nothing about accuracy, which differs by that much by chance."""


def tables(options: Options) -> tuple[str, ...]:
    """Return the tables to measure speed on."""
    return tuple(SPEED)[:3] if options.quick else tuple(SPEED)


def bar_names(name: str) -> list[str]:
    """Return the bars of one table."""
    own = [*OWN, "resolve", "train", "memory", "bytes_per_pair", "retrain_over_delete"]
    compared = [*LIMITS, "accuracy"]
    return [f"speed.{name}.{k}" for k in own] + [f"dynfrs.{name}.{k}" for k in compared]


def speed_section(report: Report, options: Options) -> dict[str, Figures]:
    """Add ``speed.*`` and ``dynfrs.*``; return our figures by table."""
    found: dict[str, Figures] = {}
    for name in tables(options):
        with report.section(f"speed on {name}", *bar_names(name)):
            try:
                case = Case(name, 300 if options.quick else 1000)
            except DataMissing as error:
                reason = str(error)
                report.add(*(absent(b, "", against="", reason=reason) for b in bar_names(name)))
                continue
            ours, theirs = _turns(report, options, case)
            found[name] = ours[-1]
            report.add(*_own_bars(name, ours), *_compared(name, ours, theirs))
    return found


def _turns(
    report: Report, options: Options, case: Case
) -> tuple[list[Figures], list[Figures] | None]:
    """Return our runs and DynFrs's, taken in turn; None without its binary."""
    used = memory(case.name)
    binary = options.programs.get("dynfrs")
    ours: list[Figures] = []
    theirs: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        files = dynfrs.write_files(case, Path(folder)) if binary else []
        for turn in range(options.repeats(RUNS, 1)):
            report.progress(f"  run {turn + 1}")
            seed = seed_number(ScienceSeed(3).child(case.name, turn))
            figures = measure(case, seed)
            figures.value["memory_mb"] = float(str(used["rss_bytes"])) / 1e6
            figures.detail["memory"] = used
            ours.append(figures)
            if binary:
                theirs.append(dynfrs.measure(binary, case, files))
    return ours, theirs if binary else None


def _own_bars(name: str, runs: list[Figures]) -> list[Bar]:
    settings = SPEED[name].words()
    against = f"thread CPU time, one thread, {settings}"

    def middle(key: str) -> float:
        return median(run.value[key] for run in runs)

    def timed(kind: str, key: str) -> Bar:
        figures: Any = runs[-1].detail[key]
        detail = figures | {"runs": [round(run.value[key], 3) for run in runs]}
        said = f"{against}, decisions made between batches" if "batch" in kind else against
        about = f"speed.{name}.{kind}", middle(key)
        if kind == "python_overhead":
            against_native = "unlearn([id]) less the native deletion, median of pairs"
            return at_most(*about, OVERHEAD_US, unit="us", detail=detail, against=against_native)
        return reported(*about, unit="us", against=said, detail=detail)

    used: Any = runs[-1].detail["memory"]
    pairs = int(used["pairs"])
    counted = sum(v for k, v in used["parts_bytes"].items() if k != "total") / pairs
    return [
        *(timed(kind, key) for kind, key in OWN.items()),
        reported(f"speed.{name}.resolve", middle("resolve_ms"), unit="ms",
                 against="CPU time of all decisions that the deletions put off",
                 detail={"deletions": runs[-1].value["deletions"]}),
        reported(f"speed.{name}.train", middle("train_s"), unit="s",
                 against=f"CPU time, one thread, {settings}",
                 detail={"runs": [run.detail["train_cpu_s"] for run in runs]}),
        reported(f"speed.{name}.memory", middle("memory_mb"), unit="MB", detail=used,
                 against="growth of resident memory by fitting in a fresh process"),
        reported(f"speed.{name}.bytes_per_pair", middle("memory_mb") * 1e6 / pairs, unit="B",
                 against="resident growth per row and tree that holds it",
                 detail={"counted_by_the_forest": counted}),
        reported(f"speed.{name}.retrain_over_delete",
                 middle("train_s") * 1e6 / middle("delete_us"), unit="x",
                 against="our own retraining, one thread"),
    ]  # fmt: skip


def _compared(name: str, ours: list[Figures], theirs: list[Figures] | None) -> list[Bar]:
    if theirs is None:
        return [_referenced(name, quantity, ours) for quantity in (*LIMITS, "accuracy")]
    bars = []
    for quantity, (limit, aim, keys) in LIMITS.items():
        pairs = [
            (sum(a.value[k] for k in keys), sum(b.value[k] for k in keys))
            for a, b in zip(ours, theirs, strict=True)
        ]
        ratios = [a / b for a, b in pairs]
        bars.append(
            at_most(f"dynfrs.{name}.{quantity}", median(ratios), limit, aim=aim, unit="x",
                    against=f"the DynFrs binary that was named, {SPEED[name].words()}",
                    detail={"ratio_min": min(ratios), "ratio_max": max(ratios), "pairs": pairs,
                            "theirs": theirs[-1].detail})
        )  # fmt: skip
    return [*bars, _accuracy(name, ours, theirs)]


def _accuracy(name: str, ours: list[Figures], theirs: list[Figures]) -> Bar:
    scores = [[run.value["accuracy"] for run in runs] for runs in (ours, theirs)]
    apart = abs(mean(scores[0]) - mean(scores[1]))
    bar = at_most(f"dynfrs.{name}.accuracy", apart, WITHIN,
                  against=f"the DynFrs binary that was named, means of {len(ours)} runs",
                  detail={"ours": scores[0], "theirs": scores[1]})  # fmt: skip
    if len(ours) >= RUNS:
        return bar
    return replace(bar, holds=None, reason=f"a verdict needs {RUNS} runs, each of another seed")


def _referenced(name: str, quantity: str, ours: list[Figures]) -> Bar:
    """Return our figure over the reference measurement: to orient, without a verdict."""
    reference = dynfrs.REFERENCE[name]
    against = f"DynFrs 196f3ecf, {dynfrs.ELSEWHERE}"
    reason = "no DynFrs binary was named (--dynfrs PATH), so the ratio spans two machines"
    limit, aim, keys = LIMITS.get(quantity, (WITHIN, None, ("accuracy",)))
    mine = median(sum(run.value[k] for k in keys) for run in ours)
    theirs = sum(reference[k] for k in keys)
    detail = {"ours": mine, "reference": theirs, "figure": " + ".join(keys)}
    if aim is None:
        target, value, unit = f"<= {limit:g}", abs(mine - theirs), ""
    else:
        target, value, unit = f"<= {limit:.3g} x (aim {aim:.3g})", mine / theirs, "x"
    shown = f"{against}: {theirs:g} {keys[0].rpartition('_')[2] if aim else ''}".rstrip()
    return Bar(f"dynfrs.{name}.{quantity}", value, target, None, shown, unit, reason, detail)
