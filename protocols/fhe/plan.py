"""Cost, memory and failure of an encrypted run, predicted from the graph alone.

Tables: one per element of every table node, plus one bootstrap per bit that exact rounding drops.
Core-seconds: tables times the cost of one (:mod:`privml.protocols.fhe.costs`, or this machine's
calibration) times what circuits add. Time is not monotone in bits, so ranges are given. What cannot
run is refused with the layer, the value, the limit and what to change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from privml.errors import BitsExceeded, ClaimTooWeak, MemoryExceeded, ParameterError
from privml.protocols.fhe import costs
from privml.protocols.fhe.costs import NOTHING, Range
from privml.protocols.fhe.faults import boundary_sigma
from privml.protocols.fhe.graph import Graph
from privml.protocols.fhe.lookup import table_size
from privml.protocols.fhe.nodes import Output, Table, sources
from privml.protocols.fhe.planned import Contract, LayerPlan, Machine, Plan, Rounding
from privml.protocols.fhe.reliability import Disagreement

__all__ = ["LayerPlan", "Machine", "Plan", "Rounding", "plan"]

MAX_BITS: Final = 16
"""Widest encrypted integer."""

AIM_BITS: Final = 13
"""Wider ones run, but slow the whole circuit down."""

GLOBAL_LIMIT: Final = 2.0**-20
"""Failure probability of a run under contract ``exact``."""

MEMORY_SHARE: Final = 0.8
_EFFICIENCY: Final = 0.95
_BASE_MB: Final = 500.0
_KEY_COPIES: Final = Range(1.5, 2.2, 2.2)


def plan(
    graph: Graph,
    *,
    rounding: Rounding | None = None,
    p_error: float = 1e-2,
    machine: Machine | None = None,
    contract: Contract | None = None,
    evidence: Disagreement | None = None,
) -> Plan:
    """Predict one encrypted image.

    Parameters
    ----------
    graph
        Integer graph.
    rounding
        Rounding of every table; None keeps what the graph says. The plan's digest is that of the
        graph with this rounding.
    p_error
        Failure probability per table, 0 < p_error < 1.
    machine
        Machine to plan for; None for this one with the reference costs.
    contract
        ``"exact"`` or ``"measured"``; None takes the stronger one that holds.
    evidence
        Measured disagreement of this graph at this ``p_error``.

    Raises
    ------
    BitsExceeded
        An integer is wider than 16 bits, or a table than any with a known cost.
    MemoryExceeded
        The run would take more than 80 % of the machine's memory.
    ClaimTooWeak
        Contract ``exact`` was asked for and does not hold.
    ParameterError
        A parameter is out of range, or ``evidence`` belongs to another graph or ``p_error``.
    """
    if not 0 < p_error < 1:
        raise ParameterError(f"p_error must lie in (0, 1), not {p_error!r}")
    if rounding is not None:
        graph = graph.with_rounding(rounding.bits, exact=rounding.mode == "exact")
    machine = Machine.here() if machine is None else machine
    _check_evidence(graph, p_error, evidence)
    _check_bits(graph)
    layers = tuple(
        _layer(graph, node, p_error, machine) for node in graph.nodes if isinstance(node, Table)
    )
    return _finish(graph, layers, p_error, machine, contract, evidence)


def _finish(
    graph: Graph,
    layers: tuple[LayerPlan, ...],
    p_error: float,
    machine: Machine,
    contract: Contract | None,
    evidence: Disagreement | None,
) -> Plan:
    bits = max((layer.bits_after for layer in layers), default=1)
    failure = _global_failure(layers, p_error)
    keys, loaded = _keys(bits, machine)
    edges = graph.edges()
    unit = costs.ciphertext_bytes(bits)
    result = Plan(
        scheme="tfhe",
        graph=graph.digest(),
        layers=layers,
        max_bits=max([graph.max_bits, *(layer.bits_before for layer in layers)]),
        p_error=p_error,
        global_failure=failure,
        contract=_contract(layers, failure, contract),
        disagreement=evidence,
        core_s=sum((layer.core_s for layer in layers), NOTHING),
        seconds=sum((_wall(layer, machine) for layer in layers), NOTHING),
        keys_mb=keys,
        keys_loaded_mb=loaded,
        query_bytes=costs.query_bytes(edges[graph.input.name].size),
        answer_bytes=edges[graph.output.name].size * unit,
        memory_mb=_memory(graph, unit, loaded),
        machine=machine,
        warnings=(),
    )
    check_memory(result, result.machine)
    return replace(result, warnings=tuple(_warnings(result)))


def _layer(graph: Graph, node: Table, p_error: float, machine: Machine) -> LayerPlan:
    edge = graph.edges()[node.x]
    dropped, bits = table_size(node, edge.low, edge.high)
    protected = edge.bits if not dropped or node.round_to is None else node.round_to + dropped
    exact = node.exact or not dropped
    extra = edge.size * dropped if node.exact else 0
    per_table = _table_ms(node.name, bits, p_error, machine)
    slowness = 1.0 if machine.calibration is None else machine.calibration.slowness
    return LayerPlan(
        name=node.name,
        tables=edge.size,
        rounding_pbs=extra,
        bits_before=protected,
        bits_after=bits,
        exact=exact,
        faulty=edge.size * p_error,
        flips=0.0 if exact else edge.size * boundary_sigma(p_error) * math.sqrt(2 / math.pi),
        core_s=(per_table * edge.size + costs.rounding_ms(p_error) * (slowness * extra)) * 1e-3,
    )


def _table_ms(layer: str, bits: int, p_error: float, machine: Machine) -> Range:
    """Return CPU milliseconds of a table inside a circuit."""
    measured = None if machine.calibration is None else machine.calibration.table_ms(bits, p_error)
    if measured is not None:
        return measured
    known = costs.reference_table_ms(bits, p_error)
    if known is None:
        limit = costs.MAX_COST_BITS if bits > costs.MAX_COST_BITS else bits - 1
        raise BitsExceeded(
            f"{layer}: a table of {bits} bits cannot be evaluated at p_error {p_error:.3g}, the "
            f"limit is {limit}; round to fewer bits (6 approximate is usual)",
            layer=layer,
            value=bits,
            limit=limit,
        )
    return costs.circuit_factor(bits) * known


def _wall(layer: LayerPlan, machine: Machine) -> Range:
    """Return seconds of a layer: tables run on all cores, in whole waves."""
    waves = math.ceil(layer.tables / machine.cores) / layer.tables
    return layer.core_s * (waves / _EFFICIENCY)


def _keys(bits: int, machine: Machine) -> tuple[Range, Range]:
    measured = None if machine.calibration is None else machine.calibration.keys_mb(bits)
    if measured is None:
        return costs.reference_keys_mb(bits)
    compressed, loaded = measured
    return Range(compressed, compressed, compressed), Range(loaded, loaded, loaded)


def _memory(graph: Graph, unit: int, loaded: Range) -> Range:
    """Return peak MB: process, keys, and the ciphertexts alive at once (high: all of them)."""
    edges = graph.edges()
    last = {name: node.name for node in graph.nodes for name in sources(node)}
    alive: dict[str, int] = {}
    peak = 0
    for node in graph.nodes:
        if not isinstance(node, Output):
            alive[node.name] = edges[node.name].size
        peak = max(peak, sum(alive.values()))
        for name in {name for name in sources(node) if last[name] == node.name}:
            del alive[name]
    everything = sum(edge.size for edge in edges.values())
    live, total = peak * unit / 1e6, everything * unit / 1e6
    return Range(
        _BASE_MB + _KEY_COPIES.low * loaded.low + live,
        _BASE_MB + _KEY_COPIES.expected * loaded.expected + live,
        _BASE_MB + _KEY_COPIES.high * loaded.high + total,
    )


def _global_failure(layers: tuple[LayerPlan, ...], p_error: float) -> float:
    pbs = sum(layer.tables + layer.rounding_pbs for layer in layers)
    return -math.expm1(pbs * math.log1p(-p_error))


def _contract(layers: tuple[LayerPlan, ...], failure: float, wanted: Contract | None) -> Contract:
    rounded = [layer.name for layer in layers if not layer.exact]
    holds = not rounded and failure <= GLOBAL_LIMIT
    if wanted not in (None, "exact", "measured"):
        raise ParameterError(f"a contract is 'exact' or 'measured', not {wanted!r}")
    if wanted == "exact" and not holds:
        why = (
            f"{rounded[0]} and {len(rounded) - 1} more layers round approximately"
            if rounded
            else f"some table fails with probability {failure:.3g}, above 2^-20"
        )
        raise ClaimTooWeak(
            f"contract 'exact' does not hold: {why}; use exact rounding and a smaller p_error, or "
            "contract 'measured'"
        )
    return wanted or ("exact" if holds else "measured")


def _check_evidence(graph: Graph, p_error: float, evidence: Disagreement | None) -> None:
    if evidence is None:
        return
    if evidence.graph != graph.digest() or evidence.p_error != p_error:
        raise ParameterError(
            "the disagreement was measured on another graph, rounding or p_error; measure it again"
        )


def _check_bits(graph: Graph) -> None:
    edges = graph.edges()
    for node in graph.nodes:
        bits = edges[node.name].bits
        if bits > MAX_BITS:
            raise BitsExceeded(
                f"{node.name}: integers of {bits} bits, the limit is {MAX_BITS}; use fewer weight "
                "or activation bits, fewer input channels, or a table before it",
                layer=node.name,
                value=bits,
                limit=MAX_BITS,
            )


def check_memory(result: Plan, machine: Machine) -> None:
    """Check that a planned run fits into a machine; raises :class:`MemoryExceeded`."""
    limit = MEMORY_SHARE * machine.memory_bytes / 1e6
    needed = result.memory_mb.expected
    if needed > limit:
        raise MemoryExceeded(
            f"the run would take about {needed:,.0f} MB, 80 % of the available memory is "
            f"{limit:,.0f} MB; use fewer table bits, a smaller network, or another machine",
            value=needed,
            limit=limit,
        )


@dataclass(frozen=True)
class _Rule:
    holds: bool
    text: str


def _warnings(result: Plan) -> list[str]:
    wide = [layer.name for layer in result.layers if layer.bits_before > AIM_BITS]
    slow = [layer.name for layer in result.layers if layer.bits_after > 6]
    limit = MEMORY_SHARE * result.machine.memory_bytes / 1e6
    rules = (
        _Rule(
            result.machine.calibration is None,
            "times are those of the reference machine; calibrate this one",
        ),
        _Rule(bool(wide), f"accumulators above {AIM_BITS} bits: {', '.join(wide)}"),
        _Rule(bool(slow), f"tables above 6 bits take 4 to 10 times longer: {', '.join(slow)}"),
        _Rule(
            result.memory_mb.high > limit,
            f"memory may reach {result.memory_mb.high:,.0f} MB if no ciphertext is freed",
        ),
        _Rule(
            result.contract == "measured" and result.disagreement is None,
            "no disagreement was measured, so a run on ciphertexts is refused",
        ),
    )
    return [rule.text for rule in rules if rule.holds]
