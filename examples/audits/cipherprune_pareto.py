"""Accuracy against time and bytes over token budgets: a plot, and its numbers beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from cipherprune_artefact import Artefact, Sentences, clear_accuracy, read_sentences
from cipherprune_runs import OURS, NoRoom, Runs, Variant, in_turn, running
from cipherprune_speed import by_length, total_bytes, total_s
from cipherprune_sst2 import right
from cipherprune_worker import simulate_all
from frame import Options, Report, absent, reported
from numpy.typing import NDArray

from privml.report import Point, efficient, pareto_png
from privml.storage.publish import atomic_write

SENTENCES, TURNS = 5, 5
NAMES = ("pareto.points", "pareto.efficient_points")


def artefacts_in(folder: Path) -> list[Artefact]:
    """Return the artefacts in the sub-folders, in the order of their names."""
    found = []
    for sub in sorted(path for path in folder.iterdir() if path.is_dir()):
        try:
            found.append(Artefact.at(sub))
        except FileNotFoundError:
            continue
    return found


def pareto_section(report: Report, options: Options) -> None:
    """Add ``pareto.*`` and write ``pareto.png`` and ``pareto.json`` into the named folder."""
    with report.section("accuracy against cost over token budgets", *NAMES):
        missing = [f"--{flag}" for flag in ("pareto", "data") if flag not in options.paths]
        folder = options.paths.get("pareto")
        budgets = artefacts_in(folder) if folder is not None else []
        reason = f"not measured: name it with {' and '.join(missing)}" if missing else ""
        if folder is not None and not budgets:
            reason = "the folder named by --pareto has no sub-folder with a model and thresholds"
        if folder is None or reason:
            report.add(*(absent(name, "", against="", reason=reason) for name in NAMES))
            return
        data = read_sentences(budgets[0].pruned, options.paths["data"])
        try:
            points = _points(report, options, budgets, data)
        except NoRoom as error:
            report.add(*(absent(name, "", against="", reason=str(error)) for name in NAMES))
            return
        best = write(folder, points, data)
        where = f"written beside the artefacts: pareto.png, pareto.json; {OURS}"
        detail = {"points": [asdict(p) for p in points]}
        report.add(
            reported(NAMES[0], len(points), against=where, detail=detail),
            reported(NAMES[1], len(best), against="no other point is better in all three",
                     detail={"labels": [p.label for p in best]}),
        )  # fmt: skip


def write(folder: Path, points: Sequence[Point], data: Sentences) -> tuple[Point, ...]:
    """Write the plot and its numbers; return the points that no other one beats."""
    best = efficient(points)
    title = f"Pruned classifier, {data.n} padded tokens, loopback. {OURS}"
    document = {
        "title": title, "points": [asdict(p) for p in points],
        "efficient": [p.label for p in best],
    }  # fmt: skip
    atomic_write(folder / "pareto.png", pareto_png(points, title=title), mode=0o644)
    text = json.dumps(document, indent=1) + "\n"
    atomic_write(folder / "pareto.json", text.encode(), mode=0o644)
    return best


def _points(
    report: Report, options: Options, budgets: Sequence[Artefact], data: Sentences
) -> list[Point]:
    chosen = data.take(data.spread(20)) if options.quick else data
    whole = budgets[0].before or budgets[0].unpruned
    accuracy = {"padded": clear_accuracy(whole, chosen)}
    accuracy["unpadded"] = accuracy["padded"]
    for a in budgets:
        report.progress(f"  simulating {len(chosen)} sentences with {a.name}")
        found = simulate_all(a.pruned, a.prune, chosen.ids, n=data.n, progress=report.progress)
        accuracy[a.name] = right(found, chosen)
    count, turns = (1, 1) if options.quick else (SENTENCES, TURNS)
    costs = _costs(report, budgets, data, data.spread(count), turns=turns)
    references = {
        "padded": f"no pruning, {data.n} positions", "unpadded": "no pruning, no padding"
    }  # fmt: skip
    return [
        Point(references.get(name, name), accuracy[name], seconds, megabytes, name in references)
        for name, (seconds, megabytes) in costs.items()
    ]


def _costs(
    report: Report,
    budgets: Sequence[Artefact],
    data: Sentences,
    rows: NDArray[np.intp],
    *,
    turns: int,
) -> Mapping[str, tuple[float, float]]:
    """Mean seconds and megabytes of a sentence for each budget and for the unpruned model."""
    variants = [Variant(a.name, a.pruned, data.n, "pruned", a.prune) for a in budgets]
    variants.append(Variant("padded", budgets[0].unpruned, data.n, "no pruning"))
    found: dict[int, Runs] = {}
    with running(variants, turns=turns) as products:
        for product in products.values():
            product.run(data.padded(int(rows[0])))  # also pays the set-up
        for n, group in by_length(data, rows):
            alone = Variant("unpadded", budgets[0].unpruned, n, "no pruning, no padding")
            with running([alone], turns=turns * len(group)) as short:
                short["unpadded"].run(data.batch(group[0]))
                for row in group:
                    batches = dict.fromkeys(products, data.padded(row))
                    batches["unpadded"] = data.batch(row)
                    found[row] = in_turn(products | short, batches, turns, warm=False)
                    report.progress(f"  measured {n} tokens")
    many = len(found)
    return {name: (total_s(found, name) / many, total_bytes(found, name) / many / 1e6)
            for name in [v.name for v in variants] + ["unpadded"]}  # fmt: skip
