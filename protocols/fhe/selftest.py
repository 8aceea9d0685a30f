"""Checks plans against this machine: calibrate, plan, refuse, compile, execute, compare.

The network has the shape of one for digits and weights without training: cost and faults depend on
shape and bits alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from privml.backbones.digests import Json
from privml.errors import FheRefused
from privml.protocols.fhe.calibration import Calibration
from privml.protocols.fhe.classifier import EncryptedClassifier
from privml.protocols.fhe.licence import NOTICE
from privml.protocols.fhe.measuring import BITS, BUDGET_S, measure
from privml.protocols.fhe.planned import Plan, Rounding
from privml.protocols.fhe.refined import Comparison
from privml.rng import ScienceSeed

TOLERANCE: Final = 0.25
_SHAPE: Final = (3, 4, 4)
_EVIDENCE_IMAGES: Final = 300


@dataclass(frozen=True)
class SelfTest:
    """What the check found.

    Attributes
    ----------
    calibration, calibration_s
        Costs of this machine, and the seconds that measuring them took.
    plan
        Plan before compilation.
    refusal
        Why the same network is refused with tables of 8 bits and one failure in 2^40.
    comparison
        Plan and compiled plan against the encrypted run.
    """

    calibration: Calibration
    calibration_s: float
    plan: Plan
    refusal: str
    comparison: Comparison

    @property
    def good(self) -> bool:
        """Whether the prediction is within 25 % of the measured run."""
        return self.comparison.within(TOLERANCE)

    def to_dict(self) -> dict[str, Json]:
        """Return plain values for a report."""
        points: list[Json] = [
            {"bits": p.bits, "ms": p.ms, "ms_low": p.ms_low, "ms_high": p.ms_high}
            for p in self.calibration.points
        ]
        return {
            "processor": self.calibration.machine.processor,
            "cores": self.calibration.machine.cores, "calibration_s": self.calibration_s,
            "points": points, "refusal": self.refusal, "good": self.good,
            "tolerance": TOLERANCE, "licence": NOTICE, **self.comparison.to_dict(),
        }  # fmt: skip

    def __str__(self) -> str:
        points = ", ".join(f"{p.bits} bits {p.ms:.1f} ms" for p in self.calibration.points)
        verdict = "within" if self.good else "NOT within"
        return "\n".join(
            (
                f"calibrated   in {self.calibration_s:.1f} s: {points} a table",
                f"refusal      {self.refusal}",
                str(self.comparison),
                f"verdict      {verdict} {TOLERANCE:.0%} of the measured run",
            )
        )


def self_test(
    *,
    calibration: Calibration | None = None,
    images: int = 3,
    progress: Callable[[str, float], None] | None = None,
) -> SelfTest:
    """Run the check; about a minute of two cores.

    Parameters
    ----------
    calibration
        Measured before; measured now if not given, in about ten seconds.
    images
        Executed images.

    Raises
    ------
    UnsupportedError
        concrete-python is missing.
    """
    start = time.monotonic()
    if calibration is None:
        calibration = measure(bits=BITS, budget_s=BUDGET_S, progress=progress)
    spent = time.monotonic() - start
    tell = progress or _silent
    with example() as classifier:
        draw = ScienceSeed(41).child("self-test").generator()
        x = draw.standard_normal((_EVIDENCE_IMAGES, *_SHAPE))
        evidence = classifier.measure(x, seeds=(0,))
        planned = classifier.plan(calibration=calibration, evidence=evidence)
        refusal = _refusal(classifier)
        tell("compiling", 0.0)
        classifier.compile(planned)
        tell("executing", 0.3)
        comparison = classifier.compare(x[:images], planned=planned)
        tell("executing", 1.0)
    return SelfTest(calibration, spent, planned, refusal, comparison)


def example() -> EncryptedClassifier:
    """Return a classifier of 208 tables whose weights were drawn and not trained; loads torch."""
    from privml.backbones.cnn import Bits, small_cnn
    from privml.backbones.quant_model import QuantModel

    net = small_cnn(_SHAPE, (8, 16), seed=ScienceSeed(42))
    model = QuantModel(net, bits=Bits(accumulator=12))
    model.calibrate(ScienceSeed(43).generator().standard_normal((256, *_SHAPE)))
    return EncryptedClassifier(model)


def _refusal(classifier: EncryptedClassifier) -> str:
    try:
        classifier.plan(rounding=Rounding(8), p_error=2.0**-40)
    except FheRefused as error:
        return str(error)
    return "none"


def _silent(stage: str, done: float) -> None:
    """Report nothing."""
