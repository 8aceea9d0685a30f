"""Fused residuals with approximate rounding against the paper-style pipeline, in one run.

The paper-style row is Brevitas and concrete-ml with exact rounding on a network of the same shape
(``peers/concrete_ml_worker.py``), trained on the same rows and judged on the same test rows. Where
that environment is missing, our own executor stands in: the very network, its residuals requantised
(4 tables an element), rounded exactly.

A seed takes about seven core-minutes. With ``--kept DIR`` each seed's pair of runs is written there
and a stopped audit goes on behind it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from fhe_controls import percent
from fhe_digits import (
    BRIEF,
    P_ERROR,
    RESIDUAL,
    SEEDS,
    TRAINING,
    Trained,
    accuracy,
    digits,
    residual,
    train,
)
from fhe_requantised import ROUND, exact_plan, requantised
from fhe_runs import execute
from frame import Bar, Options, Report, absent, at_least, reported

from privml.protocols.fhe import Frequency, toolkit
from privml.protocols.fhe.circuits import Circuit
from privml.protocols.fhe.concrete_ml import environment
from privml.protocols.fhe.entry import Mode
from privml.protocols.fhe.nodes import Ints
from privml.protocols.fhe.reference import run
from privml.protocols.fhe.reliability import classes

WORKER = Path(__file__).with_name("peers") / "concrete_ml_worker.py"
BARS = ("fhe.paper.speedup", "fhe.paper.accuracy_gap")
PLANNED = "fhe.paper.planned"
LIMIT_S = 3600
TARGETS = (">= 3 x", ">= -0.5 points")
PEER = "Brevitas and concrete-ml 1.9.0, 6 bits exact, same shape"
_EPOCHS, _BITS, _SIMULATED = 40, 4, 100


def paper_section(report: Report, options: Options) -> None:
    """Add ``fhe.paper.*``."""
    with report.section("paper-style pipeline", PLANNED, *BARS):
        training = BRIEF if options.quick else TRAINING
        seeds = SEEDS[:1] if options.quick else SEEDS
        ours = [train(front(seed), residual(), seed=seed, training=training) for seed in seeds]
        report.progress(f"  ours: {', '.join(f'{one.accuracy:.1%}' for one in ours)}")
        report.add(_planned(ours[0]))
        reason = "--quick: the paper-style network takes minutes" if options.quick else None
        if reason is None:
            reason = toolkit.missing()
        if reason is None:
            report.add(*_compared(report, options, ours))
        else:
            report.add(*(absent(name, target, against=PEER, reason=reason)
                         for name, target in zip(BARS, TARGETS, strict=True)))  # fmt: skip


def front(seed: int) -> Frequency:
    """Return the front end of both pipelines: 2 x 2 cells, all four coefficients."""
    return digits(seed)["both"].front(2, "y4")


def _planned(one: Trained) -> Bar:
    fused = one.classifier.plan()
    apart = exact_plan(requantised(one.classifier.graph, _calibration(one, 0)))
    shape = {"fused_tables": fused.tables, "requantised_tables": apart.tables,
             "requantised_bootstraps": apart.pbs}  # fmt: skip
    return reported(PLANNED, apart.core_s.expected / fused.core_s.expected, unit="x", detail=shape,
                    against="paper-style in our own executor, by both plans")  # fmt: skip


def _calibration(one: Trained, seed: int) -> Ints:
    return one.classifier.prepare(list(digits(seed)["both"].images[:200]))


def _compared(report: Report, options: Options, ours: list[Trained]) -> list[Bar]:
    """Run seed by seed: ours, then theirs."""
    reason = environment.missing()
    if reason is not None and options.peers:
        environment.install(say=report.progress)
        reason = environment.missing()
    if reason is not None:
        return _stand_in(report, ours, f"{reason.partition(';')[0]}; --peers builds it")
    pairs = [_pair(report, options, seed, one) for seed, one in zip(SEEDS, ours, strict=True)]
    ratios = [theirs["median_core_s"] / mine["median_core_s"] for mine, theirs in pairs]
    theirs = 100 * statistics.fmean(found["clear"] for _, found in pairs)
    detail = {
        "ratios": [round(ratio, 2) for ratio in ratios],
        "ours_percent": [round(100 * one.accuracy, 2) for one in ours],
        "ours_simulated_percent": [round(100 * _simulated(one), 2) for one in ours],
        "paper_style_percent": [round(100 * found["clear"], 2) for _, found in pairs],
        "paper_style_simulated_percent": [
            None if found["simulated"] is None else round(100 * found["simulated"], 2)
            for _, found in pairs
        ],
        "ours": [mine for mine, _ in pairs], "paper_style": [found for _, found in pairs],
    }  # fmt: skip
    versus = f"{PEER}; {len(pairs)} seeds and folds"
    return [
        at_least(BARS[0], statistics.median(ratios), 3, unit="x", against=versus, detail=detail),
        at_least(BARS[1], percent(ours) - theirs, -0.5, unit="points", against=versus),
    ]


def _pair(
    report: Report, options: Options, seed: int, one: Trained
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run both pipelines in turn, or return what a former audit kept of the very same networks."""
    folder = options.paths.get("kept")
    name = f"paper-{seed}-{one.classifier.graph.digest()[:16]}.json"
    path = None if folder is None else folder / name
    if path is not None and path.exists():
        report.progress(f"  seed {seed}: read from {name}")
        mine, theirs = json.loads(path.read_text("utf-8"))
        return mine, theirs
    (executed,) = execute({f"fused, seed {seed}": one}, images=2, progress=report.progress).values()
    report.progress(f"  concrete-ml, seed {seed}")
    mine, theirs = {"median_core_s": executed.median, **executed.detail()}, _theirs(seed)
    theirs["median_core_s"] = statistics.median(theirs["core_s"])
    report.progress(f"  ours {mine}")
    report.progress(f"  theirs {theirs}")
    if path is not None:
        path.write_text(json.dumps([mine, theirs], indent=1) + "\n", encoding="utf-8")
    return mine, theirs


