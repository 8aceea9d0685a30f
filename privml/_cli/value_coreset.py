"""``privml value coreset``: a few rows that stand for the pool, by reducible loss."""

from __future__ import annotations

from pathlib import Path

from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml._cli.value_data import load_table
from privml._cli.value_spec import read_spec
from privml.storage.publish import atomic_write
from privml.valuation.report.export import neutral


def run(out: Output, *, spec_file: Path, size: int, file: Path) -> None:
    """Choose rows and write their ids, in the order they were chosen."""
    from sklearn.linear_model import LogisticRegression

    from privml.valuation.coreset.csrel import CSReL

    spec = read_spec(spec_file)
    problem = load_table(spec).problem
    if problem.group_mode != "row":
        raise UsageError("a coreset is made of rows; leave data.group out")
    if problem.task != "classification":
        raise UsageError("a coreset needs classes; this is a regression")
    if file.exists():
        raise UsageError(f"{file} exists; give a new file")
    run_options = spec["run"]
    method = CSReL(
        LogisticRegression(max_iter=1_000), size, random_state=run_options["seed"],
        n_jobs=run_options["jobs"], backend=run_options["backend"],
    )  # fmt: skip
    out.progress("choosing rows", 0.0)
    method.fit(problem.X, problem.codes, ids=problem.ids)
    lines = ["id,round,score"]
    chosen = zip(method.ids_, method.rounds_, method.scores_, strict=True)
    lines += [f"{cell(str(name))},{at},{float(score)!r}" for name, at, score in chosen]
    atomic_write(file, ("\n".join(lines) + "\n").encode())
    trained = f"{method.models_trained_} models, {method.rows_trained_} rows trained"
    out.show(facts("coreset", [
        ("rows", f"{len(method.ids_)} of {problem.n}"), ("cost", trained), ("file", str(file)),
    ]))  # fmt: skip
    out.document({
        "ok": True, "ids": [str(name) for name in method.ids_], "file": str(file),
        "models_trained": method.models_trained_, "rows_trained": method.rows_trained_,
    })  # fmt: skip


def cell(text: str) -> str:
    """Return a text as a CSV cell that no spreadsheet takes for a formula."""
    safe = neutral(text)
    special = any(c in safe for c in ',"\n\r')
    return '"' + safe.replace('"', '""') + '"' if special else safe
