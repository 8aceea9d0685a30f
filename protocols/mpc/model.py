"""One private model, three modes: clear, simulate, execute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from privml.backbones.base import Interval
from privml.backbones.batch import Encoded
from privml.backbones.public import PublicPart, public_part
from privml.errors import ParameterError, UntrustedArtifact
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.cipherprune.thresholds import Thresholds
from privml.protocols.mpc.engine import Known, Simulator
from privml.protocols.mpc.fields import Seeds
from privml.protocols.mpc.inputs import client_inputs, fit, outputs
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.primitive import Words
from privml.protocols.mpc.quantise import THRESHOLDS, Weights, quantise
from privml.protocols.mpc.spec import Spec
from privml.rng import Csprng

if TYPE_CHECKING:
    from privml.backbones.encoder import Encoder
    from privml.protocols.mpc.runtime import ClientRun

Output = NDArray[np.float64]


class PrivateModel:
    """An encoder that runs in the clear, as an integer simulation, or between two parties.

    Parameters
    ----------
    encoder
        The model with its weights; the server side.
    spec
        Numerical options; the default is fine for BERT-type encoders.
    """

    def __init__(self, encoder: Encoder, spec: Spec | None = None) -> None:
        self.encoder = encoder
        self.spec = spec or Spec()
        self._bounds: dict[str, float] | None = None
        self.public_bytes = public_part(encoder, tables=self.spec.embedding == "released")
        self.public = PublicPart.from_bytes(self.public_bytes)
        self._known: Weights | None = None
        self._digest = self.public.digest()

    def plan(self, *, n: int, rows: int = 1, source: str = "dealer") -> Plan:
        """Return the bill and the claim for ``rows`` sentences of ``n`` tokens, before any run.

        Raises
        ------
        ParameterError
            If a size is out of range or a value would leave the ring's safe range.
        """
        if self._bounds is None:  # a server that has its plan never needs them
            ranges = self._ranges()
            lows = {f"{k}.low": v.low for k, v in ranges.items() if k.endswith(".var")}
            self._bounds = {k: v.bound for k, v in ranges.items()} | lows
        spec = self.spec.public()
        plan = Plan(self.encoder.config, spec, rows, n, source, self._bounds, self._digest)
        _ = plan.claim, plan.cost
        return plan

    def _ranges(self) -> Mapping[str, Interval]:
        """Calibrated ranges; of a pruned model they cover every way of pruning that was tried."""
        if self.spec.prune is None:
            return self.encoder.ranges()
        from privml.backbones.pruned_ranges import pruned_ranges  # loads torch

        return pruned_ranges(self.encoder)

    def weights(self, plan: Plan) -> Weights:
        """Return the server's quantised operands.

        Raises
        ------
        UntrustedArtifact
            If the plan was made for another model or other options.
        """
        mine = (self.encoder.config, self.spec, self._digest)
        if (plan.config, plan.spec, plan.public) != mine:
            raise UntrustedArtifact(
                f"the plan was made for model {plan.config.name!r} with other weights or options "
                "than the loaded one; make a new plan from this model"
            )
        if self._known is None:
            self._known = quantise(plan.program, self.encoder.params())
            if self.spec.prune is not None and self.spec.prune.reveal != "schedule":
                self._known[THRESHOLDS] = Known(None, self._thresholds(self.spec.prune))
        return self._known

    def _thresholds(self, prune: PruneSpec) -> Words:
        """Raw thresholds of every layer but the last as ring words ``(layers - 1, 2)``."""
        learned = self._learned(prune)
        raw = np.array([learned.raw_theta, learned.raw_beta], np.uint64).T
        return np.maximum(raw, np.uint64(1))  # masked rows have the score 0

    def _learned(self, prune: PruneSpec) -> Thresholds:
        """Thresholds that belong to this model."""
        learned = prune.thresholds
        if learned is None:
            raise ParameterError(
                f"reveal={prune.reveal!r} needs thresholds: learn them with learn_thresholds, or "
                "load them with Thresholds.load; reveal='schedule' works without"
            )
        learned.require(self.encoder)
        return learned

    def __call__(
        self, batch: Encoded, *, mode: Literal["clear", "simulate"] = "clear", seed: int = 0
    ) -> Output:
        """Evaluate in this process.

        Parameters
        ----------
        batch
            Token batch.
        mode
            ``"clear"``: the float model, its clear twin if tokens are pruned. ``"simulate"``: the
            integer program of the protocol on clear words, masks (hence rounding bits) from
            ``seed``; with pruning one sentence after the other.

        Returns
        -------
        ndarray
            ``(B, output_dim)`` float64: embeddings or logits.
        """
        if mode == "clear":
            return self._clear(batch)
        if mode != "simulate":
            raise ParameterError(f"mode {mode!r}: choose clear or simulate, or call execute")
        rows = batch.batch_size if self.spec.prune is None else 1
        plan = self.plan(n=batch.length, rows=rows)
        root = Csprng(seed.to_bytes(32, "little")).child("simulation")
        seeds = Seeds((root.child(0), root.child(1)), None)
        parts = [
            self.simulate(plan, batch.rows(at, at + rows), seeds)[0]
            for at in range(0, batch.batch_size, rows)
        ]
        return np.concatenate(parts)

    def _clear(self, batch: Encoded) -> Output:
        """Evaluate the float model, or its pruned twin, which decides on float scores."""
        prune = self.spec.prune
        if prune is None:
            clear: Output = self.encoder(batch).detach().numpy().astype(np.float64)
            return clear
        from privml.backbones.pruned import pruned_forward

        learned = None if prune.reveal == "schedule" else self._learned(prune)
        out = pruned_forward(
            self.encoder, batch, *((learned.theta, learned.beta) if learned else ()),
            reference=prune.reference, shortest=prune.least, reduce=prune.reduce,
            schedule=prune.schedule or None,
        )  # fmt: skip
        pruned: Output = out.output.detach().numpy().astype(np.float64)
        return pruned

    def simulate(self, plan: Plan, batch: Encoded, seeds: Seeds) -> tuple[Output, dict[str, float]]:
        """Evaluate the integer program under given masks; also return the head-room table.

        With the seeds of a run this equals ``execute`` bit for bit.
        """
        rows = batch.batch_size
        batch = fit(plan, batch)
        engine = Simulator(seeds, index=plan.index)
        result = plan.program.run(
            engine, self.weights(plan), client_inputs(plan, batch, self.public)
        )
        if result.words is None:
            raise AssertionError("internal error in privml: simulation without words")
        return outputs(plan, result.words, batch, rows=rows), engine.head

    def execute(self, run: ClientRun, batch: Encoded) -> Output:
        """Evaluate with a remote server; same as ``run.execute(batch)``."""
        return run.execute(batch)
