"""``--plan``: what a run will cost, from its settings and a pilot of about a second."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from privml._cli import value_show as show
from privml._cli.output import Output
from privml._cli.tables import count, facts, megabytes
from privml._cli.value_build import Kind, method_of, resumable, utility_of
from privml._cli.value_data import Table, load_table
from privml._cli.value_run import limits_of
from privml._cli.value_spec import Spec, read_spec
from privml._cli.value_watch import duration
from privml.rng import ScienceSeed
from privml.valuation.parallel import pinned
from privml.valuation.stopping import Progress
from privml.valuation.utilities.base import Game

_EXACT_AT_MOST: Final = 20  # players
_SHORT: Final = 16
_LONG_S: Final = 2.0
_CORES_AT_LEAST: Final = 1


def run(out: Output, kind: Kind, *, spec_file: Path) -> None:
    """Print the predicted cost of a run; nothing is written."""
    spec = read_spec(spec_file)
    table = load_table(spec, needs_validation=kind != "oob")
    found = predict(spec, kind, table)
    out.show(facts(f"plan of {kind}", _rows(found, kind, spec, table)))
    out.document({"ok": True, "verb": kind, **found})


def predict(spec: Spec, kind: Kind, table: Table) -> dict[str, Any]:
    """Return players, evaluations, seconds and memory (MB) of a run; None where open."""
    problem = table.problem
    method_of(spec, kind, problem, checkpoint=None, listener=_ignore)  # refuses wrong settings
    out: dict[str, Any] = {
        "players": problem.players,
        "rows": problem.n,
        "validation_rows": len(problem.X_val),
        "columns": problem.d,
        "resumable": resumable(spec, kind),
    }
    if kind in {"knn", "oob"}:
        seconds = _neighbour_seconds(table) if kind == "knn" else None
        memory = _resident_mb() + problem.n * 64 * 16 / 1e6
        return {**out, "evaluations": 0, "seconds": seconds, "memory_mb": memory}
    with pinned():
        each, rows = pilot(utility_of(spec, problem).open(problem))
    evaluations = _evaluations(spec, kind, problem.players)
    jobs = _jobs(spec)
    seconds = None if evaluations is None else evaluations * each / jobs
    limits = limits_of(spec, kind, problem.players)
    if limits.seconds is not None:
        seconds = limits.seconds if seconds is None else min(seconds, limits.seconds)
    memory = _resident_mb() + _posterior_mb(spec, kind, problem.players)
    copies = jobs if spec["run"]["backend"] == "loky" and jobs > 1 else 1
    return {
        **out,
        "evaluations": evaluations,
        "seconds_per_evaluation": each,
        "pilot_evaluations": rows,
        "seconds": seconds,
        "processes": jobs,
        "memory_mb": memory * copies,
    }


def pilot(game: Game) -> tuple[float, int]:
    """Return the seconds of one evaluation within a walk, and how many evaluations were timed.

    A walk over all players is timed if a short one says that it is cheap; else the cost of a
    training is taken to grow with the size of the coalition.
    """
    n = game.players
    generator = ScienceSeed(0).child("pilot").generator()
    orders = np.stack([generator.permutation(n) for _ in range(max(1, game.batch))])
    orders = orders.astype(np.int64)
    short = min(n, _SHORT)
    took = _timed(game, orders[:1, :short])
    if took * (n / short) ** 2 > _LONG_S:
        middle = orders[0, : max(1, n // 2)]
        began = time.perf_counter()
        game.score([middle])
        return time.perf_counter() - began, 1
    took = _timed(game, orders[:1])
    if took * len(orders) < _LONG_S:
        return _timed(game, orders) / orders.size, int(orders.size)
    return took / n, n


def _timed(game: Game, orders: Any) -> float:  # noqa: ANN401 - an array of walks
    began = time.perf_counter()
    game.walks(orders)
    return time.perf_counter() - began


def _evaluations(spec: Spec, kind: Kind, players: int) -> int | None:
    if kind == "run" and spec["values"]["method"] == "exact":
        return int(2**players - 1)
    if kind == "run" and spec["values"]["method"] == "loo":
        return players + 1
    most = limits_of(spec, kind, players).evaluations
    return None if most is None else int(most)


def _neighbour_seconds(table: Table) -> float:
    """Return the seconds of exact neighbour values, from a few validation rows."""
    from privml.valuation.methods.knn import KNNShapley
    from privml.valuation.problem import Problem

    problem = table.problem
    some = min(len(problem.X_val), 8)
    part = Problem.of(
        problem.X, problem.y, problem.X_val[:some], problem.y_val[:some], task=problem.task
    )
    began = time.perf_counter()
    KNNShapley().fit_problem(part)
    return (time.perf_counter() - began) * len(problem.X_val) / some


def _posterior_mb(spec: Spec, kind: Kind, players: int) -> float:
    """Return the memory of a top-m posterior: two n x n matrices, or n x 256 features."""
    if kind != "topm":
        return 0.0
    joint = spec["topm"]["posterior"] in {None, "auto", "joint"} and players <= 5_000
    return (3 * 8 * players**2 if joint else 3 * 4 * 256 * players) / 1e6


def _resident_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


def _jobs(spec: Spec) -> int:
    import os

    jobs: int = spec["run"]["jobs"]
    return jobs if jobs > 0 else os.cpu_count() or _CORES_AT_LEAST


def _ignore(progress: Progress) -> None:
    del progress


def _rows(found: dict[str, Any], kind: Kind, spec: Spec, table: Table) -> list[tuple[str, str]]:
    who = "groups" if table.problem.group_mode == "player" else "rows"
    rows = [
        ("players", f"{found['players']} {who}, {found['columns']} columns"),
        ("scored on", show.scored_on(kind, found["validation_rows"])),
    ]
    if found["evaluations"] is None:
        rows.append(("evaluations", "open: [stop] names no number of evaluations"))
    elif found["evaluations"]:
        each = f"{found['seconds_per_evaluation'] * 1e6:.3g} µs each in a pilot"
        rows.append(("evaluations", f"at most {found['evaluations']}, {each}"))
    exact = 2 ** min(found["players"], 60) - 1
    plain = kind == "run" and spec["values"]["method"] == "shapley" and not spec["values"]["cap"]
    if plain and found["players"] <= _EXACT_AT_MOST and exact <= (found["evaluations"] or exact):
        rows.append(("exact", f'{count(exact, "evaluation")} with [values] method = "exact"'))
    seconds = found["seconds"]
    time_text = "open" if seconds is None else f"about {duration(seconds)}"
    if kind == "topm" and seconds is not None:
        time_text += " for the models; the posterior comes on top, often more than they"
    rows.append(("time", time_text))
    rows.append(("memory", f"about {megabytes(found['memory_mb'])}"))
    again = f"yes, every {spec['run']['checkpoint_s']:g} s and on Ctrl-C"
    rows.append(("checkpoint", again if found["resumable"] else "no: it runs in one go"))
    return rows
