"""``privml value weights``: how much each generated or noisy row should count in training."""

from __future__ import annotations

from pathlib import Path

from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml._cli.value_coreset import cell
from privml._cli.value_data import load_table
from privml._cli.value_spec import read_spec
from privml.storage.publish import atomic_write


def run(out: Output, *, spec_file: Path, mode: str, file: Path) -> None:
    """Weigh the training rows by models of the validation rows, which must be clean."""
    from sklearn.linear_model import LogisticRegression

    from privml.valuation.weighting.weighter import ImportanceWeighter

    if mode not in {"quality", "imp"}:
        raise UsageError("--mode is quality or imp; dimp weighs during training, from Python")
    spec = read_spec(spec_file)
    problem = load_table(spec).problem
    if problem.task != "classification":
        raise UsageError("weights need classes; this is a regression")
    if file.exists():
        raise UsageError(f"{file} exists; give a new file")
    options = spec["run"]
    method = ImportanceWeighter(
        LogisticRegression(max_iter=1_000), mode, random_state=options["seed"],
        n_jobs=options["jobs"], backend=options["backend"],
    )  # fmt: skip
    out.progress("weighing rows", 0.0)
    method.fit(problem.X, problem.codes, problem.X_val, problem.val_codes)
    lines = ["id,weight"]
    pairs = zip(problem.row_ids, method.weights_.tolist(), strict=True)
    lines += [f"{cell(str(name))},{weight!r}" for name, weight in pairs]
    atomic_write(file, ("\n".join(lines) + "\n").encode())
    low, high = float(method.weights_.min()), float(method.weights_.max())
    out.show(facts("weights", [
        ("rows", f"{problem.n}, judged by a model of {len(problem.X_val)} clean rows"),
        ("range", f"{low:.4g} to {high:.4g}, mean {float(method.weights_.mean()):.4g}"),
        ("file", str(file)),
    ]))  # fmt: skip
    out.document({
        "ok": True, "mode": mode, "rows": problem.n, "lowest": low, "highest": high,
        "file": str(file),
    })  # fmt: skip
