"""Digits: accuracy against coefficients kept, bits and failure probability; paired reliability."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from fhe_digits import BRIEF, P_ERROR, TRAINING, Trained, accuracy, digits, plain, train
from frame import Options, Report, at_most, reported

from privml.backbones.cnn import Bits, Plain
from privml.backbones.cnn_training import Training
from privml.protocols.fhe.faults import Fault
from privml.protocols.fhe.reference import run
from privml.protocols.fhe.reliability import classes, clopper_pearson
from privml.report import Series, curves_png
from privml.rng import ScienceSeed

KEPT = (6, 12, 24, 48)
FEWER = (1, 2, 3, 4)
BITS = (2, 3, 4, 5)
P_ERRORS = (2.0**-40, 1e-3, 1e-2, 5e-2, 1e-1)


def curves_section(report: Report, options: Options, networks: Mapping[str, list[Trained]]) -> None:
    """Add ``fhe.curve.*`` and ``fhe.reliability.*``; draw them into the folder ``--plots``."""
    with report.section("accuracy against coefficients kept", "fhe.curve.kept"):
        _kept(report, options)
    with report.section("accuracy against bits", "fhe.curve.bits"):
        _bits(report, options)
    names = ("fhe.curve.p_error", "fhe.reliability.dct_disagreement",
             "fhe.reliability.pixel_minus_dct")  # fmt: skip
    with report.section("reliability: frequency and pixels", *names):
        _reliability(report, options, networks)


def _kept(report: Report, options: Options) -> None:
    kept = (6, 48) if options.quick else KEPT
    training = BRIEF if options.quick else TRAINING
    few = () if options.quick else FEWER
    large = {count: _one_cell(count, training) for count in kept}
    small = {count: _two_by_two(count, training) for count in few}
    plans = {count: one.classifier.plan() for count, one in large.items()}
    detail: dict[str, object] = {
        "block_8": {count: round(100 * one.accuracy, 2) for count, one in large.items()},
        "block_2": {count: round(100 * one.accuracy, 2) for count, one in small.items()},
        "block_8_tables": {count: plan.tables for count, plan in plans.items()},
        "block_8_planned_core_s": {c: round(p.core_s.expected, 2) for c, p in plans.items()},
    }
    low, high = min(kept), max(kept)
    gain = 100 * (large[high].accuracy - large[low].accuracy)
    report.add(
        reported("fhe.curve.kept", gain, unit="points", detail=detail,
                 against=f"{high} of 64 coefficients minus {low}, one 8 x 8 block a digit")
    )  # fmt: skip
    series = [
        Series("8 x 8 blocks", _floats(large), _percent(large.values())),
        Series("2 x 2 blocks", _floats(small), _percent(small.values())),
    ]
    draw(options, "kept", series[: 1 + bool(few)], "coefficients kept", "test accuracy, %")


def _one_cell(count: int, training: Training) -> Trained:
    """Return a network on the coefficients of the only block: tables do not depend on how many."""
    front = digits()["both"].front(8, f"y{count}")
    return train(front, (Plain(48, kernel=1), Plain(32, kernel=1)), seed=0, training=training)


def _two_by_two(count: int, training: Training) -> Trained:
    front = digits()["both"].front(2, f"y{count}")
    return train(front, plain(front.shape), seed=0, training=training)


def _bits(report: Report, options: Options) -> None:
    front = digits()["both"].front(2, "y4")
    found: dict[int, Trained] = {}
    training = BRIEF if options.quick else TRAINING
    for bits in (2, 4) if options.quick else BITS:
        width = Bits(weight=bits, act=bits, round_to=min(6, bits + 2))
        found[bits] = train(front, plain(front.shape), seed=0, bits=width, training=training)
    rows = {
        bits: {
            "accuracy_percent": round(100 * one.accuracy, 2), "round_to": min(6, bits + 2),
            "planned_core_s": round(one.classifier.plan().core_s.expected, 2),
            "simulated_percent": round(100 * _simulated(one), 2),
        }
        for bits, one in found.items()
    }  # fmt: skip
    low, high = min(found), max(found)
    report.add(
        reported("fhe.curve.bits", 100 * (found[high].accuracy - found[low].accuracy),
                 unit="points", against=f"{high} bits minus {low}, weights and activations",
                 detail={str(bits): row for bits, row in rows.items()})
    )  # fmt: skip
    simulated = np.array([rows[bits]["simulated_percent"] for bits in found], np.float64)
    series = [
        Series("clear", _floats(found), _percent(found.values())),
        Series(f"simulated, p_error {P_ERROR:g}", _floats(found), simulated),
    ]
    draw(options, "bits", series, "bits of weights and activations", "test accuracy, %")


def _simulated(one: Trained) -> float:
    return accuracy(one.classifier, one.rows, mode="simulate")


def _reliability(report: Report, options: Options, networks: Mapping[str, list[Trained]]) -> None:
    probabilities = (1e-3, 1e-2) if options.quick else P_ERRORS
    seeds = range(2 if options.quick else 10)
    curves = {
        name: {p: _paired(networks[name], p, seeds) for p in probabilities}
        for name in ("dct", "pixel")
    }
    rows = {
        name: {f"{p:.3g}": point for p, point in points.items()} for name, points in curves.items()
    }
    at = {name: curves[name][P_ERROR] for name in curves}
    bound = at_most(
        "fhe.reliability.dct_disagreement", 100 * at["dct"]["high"], 1.0, unit="%", detail=at,
        against="design aim; upper 95 % bound of the classes that faults change",
    )  # fmt: skip
    if options.quick:
        bound = replace(bound, holds=None, reason="--quick trains briefly: not judged")
    report.add(
        reported("fhe.curve.p_error", at["dct"]["simulated_percent"], unit="%", detail=rows,
                 against=f"simulated accuracy of dct at p_error {P_ERROR:g}, numpy fault model"),
        bound,
        reported("fhe.reliability.pixel_minus_dct", 100 * (at["pixel"]["rate"] - at["dct"]["rate"]),
                 unit="points", against="disagreement on pixels minus on dct, same rows"),
    )  # fmt: skip
    series = [
        Series(name, np.array(probabilities), *(
            np.array([100 * points[p][key] for p in probabilities])
            for key in ("rate", "low", "high")
        ))
        for name, points in curves.items()
    ]  # fmt: skip
    draw(options, "reliability", series, "p_error of a table", "changed classes, %",
         logarithmic=True)  # fmt: skip


def _paired(ones: Sequence[Trained], p_error: float, seeds: Sequence[int]) -> dict[str, float]:
    """Return disagreement over the test rows of all folds, with its interval, and accuracy."""
    changed, right, right_clear = [], [], []
    for one in ones:
        graph, rows = one.classifier.graph, one.rows
        whole = one.classifier.prepare(list(rows.images))
        clear = classes(graph, run(graph, whole))
        right_clear.append(clear == rows.labels)
        faulty = np.array([
            classes(graph, run(graph, whole, fault=Fault(p_error, ScienceSeed(seed))))
            for seed in seeds
        ])  # fmt: skip
        changed.append((faulty != clear).mean(axis=0))
        right.append((faulty == rows.labels).mean(axis=0))
    rate, images = float(np.concatenate(changed).mean()), sum(len(part) for part in changed)
    low, high = clopper_pearson(rate * images, images)
    return {
        "rate": rate, "low": low, "high": high, "images": images, "runs_of_each": len(seeds),
        "simulated_percent": round(100 * float(np.concatenate(right).mean()), 2),
        "clear_percent": round(100 * float(np.concatenate(right_clear).mean()), 2),
    }  # fmt: skip


def _floats(values: Iterable[float]) -> np.ndarray:
    return np.array(list(values), np.float64)


def _percent(ones: Iterable[Trained]) -> np.ndarray:
    return np.array([100 * one.accuracy for one in ones], np.float64)


def draw(
    options: Options, name: str, series: list[Series], x: str, y: str, *, logarithmic: bool = False
) -> None:
    """Write curves as JSON and as a plot if a folder was named."""
    folder = options.paths.get("plots")
    if folder is None:
        return
    curves = [
        {"label": one.label, "x": one.x.tolist(), "y": one.y.tolist(),
         "low": None if one.low is None else one.low.tolist(),
         "high": None if one.high is None else one.high.tolist()}
        for one in series
    ]  # fmt: skip
    text = json.dumps({"x": x, "y": y, "curves": curves}, indent=1)
    (folder / f"fhe-{name}.json").write_text(f"{text}\n", encoding="utf-8")
    picture = curves_png(series, x=x, y=y, logarithmic=logarithmic)
    (folder / f"fhe-{name}.png").write_bytes(picture)
