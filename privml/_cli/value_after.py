"""``privml value after-delete``: what is lost if players leave, and the values of those that stay.

Nothing is deleted here: the report is meant to be read before a deletion is carried out, never as a
reason to refuse one.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.table import Table as Grid

from privml._cli import value_show as show
from privml._cli.output import Output, UsageError
from privml._cli.tables import count, facts
from privml._cli.value_build import Kind, method_of, resumable, utility_of
from privml._cli.value_data import load_table
from privml._cli.value_folder import Folder, Job
from privml._cli.value_run import check_data, limits_of, terminated_as_interrupt
from privml._cli.value_watch import Watch, duration
from privml.valuation.links.cost import ForgettingCost, cost_of_forgetting
from privml.valuation.links.survivors import Survivors
from privml.valuation.methods.semivalues import Semivalue
from privml.valuation.parallel import pinned
from privml.valuation.problem import Ints, Problem
from privml.valuation.report import compare, csv_text, outcome_digest
from privml.valuation.result import ValuationResult

_NO_CHANGE: Final = 1e-9
PURGE: Final = (
    "Results, checkpoints, traces and reports that were computed with these players are derived "
    "data of theirs: remove them once the deletion is carried out. Value is no reason to refuse a "
    "deletion."
)


def run(out: Output, *, folder: Path, ids: list[str], target: Path | None) -> None:
    """Show the loss, compute the values without the players, write them if asked."""
    place = Folder(folder)
    job = place.job()
    result = ValuationResult.load(folder)
    needs_validation = job.kind != "oob"
    table = load_table(job.spec, needs_validation=needs_validation)
    check_data(job, table)
    gone = players(result, ids)
    if target is not None and target.exists():
        raise UsageError(f"{target} exists; give a new folder")
    names = [str(result.ids[k]) for k in gone]
    rest = load_table(job.spec, without=names, needs_validation=needs_validation).problem
    utility = utility_of(job.spec, table.problem) if job.kind in {"run", "topm"} else None
    with pinned():
        cost = cost_of_forgetting(
            table.problem, result, [result.ids[k] for k in gone], utility=utility,
            folds=min(10, len(table.problem.X_val)),
        )  # fmt: skip
    out.show(facts("what leaves", _cost_rows(cost, result, names)))
    began = time.perf_counter()
    after = values_without(out, job, rest, gone=gone, before=len(result.ids))
    seconds = time.perf_counter() - began
    stay = np.setdiff1d(np.arange(len(result.ids)), gone)
    same = compare(_chosen(result, stay), after)
    labels = [table.labels[k] for k in stay]
    out.show(
        facts("values of those that stay", [
            ("computed", f"{after.evaluations} evaluations, {duration(seconds)}; {after.status}"),
            ("ranks", f"correlation {same.spearman:.3f} with the values before"),
            *_answer(result, after),
        ]),
        _changes(result, after, stay, labels),
    )  # fmt: skip
    if target is not None:
        after.save(target)
        Folder(target).write(target / "values.csv", csv_text(after, columns={"label": labels}))
    out.note(PURGE)
    out.document({
        "ok": True, "deleted": names, "players_left": len(after.ids), "cost": cost.to_json(),
        "rank_correlation": show.finite(same.spearman), "evaluations": after.evaluations,
        "status": after.status, "result_digest": outcome_digest(after), "notice": PURGE,
        "files_with_deleted": sorted(str(p) for p in folder.iterdir() if p.name != "lock"),
    })  # fmt: skip


def players(result: ValuationResult, ids: list[str]) -> Ints:
    """Return the numbers of players by name; raises ``UsageError``."""
    known = {str(name): at for at, name in enumerate(result.ids)}
    wrong = [name for name in ids if name not in known]
    if wrong:
        raise UsageError(f"there is no player {wrong[0]!r}; see the ids in values.csv")
    gone = np.array(sorted({known[name] for name in ids}), dtype=np.int64)
    if len(gone) == len(known):
        raise UsageError("no player would be left; leave at least one")
    return gone


def values_without(
    out: Output, job: Job, rest: Problem, *, gone: Ints, before: int
) -> ValuationResult:
    """Return the values of the same settings and seed over the players that stay.

    Sampled values use the units of the old run with the players struck out, so that differences are
    those of the deletion and not of other draws.
    """
    kind: Kind = job.kind
    watch = Watch(out, limits_of(job.spec, kind, rest.players))
    method = method_of(job.spec, kind, rest, checkpoint=None, listener=watch)
    out.progress("valuing those that stay", 0.0)
    if isinstance(method, Semivalue):
        base = method.sampler or method.default_sampler()
        method.set_params(sampler=Survivors(base, before, ()).without(tuple(gone.tolist())))
    if not resumable(job.spec, kind):
        found: ValuationResult = method.fit_problem(rest).result_
        return found
    with terminated_as_interrupt():
        found = method.fit_problem(rest).result_
    return found


def _chosen(result: ValuationResult, chosen: Ints) -> Any:  # noqa: ANN401 - a result
    """Return the result of some of the players, for comparing."""
    names = ("values", "stderr", "ci_low", "ci_high", "counts", "truncated_counts")
    arrays: dict[str, Any] = {name: getattr(result, name)[chosen] for name in names}
    return replace(
        result, ids=tuple(result.ids[k] for k in chosen), members=None, membership_prob=None,
        **arrays,
    )  # fmt: skip


def _cost_rows(
    cost: ForgettingCost, result: ValuationResult, names: list[str]
) -> list[tuple[str, str]]:
    shown = ", ".join(names[:5]) + (" ..." if len(names) > 5 else "")
    value = f"{cost.value:.4g} ({cost.value_low:.4g} to {cost.value_high:.4g}), summed"
    share = "" if math.isnan(cost.share) else f"; {cost.share:.1%} of all value"
    rows = [
        ("players", f"{count(cost.players, 'player')} of {len(result.ids)}: {shown}"),
        ("value", value + share),
    ]
    if not math.isnan(cost.change):
        span = f"changes by {cost.change:+.4f} ({cost.change_low:+.4f} to {cost.change_high:+.4f})"
        if max(abs(cost.change_low), abs(cost.change_high)) < _NO_CHANGE:
            span = "is the same on every part of the validation rows"
        rows.append(("utility", f"{span}, measured by training"))
    return rows


def _answer(before: ValuationResult, after: ValuationResult) -> list[tuple[str, str]]:
    """Return who leaves and enters the answer of a top-m run."""
    if before.members is None or after.members is None:
        return []
    old = {str(before.ids[k]) for k in before.members}
    new = [str(after.ids[k]) for k in after.members]
    entered = [name for name in new if name not in old]
    text = f"{len(new) - len(entered)} of {len(old)} players are in it as before"
    return [("answer", text + (f"; new: {', '.join(entered)}" if entered else ""))]


def _changes(
    before: ValuationResult, after: ValuationResult, stay: Ints, labels: list[str]
) -> Grid:
    """Return the players whose value changes most."""
    change = after.values - before.values[stay]
    first = np.argsort(-np.abs(np.nan_to_num(change)), kind="stable")[:8]
    grid = Grid(title="largest changes", title_justify="left", title_style="bold", box=None)
    for name in ("player", "label", "before", "after", "change"):
        grid.add_column(name, overflow="fold")
    for k in first:
        grid.add_row(
            str(after.ids[k]), labels[k], f"{before.values[stay[k]]:.4g}",
            f"{after.values[k]:.4g}", f"{change[k]:+.4g}",
        )  # fmt: skip
    return grid
