"""Digits: frequency against pixels on the same layers, and against its controls at equal cost."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fhe_digits import BRIEF, QUICK, SEEDS, TRAINING, Trained, digits, plain, train
from fhe_runs import Executed, execute
from frame import Bar, Options, Report, absent, at_least, at_most, reported

from privml.backbones.cnn_training import Training
from privml.protocols.fhe import toolkit
from privml.protocols.fhe.front.controls import missing_controls

FRONTS = {
    "pixel": ("y4", "pixel"),
    "mean-pool": ("y4", "mean-pool"),
    "space-to-depth": ("y4", "space-to-depth"),
    "dct": ("y4", "dct"),
    "dct-3-of-4": ("y3", "dct"),
    "random-basis": ("y3", "random-basis"),
}
"""Front ends on 2 x 2 cells. ``dct`` keeps every coefficient, since channels of the input cost no
table; ``dct-3-of-4`` and ``random-basis`` keep three numbers of four."""
QUICK_FRONTS = ("pixel", "mean-pool", "space-to-depth", "dct")
BARS = (
    "fhe.digits.dct_speedup", "fhe.digits.dct_minus_pixel", "fhe.digits.dct_minus_mean_pool",
    "fhe.digits.mean_pool_cost", "fhe.digits.table",
)  # fmt: skip


def controls_section(report: Report, options: Options) -> dict[str, list[Trained]]:
    """Add ``fhe.digits.*``; return the networks by front end, one for each seed."""
    networks: dict[str, list[Trained]] = {}
    with report.section("digits: frequency and its controls", *BARS):
        found = trained(
            SEEDS[:1] if options.quick else SEEDS,
            fronts=QUICK_FRONTS if options.quick else tuple(FRONTS),
            widths=(4, 4, 8) if options.quick else (16, 16, 16), progress=report.progress,
            training=QUICK if options.quick else TRAINING,
        )  # fmt: skip
        networks.update(found)
        reason = toolkit.missing()
        executed = {} if reason is not None else _executed(report, options, networks)
        made = bars(networks, executed, reason=reason or "")
        report.add(*([unjudged(bar) for bar in made] if options.quick else made))
    return networks


def _executed(
    report: Report, options: Options, networks: Mapping[str, list[Trained]]
) -> dict[str, Executed]:
    """Execute networks of the first seed; --quick a thin one, to show that ciphertexts run."""
    if options.quick:
        (thin,) = trained(SEEDS[:1], fronts=("dct",), widths=(1, 1, 2), training=BRIEF,
                          progress=lambda text: None).values()  # fmt: skip
        return execute({"dct": thin[0]}, images=1, progress=report.progress)
    chosen = {name: networks[name][0] for name in ("pixel", "mean-pool", "dct")}
    return execute(chosen, images=3, progress=report.progress)


def trained(
    seeds: tuple[int, ...], *, widths: tuple[int, int, int], progress: Callable[[str], None],
    fronts: Sequence[str] = tuple(FRONTS), training: Training = TRAINING,
) -> dict[str, list[Trained]]:  # fmt: skip
    """Train the same layers behind every front end, each seed in its own fold."""
    found: dict[str, list[Trained]] = {}
    for name in fronts:
        found[name] = []
        for seed in seeds:
            front = digits(seed)["both"].front(2, *FRONTS[name])
            one = train(front, plain(front.shape, widths), seed=seed, training=training)
            found[name].append(one)
        right = ", ".join(f"{one.accuracy:.1%}" for one in found[name])
        progress(f"  {name} {front.shape}: {right} of {len(one.rows.labels)} test rows")
    return found


def table(
    networks: Mapping[str, list[Trained]], executed: Mapping[str, Executed]
) -> dict[str, dict[str, object]]:
    """Return one row per front end; a table of ``dct`` without its controls is refused.

    Raises
    ------
    ValueError
        A mandatory control is missing.
    """
    missing = missing_controls(networks)
    if missing:
        raise ValueError(f"a table with dct needs its controls: {', '.join(missing)} missing")
    rows: dict[str, dict[str, object]] = {}
    for name, ones in networks.items():
        plan = ones[0].classifier.plan()
        rows[name] = {
            "shape": list(ones[0].classifier.graph.input.shape),
            "accuracy_percent": [round(100 * one.accuracy, 2) for one in ones],
            "tables": plan.tables, "planned_core_s": round(plan.core_s.expected, 2),
            **(executed[name].detail() if _same(executed, name, plan.tables) else {}),
        }  # fmt: skip
    return rows


def _same(executed: Mapping[str, Executed], name: str, tables: int) -> bool:
    """Return whether the network of a row was executed, and not a thinner one."""
    return name in executed and executed[name].plan.tables == tables


def percent(ones: list[Trained]) -> float:
    """Return the mean accuracy over seeds in percent."""
    return 100 * statistics.fmean(one.accuracy for one in ones)


def unjudged(bar: Bar) -> Bar:
    """Return a bar of accuracy without a verdict: --quick trains one seed, and briefly."""
    if bar.unit != "points" or bar.holds is None:
        return bar
    return replace(bar, holds=None, reason="--quick trains one seed, and briefly: not judged")


def bars(
    networks: Mapping[str, list[Trained]], executed: Mapping[str, Executed], *, reason: str = ""
) -> list[Bar]:
    """Judge the networks of :func:`trained`; without executions `reason` says why."""
    rows = table(networks, executed)
    score = {name: percent(ones) for name, ones in networks.items()}
    spread = {
        "means_percent": {name: round(value, 2) for name, value in score.items()},
        "test_rows": sum(len(one.rows.labels) for one in networks["dct"]),
    }
    seeds = len(networks["dct"])
    return [
        _speedup(rows, executed, reason),
        at_least("fhe.digits.dct_minus_pixel", score["dct"] - score["pixel"], -0.5, unit="points",
                 against=f"pixel, test rows, mean of {seeds} seeds", detail=spread),
        at_least("fhe.digits.dct_minus_mean_pool", score["dct"] - score["mean-pool"], 2.0,
                 unit="points", against="mean-pool: same grid, layers and tables", detail=spread),
        _equal_cost(rows, executed),
        reported("fhe.digits.table", score["dct"] - score["space-to-depth"], unit="points",
                 against="dct minus space-to-depth", detail=rows,
                 reason="a gap near zero is expected: an orthonormal map that the first layer can "
                 "learn; what frequency brings is fewer channels and no decoding"),
    ]  # fmt: skip


def _speedup(
    rows: Mapping[str, Mapping[str, object]], executed: Mapping[str, Executed], reason: str
) -> Bar:
    name, versus = BARS[0], "the same layers on all pixels, core-seconds, in turn"
    fronts = ("pixel", "dct")
    if not set(fronts) <= set(executed):
        reason = reason or "--quick executes dct alone: every circuit costs seconds before it runs"
        detail = {
            "tables": {front: rows[front]["tables"] for front in fronts},
            **{f"{front}, thin": one.detail() for front, one in executed.items()},
        }  # fmt: skip
        return replace(absent(name, ">= 1.9 x", against=versus, reason=reason), detail=detail)
    return at_least(name, executed["pixel"].median / executed["dct"].median, 1.9, unit="x",
                    against=versus,
                    detail={front: executed[front].detail() for front in fronts})  # fmt: skip


def _equal_cost(rows: Mapping[str, Mapping[str, object]], executed: Mapping[str, Executed]) -> Bar:
    measured = "mean-pool" in executed
    cost = (
        executed["mean-pool"].median / executed["dct"].median
        if measured
        else float(rows["mean-pool"]["tables"] == rows["dct"]["tables"])
    )
    return at_most("fhe.digits.mean_pool_cost", abs(cost - 1), 0.1, unit="of the cost of dct",
                   against="equal cost of mean-pool",
                   reason="" if measured else "by tables: mean-pool was not executed")  # fmt: skip
