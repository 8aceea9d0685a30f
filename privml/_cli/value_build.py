"""From a spec to the objects of the library: utility, sampler, stopping rule, method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from privml._cli.value_keys import OWN
from privml._cli.value_spec import Spec
from privml.errors import SchemaError
from privml.valuation.methods.base import Valuer
from privml.valuation.problem import Problem
from privml.valuation.samplers import MSR, TMC, Antithetic, Permutation, Sampler, Stratified
from privml.valuation.stopping import (
    MaxEvaluations,
    MaxRows,
    MaxSeconds,
    MaxUnits,
    Progress,
    StdErr,
    Stopping,
)
from privml.valuation.utilities.base import Utility

Kind: TypeAlias = Literal["run", "topm", "knn", "oob"]
KINDS: Final[tuple[Kind, ...]] = ("run", "topm", "knn", "oob")
_WALKS: Final = 16
_DRAWS: Final = 256
Listener: TypeAlias = Callable[[Progress], None]


@dataclass(frozen=True)
class Silent(Stopping):
    """A rule that never stops a run, but shows each question to a listener."""

    listener: Listener

    def verdict(self, progress: Progress) -> None:
        """Tell the listener; return None."""
        self.listener(progress)

    def spec(self) -> str:
        """Return the rule as JSON."""
        return "never"


def resumable(spec: Spec, kind: Kind) -> bool:
    """Return whether a run of this kind is sampled, and can be stopped and resumed."""
    return kind == "topm" or (kind == "run" and spec["values"]["method"] not in {"loo", "exact"})


def utility_of(spec: Spec, problem: Problem) -> Utility:
    """Return the utility of a spec; raises ``SchemaError`` for a key of another model."""
    from privml.valuation import utilities as made

    given = spec["utility"]
    _own_keys(spec, "utility", given["model"])
    options = {name: given[name] for name in OWN if given.get(name) is not None}
    options["empty"] = given["empty"]
    if given["metric"] is not None:
        options["metric"] = given["metric"]
    if given["model"] == "forest":
        return _forest(options, problem)
    kinds: dict[str, Callable[..., Utility]] = {
        "ridge": made.RidgeUtility,
        "logistic": made.LogisticUtility,
        "knn": made.KnnUtility,
        "naive-bayes": made.NaiveBayesUtility,
        "centroid": made.NearestCentroidUtility,
    }
    return kinds[given["model"]](**options)


def _forest(options: dict[str, Any], problem: Problem) -> Utility:
    """Return the utility of the project's own forest, which adds and forgets rows."""
    from privml.unlearning import DynForestClassifier, DynForestRegressor
    from privml.valuation.utilities import ForestUtility

    trees = options.pop("trees", 50)
    make = DynForestRegressor if problem.task == "regression" else DynForestClassifier
    return ForestUtility(make, params={"n_estimators": trees}, **options)


def method_of(
    spec: Spec, kind: Kind, problem: Problem, *, checkpoint: Path | None, listener: Listener
) -> Valuer:
    """Return the method that a verb runs.

    Parameters
    ----------
    spec
        Checked spec.
    kind
        Verb.
    problem
        Its data.
    checkpoint
        File of the checkpoint, for methods that can be resumed.
    listener
        Told about the state of sampled runs.
    """
    if kind == "topm":
        return _topm(spec, problem, checkpoint, listener)
    if kind == "knn":
        return _knn(spec, problem)
    if kind == "oob":
        return _oob(spec)
    return _values(spec, problem, checkpoint, listener)


def _values(spec: Spec, problem: Problem, checkpoint: Path | None, listener: Listener) -> Valuer:
    from privml.valuation.methods.exact import ExactValues
    from privml.valuation.methods.loo import LeaveOneOut
    from privml.valuation.methods.semivalues import Banzhaf, BetaShapley
    from privml.valuation.methods.shapley import Shapley

    given, run, utility = spec["values"], spec["run"], utility_of(spec, problem)
    name = given["method"]
    _own_keys(spec, "values", name)
    if name == "exact":
        return ExactValues(utility)
    if name == "loo":
        return LeaveOneOut(utility, n_jobs=run["jobs"], backend=run["backend"])
    common: dict[str, Any] = {
        "sampler": _sampler(spec),
        "stopping": stopping_of(spec, problem.players),
        "random_state": run["seed"],
        "n_jobs": run["jobs"],
        "backend": run["backend"],
        "round_units": round_of(spec),
        "checkpoint": checkpoint,
        "checkpoint_every_s": run["checkpoint_s"],
        "ci_level": run["level"],
        "listener": listener,
    }
    if name == "beta":
        shape = {key: given[key] for key in ("a", "b") if given[key] is not None}
        return BetaShapley(utility, **shape, **common)
    if name == "banzhaf":
        return Banzhaf(utility, **common)
    return Shapley(utility, cap=given["cap"], **common)


