"""Every section and key that a spec file of ``privml value`` may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

REQUIRED: Final = object()
METRICS: Final = (
    "accuracy", "balanced_accuracy", "log_likelihood", "margin", "auc", "r2", "neg_mse", "neg_mae",
)  # fmt: skip
MODELS: Final = ("ridge", "logistic", "knn", "naive-bayes", "centroid", "forest")
VALUES: Final = ("shapley", "beta", "banzhaf", "loo", "exact")
SAMPLERS: Final = ("antithetic", "permutation", "stratified", "tmc", "msr")


@dataclass(frozen=True)
class Key:
    """What a key takes.

    Attributes
    ----------
    default
        Value if the key is not given; :data:`REQUIRED` if it must be.
    kinds
        Kinds of value, see ``value_spec``.
    words
        What is allowed, as messages and the guide say it.
    choices
        Allowed texts of kind ``choice``.
    low, high
        Range of numbers; ``open_low`` leaves ``low`` itself out.
    """

    default: Any
    kinds: tuple[str, ...]
    words: str
    choices: tuple[str, ...] = ()
    low: float = float("-inf")
    high: float = float("inf")
    open_low: bool = False

    def inside(self, value: float) -> bool:
        """Return whether a number lies in the range."""
        return self.low <= value <= self.high and not (self.open_low and value == self.low)


def _text(default: Any, words: str) -> Key:  # noqa: ANN401
    return Key(default, ("text",), words)


def _choice(default: str | None, *choices: str) -> Key:
    return Key(default, ("choice",), "one of " + ", ".join(f'"{c}"' for c in choices), choices)


def _whole(default: int | None, low: int, words: str = "") -> Key:
    return Key(default, ("whole",), words or f"a whole number of at least {low}", low=low)


def _positive(default: float | None) -> Key:
    return Key(default, ("number",), "a number above 0", low=0.0, open_low=True)


def _least(default: float | None) -> Key:
    return Key(default, ("number",), "a number of at least 0", low=0.0)


def _budget(default: Any) -> Key:  # noqa: ANN401
    words = 'a whole number of at least 1, or a text like "200n" (n: number of players)'
    return Key(default, ("whole", "amount"), words, low=1)


def _names(words: str) -> Key:
    return Key((), ("texts",), words)


_FLAG: Final = "true or false"

SECTIONS: Final[Mapping[str, Mapping[str, Key]]] = {
    "data": {
        "train": _text(REQUIRED, "the CSV file of the training rows"),
        "validation": _text(None, "the CSV file of the validation rows"),
        "validation_share": Key(
            None, ("number",), "a share above 0 and up to 0.9", low=0.0, high=0.9, open_low=True
        ),
        "report": _text(None, "the CSV file of rows for the report's curves"),
        "target": _text(REQUIRED, "the name of the column to predict"),
        "id": _text(None, "the name of a column of distinct texts"),
        "group": _text(None, "the name of the column whose values are the players"),
        "source": _text(None, "the name of the column to total values by"),
        "features": _names("a list of column names"),
        "ignore": _names("a list of column names"),
        "categories": _names("a list of names of columns that hold categories"),
        "missing": _choice("refuse", "refuse", "drop", "mean"),
        "scale": _choice("standard", "standard", "none"),
        "task": _choice(None, "classification", "regression"),
        "delimiter": _choice(",", ",", ";", "\t"),
    },
    "utility": {
        "model": _choice("ridge", *MODELS),
        "metric": _choice(None, *METRICS),
        "empty": Key(
            "chance", ("choice", "number"), '"chance", "majority" or a number',
            ("chance", "majority"),
        ),
        "alpha": _positive(None),
        "intercept": _choice(None, "free", "penalised", "none"),
        "C": _positive(None),
        "k": _whole(None, 1),
        "smoothing": _positive(None),
        "trees": _whole(None, 1),
    },
    "values": {
        "method": _choice("shapley", *VALUES),
        "sampler": _choice(None, *SAMPLERS),
        "cap": _whole(None, 1),
        "a": _positive(None),
        "b": _positive(None),
        "tolerance": _least(None),
        "strata": _whole(None, 2),
    },
    "stop": {
        "evaluations": _budget(None),
        "units": _whole(None, 1),
        "rows": _whole(None, 1),
        "seconds": _positive(None),
        "stderr": _positive(None),
    },
    "topm": {
        "m": _whole(10, 1),
        "sign": _choice("largest", "largest", "smallest"),
        "budget": _budget("40n"),
        "eps": _least(None),
        "delta": Key(
            None, ("number",), "a number between 0 and 1", low=0.0, high=1.0, open_low=True
        ),
        "law": _choice("shapley", "shapley", "banzhaf", "loo"),
        "cap": _whole(None, 1),
        "preset": _choice("default", "default", "paper"),
        "rule": _choice(None, "gpgape", "m-lingape", "lingifa", "ugape", "lucb"),
        "pull": _choice(None, "pair", "largest_variance", "both", "greedy", "best"),
        "width": Key(
            None, ("choice", "number"), '"theory", "heuristic" or a number above 0',
            ("theory", "heuristic"), low=0.0, open_low=True,
        ),
        "posterior": _choice(None, "auto", "joint", "features", "independent"),
        "kernel": _choice(None, "rbf-label", "linear-label", "agreement", "mixture"),
        "switch": _text(None, '"evaluations:10n", "evaluations:500" or "never"'),
        "batch": _whole(1, 1),
    },
    "knn": {
        "k": _whole(5, 1),
        "radius": _positive(None),
        "weights": _choice("uniform", "uniform", "inverse", "gaussian"),
        "bandwidth": _positive(None),
        "normalised": Key(False, ("flag",), _FLAG),
        "truncate": Key(
            None, ("number",), "a number between 0 and 1", low=0.0, high=1.0, open_low=True
        ),
        "precision": _choice("float64", "float64", "float32"),
        "group_mode": _choice(None, "player", "sum"),
    },
    "oob": {
        "bags": _whole(100, 2),
        "tree": _choice("extra", "extra", "best"),
        "score": _choice("match", "match", "probability"),
        "min_samples_leaf": _whole(1, 1),
    },
    "run": {
        "seed": _whole(0, 0),
        "jobs": Key(1, ("whole",), "a whole number from 1, or -1 for all cores", low=-1),
        "backend": _choice("loky", "loky", "threading", "dask"),
        "checkpoint_s": _positive(30.0),
        "round": _whole(None, 1),
        "level": Key(
            0.95, ("number",), "a number between 0.5 and 0.9999", low=0.5, high=0.9999
        ),
    },
    "report": {
        "shown": _whole(20, 1),
        "budget": _positive(None),
        "floor": _least(0.0),
        "curves": Key(True, ("flag",), _FLAG),
        "duplicates": Key(True, ("flag",), _FLAG),
    },
}  # fmt: skip
"""Sections and keys; the defaults of a model or method that are not stated here are its own."""

OWN: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "alpha": {"utility": ("ridge",)},
    "intercept": {"utility": ("ridge",)},
    "C": {"utility": ("logistic",)},
    "k": {"utility": ("knn",)},
    "smoothing": {"utility": ("naive-bayes",)},
    "trees": {"utility": ("forest",)},
    "cap": {"values": ("shapley",)},
    "a": {"values": ("beta",)},
    "b": {"values": ("beta",)},
    "sampler": {"values": ("shapley", "beta", "banzhaf")},
}
"""Keys that belong to some models or methods only."""
