"""Time of one posterior update, inside a running engine and alone; gain of equal coalitions.

Judged is the update inside the loop: ``observe`` as the engine calls it between choices, with the
caches as the rest of the loop leaves them. Alone, and the whole of ask and tell, are reported too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any, TypeAlias

import numpy as np
from frame import Bar, Options, Report, at_least, at_most, reported
from valuation_data import SEED, Floats, case
from valuation_topm import UTILITY

from privml.valuation import SizeLaw
from privml.valuation.topm import Arms, Engine, Hyperparameters, Settings, Target
from privml.valuation.topm.posterior import Observation
from privml.valuation.topm.sums import PooledSums
from privml.valuation.topm.target import Kind
from privml.valuation.utilities.base import Game

Update: TypeAlias = Callable[[Observation, PooledSums], None]
HYPER = Hyperparameters(mean=0.0, weights=(1.0,), own=0.1, noise=4.0, pair_noise=4.0)
COLUMNS, RANK = 10, 256
SIZES: tuple[tuple[int, str, float], ...] = (
    (1000, "joint", 1.0), (2000, "joint", 10.0), (5000, "joint", 60.0),
    (100_000, "features", 40.0),
)  # fmt: skip
"""Arms, back end, and the most milliseconds an update may take."""
GAIN = 2.0
SIZES_OF_PAIRS = 20_000


def updates_section(report: Report, options: Options) -> None:
    """Add ``update.*`` and ``pairs.gain``."""
    for arms, back_end, limit in SIZES[:1] if options.quick else SIZES:
        name = f"update.{back_end}.{arms}"
        parts = ("", ".alone", ".ask_and_tell")
        with report.section(f"updates of {arms:,} arms", *(f"{name}{part}" for part in parts)):
            found = measure(arms, back_end, 30 if options.quick else 200)
            report.add(*_bars(name, limit, found, arms, back_end))
    with report.section("pairs on equal coalitions", "pairs.gain"):
        report.add(pair_gain(SIZES_OF_PAIRS // 10 if options.quick else SIZES_OF_PAIRS))


def _bars(
    name: str, limit: float, found: dict[str, list[float]], arms: int, back_end: str
) -> list[Bar]:
    what = f"{arms:,} arms, {back_end}" + (f", {RANK} features" if back_end == "features" else "")
    spread = {k: {"median": median(v), "max": max(v), "updates": len(v)} for k, v in found.items()}
    return [
        at_most(name, median(found["loop"]), limit, unit="ms", detail=spread,
                against=f"one update inside the running loop, median, one thread; {what}"),
        reported(f"{name}.alone", median(found["alone"]), unit="ms",
                 against=f"updates one after the other; {what}"),
        reported(f"{name}.ask_and_tell", median(found["whole"]), unit="ms",
                 against=f"choice, update and bookkeeping of a pull, without the utility; {what}"),
    ]  # fmt: skip


def engine_of(arms: int, back_end: str) -> Engine:
    """Return an engine on made-up arms, past its walks."""
    draw = SEED.child("updates", arms).generator()
    labels = np.eye(2)[draw.integers(0, 2, arms)]
    known = Arms(draw.standard_normal((arms, COLUMNS)), labels)
    settings = Settings(
        m=arms // 5, posterior=back_end, rank=RANK, pull="largest_variance", hyperparameters=HYPER,
        switch="evaluations:1n", rebuild_every=10**9, eps=0.0,
    )  # fmt: skip
    target = Target.of(SizeLaw.shapley(arms), warm="walks")
    return Engine(known, target, settings, seed=SEED.child("engine", arms))


def measure(arms: int, back_end: str, pulls: int) -> dict[str, list[float]]:
    """Return milliseconds of updates in the loop and alone, and of ask and tell together."""
    engine = engine_of(arms, back_end)
    draw = SEED.child("scores", arms).generator()
    while engine.next_kind is Kind.WALK:
        for request in engine.ask(1):
            engine.tell(request, np.cumsum(draw.standard_normal(request.scores)))
    request = engine.ask(1)[0]  # goes live: the posterior is made here
    posterior: Any = engine._learner.now()
    loop: list[float] = []
    posterior.observe = _timed(posterior.observe, loop)
    engine.tell(request, draw.standard_normal(2))
    whole = []
    for _ in range(pulls):
        start = time.perf_counter()
        request = engine.ask(1)[0]
        engine.tell(request, draw.standard_normal(2))
        whole.append((time.perf_counter() - start) * 1e3)
    alone: list[float] = []
    del posterior.observe
    update = _timed(posterior.observe, alone)
    for arm in draw.integers(0, arms, pulls).tolist():
        update(Observation(arm, -1, 0.1), engine._learner.sums)
        engine._learner.sums.add_one(arm, 0.1)
    return {"loop": loop, "whole": whole, "alone": alone}


def _timed(function: Update, into: list[float]) -> Update:
    def call(seen: Observation, sums: PooledSums) -> None:
        start = time.perf_counter()
        function(seen, sums)
        into.append((time.perf_counter() - start) * 1e3)

    return call


def pair_gain(count: int) -> Bar:
    """Return how much less a difference of two values costs by pairs than by two single pulls."""
    subject = case("breast_cancer", 0, players=100, flips=0.2)
    game, n = UTILITY.open(subject.problem), 100
    draw, seed = SEED.child("pairs").generator(), SEED.child("pairs", "units")
    target = Target.of(SizeLaw.shapley(n), warm="walks")
    arms = [tuple(draw.choice(n, 2, replace=False).tolist()) for _ in range(count)]
    pairs = [target.request(seed, i, Kind.PAIR, a) for i, a in enumerate(arms)]
    singles = [target.request(seed, count + i, Kind.SINGLE, (i % n,)) for i in range(count)]
    pair = _steps(game, [r.coalitions for r in pairs])
    single = _steps(game, [r.coalitions for r in singles])
    # A difference from singles takes two pulls: twice the evaluations, twice the variance of one.
    owner = np.arange(count) % n
    means = np.bincount(owner, single) / np.bincount(owner)
    noise = float(((single - means[owner]) ** 2).sum() / (count - n))
    first, second = np.array(arms).T
    levels = means[second] - means[first]
    spread = float(((pair - levels) ** 2).mean())
    return at_least(
        "pairs.gain", 2 * 2 * noise / spread, GAIN, unit="x",
        against="variance times evaluations of f(b) - f(c): two single pulls over one pair, breast "
        "cancer, 100 rows, 20 % flipped labels",
        detail={"pair_variance": spread, "single_variance": noise, "draws": count},
    )  # fmt: skip


def _steps(game: Game, coalitions: list[Any]) -> Floats:
    """Return U(second) - U(first) of each request; for pairs this is U(S+c) - U(S+b)."""
    flat = game.score([members for both in coalitions for members in both])
    return flat[1::2] - flat[::2]
