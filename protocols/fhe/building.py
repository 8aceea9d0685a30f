"""From an integer graph to the bundles of server and client, checked against the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from privml.backbones.digests import sha256
from privml.errors import FheRefused, ParameterError
from privml.protocols.fhe.bundle import ServerPart, write_bundles
from privml.protocols.fhe.circuits import Circuit
from privml.protocols.fhe.frequency import Frequency
from privml.protocols.fhe.graph import Graph
from privml.protocols.fhe.manifest import (
    Digests,
    Input,
    Layer,
    Manifest,
    Measured,
    Output,
    Sizes,
    Toolkit,
    common,
)
from privml.protocols.fhe.nodes import Table
from privml.protocols.fhe.parties import PROGRAM_FILE
from privml.protocols.fhe.plan import plan
from privml.protocols.fhe.planned import Machine, Plan
from privml.protocols.fhe.reliability import Disagreement
from privml.transport.identity import Identity


@dataclass(frozen=True, kw_only=True)
class Frontend:
    """How an image becomes the integers of the graph: specification, and one unit's value."""

    front: Frequency
    scale: float


def build(
    graph: Graph,
    folder: Path | str,
    *,
    identity: Identity,
    p_error: float = 1e-2,
    frontend: Frontend | None = None,
    labels: Sequence[str] = (),
    evidence: Disagreement | None = None,
    machine: Machine | None = None,
) -> tuple[Manifest, Plan]:
    """Plan, compile, compare with the plan, and write both bundles.

    Parameters
    ----------
    graph
        Integer graph, with its rounding.
    folder
        New folder for ``server`` and ``client``.
    identity
        The operator's; it signs the bundles.
    p_error
        Failure probability per table.
    frontend
        Client front end; without one clients bring integers.
    labels
        Names of the classes.
    evidence
        Measured disagreement; needed unless the contract ``exact`` holds.

    Raises
    ------
    ClaimTooWeak
        Approximate results without measured disagreement.
    FheRefused
        The graph cannot run, or the compiler made other counts than planned.
    StorageError
        The folder exists or cannot be written; nothing is left half-written.
    """
    predicted = plan(graph, p_error=p_error, evidence=evidence, machine=machine)
    predicted.require_execute()
    if frontend is not None and frontend.front.shape != graph.input.shape:
        raise ParameterError(
            f"the front end gives shape {frontend.front.shape}, the graph takes "
            f"{graph.input.shape}; use the front end that the network was trained with"
        )
    with Circuit(graph, p_error=p_error) as circuit:
        manifest = _manifest(circuit, predicted, frontend, labels)
        front = None if frontend is None else frontend.front.to_json()
        part = ServerPart(manifest, circuit.artefact, graph.to_bytes(), front)
        write_bundles(Path(folder), part, identity=identity)
    return manifest, predicted


def _manifest(
    circuit: Circuit, predicted: Plan, frontend: Frontend | None, labels: Sequence[str]
) -> Manifest:
    node, spec, report = circuit.graph.input, circuit.spec, circuit.report
    pins = Digests(
        program=circuit.artefact.digest,
        parameters=sha256(circuit.artefact.files[PROGRAM_FILE]),
        graph=circuit.graph.digest(),
    )
    front = None if frontend is None else sha256(frontend.front.to_json())
    tree = {
        **common(),
        "program": pins.program, "parameters": pins.parameters, "graph": pins.graph,
        "toolkit": Toolkit.here(),
        "input": Input(
            node.shape, node.low, node.high, None if frontend is None else frontend.scale, front
        ),
        "output": Output(
            spec.low, tuple(spec.scale.tolist()), tuple(spec.offset.tolist()), tuple(labels)
        ),
        "layers": _layers(circuit, predicted),
        "sizes": Sizes(
            report.key_bytes, report.query_bytes, report.answer_bytes, report.loaded_key_bytes
        ),
        "p_error": report.p_error, "global_failure": predicted.global_failure,
        "contract": predicted.contract, "disagreement": _measured(predicted.disagreement),
    }  # fmt: skip
    manifest = msgspec.convert(msgspec.to_builtins(tree), Manifest)
    return Manifest.from_json(manifest.to_json())  # all that a reader checks


def _layers(circuit: Circuit, predicted: Plan) -> tuple[Layer, ...]:
    report = circuit.report
    planned = {layer.name: layer for layer in predicted.layers}
    found = []
    for node in circuit.graph.nodes:
        if not isinstance(node, Table):
            continue
        layer, compiled = planned[node.name], report.bootstraps[node.name]
        if compiled > layer.tables + layer.rounding_pbs or compiled < layer.tables:
            raise FheRefused(
                f"{node.name}: compiled to {compiled} bootstraps, planned were {layer.tables} and "
                f"{layer.rounding_pbs} of exact rounding; the cost would not be the one shown",
                layer=node.name, value=compiled, limit=layer.tables + layer.rounding_pbs,
            )  # fmt: skip
        found.append(
            Layer(
                node.name, layer.tables, compiled, report.accumulator_bits[node.name],
                report.table_bits[node.name], node.round_to, node.exact,
            )
        )  # fmt: skip
    return tuple(found)


def _measured(record: Disagreement | None) -> Measured | None:
    if record is None:
        return None
    return Measured(
        record.images, record.seeds, record.rate, record.low, record.high, record.confidence,
        record.source,
    )  # fmt: skip
