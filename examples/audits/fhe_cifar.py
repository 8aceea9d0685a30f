"""CIFAR-10: figures of a run of ``examples/cifar10_dct.py``, accuracy measured again if asked."""

from __future__ import annotations

import importlib.util
import statistics
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from fhe_sizes import price
from frame import Bar, Options, Report, absent, at_least, at_most, reported

from privml.protocols.fhe import EncryptedClassifier

SCRIPT = Path(__file__).parents[1] / "cifar10_dct.py"
TARGETS = {
    "fhe.cifar.training_h": "<= 3 h", "fhe.cifar.simulated": ">= 88 %",
    "fhe.cifar.simulated_images": ">= 1000", "fhe.cifar.executed_images": ">= 3",
    "fhe.cifar.executed_core_s": "<= 7200 s (aim 4000)", "fhe.cifar.executed_min": "<= 60 min",
}  # fmt: skip
PAPER_THREAD_S = 565 * 96


def script() -> ModuleType:
    """Return the training script as a module."""
    if "cifar10_dct" not in sys.modules:
        spec = importlib.util.spec_from_file_location("cifar10_dct", SCRIPT)
        if spec is None or spec.loader is None:
            raise RuntimeError(f"{SCRIPT} cannot be loaded")
        sys.modules["cifar10_dct"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["cifar10_dct"])
    return sys.modules["cifar10_dct"]


def cifar_section(report: Report, options: Options) -> None:
    """Add ``fhe.cifar.*``."""
    folder = options.paths.get("cifar")
    with report.section("CIFAR-10", *TARGETS):
        if folder is None:
            reason = "give --cifar DIR, a folder that examples/cifar10_dct.py wrote"
            report.add(*(_absent(name, reason) for name in TARGETS))
            return
        known = script().figures(folder)
        report.add(_training(known.get("train", {})))
        report.add(*_accuracy(report, options, folder, known.get("test")))
        report.add(*_executed(known.get("execute", {})))
        pixels = price("pixel", 32)
        report.add(
            reported("fhe.cifar.rgb_planned_core_s", pixels.core_s.expected, unit="s",
                     against="ResNet-20 on RGB pixels, by its plan",
                     detail={"tables": pixels.tables})
        )  # fmt: skip


def _absent(name: str, reason: str) -> Bar:
    return absent(name, TARGETS[name], against="design", reason=reason)


def _training(found: dict[str, Any]) -> Bar:
    name = "fhe.cifar.training_h"
    if not found.get("finished"):
        return _absent(name, "the run has not finished its training")
    kept = {key: value for key, value in found.items() if key != "history"}
    return at_most(name, found["hours_on_2_cores"], 3, unit="h", detail=kept,
                   against="design: 2 cores, from core-seconds of all sessions")  # fmt: skip


def _accuracy(
    report: Report, options: Options, folder: Path, known: dict[str, Any] | None
) -> list[Bar]:
    names = ("fhe.cifar.simulated", "fhe.cifar.simulated_images")
    data = options.paths.get("data")
    origin = "read from the run's figures; --data measures it again"
    if data is not None:
        most = 250 if options.quick else 1000
        files = script().read(data, "test", most=most)
        report.progress(f"  {most} test images with simulated faults")
        with EncryptedClassifier.load(folder / "model") as classifier:
            known, origin = script().simulated(classifier, files), "measured now"
    if known is None:
        return [_absent(name, "the run has no `test` figures; give --data") for name in names]
    versus = "design; test subset of JPEG files, numpy fault model"
    return [
        at_least(names[0], 100 * known["accuracy"], 88, unit="%", aim=90.5, against=versus,
                 reason=origin, detail=known),
        at_least(names[1], known["images"], 1000, against=versus, reason=origin),
    ]  # fmt: skip


def _executed(found: dict[str, Any]) -> list[Bar]:
    names = [name for name in TARGETS if "executed" in name]
    rows = found.get("rows", [])
    if not rows:
        return [
            _absent(name, "no image was executed; run the script's step `execute`")
            for name in names
        ]
    same = sum(row["class"] == row["clear"] for row in rows)
    spent = statistics.median(row["core_s"] for row in rows)
    detail = {"rows": rows, "same_class_as_clear": f"{same} of {len(rows)}"}
    paper = f"paper's ResNet-20 DCT: {PAPER_THREAD_S:,} thread-seconds an image"
    return [
        at_least(names[0], len(rows), 3, against="design", detail=detail),
        at_most(names[1], spent, 7200, unit="s", aim=4000, against=paper,
                detail={"planned_core_s": found.get("planned_core_s")}),
        at_most(names[2], spent / 120, 60, unit="min", against="2 cores, from core-seconds"),
    ]  # fmt: skip
