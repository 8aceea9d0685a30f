"""Constructor arguments of the estimators: whole numbers, threads, and their saved form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from math import isqrt
from typing import Any, Final

import msgspec
import numpy as np

from privml.errors import SchemaError
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.labels import LabelTable
from privml.unlearning.forest.params import MAX_DEPTH, ForestParams, trees_per_row
from privml.unlearning.forest.schema import Columns

_LONGEST_S: Final = 1e9

Plain = bool | int | float | str
_TEXTS = "'sqrt' and 'log2'"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constructor arguments of the estimator; ``key_given`` says that the key was one of them."""

    n_estimators: int
    occurrence: float
    max_depth: int | None
    n_thresholds: int
    min_samples_split: int
    max_features: int | float | str | None = None
    categorical_features: str | tuple[Plain, ...] | None = None
    classes: tuple[Plain, ...] | None = None
    target_bits: int | None = None
    random_state: int | None = None
    n_jobs: int | None = None
    key_given: bool = False


def settings_of(arguments: Mapping[str, Any]) -> Settings:
    """Return the saved form of the constructor arguments of a fitted estimator.

    Raises
    ------
    SchemaError
        One has a type that cannot be saved; the message names it.
    """
    plain = {name: _plain(value) for name, value in arguments.items() if name != "key"}
    try:
        return msgspec.convert({**plain, "key_given": arguments["key"] is not None}, Settings)
    except msgspec.ValidationError as error:
        raise SchemaError(f"constructor arguments: {error}; change it") from error


def constructor_arguments(settings: Settings, key: ForestKey) -> dict[str, Any]:
    """Return constructor arguments from their saved form."""
    arguments: dict[str, Any] = msgspec.structs.asdict(settings)
    given = arguments.pop("key_given")
    for name in ("categorical_features", "classes"):
        if isinstance(arguments[name], tuple):
            arguments[name] = list(arguments[name])
    return {**arguments, "key": key if given else None}


def forest_params(
    arguments: Mapping[str, Any], *, task: int, columns: Columns, labels: LabelTable
) -> ForestParams:
    """Return the parameters that constructor arguments stand for on a declared table.

    Raises
    ------
    SchemaError
        An argument is out of range or of the wrong type; the message names it.
    """
    p, trees = len(columns.categorical), whole("n_estimators", arguments["n_estimators"])
    depth = arguments["max_depth"]
    return ForestParams(
        task=task,
        n_trees=trees,
        trees_per_row=trees_per_row(arguments["occurrence"], trees),
        max_depth=MAX_DEPTH if depth is None else whole("max_depth", depth),
        n_thresholds=whole("n_thresholds", arguments["n_thresholds"]),
        max_features=_per_node(arguments["max_features"], p),
        min_samples_split=whole("min_samples_split", arguments["min_samples_split"]),
        n_features=p,
        n_classes=labels.size,
        target_bits=whole("target_bits", arguments.get("target_bits", 0)),
        categorical=columns.categorical,
    )


def _per_node(given: object, p: int) -> int:
    """Return the number of attributes per node that ``max_features`` stands for."""
    named = {None: isqrt(p) + 1, "sqrt": max(1, isqrt(p)), "log2": max(1, p.bit_length() - 1)}
    if given is None or isinstance(given, str):
        if given not in named:
            raise SchemaError(f"max_features={given!r}: the texts are {_TEXTS}")
        return named[given]
    if isinstance(given, float | np.floating):
        if not 0 < given <= 1:
            raise SchemaError(f"max_features={given!r}: a share of the columns is in (0, 1]")
        return max(1, int(given * p))
    return whole("max_features", given)


def whole(name: str, value: object) -> int:
    """Return a constructor argument that must be a whole number.

    Raises
    ------
    SchemaError
        It is something else.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise SchemaError(f"{name} must be an integer, not {value!r}")


def thread_count(n_jobs: int | None) -> int:
    """Return the number of threads that ``n_jobs`` asks for, at most and with -1 one per core.

    Raises
    ------
    SchemaError
        ``n_jobs`` is zero or no integer.
    """
    jobs = 1 if n_jobs is None else whole("n_jobs", n_jobs)
    if jobs == 0:
        raise SchemaError("n_jobs must not be 0; use 1, a larger number, or -1 for all cores")
    cores = len(os.sched_getaffinity(0))
    return min(jobs, cores) if jobs > 0 else max(1, cores + 1 + jobs)


def time_budget(budget_s: object) -> float | None:
    """Return a time budget in seconds, None for no limit.

    Raises
    ------
    SchemaError
        It is negative, NaN or no number.
    """
    if budget_s is None or budget_s == float("inf"):
        return None
    if not isinstance(budget_s, int | float | np.number) or not budget_s >= 0:
        raise SchemaError(f"budget_s = {budget_s!r} must be None or a number of seconds from 0 on")
    return min(float(budget_s), _LONGEST_S)


def _plain(value: object) -> object:
    """Return numpy scalars and arrays as Python values, collections as lists."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [_plain(v) for v in value]
    return value
