"""Two processes, one run: the server that holds the weights and the client that holds the text."""

from __future__ import annotations

import hmac
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privml.backbones.batch import Encoded
from privml.backbones.public import PublicPart
from privml.errors import CorrelationExhausted, MalformedMessage, UntrustedArtifact
from privml.meter import CostMeter
from privml.protocols.mpc.cache import ClientCache
from privml.protocols.mpc.correlations.pool import Pool
from privml.protocols.mpc.correlations.supply import PoolSupply
from privml.protocols.mpc.engine import Executor, Known, Output, Val
from privml.protocols.mpc.fields import setup_mask
from privml.protocols.mpc.inputs import (
    allowed_length,
    client_inputs,
    fit,
    outputs,
    server_inputs,
)
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.primitive import Context, Primitive, Words
from privml.protocols.mpc.program import Inputs
from privml.protocols.mpc.quantise import Weights
from privml.rng import Csprng
from privml.session import Session
from privml.transport.channel import Channel

#: Correlations that are expanded before the first on-line message, in bytes.
PREPARE_BYTES = 4 << 30
#: Seconds that the peer may take for one step on line.
DEADLINE_S = 60.0
#: Slowest accepted set-up transfer, and slowest expansion of correlations, in bytes per second.
_SETUP_RATE, _PREPARE_RATE = 1e6, 2e7
_TAG_PUBLIC, _TAG_SETUP, _TAG_BEGIN, _TAG_NAME = 1, 2, 3, 4
_NAME_BYTES = 32
_LENGTH = struct.Struct("<I")

Progress = Callable[[str, float], None]


def _silent(stage: str, fraction: float) -> None:
    """Report nothing."""


@dataclass
class Bill:
    """What a finished run cost this party; bytes are payload without framing.

    ``length`` and ``counts`` are what a pruned run revealed: rows at the input, and rows kept and
    of high importance after each layer but the last.
    """

    flights: int = 0
    online_s: float = 0.0
    prepare_s: float = 0.0
    setup_s: float = 0.0
    sent: int = 0
    received: int = 0
    setup_bytes: int = 0
    correction_bytes: int = 0
    by_op: Mapping[str, Any] = field(default_factory=dict)
    length: int = 0
    counts: tuple[tuple[int, ...], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "flights": self.flights, "online_s": self.online_s, "prepare_s": self.prepare_s,
            "setup_s": self.setup_s, "online_sent_mb": self.sent / 1e6,
            "online_received_mb": self.received / 1e6, "setup_mb": self.setup_bytes / 1e6,
            "offline_mb": self.correction_bytes / 1e6,
            **({"length": self.length, "kept": [list(c) for c in self.counts]}
               if self.counts else {}),
        }  # fmt: skip


class _Run:
    """Common part of both sides: handshake, claim of one pool run, program, checks, bill."""

    rank = 0

    def __init__(
        self, channel: Channel, plan: Plan, pool: Pool, *, offer: Mapping[str, int],
        deadline_s: float, progress: Progress,
    ) -> None:  # fmt: skip
        self.plan, self.bill = plan, Bill()
        self._pool, self._progress, self._deadline_s = pool, progress, deadline_s
        self._setup_s = deadline_s + (plan.setup_bytes() + plan.public_bytes()) / _SETUP_RATE
        self._prepare_s = deadline_s + plan.cost.corrections / _PREPARE_RATE
        self.session = Session.open(
            channel, rank=self.rank, binding=self._binding(),
            offer={"cursor": pool.cursor, "runs": pool.header.runs, **offer},
            deadline_s=deadline_s,
        )  # fmt: skip

    def _binding(self) -> dict[str, str]:
        return {
            "program": self.plan.digest,
            "claim": str(self.plan.claim),
            "public part": self.plan.public,
            "pool": self._pool.header.pool_id,
        }

    def _claim(self) -> PoolSupply:
        index = max(self._pool.cursor, self.session.peer_offer.get("cursor", 0))
        if index >= self._pool.header.runs:
            raise CorrelationExhausted(
                f"all {self._pool.header.runs} runs of pool {self._pool.header.pool_id[:8]} are "
                "spent; deal a new pool"
            )
        material = self._pool.claim(index)
        prefixes = self.plan.index is not None
        return PoolSupply(
            self.rank, material, self.plan.steps, opened=self._opened(), prefixes=prefixes
        )

    def _opened(self) -> Mapping[str, Words]:
        return {}

    @property
    def meter(self) -> CostMeter:
        """Flights, bytes and seconds of this session, by operation."""
        return self.session.meter

    def _online(self, supply: PoolSupply, params: Mapping[str, Known], inputs: Inputs) -> Words:
        """Prepare, then run the program; returns this party's share of the opened result."""
        began = time.perf_counter()
        self._progress("prepare", 0.0)
        supply.prepare(memory_bytes=PREPARE_BYTES)
        self.session.checkpoint(deadline_s=self._prepare_s)
        start = time.perf_counter()
        self.bill.prepare_s = start - began
        engine = _Reporting(
            Context(self.session), supply, self.session.meter, index=self.plan.index
        )
        engine.report(self._progress, len(self.plan.steps))
        words = self.plan.program.run(engine, params, inputs).words
        self.session.checkpoint()
        total = self.session.measured()
        self.bill.online_s = time.perf_counter() - start
        self.bill.flights = total.total.flights - total.total.checkpoints
        self.bill.sent = total.total.payload_sent
        self.bill.received = total.total.payload_received
        self.bill.correction_bytes = self.plan.cost.corrections
        self.bill.by_op = total.as_dict()
        self.bill.length, self.bill.counts = inputs.length or 0, tuple(engine.found)
        if words is None:
            raise AssertionError("internal error in privml: execution without words")
        return words

    def close(self) -> None:
        """End the session; harmless when repeated."""
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if error is None:
            self.close()
        else:
            self.session.abort(type(error).__name__)


