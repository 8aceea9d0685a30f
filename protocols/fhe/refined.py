"""A plan after compilation: the compiler's own counts, keys and sizes in place of estimates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from privml.backbones.digests import Json
from privml.protocols.fhe.costs import Range
from privml.protocols.fhe.planned import Plan
from privml.protocols.fhe.work import reference_ms

if TYPE_CHECKING:
    from privml.protocols.fhe.circuits import Compiled

SPREAD: Final = Range(0.8, 1.0, 1.25)


def refined(plan: Plan, compiled: Compiled) -> Plan:
    """Return the plan with what the compiler decided; still before anything is encrypted.

    Core-seconds follow from the parameters of the keys (:mod:`privml.protocols.fhe.work`), scaled
    by this machine's calibration; without one they stay as they were planned.
    """
    calibration = plan.machine.calibration
    speed = None if calibration is None else calibration.speed
    core_s = plan.core_s
    if speed is not None and compiled.work:
        core_s = SPREAD * (1e-3 * speed * reference_ms(compiled.work))
    factor = core_s.expected / plan.core_s.expected if plan.core_s.expected else 1.0
    keys, loaded = compiled.key_bytes / 1e6, compiled.loaded_key_bytes / 1e6
    return replace(
        plan,
        layers=tuple(replace(layer, core_s=layer.core_s * factor) for layer in plan.layers),
        core_s=core_s,
        seconds=Range(
            plan.seconds.low * core_s.low / max(plan.core_s.low, 1e-12),
            plan.seconds.expected * factor,
            plan.seconds.high * core_s.high / max(plan.core_s.high, 1e-12),
        ),
        keys_mb=Range(keys, keys, keys),
        keys_loaded_mb=Range(loaded, loaded, loaded),
        query_bytes=compiled.query_bytes,
        answer_bytes=compiled.answer_bytes,
    )


@dataclass(frozen=True)
class Comparison:
    """Prediction and measurement of one encrypted run.

    Attributes
    ----------
    planned, refined, measured_core_s
        Core-seconds per image: before compilation, after it, and measured (median).
    images
        Executed images.
    planned_tables, bootstraps
        Counts of plan and compiler.
    planned_keys_mb, keys_mb
        Evaluation keys as sent.
    load
        Running processes per core during the run; above 1 the machine was not quiet.
    """

    planned: Range
    refined: Range
    measured_core_s: float
    images: int
    planned_tables: int
    bootstraps: int
    planned_keys_mb: float
    keys_mb: float
    load: float

    @property
    def planned_ratio(self) -> float:
        """Measured over planned core-seconds."""
        return self.measured_core_s / self.planned.expected

    @property
    def refined_ratio(self) -> float:
        """Measured over refined core-seconds."""
        return self.measured_core_s / self.refined.expected

    def within(self, share: float) -> bool:
        """Return whether the refined prediction is off by at most ``share`` of the measurement."""
        return abs(self.refined.expected - self.measured_core_s) <= share * self.measured_core_s

    def to_dict(self) -> dict[str, Json]:
        """Return plain values for a report."""
        return {
            "planned_core_s": self.planned.expected, "refined_core_s": self.refined.expected,
            "measured_core_s": self.measured_core_s, "images": self.images,
            "planned_ratio": self.planned_ratio, "refined_ratio": self.refined_ratio,
            "planned_tables": self.planned_tables, "bootstraps": self.bootstraps,
            "planned_keys_mb": self.planned_keys_mb, "keys_mb": self.keys_mb, "load": self.load,
        }  # fmt: skip

    def __str__(self) -> str:
        quiet = "quiet" if self.load <= 1.0 else "not quiet"
        planned, later = self.planned.expected, self.refined.expected
        return "\n".join(
            (
                f"measured     {self.measured_core_s:.3g} core-seconds, median of {self.images}",
                f"predicted    {planned:.3g} by the plan, {later:.3g} after compilation",
                f"ratio        {self.planned_ratio:.2f} and {self.refined_ratio:.2f}",
                f"bootstraps   {self.bootstraps:,} compiled, {self.planned_tables:,} planned",
                f"keys         {self.keys_mb:.1f} MB, {self.planned_keys_mb:.1f} planned",
                f"machine      {self.load:.1f} running processes per core: {quiet}",
            )
        )