def round_of(spec: Spec) -> int:
    """Return the units of a round: what an interrupt loses at most; small, as walks are long."""
    chosen: int | None = spec["run"]["round"]
    single = spec["values"]["sampler"] == "msr" or (
        spec["values"]["method"] == "banzhaf" and spec["values"]["sampler"] is None
    )
    return chosen or (_DRAWS if single else _WALKS)


def _sampler(spec: Spec) -> Sampler | None:
    """Return the sampler, None for the method's default."""
    given = spec["values"]
    name = given["sampler"]
    for key, owner in (("tolerance", "tmc"), ("strata", "stratified")):
        if given[key] is not None and name != owner:
            raise SchemaError(f'[values]: {key} is for sampler = "{owner}"')
    if name == "tmc":
        return TMC() if given["tolerance"] is None else TMC(given["tolerance"])
    if name == "stratified":
        return Stratified() if given["strata"] is None else Stratified(given["strata"])
    plain: dict[str | None, Sampler | None] = {
        "antithetic": Antithetic(),
        "permutation": Permutation(),
        "msr": MSR(),
        None: None,
    }
    return plain[name]


def amount(value: int | str, players: int) -> int:
    """Return a budget in evaluations; ``"200n"`` is 200 per player."""
    if isinstance(value, int):
        return value
    return max(1, round(float(value.removesuffix("n")) * players))


def stopping_of(spec: Spec, players: int) -> Stopping | None:
    """Return the rules of [stop], the first of which ends a run; None if there are none."""
    given, rules = spec["stop"], list[Stopping]()
    if given["evaluations"] is not None:
        rules.append(MaxEvaluations(amount(given["evaluations"], players)))
    if given["units"] is not None:
        rules.append(MaxUnits(given["units"]))
    if given["rows"] is not None:
        rules.append(MaxRows(given["rows"]))
    if given["seconds"] is not None:
        rules.append(MaxSeconds(given["seconds"]))
    if given["stderr"] is not None:
        rules.append(StdErr(given["stderr"]))
    if not rules:
        return None
    first, *rest = rules
    for rule in rest:
        first = first | rule
    return first


def _topm(spec: Spec, problem: Problem, checkpoint: Path | None, listener: Listener) -> Valuer:
    from privml.valuation.topm import TopM

    given, run = spec["topm"], spec["run"]
    names = ("eps", "delta", "rule", "pull", "width", "posterior", "kernel", "switch", "cap")
    chosen = {name: given[name] for name in names if given[name] is not None}
    if given["m"] >= problem.players:
        raise SchemaError(
            f"[topm]: m = {given['m']} must be below the number of players, {problem.players}"
        )
    stop = stopping_of(spec, problem.players)
    watched: Stopping = Silent(listener)
    return TopM(
        given["m"],
        utility=utility_of(spec, problem),
        law=given["law"],
        preset=given["preset"],
        sign=1 if given["sign"] == "largest" else -1,
        batch=given["batch"],
        budget=given["budget"],
        stopping=watched if stop is None else watched | stop,
        n_jobs=run["jobs"],
        backend=run["backend"],
        checkpoint=checkpoint,
        checkpoint_every=run["checkpoint_s"],
        ci_level=run["level"],
        random_state=run["seed"],
        **chosen,
    )


def _knn(spec: Spec, problem: Problem) -> Valuer:
    from privml.valuation.methods.knn import KNNShapley

    given = {name: value for name, value in spec["knn"].items() if value is not None}
    if problem.group_mode == "row":
        given.pop("group_mode", None)
    return KNNShapley(**given, n_jobs=max(1, spec["run"]["jobs"]))


def _oob(spec: Spec) -> Valuer:
    from privml.valuation.methods.data_oob import DataOOB

    given, run = spec["oob"], spec["run"]
    return DataOOB(
        bags=given["bags"],
        tree=given["tree"],
        score=given["score"],
        min_samples_leaf=given["min_samples_leaf"],
        random_state=run["seed"],
        n_jobs=run["jobs"],
        backend=run["backend"],
        ci_level=run["level"],
    )


def _own_keys(spec: Spec, section: str, owner: str) -> None:
    """Refuse keys that the chosen model or method does not have."""
    for key in spec.given[section]:
        owners = OWN.get(key, {}).get(section)
        if owners is not None and owner not in owners:
            raise SchemaError(f"[{section}]: {key} is for {', '.join(owners)}, not for {owner}")
