"""Top-m at equal evaluations: our hybrid against walks, smoothed walks, UGapE and GPGapE.

The utility is that of the design's reference table on every set (ridge classifier, alpha 1,
accuracy on 200 clean rows, 20 % flipped labels, m = n/5), and so is n for breast cancer (100) and
the synthetic set (200). For the other sets n = 150, at which the halves of 6 000 walks still agree
on most of the answer: gaps between neighbours in rank shrink with n, so a larger n needs more walks
to know the right answer at all. Texts are 384 columns of an encoder, from a pool of 800 texts. All
hyperparameters come from each run's own data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from frame import Bar, Options, Report, absent, at_least, reported
from machine import usable_cores
from valuation_data import FIVE, Case, DataMissing, case
from valuation_topm import OTHERS, SCHEMES, run_all

from privml.valuation.parallel import Workers

PLAYERS = {
    "breast_cancer": 100, "synthetic": 200, "digits": 150, "adult": 150, "sst2": 150,
    "agnews": 150,
}  # fmt: skip
FLIPS = 0.2
SEEDS, WALKS = 8, 6000
NEEDED = 4
EARLY_GAIN = 0.10
RULE = (
    "ridge classifier (alpha 1, free intercept), accuracy, 20 % flipped labels, m = n/5, equal "
    "evaluations; precision at m, mean over seeds of hybrid minus the other scheme of largest mean"
)
EQUAL = 1e-12  # means of the same shares, summed in another order
Runs = Sequence[Mapping[str, Any]]


def ranking_section(report: Report, options: Options) -> None:
    """Add ``topm.*``."""
    turns, walks, most = (2, 600, 10) if options.quick else (SEEDS, WALKS, 40)
    sets = ("breast_cancer",) if options.quick else tuple(PLAYERS)
    held: dict[str, bool | None] = dict.fromkeys(FIVE)
    close: dict[str, bool] = {}
    for name in PLAYERS:
        bar = f"topm.{name}"
        target = f">= 0, {most} n evaluations"
        with report.section(f"top-m on {name}", bar):
            if name not in sets:
                report.add(absent(bar, target, against=RULE, reason="not in --quick"))
                continue
            players = PLAYERS[name] // 2 if options.quick else PLAYERS[name]
            try:
                cases = [case(name, t, players=players, flips=FLIPS) for t in range(turns)]
            except DataMissing as error:
                report.add(absent(bar, target, against=RULE, reason=str(error)))
                continue
            runs = _runs(cases, walks=walks, most=most, jobs=1 if options.quick else usable_cores())
            made = _bars(name, runs, most=most, players=players, quick=options.quick)
            report.add(*made)
            if name in held:
                held[name] = made[0].holds
                close[name] = bool(made[0].detail["within_one_se"])
    report.add(
        _held(held, options.quick),
        reported("topm.sets.within_one_se", sum(close.values()), unit="of 5 sets", detail=close,
                 against="sets on which hybrid is above, or below by no more than one standard "
                 f"error of the paired difference; {RULE}"),
    )  # fmt: skip


def _runs(cases: Sequence[Case], *, walks: int, most: int, jobs: int) -> Runs:
    m = cases[0].problem.players // 5
    one = partial(_run, m=m, walks=walks, most=most)
    return Workers(jobs).map(one, list(enumerate(cases)))


def _run(numbered: tuple[int, Case], *, m: int, walks: int, most: int) -> Mapping[str, Any]:
    turn, one = numbered
    return run_all(one, turn, m=m, walks=walks, most=most)


def _held(held: Mapping[str, bool | None], quick: bool) -> Bar:
    """Return how many of the five sets hold; no verdict while the missing ones could decide."""
    count = sum(h is True for h in held.values())
    missing = [name for name, holds in held.items() if holds is None]
    bar = at_least("topm.sets", count, NEEDED, unit="of 5 sets", against=RULE, detail=dict(held))
    if quick or (missing and count < NEEDED <= count + len(missing)):
        reason = f"not measured: {', '.join(missing)}" + ("; fewer rows and seeds" * quick)
        return Bar(bar.name, float(count), bar.target, None, RULE, bar.unit, reason, bar.detail)
    return bar


def _bars(name: str, runs: Runs, *, most: int, players: int, quick: bool) -> list[Bar]:
    """Return the verdict on one set, and what a table of it shows."""
    last = {s: np.array([run["schemes"][s][most]["right"] for run in runs]) for s in SCHEMES}
    best = max(OTHERS, key=lambda scheme: last[scheme].mean())
    gap, error = mean_and_error(last["hybrid"] - last[best])
    detail = {
        "best_other": best, "difference": gap, "se_of_paired_difference": error,
        "within_one_se": gap >= -error,
        "seeds": len(runs), "players": players, "m": players // 5,
        "split_half_ceiling": mean_and_error([run["ceiling"] for run in runs]),
        "error_over_spread_of_reference": float(np.mean([r["error_over_spread"] for r in runs])),
        "evaluations": {s: max(run["evaluations"][s] for run in runs) for s in SCHEMES},
        "mean_and_se": {
            column: {s: {b: mean_and_error([run["schemes"][s][b][column] for run in runs])
                         for b in runs[0]["schemes"][s]} for s in SCHEMES}
            for column in ("right", "near", "captured")
        },
    }  # fmt: skip
    bars = [
        Bar(f"topm.{name}", gap, f">= 0, {most} n evaluations",
            None if quick else gap >= -EQUAL,
            f"{best}, standard error {error:.3f}, {len(runs)} seeds, n = {players}; {RULE}", "",
            "fewer rows and seeds by --quick" * quick, detail)
    ]  # fmt: skip
    ceiling = detail["split_half_ceiling"]
    for scheme in SCHEMES:
        at = {column: detail["mean_and_se"][column][scheme][most] for column in
              ("right", "near", "captured")}  # fmt: skip
        bars.append(
            reported(f"topm.{name}.{scheme}", at["right"][0], detail=at,
                     against=f"precision at m at {most} n evaluations, se {at['right'][1]:.3f}; "
                     f"with near-ties {at['near'][0]:.3f}; value captured {at['captured'][0]:.3f}; "
                     f"halves of the reference agree to {ceiling[0]:.3f}")
        )  # fmt: skip
    if name == "synthetic":
        early = {s: np.array([run["schemes"][s][2]["right"] for run in runs]) for s in SCHEMES}
        value, spread = mean_and_error(early["hybrid"] - early["walks"])
        bars.append(
            at_least("topm.synthetic.early_gain", value, EARLY_GAIN, detail={"se": spread},
                     against="hybrid minus walks, precision at m after 2 n evaluations")
        )  # fmt: skip
    return bars


def mean_and_error(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return the mean over seeds and its standard error."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.mean()), float(array.std(ddof=1) / len(array) ** 0.5)
