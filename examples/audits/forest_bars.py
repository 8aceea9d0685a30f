"""Speed bars: our figures, and their ratios to DynFrs where its binary is named."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

import forest_dynfrs as dynfrs
from forest_clock import clock_cost_ns
from forest_data import DataMissing
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
OWN = {
    "delete": "delete_us", "python_delete": "python_delete_us", "clean_query": "query_us",
    "python_query": "python_query_us", "query_after_delete": "query_after_us",
    "stream_add": "stream_add_us", "stream_delete": "stream_delete_us",
    "stream_query": "stream_query_us", "batch_per_row": "batch_us",
}  # fmt: skip


def tables(options: Options) -> tuple[str, ...]:
    """Return the tables to measure speed on."""
    return tuple(SPEED)[:3] if options.quick else tuple(SPEED)


def bar_names(name: str) -> list[str]:
    """Return the bars of one table."""
    own = [*OWN, "train", "memory", "bytes_per_pair", "retrain_over_delete"]
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
        for turn in range(options.repeats(3, 1)):
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
    against = f"thread CPU time, one thread, {SPEED[name].words()}"
    clock = {"clock_ns_included": clock_cost_ns()}
    kinds = dict.fromkeys(OWN) | {"clean_query": "query", "batch_per_row": "batch"}

    def middle(key: str) -> float:
        return median(run.value[key] for run in runs)

    def detail(kind: str) -> dict[str, object]:
        return dict(runs[-1].detail[kinds[kind] or kind]) | clock  # type: ignore[call-overload]

    used = dict(runs[-1].detail["memory"])  # type: ignore[call-overload]
    per_pair = middle("memory_mb") * 1e6 / int(used["pairs"])
    counted = sum(v for k, v in used["parts_bytes"].items() if k != "total") / int(used["pairs"])
    return [
        *(
            reported(f"speed.{name}.{kind}", middle(key), unit="us", against=against,
                     detail=detail(kind))
            for kind, key in OWN.items()
        ),
        reported(f"speed.{name}.train", middle("train_s"), unit="s", against=against,
                 detail={"runs": [run.detail["train_cpu_s"] for run in runs]}),
        reported(f"speed.{name}.memory", middle("memory_mb"), unit="MB", detail=used,
                 against="growth of resident memory by fitting in a fresh process"),
        reported(f"speed.{name}.bytes_per_pair", per_pair, unit="B",
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
    mine, other = (median(run.value["accuracy"] for run in runs) for runs in (ours, theirs))
    bars.append(
        at_most(f"dynfrs.{name}.accuracy", abs(mine - other), WITHIN,
                against="the DynFrs binary that was named",
                detail={"ours": mine, "theirs": other})
    )  # fmt: skip
    return bars


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
