"""DaRE deletions, and retraining with LightGBM and scikit-learn, on the rows our forest had."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from forest_accuracy import metrics
from forest_clock import cpu_seconds
from forest_speed import Case, Figures
from frame import Bar, Options, Report, absent, at_least, reported
from peers.environments import DARE, LIGHTGBM, PeerUnavailable, obtain
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

WORKERS = Path(__file__).with_name("peers")
LIMIT_S = 600
TIMES = 1000
DARE_MS = {"shopping_onehot": 25.9, "cardio": 50.9, "adult_onehot": 31.6}
"""Mean of one deletion by dare-rf 1.1.4 on an AMD EPYC (Zen 3), same T, d and s, ms."""
RETRAIN_S = {
    "shopping_onehot": (0.15, 0.77, 1.1), "cardio": (0.44, 3.7, 7.4),
    "adult_onehot": (0.28, 3.8, 2.6), "syn100k": (2.1, 13.0, 66.0),
}  # fmt: skip
"""Reference measurements of retraining, one thread, in the order of ``RETRAINED``, CPU s."""
RETRAINED = ("lightgbm", "extra_trees", "random_forest")
SLOW = {("syn100k", "random_forest")}  # above a minute each


def peers_section(report: Report, options: Options, ours: Mapping[str, Figures]) -> None:
    """Add ``dare.*`` and ``retrain.*`` for the tables that our speed was measured on."""
    cases = {name: Case(name, 100) for name in ours}
    _dare(report, options, cases, ours)
    speeds: list[float] = []
    for name, case in cases.items():
        peers = RETRAINED[:2] if options.quick else RETRAINED
        wanted = [peer for peer in peers if (name, peer) not in SLOW]
        with report.section(f"retraining on {name}", *(f"retrain.{name}.{p}" for p in wanted)):
            for peer in wanted:
                bar = retrained(report, options, case, peer, ours[name])
                report.add(bar)
                if "train_cpu_s" in bar.detail:
                    reference = RETRAIN_S[name][RETRAINED.index(peer)]
                    speeds.append(reference / float(str(bar.detail["train_cpu_s"])))
    if speeds:
        report.add(
            reported("reference.machine_speed", float(np.median(speeds)), unit="x",
                     against="reference time over time here, median of retrainings: how much "
                     "faster this machine is, to be kept in mind with reference measurements",
                     detail={"each": [round(s, 2) for s in speeds]})
        )  # fmt: skip


def _dare(
    report: Report, options: Options, cases: Mapping[str, Case], ours: Mapping[str, Figures]
) -> None:
    names = [name for name in DARE_MS if name in cases]
    names = names[:1] if options.quick else names
    bars = ["dare.delete_geometric_mean", *(f"dare.{name}.delete" for name in names)]
    with report.section("dare-rf 1.1.4", *bars):
        if not names:
            reason = "no table to measure on"
            report.add(absent(bars[0], f">= {TIMES} x", against="dare-rf 1.1.4", reason=reason))
            return
        try:
            python = obtain(DARE, options.peer_dir, create=options.peers, progress=report.progress)
        except PeerUnavailable as error:
            report.add(*_without_dare(names, ours, str(error)))
            return
        ratios = []
        for name in names:
            report.progress(f"  {name}")
            told = _worker(
                python, "dare_worker.py", cases[name], deletes=30 if options.quick else 100
            )
            ratio = told["delete_mean_us"] / ours[name].value["delete_us"]
            ratios.append(ratio)
            report.add(
                reported(f"dare.{name}.delete", ratio, unit="x", detail=told | {
                    "ours_us": ours[name].value["delete_us"]},
                    against=f"dare-rf 1.1.4, same T, d, s: {told['delete_mean_us'] / 1e3:.3g} ms")
            )  # fmt: skip
        mean = float(np.exp(np.mean(np.log(ratios))))
        report.add(at_least(bars[0], mean, TIMES, unit="x", aim=1500,
                            against=f"dare-rf 1.1.4 on {', '.join(names)}"))  # fmt: skip


def _without_dare(names: list[str], ours: Mapping[str, Figures], reason: str) -> list[Bar]:
    """Return ratios to the reference measurements: to orient, without a verdict."""
    ratios = {name: DARE_MS[name] * 1e3 / ours[name].value["delete_us"] for name in names}
    against = "dare-rf 1.1.4 (reference measurement, another machine)"
    mean = float(np.exp(np.mean(np.log(list(ratios.values())))))
    target = f">= {TIMES} x (aim 1500)"
    first = Bar("dare.delete_geometric_mean", mean, target, None, against, "x", reason)
    each = [
        reported(f"dare.{n}.delete", r, unit="x", against=f"{against}: {DARE_MS[n]} ms")
        for n, r in ratios.items()
    ]
    return [first, *each]


def retrained(
    report: Report, options: Options, case: Case | SimpleNamespace, peer: str, ours: Figures
) -> Bar:
    """Return how many of our deletions one retraining by the peer takes; see ``RETRAINED``."""
    name = f"retrain.{case.name}.{peer}"
    report.progress(f"  {peer}")
    if peer == "lightgbm":
        try:
            told = _worker(_lightgbm(options, report), "lightgbm_worker.py", case)
        except PeerUnavailable as error:
            return absent(name, "", against="LightGBM, 100 rounds", reason=str(error))
        seconds, proba = float(told["train_cpu_s"]), np.array(told.pop("scores"))
        title = f"LightGBM {told['version']}, 100 rounds"
    else:
        kind = ExtraTreesClassifier if peer == "extra_trees" else RandomForestClassifier
        model = kind(100, n_jobs=1, random_state=1)
        seconds = cpu_seconds(lambda: model.fit(case.train.X, case.train.y))
        proba = model.predict_proba(case.test.X)[:, 1]
        title = f"scikit-learn {kind.__name__}, 100 trees"
    score = metrics(np.column_stack([1 - proba, proba]), case.test.y, regression=False)
    mine = {key: ours.value[key] for key in ("accuracy", "auc", "delete_us")}
    return reported(name, seconds * 1e6 / ours.value["delete_us"], unit="x",
                    against=f"one retraining by {title}, one thread: {seconds:.3g} CPU s",
                    detail={"train_cpu_s": seconds, **score, "ours": mine})  # fmt: skip


def _lightgbm(options: Options, report: Report) -> Path:
    if importlib.util.find_spec("lightgbm"):
        return Path(sys.executable)
    return obtain(LIGHTGBM, options.peer_dir, create=options.peers, progress=report.progress)


def _worker(python: Path, script: str, case: Case | SimpleNamespace, **more: int) -> dict[str, Any]:
    """Run a peer on the case's rows and return what it printed.

    Raises
    ------
    RuntimeError
        It ended with an error.
    """
    s = case.settings
    settings = {"trees": s.trees, "depth": s.depth, "thresholds": s.thresholds,
                "smallest": s.smallest, "features": int(case.train.X.shape[1] ** 0.5) + 1,
                **more}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.npz"
        np.savez(rows, X=case.train.X, y=case.train.y, T=case.test.X, doomed=case.doomed)
        done = subprocess.run(
            [str(python), str(WORKERS / script), str(rows), json.dumps(settings)],
            capture_output=True, text=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{script} ended: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))
