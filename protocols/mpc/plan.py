"""A plan: everything public about a run, its price and its claim, before anything is sent.

Both parties and the dealer hold the same plan file. It contains the model's public configuration,
the options, the sizes and the calibrated ranges; program, cost and demand for correlations follow
from it, and its digest is bound in the handshake and in every pool.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import rfc8785

from privml.backbones.config import EncoderConfig
from privml.backbones.program import encoder_ops, multiply_adds, parameter_shapes
from privml.errors import MalformedMessage, ParameterError, PrivmlError
from privml.fixedpoint import FailureBudget
from privml.handshake import PROTOCOL_VERSION
from privml.params import check, outside
from privml.protocols.cipherprune.leakage import Opened
from privml.protocols.mpc.arithmetic.affine import Affine
from privml.protocols.mpc.arithmetic.matmul import Linear
from privml.protocols.mpc.claim import SecurityClaim
from privml.protocols.mpc.correlations.tags import TAG_BYTES
from privml.protocols.mpc.engine import Known, Place, Planner, Step, places, total_cost
from privml.protocols.mpc.primitive import Cost
from privml.protocols.mpc.program import Inputs, Program
from privml.protocols.mpc.spec import Spec
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

FORMAT = 1
_DIGEST = re.compile("[0-9a-f]{64}")
MAX_PLAN_BYTES = 4 << 20
MAX_ROWS = 4096
#: Longest sentence under pruning: the schedule compares all pairs of tokens.
MAX_PRUNED_LENGTH = 2048

#: Round trip in seconds and bandwidth in bits per second of modelled links.
LINKS: Mapping[str, tuple[float, float]] = {
    "loopback": (60e-6, 16e9),
    "lan": (0.8e-3, 3e9),
    "wan": (40e-3, 200e6),
}
#: Rough compute rates behind predictions: multiply-adds and correction bytes per second.
_MACS_PER_S, _CORRECTIONS_PER_S, _FLIGHT_S = 6e9, 4.5e8, 150e-6
#: Measured shape of peak memory: fixed parts (the server has torch), and bytes of expanded
#: correlations for each byte dealt, up to a limit; the server's is the runtime's PREPARE_BYTES.
_SERVER_BASE, _CLIENT_BASE = 250e6, 90e6
_SERVER_EXPANDED, _CLIENT_EXPANDED = (1.27, 4 * 2.0**30), (0.45, 0.8e9)


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    config: dict[str, Any]
    spec: dict[str, Any]
    rows: int
    length: int
    source: str
    bounds: dict[str, float]
    public: str


@dataclass(frozen=True)
class Plan:
    """Public description of one kind of run.

    Attributes
    ----------
    config
        Shape of the encoder.
    spec
        Numerical options.
    rows, length
        Sentences in the batch and padded length.
    source
        Source of correlated randomness.
    bounds
        Calibrated absolute bound of each named value.
    public
        SHA-256 of the public part (tokenizer, and the tables if released).
    """

    config: EncoderConfig
    spec: Spec
    rows: int
    length: int
    source: str
    bounds: Mapping[str, float]
    public: str

    def __post_init__(self) -> None:
        check(
            "plan",
            outside("rows", self.rows, 1, MAX_ROWS)
            + outside("n", self.length, 1, self.config.max_positions)
            + ([] if _DIGEST.fullmatch(self.public) else ["public must be 64 hex digits"])
            + self._pruning_problems(),
        )

    def _pruning_problems(self) -> list[str]:
        prune = self.spec.prune
        if prune is None:
            return []
        problems = outside("n of a pruned plan", self.length, 1, MAX_PRUNED_LENGTH)
        pairs = self.config.layers - 1
        if prune.reveal == "schedule" and len(prune.schedule) != pairs:
            problems.append(
                f"the schedule has {len(prune.schedule)} entries; a model of {self.config.layers} "
                f"layers needs {pairs}, one for each layer but the last"
            )
        return problems

    @cached_property
    def program(self) -> Program:
        """The typed program with its public constants."""
        ops, shapes = encoder_ops(self.config), parameter_shapes(self.config)
        sizes = (self.rows, self.length)
        if self.spec.prune is None:
            return Program(ops, self.spec, *sizes, self.bounds, shapes)
        # Here, because the pruned program stands on this package.
        from privml.protocols.cipherprune.program import PrunedProgram

        return PrunedProgram(ops, self.spec, *sizes, self.bounds, shapes, self.config)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """Every primitive in order, at its largest size: the dealer's work list."""
        return self._walk(self.length, ())

    @cached_property
    def index(self) -> Mapping[Place, int] | None:
        """Item number of each place, where sizes depend on what a run opens; else ``None``."""
        return None if self.spec.prune is None else places(self.steps)

    def _walk(self, length: int, script: Sequence[Sequence[int]]) -> tuple[Step, ...]:
        planner = Planner(script)
        names = {node.name: Known() for node in self.program.ops}
        self.program.run(planner, names, Inputs(length=length))
        return tuple(planner.steps)

    def cost_of(self, length: int, counts: Sequence[Sequence[int]]) -> Cost:
        """Return the exact on-line cost of a pruned run with these token counts.

        Parameters
        ----------
        length
            Rows at the input: what the client sends, padding included.
        counts
            One pair (rows kept, rows of high importance) for each layer but the last.

        Raises
        ------
        ParameterError
            ``counts`` is no such list, or the plan is for fewer rows.
        """
        given: list[object] = list(counts)
        pairs = [tuple(c) if isinstance(c, Sequence) else () for c in given]
        if not 1 <= length <= self.length or any(len(pair) != 2 for pair in pairs):
            raise ParameterError(
                f"a run of this plan has 1 to {self.length} rows, and counts are pairs (kept, "
                f"high), one for each layer but the last; got {length} rows and {list(counts)!r}"
            )
        return total_cost(self._walk(length, counts))

    @cached_property
    def cost(self) -> Cost:
        """Flights, payload by rank and correction bytes of one run."""
        return total_cost(self.steps)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the plan, all constants and correlations of its steps, 64 hex digits.

        The name of the model's directory is left out: a copy elsewhere has the same plan. The
        version of the protocol is in, so that a pool serves the version that it was dealt for only.
        """
        nameless = replace(self, config=replace(self.config, name="any"))
        h = hashlib.sha256(nameless.to_json())
        h.update(f"\nprotocol version {PROTOCOL_VERSION}\n".encode())
        for step in self.steps:
            prim = step.primitive
            h.update(f"{prim!r}\n{prim.fields()!r}\n".encode() + prim.constants())
        return h.hexdigest()

    @property
    def claim(self) -> SecurityClaim:
        """The security claim, with the failures of all steps summed up.

        Raises
        ------
        InsecureParameters
            If one inference fails with probability above 2^-20.
        """
        budget = FailureBudget()
        for step in self.steps:
            budget = budget.spend(step.primitive.failure())
        budget.require()
        prune = self.spec.prune
        opened = None if prune is None else Opened.by(prune, self.config)
        return SecurityClaim(self.source, self.spec.embedding, budget.total, opened)

    @property
    def leakage(self) -> tuple[str, ...]:
        """What each party learns."""
        return self.claim.leakage()

    def secret_weights(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Names and shapes of the server's operands, in the order of the set-up message."""
        seen: dict[str, tuple[int, ...]] = {}
        for step in self.steps:
            prim = step.primitive
            if isinstance(prim, Linear):
                seen[prim.weight] = (prim.k, prim.m)
            elif isinstance(prim, Affine):
                seen[prim.weight] = (prim.d,)
        return tuple(seen.items())

    def setup_bytes(self) -> int:
        """Bytes of the once-per-pool message W - B."""
        total = 0
        for _, shape in self.secret_weights():
            size = 8
            for dim in shape:
                size *= dim
            total += size
        return total

    def pool_bytes(self) -> int:
        """Bytes of one run in the client's pool: the corrections and a tag behind each."""
        count = sum(f.derived for step in self.steps for f in step.primitive.fields())
        return self.cost.corrections + TAG_BYTES * count

    def public_bytes(self) -> int:
        """Estimated bytes of the public part, which the client receives once per model."""
        tables = 4 * self.config.hidden * (self.config.vocab + self.config.max_positions)
        return (tables if self.spec.embedding == "released" else 0) + (1 << 20)

    def macs(self) -> int:
        """Multiply-adds of one clear forward pass over the batch."""
        return self.rows * multiply_adds(self.config, length=self.length)

    def predict(
        self, link: str = "loopback", *, cost: Cost | None = None, share: float = 1.0
    ) -> float:
        """Predicted on-line seconds: compute + flights * RTT / 2 + bytes / bandwidth.

        A rough figure for choosing sizes; the run prints the measured one beside it.

        Parameters
        ----------
        link
            Name of a modelled link.
        cost, share
            Cost of a pruned run that keeps fewer tokens, and the share of the work on rows that is
            left; by default those of the plan.
        """
        if link not in LINKS:
            raise ParameterError(f"unknown link {link!r}; choose one of {', '.join(LINKS)}")
        rtt, bandwidth = LINKS[link]
        cost = cost or self.cost
        compute = share * self.macs() / _MACS_PER_S + cost.corrections / _CORRECTIONS_PER_S
        wire = 8 * max(cost.sent) / bandwidth
        return compute + cost.flights * (_FLIGHT_S + rtt / 2) + wire

    def memory_bytes(self) -> tuple[int, int]:
        """Estimated peak memory of server and client, within 6 % of what was measured.

        The server: expanded correlations, weights as floats and as words, torch. The client: its
        pool file, which is mapped, correlations expanded beyond it, W - B, tables and inputs.
        """
        dealt = self.cost.corrections
        factor, limit = _SERVER_EXPANDED
        server = min(factor * dealt, limit) + _SERVER_BASE
        server += 2 * self.setup_bytes() + 2 * self.public_bytes()
        factor, limit = _CLIENT_EXPANDED
        client = dealt + min(factor * dealt, limit) + _CLIENT_BASE
        client += self.setup_bytes() + self.public_bytes() + self._input_bytes()
        return int(server), int(client)

    def _input_bytes(self) -> int:
        """Bytes of the client's inputs and of its share of them."""
        released = self.spec.embedding == "released"
        width = self.config.hidden if released else self.config.vocab + self.config.type_vocab
        return 2 * 8 * self.rows * self.length * width

    def summary(self) -> dict[str, Any]:
        """Return the bill, the claim and the leakage as plain values."""
        up, down = self.cost.sent[1], self.cost.sent[0]
        server, client = self.memory_bytes()
        return {
            "model": self.config.name, "rows": self.rows, "length": self.length,
            "flights": self.cost.flights,
            "online_mb_client_to_server": up / 1e6, "online_mb_server_to_client": down / 1e6,
            "offline_mb_per_run": self.cost.corrections / 1e6,
            "setup_mb_per_pool": self.setup_bytes() / 1e6,
            "setup_mb_per_model": self.public_bytes() / 1e6,
            "predicted_s": {name: round(self.predict(name), 3) for name in LINKS},
            "memory_mb_server": server / 1e6, "memory_mb_client": client / 1e6,
            "claim": str(self.claim), "failure_probability": self.claim.failure_prob,
            "failure_condition": self.claim.failure,
            "leakage": list(self.leakage), "digest": self.digest,
            **({} if self.spec.prune is None else {"prune": self.spec.prune.as_dict()}),
        }  # fmt: skip

    def to_json(self) -> bytes:
        """Return the canonical JSON of the plan."""
        return rfc8785.dumps({
            "format": FORMAT, "config": msgspec.json.decode(self.config.to_json()),
            "spec": self.spec.as_dict(), "rows": self.rows, "length": self.length,
            "source": self.source, "bounds": dict(self.bounds), "public": self.public,
        })  # fmt: skip

    def save(self, path: Path | str) -> None:
        """Write the plan file, all or nothing."""
        atomic_write(Path(path), self.to_json(), mode=0o644)

    @classmethod
    def from_json(cls, data: bytes) -> Plan:
        """Read a plan that came from outside.

        Raises
        ------
        MalformedMessage
            If the bytes are not a plan of this version.
        """
        if len(data) > MAX_PLAN_BYTES:
            raise MalformedMessage("the plan is larger than 4 MiB")
        try:
            raw = msgspec.json.decode(data, type=_Wire)
            if raw.format != FORMAT:
                raise MalformedMessage(f"plan format {raw.format}; this version reads {FORMAT}")
            config = EncoderConfig.from_json(rfc8785.dumps(raw.config))
            plan = cls(
                config,
                msgspec.convert(raw.spec, Spec),
                raw.rows,
                raw.length,
                raw.source,
                raw.bounds,
                raw.public,
            )
            _ = plan.claim
            if plan.to_json() != data:
                raise MalformedMessage("the plan is not in canonical form")
        except MalformedMessage:
            raise
        except (msgspec.MsgspecError, PrivmlError, ValueError, RecursionError) as error:
            raise MalformedMessage(f"not a valid plan: {error}") from error
        return plan

    @classmethod
    def load(cls, path: Path | str) -> Plan:
        """Read a plan file."""
        return cls.from_json(read_file(path, limit=MAX_PLAN_BYTES))