class _Reporting(Executor):
    """Executor that reports how far the program is."""

    def report(self, progress: Progress, steps: int) -> None:
        """Call ``progress`` after every step."""
        self._progress, self._steps, self._count = progress, max(steps, 1), 0

    def call(self, prim: Primitive, inputs: tuple[Val, ...], known: Known | None) -> Output | None:
        """Run one primitive and report."""
        out = super().call(prim, inputs, known)
        self._count += 1
        self._progress("online", self._count / self._steps)
        return out


def pin_weights(pool: Pool, weights: Weights) -> bytes:
    """Tie the server's pool to these weights for ever; return their name under its set-up key.

    Raises
    ------
    UntrustedArtifact
        The pool was opened for other weights.
    """
    name = hmac.digest(bytes.fromhex(pool.header.setup), weights.digest, "sha256")
    pool.pin(name)
    return name


class ServerRun(_Run):
    """The server's side of one run over one channel."""

    rank = 0

    def __init__(
        self, channel: Channel, plan: Plan, pool: Pool, *, params: Weights,
        public: bytes, deadline_s: float = DEADLINE_S, progress: Progress = _silent,
    ) -> None:  # fmt: skip
        self._params, self._public = params, public
        super().__init__(channel, plan, pool, offer={}, deadline_s=deadline_s, progress=progress)

    def serve(self) -> Bill:
        """Send what the client lacks, run the program once, and return the bill."""
        began = time.perf_counter()
        name = pin_weights(self._pool, self._params)
        self.session.send_blob(_TAG_NAME, name)
        if not self.session.peer_offer.get("has_public", 0):
            self._send_setup(_TAG_PUBLIC, self._public)
        if not self.session.peer_offer.get("has_setup", 0):
            self._send_setup(_TAG_SETUP, self._masked_weights().view(np.uint8).data)
        self.bill.setup_s = time.perf_counter() - began
        begin = self.session.recv_blob(_TAG_BEGIN, max_bytes=_LENGTH.size, deadline_s=self._setup_s)
        length = self._length(bytes(begin))
        supply = self._claim()
        try:
            self._online(supply, self._params, server_inputs(self.plan, length))
        finally:
            supply.close()
        return self.bill

    def _length(self, begin: bytes) -> int:
        """Positions that the client starts with; sent only where the plan leaves a choice."""
        if self.plan.index is None:
            size, length = 0, self.plan.length
        else:
            size = _LENGTH.size
            length = _LENGTH.unpack(begin)[0] if len(begin) == size else 0
        if len(begin) != size or not allowed_length(self.plan, length):
            raise MalformedMessage(
                "the client begins with a length that the plan does not allow; nothing was spent"
            )
        return length

    def _send_setup(self, tag: int, data: bytes | memoryview) -> None:
        self.session.send_blob(tag, data, deadline_s=self._setup_s)
        self.bill.setup_bytes += len(data)

    def _setup_key(self) -> bytes:
        return bytes.fromhex(self._pool.header.setup)

    def _masked_weights(self) -> Words:
        """W - B of every secret operand, one after the other."""
        names = self.plan.secret_weights()
        return np.concatenate([self._masked_weight(*name).reshape(-1) for name in names])

    def _masked_weight(self, name: str, shape: tuple[int, ...]) -> Words:
        weight = self._params[name].weight
        if weight is None:
            raise AssertionError("internal error in privml: the server lacks a weight")
        return weight - setup_mask(Csprng(self._setup_key()), name, shape)

    def _opened(self) -> Mapping[str, Words]:
        vectors = [named for named in self.plan.secret_weights() if len(named[1]) == 1]
        return {name: self._masked_weight(name, shape) for name, shape in vectors}


