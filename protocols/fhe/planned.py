"""What a plan says: value types, the table for people and the JSON for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, Literal, TypeAlias

from privml.backbones.digests import canonical_json
from privml.errors import ClaimTooWeak, ParameterError
from privml.protocols.fhe.calibration import (
    Calibration,
    available_memory,
    processor,
    usable_cores,
)
from privml.protocols.fhe.costs import Range
from privml.protocols.fhe.licence import NOTICE
from privml.protocols.fhe.nodes import MAX_TABLE_BITS
from privml.protocols.fhe.reliability import Disagreement

Contract: TypeAlias = Literal["exact", "measured"]
RoundingMode: TypeAlias = Literal["approximate", "exact"]

SHARE_RESULTS: Final = "forbidden"
"""Decrypted results go to nobody, not even back to the server: they can leak key information."""


@dataclass(frozen=True)
class Rounding:
    """How accumulators are rounded before tables: to ``bits`` bits, approximately or exactly."""

    bits: int
    mode: RoundingMode = "approximate"

    def __post_init__(self) -> None:
        if type(self.bits) is not int or not 1 <= self.bits <= MAX_TABLE_BITS:
            raise ParameterError(
                f"rounding keeps 1 to {MAX_TABLE_BITS} bits, not {self.bits!r}; 5 or 6 are usual"
            )
        if self.mode not in ("approximate", "exact"):
            raise ParameterError(f"rounding is 'approximate' or 'exact', not {self.mode!r}")


@dataclass(frozen=True)
class Machine:
    """The machine a plan is for.

    Attributes
    ----------
    name
        Processor.
    cores
        Cores the run may use.
    memory_bytes
        Memory available to it.
    calibration
        Costs measured there; None takes the reference figures.
    """

    name: str
    cores: int
    memory_bytes: int
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        if self.cores < 1 or self.memory_bytes < 0:
            raise ParameterError("a machine has at least one core and some memory")

    @classmethod
    def here(cls, calibration: Calibration | None = None) -> Machine:
        """Return this machine as it is now."""
        return cls(processor(), usable_cores(), available_memory(), calibration)


@dataclass(frozen=True)
class LayerPlan:
    """Cost and faults of one table node, per image.

    Attributes
    ----------
    name
        Node name.
    tables, rounding_pbs
        Table evaluations, and bootstraps of exact rounding.
    bits_before, bits_after
        Bits of the accumulator, with the bit that overflow protection takes, and of the table.
    exact
        Whether rounding is exact or there is none.
    faulty, flips
        Expected tables whose index is wrong, and expected off-by-one indices that approximate
        rounding adds for evenly spread accumulators (model of ``faults``).
    core_s
        Core-seconds.
    """

    name: str
    tables: int
    rounding_pbs: int
    bits_before: int
    bits_after: int
    exact: bool
    faulty: float
    flips: float
    core_s: Range


@dataclass(frozen=True)
class Plan:
    """Cost, failure and memory of one image, before anything is compiled.

    Attributes
    ----------
    scheme
        ``"tfhe"``.
    graph
        Digest of the graph, rounding included.
    layers
        One row per table node, in order.
    max_bits
        Bits of the widest encrypted integer.
    p_error, global_failure
        Failure probability per table, and of at least one failure in the whole run.
    contract, disagreement
        ``"exact"``, or ``"measured"`` with the record it rests on, if there is one.
    core_s, seconds
        Core-seconds, and seconds on ``machine``.
    keys_mb, keys_loaded_mb
        Evaluation keys, compressed as sent and loaded at the server.
    query_bytes, answer_bytes
        Size of a compressed query and of an answer.
    memory_mb
        Peak memory of the server.
    machine
        Machine the figures are for.
    warnings
        What the user must know.
    """

    scheme: str
    graph: str
    layers: tuple[LayerPlan, ...]
    max_bits: int
    p_error: float
    global_failure: float
    contract: Contract
    disagreement: Disagreement | None
    core_s: Range
    seconds: Range
    keys_mb: Range
    keys_loaded_mb: Range
    query_bytes: int
    answer_bytes: int
    memory_mb: Range
    machine: Machine
    warnings: tuple[str, ...]

    @property
    def tables(self) -> int:
        """Table evaluations per image."""
        return sum(layer.tables for layer in self.layers)

    @property
    def pbs(self) -> int:
        """Bootstraps per image: tables, and those of exact rounding."""
        return self.tables + sum(layer.rounding_pbs for layer in self.layers)

    @property
    def expected_faulty(self) -> float:
        """Expected tables with a wrong index per image; no failure probability of the answer."""
        return sum(layer.faulty for layer in self.layers)

    def require_execute(self) -> None:
        """Check that the contract allows a run on ciphertexts.

        Raises
        ------
        ClaimTooWeak
            The contract is ``measured`` and no disagreement was measured.
        """
        if self.contract == "measured" and self.disagreement is None:
            raise ClaimTooWeak(
                "contract 'measured' needs a measured disagreement of this graph at "
                f"p_error {self.p_error:g}; measure it on at least 300 images first"
            )

    def to_dict(self) -> dict[str, object]:
        """Return the plan for a report; keys never change meaning."""
        raw = asdict(self)
        machine = raw.pop("machine")
        calibrated = machine.pop("calibration") is not None
        return {
            **raw,
            "machine": {**machine, "calibrated": calibrated},
            "tables": self.tables,
            "pbs": self.pbs,
            "expected_faulty": self.expected_faulty,
            "share_results": SHARE_RESULTS,
            "licence": NOTICE,
        }

    def to_json(self) -> bytes:
        """Return :meth:`to_dict` as canonical JSON."""
        return canonical_json(self.to_dict())  # type: ignore[arg-type]  # plain values only

    def __str__(self) -> str:
        return "\n".join([*_rows(self.layers), "", *_totals(self)])


def _rows(layers: tuple[LayerPlan, ...]) -> list[str]:
    wide = max([len(layer.name) for layer in layers] + [5])
    head = (
        f"{'table':<{wide}} {'tables':>9} {'rounding':>9} {'bits':>8} {'core-s':>9} {'faulty':>9}"
    )
    return [head] + [
        f"{layer.name:<{wide}} {layer.tables:>9,} {layer.rounding_pbs:>9,} "
        f"{f'{layer.bits_before}>{layer.bits_after}':>8} {layer.core_s.expected:>9.2f} "
        f"{layer.faulty:>9.3g}"
        for layer in layers
    ]


def _totals(plan: Plan) -> list[str]:
    record = plan.disagreement
    proof = (
        f"disagreement {record.rate:.2%}, at most {record.high:.2%} ({record.images} images, "
        f"{record.source})"
        if record is not None
        else f"some table fails with probability {plan.global_failure:.3g}"
    )
    lines = [
        f"tables       {plan.tables:,} ({plan.pbs:,} bootstraps), integers to {plan.max_bits} bits",
        f"core-seconds {_span(plan.core_s)}",
        f"seconds      {_span(plan.seconds)} on {plan.machine.cores} cores of {plan.machine.name}",
        f"keys         {_span(plan.keys_mb)} MB sent, {_span(plan.keys_loaded_mb)} MB loaded",
        f"messages     {plan.query_bytes:,} bytes query, {plan.answer_bytes:,} bytes answer",
        f"memory       {_span(plan.memory_mb)} MB",
        f"contract     {plan.contract}, p_error {plan.p_error:.3g}: {proof}",
        f"faults       {plan.expected_faulty:.3g} wrong table indices expected per image",
        f"results      sharing them is {SHARE_RESULTS}",
        *(f"warning      {text}" for text in plan.warnings),
        f"licence      {NOTICE}",
    ]
    return lines


def _span(value: Range) -> str:
    return f"{value.expected:,.4g} ({value.low:,.4g} to {value.high:,.4g})"
