"""Cost, error and refusals of a CKKS evaluation, before anything is encrypted."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final

import numpy as np

from privml.backbones.digests import canonical_json
from privml.errors import BitsExceeded, MemoryExceeded
from privml.protocols.fhe.costs import Range
from privml.protocols.fhe.plan import MEMORY_SHARE
from privml.protocols.fhe.planned import SHARE_RESULTS, Machine
from privml.protocols.he.contexts import ClientSpec
from privml.protocols.he.costs import StepCosts, reference
from privml.protocols.he.evaluate import Circuit
from privml.protocols.he.network import PolynomialNetwork
from privml.protocols.he.parameters import CkksParameters
from privml.protocols.he.twin import Twin
from privml.rng import ScienceSeed

NOTICE: Final = (
    "CKKS runs on Microsoft SEAL (MIT licence) through TenSEAL (Apache-2.0). Results are "
    "approximate and secure only while they stay with the key holder."
)

SIGMAS: Final = 8.0
TAIL: Final = 2e-9
"""Probability of six deviations; two more cover what sixteen runs do not see of the deviation."""

_NOISE_RUNS: Final = 16

_SPREAD: Final = (0.8, 1.25)
_COMPRESSED: Final = 0.85  # of random words whose top bits are zero
_BASE_MB: Final = 120.0


@dataclass(frozen=True)
class LayerPlan:
    """One affine map and the square after it, per ciphertext.

    Attributes
    ----------
    name
        Layer.
    level
        Rescalings left before it.
    rotations, products, squares
        Steps on ciphertexts.
    bound
        Largest absolute value of the map over all inputs in range.
    core_s
        Core-seconds.
    """

    name: str
    level: int
    rotations: int
    products: int
    squares: int
    bound: float
    core_s: float


@dataclass(frozen=True)
class CkksPlan:
    """Cost and error of one ciphertext, which holds up to ``images`` images.

    Attributes
    ----------
    scheme
        ``"ckks"``.
    network
        Digest of the network.
    parameters
        Scheme; 128-bit security with ``parameters.margin_bits`` to spare.
    layers
        One row per map.
    images
        Images in one ciphertext.
    core_s
        Core-seconds of the server per ciphertext, whatever number of images it holds.
    client_core_s
        Core-seconds of the client per ciphertext.
    seconds
        The server's on the clock: one ciphertext runs on one core.
    error_bound, failure_probability
        A score is off by more than the bound with this probability per image.
    keys_mb, query_bytes, answer_bytes, memory_mb
        Evaluation keys as sent, one query, one answer, the server's memory.
    machine
        Machine the figures are for.
    warnings
        What the user must know.
    """

    scheme: str
    network: str
    parameters: CkksParameters
    layers: tuple[LayerPlan, ...]
    images: int
    core_s: Range
    client_core_s: float
    seconds: Range
    error_bound: float
    failure_probability: float
    keys_mb: float
    query_bytes: int
    answer_bytes: int
    memory_mb: float
    machine: Machine
    warnings: tuple[str, ...]

    @property
    def core_s_per_image(self) -> float:
        """Expected core-seconds per image when ciphertexts are full."""
        return self.core_s.expected / self.images

    def ciphertexts(self, images: int) -> int:
        """Return how many queries that many images make."""
        return -(-images // self.images)

    def call_core_s(self, images: int) -> Range:
        """Return core-seconds of both parties for that many images, keys made and loaded."""
        client = Range(*[self.client_core_s] * 3)
        return (self.core_s + client) * self.ciphertexts(images)

    def to_dict(self) -> dict[str, object]:
        """Return the plan for a report; keys never change meaning."""
        raw = asdict(self)
        machine = raw.pop("machine")
        machine.pop("calibration")
        return {
            **raw, "parameters": self.parameters.to_dict(), "machine": machine,
            "core_s_per_image": self.core_s_per_image, "share_results": SHARE_RESULTS,
            "licence": NOTICE,
        }  # fmt: skip

    def to_json(self) -> bytes:
        """Return :meth:`to_dict` as canonical JSON."""
        return canonical_json(self.to_dict())  # type: ignore[arg-type]  # plain values only

    def __str__(self) -> str:
        wide = max([len(layer.name) for layer in self.layers] + [5])
        head = f"{'map':<{wide}} {'level':>6} {'rotations':>10} {'products':>9} {'core-s':>8}"
        rows = [f"{head} {'bound':>9}"]
        rows += [
            f"{layer.name:<{wide}} {layer.level:>6} {layer.rotations:>10} {layer.products:>9} "
            f"{layer.core_s:>8.3f} {layer.bound:>9.3g}"
            for layer in self.layers
        ]
        return "\n".join([*rows, "", *_totals(self)])


def _totals(plan: CkksPlan) -> list[str]:
    scheme, each = plan.parameters, plan.core_s_per_image
    security = f"128-bit security with {scheme.margin_bits} bits to spare"
    rest = f"but for a share of {plan.failure_probability:.1g} of images"
    lines = [
        f"scheme       CKKS, degree {scheme.degree}, primes of {scheme.modulus_bits} bits, "
        + security,
        f"images       {plan.images} in one ciphertext",
        f"core-seconds {_span(plan.core_s)} per ciphertext, {each:.3g} per image when full",
        f"keys         {plan.keys_mb:,.3g} MB sent once",
        f"messages     {plan.query_bytes:,} bytes query, {plan.answer_bytes:,} bytes answer",
        f"memory       {plan.memory_mb:,.3g} MB",
        f"error        scores are off by at most {plan.error_bound:.2g} {rest}",
        f"results      sharing them is {SHARE_RESULTS}",
        *(f"warning      {text}" for text in plan.warnings),
        f"licence      {NOTICE}",
    ]
    return lines


def plan(
    network: PolynomialNetwork, *, costs: StepCosts | None = None, machine: Machine | None = None
) -> CkksPlan:
    """Predict one ciphertext.

    Parameters
    ----------
    network
        What is to be evaluated.
    costs
        From :func:`privml.protocols.he.costs.measure`; figures of the reference machine if none.
    machine
        Machine to plan for; this one if not given.

    Raises
    ------
    DepthExceeded
        More levels or slots than parameters of 128-bit security give; names the layer.
    BitsExceeded
        A value could wrap; names the layer.
    MemoryExceeded
        The run would take more than 80 % of the machine's memory.
    """
    parameters = parameters_for(network)
    machine = Machine.here() if machine is None else machine
    spec = ClientSpec.of(network, parameters)
    circuit = Circuit(network.shrunk(spec.divisor), spec.packing)
    _check_bounds(network, parameters)
    units = reference(parameters) if costs is None else costs
    layers = _layers(network, circuit, units)
    total = sum(layer.core_s for layer in layers)
    core_s = Range(_SPREAD[0] * total, total, _SPREAD[1] * total)
    word = 8 * parameters.degree
    keys = word * (parameters.depth + 1) * (parameters.depth + 2) * (len(spec.steps) + 1)
    clear = sum(layer.products * (layer.level + 1) * word for layer in layers)
    result = CkksPlan(
        scheme="ckks", network=network.digest(), parameters=parameters, layers=layers,
        images=spec.packing.images, core_s=core_s,
        client_core_s=1e-3 * (units.encrypt + units.decrypt), seconds=core_s,
        error_bound=spec.divisor * error_bound(network, circuit, parameters),
        failure_probability=min(TAIL * network.classes, 1.0),
        keys_mb=_COMPRESSED * keys / 1e6,
        query_bytes=round(_COMPRESSED * word * (parameters.depth + 1)),
        answer_bytes=round(_COMPRESSED * 2 * word),
        memory_mb=_BASE_MB + (3 * keys + 1.5 * clear) / 1e6,
        machine=machine, warnings=(),
    )  # fmt: skip
    _check_memory(result)
    return replace(result, warnings=_warnings(result, units))


def parameters_for(network: PolynomialNetwork) -> CkksParameters:
    """Return the cheapest parameters of a network, or refuse and name its first layer too deep."""
    for number, layer in enumerate(network.layers):
        CkksParameters.for_depth(2 * number + 1, slots=network.dimension, layer=layer.name)
    return CkksParameters.for_depth(network.depth, slots=network.dimension)


def error_bound(network: PolynomialNetwork, circuit: Circuit, parameters: CkksParameters) -> float:
    """Return eight deviations of the noisiest score, by the noise model on extreme inputs."""
    seed = ScienceSeed(0).child("ckks error", network.digest())
    packing = circuit.packing
    count = packing.images
    signs = seed.child("inputs").generator().integers(0, 2, (count, network.features))
    slots = packing.pack(np.asarray(network.limit * (2.0 * signs - 1.0), np.float64))
    exact = Twin()
    wanted = circuit.run(exact, slots, circuit.prepare(exact))
    squares = np.zeros((count, network.classes))
    for run in range(_NOISE_RUNS):
        noisy = Twin(parameters, seed.child("noise", run).generator())
        found = circuit.run(noisy, noisy.encrypt(slots), circuit.prepare(noisy))
        off = packing.unpack(found - wanted, images=count, features=network.classes)
        squares += np.square(off)
    return SIGMAS * float(np.sqrt(squares.max() / _NOISE_RUNS))


def _layers(
    network: PolynomialNetwork, circuit: Circuit, units: StepCosts
) -> tuple[LayerPlan, ...]:
    found, top = [], network.depth
    pairs = zip(network.marked(), circuit.maps, network.bounds, strict=True)
    for number, ((layer, last), one, bound) in enumerate(pairs):
        level = top - 2 * number
        baby = len(one.baby_steps) + len(one.giant_steps)
        cost = units.core_s(
            top=top, level=level, rotations=baby, products=one.products, squares=0
        ) + units.core_s(
            top=top, level=level - 1, rotations=len(one.folds), products=0,
            squares=0 if last else 1,
        )  # fmt: skip
        found.append(
            LayerPlan(layer.name, level, one.rotations, one.products, 0 if last else 1, bound, cost)
        )
    return tuple(found)


def _check_bounds(network: PolynomialNetwork, parameters: CkksParameters) -> None:
    """Refuse values that wrap; the last map is divided into the headroom, so it never does."""
    for number, (layer, bound) in enumerate(zip(network.layers, network.bounds, strict=True)):
        level = parameters.depth - 2 * number - 2
        if number == len(network.layers) - 1:
            return
        room = sum(parameters.prime_bits[: level + 1]) - parameters.scale_bits - 1
        bits = 2 * np.log2(max(bound, 1e-9))
        if bits > room:
            raise BitsExceeded(
                f"{layer.name}: the square reaches 2^{bits:.0f}, there is room for 2^{room}; "
                "lower its weights or the limit of the inputs",
                layer=layer.name,
                value=float(bits),
                limit=room,
            )


def _check_memory(result: CkksPlan) -> None:
    limit = MEMORY_SHARE * result.machine.memory_bytes / 1e6
    if result.memory_mb > limit:
        raise MemoryExceeded(
            f"the run would take about {result.memory_mb:,.0f} MB, 80 % of the available memory "
            f"is {limit:,.0f} MB; use fewer features or hidden units",
            value=result.memory_mb,
            limit=limit,
        )


def _warnings(result: CkksPlan, units: StepCosts) -> tuple[str, ...]:
    rules = (
        (not units.measured, "times are those of the reference machine; calibrate this one"),
        (result.error_bound > 0.05, "scores are off by more than 0.05; use smaller weights"),
    )
    return tuple(text for holds, text in rules if holds)


def _span(value: Range) -> str:
    return f"{value.expected:,.3g} ({value.low:,.3g} to {value.high:,.3g})"
