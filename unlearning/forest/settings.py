"""Constructor arguments of the estimators: whole numbers, threads, and their saved form."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import isqrt
from typing import Any

import msgspec
import numpy as np

from privml.errors import SchemaError
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.labels import LabelTable
from privml.unlearning.forest.params import ForestParams, trees_per_row
from privml.unlearning.forest.schema import Columns

Plain = bool | int | float | str


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Constructor arguments of the estimator; ``key_given`` says that the key was one of them."""

    n_estimators: int
    occurrence: float
    max_depth: int
    n_thresholds: int
    min_samples_split: int
    max_features: int | None = None
    categorical_features: str | tuple[Plain, ...] | None = None
    classes: tuple[Plain, ...] | None = None
    target_bits: int | None = None
    random_state: int | None = None
    n_jobs: int | None = None
    key_given: bool = False


def settings_of(arguments: Mapping[str, Any]) -> Settings:
    """Return the saved form of the constructor arguments of a fitted estimator."""
    plain = {name: _plain(value) for name, value in arguments.items() if name != "key"}
    return msgspec.convert({**plain, "key_given": arguments["key"] is not None}, Settings)


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
    given = arguments["max_features"]
    return ForestParams(
        task=task,
        n_trees=trees,
        trees_per_row=trees_per_row(arguments["occurrence"], trees),
        max_depth=whole("max_depth", arguments["max_depth"]),
        n_thresholds=whole("n_thresholds", arguments["n_thresholds"]),
        max_features=whole("max_features", isqrt(p) + 1 if given is None else given),
        min_samples_split=whole("min_samples_split", arguments["min_samples_split"]),
        n_features=p,
        n_classes=labels.size,
        target_bits=whole("target_bits", arguments.get("target_bits", 0)),
        categorical=columns.categorical,
    )


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
    """Return the number of threads that ``n_jobs`` asks for; -1 is one per core.

    Raises
    ------
    SchemaError
        ``n_jobs`` is zero or no integer.
    """
    jobs = 1 if n_jobs is None else whole("n_jobs", n_jobs)
    if jobs == 0:
        raise SchemaError("n_jobs must not be 0; use 1, a larger number, or -1 for all cores")
    cores = len(os.sched_getaffinity(0))
    return jobs if jobs > 0 else max(1, cores + 1 + jobs)


def _plain(value: object) -> object:
    """Return numpy scalars and arrays as Python values, collections as lists."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple | set | frozenset | range):
        return [_plain(v) for v in value]
    return value
