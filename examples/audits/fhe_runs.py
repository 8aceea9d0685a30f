"""Encrypted runs of several networks in turn, in core-seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from fhe_digits import P_ERROR, Trained

from privml.protocols.fhe.entry import Mode
from privml.protocols.fhe.planned import Plan, Rounding

EVIDENCE = 300


@dataclass
class Executed:
    """What one network cost under encryption.

    Attributes
    ----------
    plan
        Plan before compilation.
    bootstraps
        Of one image, as compiled.
    first_s
        Core-seconds of the first image, in which keys are unpacked.
    core_s
        Of the following images.
    same
        Whether each class was that of the clear run.
    keys_mb
        Evaluation keys as sent.
    """

    plan: Plan
    bootstraps: int
    first_s: float
    keys_mb: float
    core_s: list[float] = field(default_factory=list)
    same: list[bool] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Core-seconds of an image; of the first one if there was no other."""
        return statistics.median(self.core_s) if self.core_s else self.first_s

    def detail(self) -> dict[str, object]:
        """Return the figures for a report."""
        return {
            "tables": self.plan.tables, "bootstraps": self.bootstraps,
            "core_s": [round(s, 2) for s in self.core_s], "first_core_s": round(self.first_s, 2),
            "planned_core_s": round(self.plan.core_s.expected, 2),
            "keys_mb": round(self.keys_mb, 1),
            "same_class_as_clear": f"{sum(self.same)} of {len(self.same)}",
        }  # fmt: skip


def execute(
    variants: Mapping[str, Trained], *, images: int, rounding: Rounding | None = None,
    progress: Callable[[str], None],
) -> dict[str, Executed]:  # fmt: skip
    """Compile all, then run image by image, every variant in turn.

    Parameters
    ----------
    variants
        Trained networks by name; they are closed afterwards.
    images
        Timed images of each, after one that unpacks the keys.
    rounding
        In place of the networks' own.
    """
    found: dict[str, Executed] = {}
    with ExitStack() as stack:
        for name, one in variants.items():
            progress(f"  compile {name}")
            classifier = stack.enter_context(one.classifier)
            evidence = classifier.measure(
                list(one.rows.images[:EVIDENCE]), rounding=rounding, p_error=P_ERROR, seeds=(0,)
            )
            plan = classifier.plan(rounding=rounding, p_error=P_ERROR, evidence=evidence)
            classifier.compile(plan)
            classifier.circuit.make_keys()
            report = classifier.circuit.report
            found[name] = Executed(plan, report.total_bootstraps, 0.0, report.key_bytes / 1e6)
        for number in range(images + 1):
            progress(f"  image {number} of {images} through {', '.join(variants)}")
            for name, one in variants.items():
                _image(found[name], one, number)
    return found


def _image(result: Executed, one: Trained, number: int) -> None:
    circuit = one.classifier.circuit
    whole = one.classifier.prepare(list(one.rows.images[number : number + 1]))
    clear = circuit.run(whole, mode=Mode.CLEAR)
    start = time.process_time()
    answer = circuit.run(whole, mode=Mode.EXECUTE)
    spent = time.process_time() - start
    result.same.append(bool((answer.classes == clear.classes).all()))
    if number:
        result.core_s.append(spent)
    else:
        result.first_s = spent
