"""The top-m engine: asks for units of work, is told their scores, and knows the answer so far.

Ask and tell. ``ask(q)`` gives up to q requests, each with the index of its unit; ``tell`` takes
their scores in any order and applies them in unit order, so a run depends on the seed and on q
only. Requests in flight count as observed when the next ones are chosen (their variances, not
their means). Before the switch the engine asks for sweeps (walks, blocks or singles), and after it
for what the rule and the pull rule want to see next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from privml.backbones.digests import Json, canonical_json
from privml.rng import ScienceSeed
from privml.valuation.checks import is_whole
from privml.valuation.errors import CorruptResult, RunMismatch, SettingError
from privml.valuation.topm.arms import Arms
from privml.valuation.topm.beliefs import Beliefs, Ties
from privml.valuation.topm.journal import Line, Snapshot, read_fits, read_lines
from privml.valuation.topm.learner import Learner
from privml.valuation.topm.pulls import arms_to_pull
from privml.valuation.topm.rules import Choice, Chooser
from privml.valuation.topm.settings import Settings, switch_after
from privml.valuation.topm.state import State, state_of
from privml.valuation.topm.sums import Floats, Ints
from privml.valuation.topm.target import Kind, Request, Target
from privml.valuation.topm.view import EngineView

_Unit = tuple[Kind, tuple[int, ...]]
_LARGEST = 1e150  # as for the scores of games


class Engine(EngineView):
    """Finds the m arms of largest (or smallest) value.

    Parameters
    ----------
    arms
        Features and labels; None for ``posterior="independent"``.
    target
        The quantity and its units.
    settings
        All choices.
    seed
        Seed of units, ties, fits and samples.

    Raises
    ------
    SettingError
        m is not below the number of arms, or features are missing.
    """

    def __init__(
        self, arms: Arms | None, target: Target, settings: Settings, *, seed: ScienceSeed
    ) -> None:
        if not 1 <= settings.m < target.arms:
            raise SettingError(f"m={settings.m} must be in 1..{target.arms - 1}, below the arms")
        self.target, self.settings, self.seed = target, settings, seed
        self._learner: Learner = Learner(arms, target, settings, seed=seed)
        self._chooser = Chooser(settings.rule_used(), settings.m, settings.scan)
        self._width = settings.width_used()
        self._switch = switch_after(settings.switch, target.arms)
        self._pending: dict[int, Request] = {}
        self._told: dict[int, Floats] = {}
        self._again: list[Request] = []
        self._queue: list[_Unit] = []
        self._issued = self._sweeps = self._asked_evaluations = 0
        self._choice: tuple[int, Choice] | None = None

    # ------------------------------------------------------------------ ask and tell

    def ask(self, q: int = 1) -> list[Request]:
        """Return up to ``q`` requests; none if answers are needed before the next choice.

        After a resume the requests that were in flight come first. With ``pull="both"`` two come
        together.

        Raises
        ------
        SettingError
            ``q`` is below 1, or pulls are to begin before hyperparameters are known.
        """
        if not is_whole(q) or q < 1:
            raise SettingError("ask for at least one request")
        if self._again:
            again, self._again = self._again[:q], self._again[q:]
            return again
        requests = self._sweep(q)
        if requests or (self._pending and not self.live):
            return requests
        if not self.live:
            self._learner.go_live()
            self._choice = None  # whoever looked before the switch saw another posterior
        beliefs = Beliefs(self._learner.now())
        for request in self._pending.values():
            beliefs.imagine(*request.arms)
        while len(requests) < q:
            for arms in self._next_pull(beliefs):
                requests.append(self._issue(Kind.PAIR if len(arms) > 1 else Kind.SINGLE, arms))
                if len(requests) < q:
                    beliefs.imagine(*arms)
        return requests

    def tell(self, request: Request | int, scores: ArrayLike) -> None:
        """Take the scores of a request, as :func:`~privml.valuation.topm.target.evaluate` gives.

        Raises
        ------
        SettingError
            The unit was not asked for or was told before, or the scores do not fit it.
        """
        unit = request.unit if isinstance(request, Request) else request
        if not is_whole(unit) or unit not in self._pending or unit in self._told:
            raise SettingError(f"unit {unit} is not waiting for scores")
        if isinstance(request, Request) and not request.same_work(self._pending[unit]):
            raise SettingError(f"this unit {unit} belongs to another run; tell what was asked here")
        try:
            values = np.asarray(scores)
            values = values.astype(np.float64, casting="same_kind").ravel()
        except (TypeError, ValueError) as error:
            raise SettingError(f"unit {unit} needs numbers as scores: {error}") from error
        expected = self._pending[unit].scores
        if len(values) != expected or not (np.abs(values) <= _LARGEST).all():
            raise SettingError(
                f"unit {unit} needs {expected} finite scores, not {len(values)} as given"
            )
        self._told[unit] = values
        while (unit := self.applied) in self._told:
            self._learner.apply(self._pending[unit], self._told[unit])
            del self._pending[unit], self._told[unit]

    def _sweep(self, q: int) -> list[Request]:
        """Return up to ``q`` requests of sweeps, none after the switch."""
        requests: list[Request] = []
        while len(requests) < q and self._sweeping:
            if not self._queue:
                self._queue = self.target.warm_units()
                self._sweeps += 1
            requests.append(self._issue(*self._queue.pop(0)))
        return requests

    @property
    def _sweeping(self) -> bool:
        begun = bool(self._queue) or self._asked_evaluations < self._switch
        return begun and not self._learner.live

    def _issue(self, kind: Kind, arms: tuple[int, ...]) -> Request:
        request = self.target.request(self.seed, self._issued, kind, arms)
        self._pending[self._issued] = request
        self._issued += 1
        self._asked_evaluations += request.evaluations
        return request

    def _next_pull(self, beliefs: Beliefs) -> list[tuple[int, ...]]:
        """Return the arms to observe next: the current choice if nothing is in flight."""
        if self._pending:
            ties = self._ties("imagined", self._issued)
            choice = self._chooser.choose(beliefs, self._multiplier(), ties)
        else:
            choice = self._choose()
        return arms_to_pull(self.settings.pull, choice, beliefs, self._ties("pull", self._issued))

    # ------------------------------------------------------------------ the answer so far

    @property
    def gap(self) -> float:
        """Gap of the rule now; the answer is not certified while it is above eps.

        With an anchored scan it is a lower bound of the certificate in :meth:`state`.
        """
        return self._choose().gap

    @property
    def members(self) -> Ints:
        """(m,) int64 arms of the answer, ascending; cheaper than :meth:`state`."""
        return self._choose().members

    @property
    def certified(self) -> bool:
        """Whether the answer is within eps as far as the widths hold."""
        return self.gap <= self.settings.eps and self.state(draws=0).eps <= self.settings.eps

    @property
    def certificate_kind(self) -> str:
        """``theory`` if every condition of the theory width holds, else ``nominal``.

        The theory needs its own width, given hyperparameters and no sweeps of walks (the marginals
        of one walk are not independent given the past).
        """
        units = self.units_by_kind()
        given = self.settings.hyperparameters is not None and self.settings.noise != "per-arm"
        alone = units[Kind.WALK] == units[Kind.BLOCKS] == 0
        return "theory" if self._width.kind == "theory" and given and alone else "nominal"

    def state(self, *, draws: int | None = None) -> State:
        """Return the answer so far; reading it never changes the run.

        Parameters
        ----------
        draws
            Posterior samples for the membership probabilities; the settings' number if not given,
            none (and NaN) at 0.

        Raises
        ------
        SettingError
            No hyperparameters yet: not every arm was observed and none were given.
        """
        return state_of(
            self._learner.now().settled(),
            self._chooser,
            multiplier=self._multiplier(),
            ties=self._ties("choice", self.applied),
            seed=self.seed.child("membership", self.applied),
            draws=self.settings.draws if draws is None else draws,
            kind=self.certificate_kind,
            engine=self,
        )

    def _choose(self) -> Choice:
        if self._choice is None or self._choice[0] != self.applied:
            beliefs = Beliefs(self._learner.now())
            ties = self._ties("choice", self.applied)
            self._choice = self.applied, self._chooser.choose(beliefs, self._multiplier(), ties)
        return self._choice[1]

    def _multiplier(self) -> float:
        hyper, information, least = self._learner.hyper, 0.0, 1.0
        if self._width.kind == "theory" and hyper is not None:
            posterior = self._learner.now()
            information = posterior.information
            least = float(posterior.noises.min()) * min(1.0, hyper.pair_ratio)
        return self._width.multiplier(
            pulls=self._learner.observations, information=information, least_noise=least
        )

    def _ties(self, label: str, number: int) -> Ties:
        random = self.settings.ties == "random"
        return Ties(self.seed.child("ties", label, number) if random else None)

    # ------------------------------------------------------------------ what was done

    @property
    def applied(self) -> int:
        """Units applied so far."""
        return self._learner.applied

    @property
    def evaluations(self) -> int:
        """Utility evaluations of the applied units; the empty coalition is free."""
        return self._learner.evaluations

    @property
    def asked_evaluations(self) -> int:
        """Utility evaluations of all units asked for, told or not."""
        return self._asked_evaluations

    @property
    def next_kind(self) -> Kind:
        """Kind of the unit that comes next; ``PAIR`` stands for any focused pull."""
        if self._again:
            return self._again[0].kind
        if self._sweeping:
            return (self._queue or self.target.warm_units())[0][0]
        return Kind.PAIR

    @property
    def next_cost(self) -> int:
        """Most evaluations of the unit that comes next."""
        together = 2 if self.settings.pull == "both" and self.next_kind is Kind.PAIR else 1
        return together * self.target.cost(self.next_kind)

    # ------------------------------------------------------------------ units of another run

    @property
    def lines(self) -> list[Line]:
        """Applied units in order: kind, arms and scores."""
        return list(self._learner.journal.lines)

    @property
    def sweep_units(self) -> int:
        """Applied units that were sweeps, not chosen by what was seen before."""
        return self._learner.live_at if self.live else self.applied

    def adopt(self, units: Sequence[_Unit], scores: Sequence[Floats], *, sweeps: int) -> None:
        """Apply the units of an earlier run to a new engine, focused pulls after ``sweeps`` units.

        Raises
        ------
        RunMismatch
            This engine has begun.
        SettingError
            There are focused pulls, but not every arm was observed before.
        """
        if self._issued:
            raise RunMismatch("units are taken over by a new engine only")
        for at, (unit, values) in enumerate(zip(units, scores, strict=True)):
            if at == sweeps:
                self._learner.go_live()
            request = self._issue(*unit)
            del self._pending[request.unit]
            self._learner.apply(request, values)

    # ------------------------------------------------------------------ resume

    def spec_digest(self) -> str:
        """Return 64 hex digits of settings, target and seed."""
        spec: Json = {
            "settings": self.settings.as_json(),
            "target": self.target.described(),
            "seed": f"{self.seed.value:032x}",
        }
        return hashlib.sha256(b"privml top-m 1\0" + canonical_json(spec)).hexdigest()

    def snapshot(self) -> Snapshot:
        """Return what is needed to take the run up again; scores told out of turn are left out."""
        learner = self._learner
        flying = [r for unit, r in self._pending.items() if unit >= learner.applied]
        head: dict[str, Json] = {
            "digest": self.spec_digest(),
            "fits": learner.journal.fits_json(),
            "rebuilt_at": learner.rebuilt_at if learner.live else -1,
            "drift": learner.drift,
            "sweeps": self._sweeps,
            "live_at": learner.live_at if learner.live else -1,
            "queue": [[int(kind), list(arms)] for kind, arms in self._queue],
            "in_flight": [[int(r.kind), list(r.arms)] for r in flying],
        }
        return Snapshot(learner.journal.arrays(), head)

    def resume(self, snapshot: Snapshot) -> None:
        """Bring a new engine to the state of a snapshot, bit for bit.

        Raises
        ------
        RunMismatch
            This engine has begun, or the snapshot belongs to other settings or another seed.
        CorruptResult
            The snapshot is damaged.
        """
        head = snapshot.head
        if self._issued or head.get("digest") != self.spec_digest():
            raise RunMismatch("the snapshot belongs to another run, or this one has begun")
        lines = read_lines(snapshot.arrays)
        try:
            fits = read_fits(head["fits"])
            rebuilt_at, sweeps = (
                int(cast("int", head["rebuilt_at"])),
                int(cast("int", head["sweeps"])),
            )
            drift, live_at = float(str(head["drift"])), int(cast("int", head["live_at"]))
            queue, flying = (_units(head[name]) for name in ("queue", "in_flight"))
            units = [*((line.kind, line.arms) for line in lines), *queue, *flying]
            if not all(self.target.fits(kind, arms) for kind, arms in units):
                raise ValueError("a unit has arms that do not fit its kind")
            requests = [self._issue(line.kind, line.arms) for line in lines]
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise CorruptResult(
                f"the snapshot is damaged or of a former version: {error}; run again"
            ) from error
        sound = all(len(a.scores) == r.scores for a, r in zip(lines, requests, strict=True))
        sound &= -1 <= live_at <= rebuilt_at <= len(lines) and (live_at < 0) == (rebuilt_at < 0)
        if not sound:
            raise CorruptResult("units and scores of the snapshot do not fit; run again")
        self._pending.clear()
        scores = [line.scores for line in lines]
        self._learner.replay(requests, scores, fits, rebuilt_at=rebuilt_at)
        self._learner.drift, self._sweeps, self._queue = drift, sweeps, queue
        self._learner.live_at = live_at
        self._again = [self._issue(*unit) for unit in flying]


def _units(given: Json) -> list[_Unit]:
    """Return units from JSON; raises what the reader of a snapshot turns into its error."""
    entries = cast("list[tuple[int, list[int]]]", given)
    return [(Kind(kind), tuple(int(arm) for arm in arms)) for kind, arms in entries]
