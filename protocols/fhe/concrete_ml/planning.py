"""The plan of a compiled scikit-learn model, in the form of every TFHE plan.

The figures come from the compiler's own counts: it says how many bootstraps there are and how
complex they are, and CPU time was proportional to that on the reference machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from privml.errors import MemoryExceeded
from privml.protocols.fhe.costs import Range
from privml.protocols.fhe.planned import LayerPlan, Machine, Plan
from privml.protocols.fhe.program_info import ENVELOPE_BYTES, ProgramInfo

EXACT_FAILURE: Final = 2.0**-20
MEMORY_SHARE: Final = 0.8
_TREES_CORE_S: Final = Range(1.0e-10, 1.7e-10, 2.6e-10)
_NETS_CORE_S: Final = Range(0.8e-10, 1.25e-10, 2.0e-10)
"""Core-seconds per unit of the compiler's complexity: two cores of an x86-64 server with AVX2."""

_CALL_S: Final = Range(0.005, 0.02, 0.05)
"""Core-seconds of any call: decoding, encoding, threads."""

_UNPACK_S: Final = 2.5e-3
"""Core-seconds per MB of loaded keys, once for each client: keys are sent compressed."""

_LOADED: Final = Range(1.0, 2.0, 3.0)
_PROCESS_MB: Final = 250.0


def make_plan(
    counts: Mapping[str, Any],
    info: ProgramInfo,
    *,
    name: str,
    digest: str,
    rounded: bool,
    machine: Machine,
    warnings: tuple[str, ...],
) -> Plan:
    """Return the plan of one row.

    Parameters
    ----------
    counts
        What the builder counted.
    info
        Parameters of the program.
    name, digest
        Name of the model's row, and digest of the program.
    rounded
        Whether accumulators are rounded approximately.
    machine
        Machine the figures are for.
    warnings
        What else the user must know.

    Raises
    ------
    MemoryExceeded
        The keys do not fit into 80 % of the available memory.
    """
    bits, pbs = int(counts["max_bits"]), int(counts["pbs"])
    p_error, failure = float(counts["p_error"]), float(counts["global_p_error"])
    rate = _NETS_CORE_S if rounded else _TREES_CORE_S
    core_s = rate * float(counts["complexity"]) + _CALL_S
    row = LayerPlan(
        name=name,
        tables=pbs,
        rounding_pbs=0,
        bits_before=bits,
        bits_after=bits,
        exact=not rounded,
        faulty=pbs * p_error,
        flips=0.0,
        core_s=core_s,
    )
    loaded = float(counts["keys_bytes"]) / 1e6
    memory = _LOADED * loaded + Range(_PROCESS_MB, _PROCESS_MB, _PROCESS_MB)
    limit = MEMORY_SHARE * machine.memory_bytes / 1e6
    if memory.expected > limit:
        raise MemoryExceeded(
            f"the run would take about {memory.expected:,.0f} MB, 80 % of the available memory is "
            f"{limit:,.0f} MB; use fewer bits, a smaller model, or another machine",
            value=memory.expected,
            limit=limit,
        )
    sent = info.key_bytes / 1e6
    if loaded:
        unpack = (
            f"a client's first row takes {_UNPACK_S * loaded:.1f} core-seconds more for its keys"
        )
        warnings = (*warnings, unpack)
    exact = not rounded and failure <= EXACT_FAILURE
    return Plan(
        scheme="tfhe",
        graph=digest,
        layers=(row,),
        max_bits=bits,
        p_error=p_error,
        global_failure=failure,
        contract="exact" if exact else "measured",
        disagreement=None,
        core_s=core_s,
        seconds=Range(core_s.low / machine.cores, core_s.expected / machine.cores, core_s.high),
        keys_mb=Range(sent, sent, sent + ENVELOPE_BYTES / 1e6),
        keys_loaded_mb=Range(loaded, loaded, loaded),
        query_bytes=info.query_bytes,
        answer_bytes=info.answer_bytes,
        memory_mb=memory,
        machine=machine,
        warnings=warnings,
    )