def _simulated(one: Trained) -> float:
    return accuracy(one.classifier, one.rows, mode="simulate")


def _theirs(seed: int, *, images: int = 1) -> dict[str, Any]:
    """Return what the worker reports."""
    rows = digits(seed)
    stem, blocks = RESIDUAL
    settings = {
        "stem": stem, "blocks": blocks, "side": 1, "seed": seed, "bits": _BITS, "epochs": _EPOCHS,
        "exact": True, "round_to": ROUND, "p_error": P_ERROR, "simulated": _SIMULATED,
        "executed": images,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "rows.npz"
        X, T = (front(seed).batch(list(rows[part].images)) for part in ("both", "test"))
        np.savez(kept, X=X, y=rows["both"].labels, T=T, t=rows["test"].labels)
        done = subprocess.run(
            [environment.find().python, "-W", "ignore", WORKER, kept, json.dumps(settings)],
            env={**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")},
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the paper-style worker failed: {done.stderr.strip()[-400:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _stand_in(report: Report, ours: list[Trained], reason: str) -> list[Bar]:
    """Execute our own paper-style graph instead, and say so."""
    ratios, exact = [], []
    for seed, one in zip(SEEDS, ours, strict=True):
        graph = requantised(one.classifier.graph, _calibration(one, seed))
        graph = graph.with_rounding(ROUND, exact=True)
        whole = one.classifier.prepare(list(one.rows.images))
        exact.append(float((classes(graph, run(graph, whole)) == one.rows.labels).mean()))
        mine = execute({f"fused, seed {seed}": one}, images=2, progress=report.progress)
        with Circuit(graph, p_error=P_ERROR) as circuit:
            ratios.append(_core_s(circuit, whole[:2]) / mine[f"fused, seed {seed}"].median)
    why = f"concrete-ml is missing ({reason}); our executor stands in for it"
    versus = "the same network requantised, 6 bits exact, in our own executor"
    return [
        at_least(BARS[0], statistics.median(ratios), 3, unit="x", against=versus, reason=why,
                 detail={"ratios": [round(r, 2) for r in ratios]}),
        at_least(BARS[1], percent(ours) - 100 * statistics.fmean(exact), -0.5, unit="points",
                 against=versus, reason=why),
    ]  # fmt: skip


def _core_s(circuit: Circuit, images: Ints) -> float:
    """Return core-seconds of the second image; the first one unpacks the keys."""
    for one in images:
        start = time.process_time()
        circuit.run(one[None], mode=Mode.EXECUTE)
        spent = time.process_time() - start
    return spent
