"""Three ways to put labelled texts through a model: clear, simulated, executed by two parties."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from privml._cli.children import Children
from privml._cli.home import Home
from privml._cli.infer import WORK_S, Listener, check_room, listening, private_directory
from privml._cli.output import Output
from privml._cli.pruning import Pairs, shown
from privml.backbones.batch import Encoded
from privml.errors import PrivmlError, internal
from privml.protocols.mpc.engine import Simulator
from privml.protocols.mpc.fields import Seeds
from privml.protocols.mpc.inputs import client_inputs, fit, outputs, revealed_length
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.primitive import Cost
from privml.rng import Csprng

if TYPE_CHECKING:
    from privml.protocols.mpc.model import PrivateModel

Mode = Literal["clear", "simulate", "execute"]
#: Correlations that are dealt at once, in bytes, and the most runs of one deal.
_DEAL_BYTES, _DEAL_RUNS = 1 << 30, 16


@dataclass(frozen=True, eq=False)
class Result:
    """What one text gave, and what its run shows and costs.

    Attributes
    ----------
    output
        Logits, ``(classes,)``.
    length, counts
        Positions at the input, and (kept, of high importance) after each layer but the last, as a
        run opens them; no counts without pruning.
    flights, sent, received
        On-line cost of the client: by the plan, or measured if ``seconds`` is not ``None``.
    seconds
        Measured on-line time.
    """

    output: NDArray[np.float64]
    length: int
    counts: Pairs
    flights: int
    sent: int
    received: int
    seconds: float | None = None


@dataclass(frozen=True)
class Way:
    """A model under a plan; ``name`` is what its processes load, ``model`` is that model here."""

    out: Output
    name: str
    model: PrivateModel
    plan: Plan

    def results(self, mode: Mode, batches: Sequence[Encoded]) -> Generator[Result]:
        """Yield what each text gives, in order; stop early by closing the generator."""
        if mode == "execute":
            yield from self._executed(batches)
        else:
            yield from map(
                self._priced(self._clear if mode == "clear" else self._simulated), batches
            )

    def _priced(
        self, one: Callable[[Encoded], tuple[NDArray[np.float64], int, Pairs]]
    ) -> Callable[[Encoded], Result]:
        """Add to what a text gives the exact cost of its run."""
        plan = self.plan

        @cache
        def price(length: int, counts: Pairs) -> Cost:
            return plan.cost if plan.spec.prune is None else plan.cost_of(length, counts)

        def result(batch: Encoded) -> Result:
            output, length, counts = one(batch)
            cost = price(length, counts)
            return Result(output, length, counts, cost.flights, cost.sent[1], cost.sent[0])

        return result

    def _clear(self, batch: Encoded) -> tuple[NDArray[np.float64], int, Pairs]:
        """Evaluate the float model, or its pruned twin."""
        prune, length = self.plan.spec.prune, revealed_length(self.plan, batch)
        if prune is None:
            return self.model(batch)[0], length, ()
        from privml.backbones.pruned import pruned_forward

        secret = None if self.model.spec.prune is None else self.model.spec.prune.thresholds
        if prune.reveal == "schedule":
            batch = fit(self.plan, batch)
        out = pruned_forward(
            self.model.encoder, batch, *((secret.theta, secret.beta) if secret else ()),
            reference=prune.reference, shortest=prune.least, reduce=prune.reduce,
            schedule=prune.schedule or None,
        )  # fmt: skip
        kept = out.kept.sum(dim=(1, 2)).tolist()[1:]
        high = (out.kept & out.high).sum(dim=(1, 2)).tolist()[1:]
        pairs = zip(kept, high, strict=True)
        if prune.reveal == "schedule":
            counts = prune.schedule
        else:
            counts = tuple(shown(prune, k, h, length) for k, h in pairs)
        return out.output[0].detach().numpy().astype(np.float64), length, counts

    def _simulated(self, batch: Encoded) -> tuple[NDArray[np.float64], int, Pairs]:
        """Run the protocol's integer program under fresh masks on clear words."""
        full, root = fit(self.plan, batch), Csprng.fresh()
        engine = Simulator(Seeds((root.child(0), root.child(1)), None), index=self.plan.index)
        inputs = client_inputs(self.plan, full, self.model.public)
        found = self.plan.program.run(engine, self.model.weights(self.plan), inputs)
        internal(found.words is not None, "a simulation gives words")
        words = np.zeros(0, np.uint64) if found.words is None else found.words
        output = outputs(self.plan, words, full, rows=1)[0]
        return output, inputs.length or self.plan.length, _pairs(engine.found)

    def _executed(self, batches: Sequence[Encoded]) -> Iterator[Result]:
        """Deal and serve in processes of their own; the client runs in this one."""
        size = max(1, min(_DEAL_RUNS, _DEAL_BYTES // max(1, self.plan.pool_bytes())))
        for at in range(0, len(batches), size):
            yield from self._dealt(batches[at : at + size])

    def _dealt(self, batches: Sequence[Encoded]) -> Iterator[Result]:
        plan, runs = self.plan, len(batches)
        prune = self.model.spec.prune
        secret = None if prune is None else prune.thresholds
        hear = Listener(self.out, announce=False).hear
        with private_directory() as folder, Children(hear, private=folder) as children:
            check_room(folder, plan, runs)
            home = Home(folder)
            command = home.serve(self.name, runs=runs, thresholds=secret is not None)
            server = children.start("server", command, stdin=True)
            home.write(plan, thresholds=secret)
            dealer = children.start("dealer", home.deal(runs=runs))
            children.result(dealer, limit_s=WORK_S)
            port = listening(children, server, plan)
            for batch in batches:
                try:
                    with home.connect(plan, port) as run:
                        output = run.execute(batch)[0]
                except PrivmlError:
                    children.check()
                    raise
                bill = run.bill
                yield Result(
                    output, bill.length, _pairs(bill.counts), bill.flights, bill.sent,
                    bill.received, bill.online_s,
                )  # fmt: skip


def _pairs(counts: Sequence[Sequence[int]]) -> Pairs:
    return tuple((pair[0], pair[-1]) for pair in counts)
