"""``privml value verify``: files fit together, data are the same, chosen units come out again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np

from privml._cli.output import Failure, Output
from privml._cli.tables import facts
from privml._cli.value_build import method_of, resumable
from privml._cli.value_data import Table, load_table
from privml._cli.value_folder import Folder, Job
from privml._cli.value_run import check_data
from privml._cli.value_watch import Trace
from privml.backbones import run_state
from privml.errors import internal
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write
from privml.valuation.engine import Piece, Plan, Source, add, evaluate_piece
from privml.valuation.methods.base import seed_of
from privml.valuation.methods.semivalues import Semivalue
from privml.valuation.parallel import pinned
from privml.valuation.report import outcome_digest, run_record
from privml.valuation.result import ValuationResult
from privml.valuation.samplers.estimates import WalkEstimate
from privml.valuation.stopping import Progress
from privml.valuation.topm import TopM, evaluate
from privml.valuation.topm.journal import read_lines
from privml.valuation.utilities.base import Truncation, Utility

EXIT_WRONG: Final = 5
_LIMIT: Final = 64 << 20
_MOST: Final = 8 << 30
_CLOSE: Final = 1e-9


@dataclass(frozen=True)
class Check:
    """One comparison: what, whether it held, and details in words."""

    name: str
    ok: bool
    detail: str


def run(out: Output, *, folder: Path, units: int, everything: bool) -> None:
    """Verify a folder; exit code 5 if anything differs."""
    place = Folder(folder)
    job = place.job()
    result = ValuationResult.load(folder)
    table = load_table(job.spec, needs_validation=job.kind != "oob")
    check_data(job, table)
    checks = [
        Check("data", result.data_digest == table.problem.digest(), "digest of the problem"),
        _record(place, job, result),
    ]
    if everything or not resumable(job.spec, job.kind):
        checks.append(_again(job, table, result))
    elif job.kind == "topm":
        checks += _requests(place, job, table, result, units)
    else:
        checks += _rounds(place, job, table, result, units)
    wrong = [check for check in checks if not check.ok]
    rows = [(c.name, ("same: " if c.ok else "DIFFERENT: ") + c.detail) for c in checks]
    out.show(facts("verified" if not wrong else "NOT verified", rows))
    found = {"ok": not wrong, "checks": [vars(check) for check in checks]}
    if wrong:
        names = ", ".join(check.name for check in wrong)
        raise Failure("value.not_verified", f"{folder}: {names} differ", EXIT_WRONG)
    out.document({**found, "result_digest": outcome_digest(result)})


def _record(place: Folder, job: Job, result: ValuationResult) -> Check:
    """Compare the record with one made from the result."""
    found = read_file(place.record, limit=_LIMIT)
    made = run_record(
        result, kind=job.kind, spec=dict(job.tree), inputs=[dict(one) for one in job.inputs]
    )
    return Check("record", found == made, f"{place.record.name}, byte for byte")


def _again(job: Job, table: Table, result: ValuationResult) -> Check:
    """Run everything again, up to the cost the result had, and compare bits."""
    spec = job.spec
    if result.status == "interrupted":
        return Check("whole run", False, "the run was interrupted: resume it first")
    method = method_of(spec, job.kind, table.problem, checkpoint=None, listener=_ignore)
    again = method.fit_problem(table.problem).result_
    same = outcome_digest(again) == outcome_digest(result)
    return Check("whole run", same, f"{again.evaluations} evaluations, bit for bit")


def _requests(
    place: Folder, job: Job, table: Table, result: ValuationResult, units: int
) -> list[Check]:
    """Derive the answer from the journal again, and score chosen units of it again."""
    method = method_of(job.spec, "topm", table.problem, checkpoint=None, listener=_ignore)
    if not isinstance(method, TopM) or not isinstance(method.utility, Utility):
        raise Failure("value.not_verified", "the job is no top-m run", EXIT_WRONG)
    if not fs.exists(place.checkpoint):
        return [Check("journal", False, f"{place.checkpoint.name} is missing; use --all")]
    with TemporaryDirectory() as scratch:
        copy = Path(scratch) / place.checkpoint.name
        atomic_write(copy, read_file(place.checkpoint, limit=_MOST))
        method.set_params(checkpoint=copy, budget=result.evaluations, stopping=None)
        again = method.fit_problem(table.problem).result_
        saved = run_state.load_run(copy, run=again.spec_digest)
    internal(saved is not None, "a run writes its checkpoint")
    pairs = [
        (again.values, result.values), (again.stderr, result.stderr),
        (again.ci_low, result.ci_low), (again.ci_high, result.ci_high),
        (again.members, result.members), (again.membership_prob, result.membership_prob),
    ]  # fmt: skip
    same = all(_equal(a, b) for a, b in pairs) and again.evaluations == result.evaluations
    checks = [Check("answer", same, "derived from the journal again, bit for bit")]
    arrays: Any = {} if saved is None else saved.arrays
    lines, engine = read_lines(arrays), method.engine_
    chosen = spread(len(lines), units)
    with pinned():
        game = method.utility.open(table.problem)
        for unit in chosen:
            line = lines[unit]
            request = engine.target.request(engine.seed, unit, line.kind, line.arms)
            if not np.array_equal(evaluate(game, [request])[0], line.scores):
                return [*checks, Check("units", False, f"unit {unit} scores otherwise")]
    detail = f"{len(chosen)} of {len(lines)} units scored again, bit for bit"
    return [*checks, Check("units", bool(chosen), detail)]


def _equal(a: Any, b: Any) -> bool:  # noqa: ANN401 - arrays or None
    if a is None or b is None:
        return a is b
    return bool(np.array_equal(a, b, equal_nan=True))


def _rounds(
    place: Folder, job: Job, table: Table, result: ValuationResult, rounds: int
) -> list[Check]:
    """Recompute the first and some later rounds; later ones need a sampler of walks."""
    trace = Trace.load(place.trace, job.digest())
    if not trace.rounds:
        return [Check("units", False, f"{place.trace.name} is missing; use --all")]
    checks = []
    last = trace.units[-1] == result.extras.get("units")
    last = last and _equal(trace.values[-1], result.values)
    checks.append(Check("last state", last, "the trace ends in the result"))
    units = _Units(job, table)
    spans = [(0, trace.units[0])] if trace.rounds[0] == 1 else []
    near = [
        (trace.units[k], trace.units[k + 1])
        for k in range(len(trace.rounds) - 1)
        if trace.rounds[k + 1] == trace.rounds[k] + 1
    ]
    spans += near if units.walks else []
    states = dict(zip([0, *trace.units], [trace.values[0] * 0, *trace.values], strict=True))
    chosen = [spans[k] for k in spread(len(spans), rounds)]
    done = 0
    for start, stop in chosen:
        sums = units.values(start, stop) * (stop - start)
        wanted = stop * states[stop] - start * states[start]
        if start == 0:
            same = np.array_equal(sums / stop, states[stop], equal_nan=True)
            same = same or _near(sums, wanted)
        else:
            same = _near(sums, wanted)
        if not same:
            return [*checks, Check("units", False, f"units {start} to {stop - 1} differ")]
        done += stop - start
    detail = f"{done} of {trace.units[-1]} units in {len(chosen)} rounds recomputed"
    return [*checks, Check("units", bool(chosen), detail)]


class _Units:
    """Units of a sampled run, made again from their numbers."""

    def __init__(self, job: Job, table: Table) -> None:
        problem = table.problem
        method = method_of(job.spec, "run", problem, checkpoint=None, listener=_ignore)
        if not isinstance(method, Semivalue) or not isinstance(method.utility, Utility):
            raise Failure("value.not_verified", "the job is no sampled run", EXIT_WRONG)
        self._law = method.law(problem.players)
        self._sampler = method.sampler or method.default_sampler()
        seed = seed_of(method.random_state)
        source = Source("verify " + job.digest(), method.utility, problem)
        self._plan = Plan(source, self._sampler, self._law, seed, "", needs_full=False)
        self.walks = isinstance(self._sampler.estimate(self._law, 0.0), WalkEstimate)

    def values(self, start: int, stop: int) -> Any:  # noqa: ANN401 - (n,) values
        """Return the estimate from the units of a range alone."""
        game = self._plan.source.open()
        estimate = self._sampler.estimate(self._law, game.empty)
        cut = self._sampler.cut_below
        with pinned():
            whole = float(game.score([range(game.players)])[0]) if cut is not None else 0.0
            truncation = None if cut is None else Truncation(whole, cut)
            for _, _, observed in evaluate_piece(Piece(self._plan, start, stop, truncation)):
                add(estimate, observed)
        return estimate.values()


def spread(count: int, wanted: int) -> list[int]:
    """Return at most ``wanted`` numbers below ``count``, evenly spread, first and last included."""
    if count <= wanted:
        return list(range(count))
    return sorted({round(k * (count - 1) / max(1, wanted - 1)) for k in range(wanted)})


def _near(found: Any, wanted: Any) -> bool:  # noqa: ANN401 - arrays
    scale = max(1.0, float(np.nanmax(np.abs(wanted), initial=0.0)))
    return bool(np.allclose(found, wanted, rtol=0, atol=_CLOSE * scale, equal_nan=True))


def _ignore(progress: Progress) -> None:
    del progress