class ClientRun(_Run):
    """The client's side of one run over one channel.

    Parameters
    ----------
    cache
        Where the public part and the pool's set-up message are kept between runs.
    """

    rank = 1

    def __init__(
        self, channel: Channel, plan: Plan, pool: Pool, *, cache: ClientCache,
        deadline_s: float = DEADLINE_S, progress: Progress = _silent,
    ) -> None:  # fmt: skip
        self._cache = cache
        kept = cache.setup(pool.header.pool_id, plan.setup_bytes())
        self._setup: Words | None = kept[0] if kept else None
        self._name = kept[1] if kept else b""
        public = cache.public(plan.public)
        offer = {"has_public": int(public is not None), "has_setup": int(self._setup is not None)}
        super().__init__(channel, plan, pool, offer=offer, deadline_s=deadline_s, progress=progress)
        with _aborting(self.session):
            self._receive(public)

    def _receive(self, public: bytes | None) -> None:
        began = time.perf_counter()
        plan = self.plan
        name = bytes(self.session.recv_blob(_TAG_NAME, max_bytes=_NAME_BYTES))
        if self._setup is not None and not hmac.compare_digest(name, self._name):
            raise UntrustedArtifact(
                "the server has other weights than those this pool was opened with; ask for a new "
                "pool"
            )
        if public is None:
            self._progress("setup", 0.0)
            limit = 64 * 2**20 + 8 * plan.config.hidden * (
                plan.config.vocab + plan.config.max_positions + 8
            )
            public = bytes(self._receive_setup(_TAG_PUBLIC, limit))
            self.public = checked_public(public, plan)
            self._cache.keep_public(plan.public, public)
        else:
            self.public = checked_public(public, plan)
        if self._setup is None:
            self._progress("setup", 0.5)
            size = plan.setup_bytes()
            raw = self._receive_setup(_TAG_SETUP, size)
            if raw.nbytes != size:
                raise MalformedMessage(f"the set-up message has {raw.nbytes} bytes, not {size}")
            self._setup = np.frombuffer(raw, np.uint64)
            self._cache.keep_setup(self._pool.header.pool_id, raw, name=name)
        self.bill.setup_s = time.perf_counter() - began

    def _receive_setup(self, tag: int, limit: int) -> memoryview:
        raw = self.session.recv_blob(tag, max_bytes=limit, deadline_s=self._setup_s)
        self.bill.setup_bytes += raw.nbytes
        return raw

    def _opened(self) -> Mapping[str, Words]:
        out: dict[str, Words] = {}
        at = 0
        if self._setup is None:
            raise AssertionError("internal error in privml: no set-up message")
        for name, shape in self.plan.secret_weights():
            size = int(np.prod(shape))
            out[name] = self._setup[at : at + size].reshape(shape)
            at += size
        return out

    def execute(self, batch: Encoded) -> NDArray[np.float64]:
        """Run the program once; returns ``(rows, output_dim)`` embeddings or logits.

        Raises
        ------
        ParameterError
            The batch does not fit the plan; nothing was claimed or sent.
        ProtocolError
            The run was aborted; its correlations are spent, there is no partial output.
        """
        rows = batch.batch_size
        with _aborting(self.session):
            full = fit(self.plan, batch)
            inputs = client_inputs(self.plan, full, self.public)
            begin = b"" if self.plan.index is None else _LENGTH.pack(inputs.length or 0)
            self.session.send_blob(_TAG_BEGIN, begin)
            supply = self._claim()
            try:
                words = self._online(
                    supply, {n: Known() for n, _ in self.plan.secret_weights()}, inputs
                )
            finally:
                supply.close()
        self.close()
        if not self._pool.remaining:
            self._cache.forget(self._pool.header.pool_id)
        return outputs(self.plan, words, full, rows=rows)


@contextmanager
def _aborting(session: Session) -> Iterator[None]:
    """Abort the session if the block fails."""
    try:
        yield
    except BaseException as error:
        session.abort(type(error).__name__)
        raise


def checked_public(data: bytes, plan: Plan) -> PublicPart:
    """Parse the public part and hold it against the plan.

    Raises
    ------
    MalformedMessage, UntrustedArtifact
        Not a public part, or not the one the plan names.
    """
    part = PublicPart.from_bytes(data)
    if part.digest() != plan.public or part.config != plan.config:
        raise UntrustedArtifact(
            "the public part (tokenizer and tables) is not the one the plan names; get plan and "
            "model from the same server"
        )
    return part
