"""Accuracy against time and bytes over token budgets: plots, and their numbers beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cipherprune_artefact import (
    Artefact,
    Sentences,
    clear_accuracy,
    clear_twin,
    read_sentences,
)
from cipherprune_runs import OURS, NoRoom, Runs, Variant, both_ways, in_turn, running, times
from cipherprune_speed import by_length
from cipherprune_sst2 import right
from cipherprune_worker import Simulated, simulate_all
from frame import Options, Report, absent, reported
from numpy.typing import NDArray

from privml.report import Point, efficient, pareto_png
from privml.storage.publish import atomic_write

if TYPE_CHECKING:
    from privml.protocols.cipherprune.learning import Evaluation

SENTENCES, TURNS = 10, 3
ACCURACY_ROWS = 0
"""Sentences whose outputs are simulated, at evenly spaced length quantiles; 0 takes them all."""
NAMES = ("pareto.points", "pareto.efficient_points", "pareto.efficient_points_long")
UNPRUNED = {"padded": "no pruning, {n} positions", "unpadded": "no pruning, no padding"}
Found = Mapping[int, Runs]


@dataclass(frozen=True, eq=False)
class Group:
    """Sentences that share a plot.

    Attributes
    ----------
    name
        What they are, in words.
    file
        Name of the plot.
    rows
        Those whose accuracy counts.
    measured
        Those that are run between two processes.
    """

    name: str
    file: str
    rows: NDArray[np.intp]
    measured: NDArray[np.intp]


@dataclass
class Plot:
    """Points of a group, and figures of each budget that are not in the plot."""

    group: Group
    points: list[Point]
    budgets: list[dict[str, Any]] = field(default_factory=list)


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
    """Add ``pareto.*`` and write plots and ``pareto.json`` into the named folder."""
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
            plots = _plots(report, options, budgets, data)
        except NoRoom as error:
            report.add(*(absent(name, "", against="", reason=str(error)) for name in NAMES))
            return
        best = write(folder, plots, data)
        where = (
            f"written beside the artefacts: pareto.json, {', '.join(p.group.file for p in plots)}"
        )
        detail = {p.group.name: [asdict(point) for point in p.points] for p in plots}
        report.add(
            reported(NAMES[0], len(plots[0].points), against=f"{where}; {OURS}", detail=detail)
        )
        for name, plot, points in zip(NAMES[1:], plots, best, strict=False):
            report.add(
                reported(name, len(points), against=f"{plot.group.name}; none is better in all",
                         detail={"labels": [p.label for p in points]})
            )  # fmt: skip


def write(folder: Path, plots: Sequence[Plot], data: Sentences) -> list[tuple[Point, ...]]:
    """Write plots and numbers; return, for each plot, the points that no other one beats."""
    found, best = [], []
    for plot in plots:
        group = plot.group
        title = f"Pruned classifier, {group.name}; loopback. {OURS}"
        best.append(efficient(plot.points))
        atomic_write(folder / group.file, pareto_png(plot.points, title=title), mode=0o644)
        found.append({
            "title": title, "plot": group.file, "padded_tokens": data.n,
            "sentences": {"accuracy": len(group.rows), "measured": len(group.measured)},
            "points": [asdict(p) for p in plot.points], "budgets": plot.budgets,
            "efficient": [p.label for p in best[-1]],
        })  # fmt: skip
    text = json.dumps({"plots": found}, indent=1) + "\n"
    atomic_write(folder / "pareto.json", text.encode(), mode=0o644)
    return best


def groups_of(data: Sentences, shortest: int, count: int) -> list[Group]:
    """Return all sentences, and those that are pruned if there are both kinds."""
    every = np.arange(len(data))
    groups = [Group("all texts", "pareto.png", every, data.spread(count))]
    longer = every[data.lengths > shortest]
    if 0 < len(longer) < len(data):
        name = f"texts of more than {shortest} tokens"
        spread = longer[data.take(longer).spread(count)]
        groups.append(Group(name, "pareto_long.png", longer, spread))
    return groups


def _plots(
    report: Report, options: Options, budgets: Sequence[Artefact], data: Sentences
) -> list[Plot]:
    many = 20 if options.quick else ACCURACY_ROWS or len(data)
    chosen = data.take(data.spread(many)) if many < len(data) else data
    shortest = max(a.prune.shortest for a in budgets)
    groups = groups_of(chosen, shortest, 1 if options.quick else SENTENCES)
    whole = budgets[0].before or budgets[0].unpruned
    plots = [Plot(group, []) for group in groups]
    right_of: list[dict[str, float]] = [
        dict.fromkeys(UNPRUNED, clear_accuracy(whole, chosen.take(g.rows))) for g in groups
    ]
    for a in budgets:
        report.progress(f"  simulating {len(chosen)} sentences with {a.name}")
        found = simulate_all(a.pruned, a.prune, chosen.ids, n=data.n, progress=report.progress)
        twin = clear_twin(a, chosen)
        for plot, accuracy in zip(plots, right_of, strict=True):
            rows = plot.group.rows
            accuracy[a.name] = right([found[int(i)] for i in rows], chosen.take(rows))
            plot.budgets.append({"label": a.name, **beside(twin, found, chosen, rows)})
    rows = np.unique(np.concatenate([g.measured for g in groups]))
    runs = _measured(report, budgets, chosen, rows, turns=1 if options.quick else TURNS)
    for plot, accuracy in zip(plots, right_of, strict=True):
        plot.points += points_of(runs, plot.group.measured, accuracy, n=data.n)
    return plots


def beside(
    twin: Evaluation, found: Sequence[Simulated], data: Sentences, rows: NDArray[np.intp]
) -> dict[str, Any]:
    """Return what the clear twin does with some sentences, and how often the protocol agrees."""
    same = [twin.predictions[i] == int(found[i].output.argmax()) for i in rows]
    return {
        "clear_twin_accuracy": float((twin.predictions == data.labels)[rows].mean()),
        "same_class_as_twin": float(np.mean(same)),
        "share_kept": float(twin.kept[1:, rows].mean() / twin.kept[0, rows].mean()),
        "tokens_per_layer": twin.kept[:, rows].mean(axis=1).round(2).tolist(),
        "high_per_layer": twin.high[:, rows].mean(axis=1).round(2).tolist(),
    }


def points_of(
    found: Found, rows: NDArray[np.intp], accuracy: Mapping[str, float], *, n: int
) -> list[Point]:
    """Return a point for each way: mean over the sentences of median seconds, and of bytes."""
    points = []
    for name, share in accuracy.items():
        runs = [found[int(row)][name] for row in rows]
        seconds = float(np.mean([times(each).median for each in runs]))
        megabytes = float(np.mean([both_ways(each[-1]) for each in runs])) / 1e6
        label = UNPRUNED.get(name, name).format(n=n)
        points.append(Point(label, share, seconds, megabytes, name in UNPRUNED))
    return points


def _measured(
    report: Report, budgets: Sequence[Artefact], data: Sentences, rows: NDArray[np.intp], *,
    turns: int,
) -> Found:  # fmt: skip
    """Run sentences with each budget, and with the unpruned model padded and not."""
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
    return found
