"""``privml value run|topm|knn|oob|resume``: compute, survive interrupts, write the folder."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from privml._cli import value_show as show
from privml._cli.main import EXIT_INTERRUPTED
from privml._cli.output import Output
from privml._cli.value_build import Kind, amount, method_of, resumable, round_of
from privml._cli.value_data import Table, load_table
from privml._cli.value_folder import Folder, Job
from privml._cli.value_spec import Spec, read_spec
from privml._cli.value_watch import Limits, Watch
from privml.errors import internal
from privml.valuation.errors import RunMismatch
from privml.valuation.report import csv_text, json_document, run_record
from privml.valuation.result import ValuationResult

PER_PLAYER: Final = "200n"


def run(out: Output, kind: Kind, *, spec_file: Path, folder: Path) -> None:
    """Value the players of a spec into a new folder."""
    spec = read_spec(spec_file)
    table = load_table(spec, needs_validation=kind != "oob")
    job = Job(
        kind, _written(spec), str(spec_file.resolve()), table.problem.digest(),
        tuple(table.inputs),
    )  # fmt: skip
    place = Folder(folder)
    place.begin(job)
    carry_on(out, place, job, table)


def resume(out: Output, *, folder: Path) -> None:
    """Go on with the run of a folder, bit for bit; a finished one is only shown."""
    place = Folder(folder)
    job = place.job()
    table = load_table(job.spec, needs_validation=job.kind != "oob")
    check_data(job, table)
    carry_on(out, place, job, table)


def check_data(job: Job, table: Table) -> None:
    """Raise ``RunMismatch`` if the data are not those of the job."""
    if table.problem.digest() == job.data_digest:
        return
    known = {one["role"]: one["sha256"] for one in job.inputs}
    changed = [one["name"] for one in table.inputs if known.get(one["role"]) != one["sha256"]]
    what = ", ".join(map(str, changed)) or "the way they are read"
    raise RunMismatch(f"the data changed since the run began ({what}); restore them, or run anew")


def carry_on(out: Output, place: Folder, job: Job, table: Table) -> None:
    """Run to the end or to an interrupt, write everything, show it."""
    spec, sampled = job.spec, resumable(job.spec, job.kind)
    with place.held():
        limits = limits_of(spec, job.kind, table.problem.players)
        every = spec["run"]["checkpoint_s"]
        watch = Watch(
            out, limits, path=place.trace if sampled and job.kind == "run" else None,
            run=job.digest(), every_s=every, round_units=round_of(spec),
        )  # fmt: skip
        method = method_of(
            spec, job.kind, table.problem, listener=watch,
            checkpoint=place.checkpoint if sampled else None,
        )  # fmt: skip
        for note in table.notes:
            out.note(note)
        out.progress("valuing", 0.0)
        with terminated_as_interrupt():
            result: ValuationResult = method.fit_problem(table.problem).result_
        watch.finish(result)
        write_results(place, job, table, result)
    document = show.document(job.kind, result, place.path)
    out.show(*show.result(job.kind, result, table, place.path))
    out.document(document)
    if result.status == "interrupted":
        _leave(out, place)


def write_results(place: Folder, job: Job, table: Table, result: ValuationResult) -> None:
    """Write result, exports and record."""
    result.save(place.path)
    place.write(place.csv, csv_text(result, columns={"label": table.labels}))
    place.write(place.json, show.json_text(json_document(result)))
    inputs = [dict(one) for one in job.inputs]
    place.write(place.record, run_record(result, kind=job.kind, spec=dict(job.tree), inputs=inputs))


def limits_of(spec: Spec, kind: Kind, players: int) -> Limits:
    """Return what ends a run."""
    stop = spec["stop"]
    evaluations = stop["evaluations"]
    if kind == "topm":
        budgets = [spec["topm"]["budget"]] + ([evaluations] if evaluations is not None else [])
        most: int | None = min(amount(budget, players) for budget in budgets)
    else:
        rules = any(value is not None for value in stop.values())
        budget = evaluations if rules else PER_PLAYER
        most = None if budget is None else amount(budget, players)
    return Limits(most, stop["units"], stop["rows"], stop["seconds"], stop["stderr"])


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does, with a checkpoint and a partial result."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _leave(out: Output, place: Folder) -> NoReturn:
    out.note(f"interrupted: the result is partial; go on with `privml value resume {place.path}`")
    raise SystemExit(EXIT_INTERRUPTED)


def _written(spec: Spec) -> Mapping[str, Any]:
    """Return the keys that the file gave, with their values as checked."""
    tree = {
        name: {key: spec[name][key] for key in keys} for name, keys in spec.given.items() if keys
    }
    internal(bool(tree), "a checked spec has sections")
    return tree
