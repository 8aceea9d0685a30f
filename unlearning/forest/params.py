"""What defines a forest beside its rows and its key, and the checks on it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Final

from privml.errors import SchemaError

CLASSIFICATION: Final = 0
REGRESSION: Final = 1

MAX_TREES: Final = 1 << 16
MAX_DEPTH: Final = 255
MAX_THRESHOLDS: Final = 1 << 12
MAX_FEATURES: Final = 1 << 20
MAX_CLASSES: Final = 1 << 16
MAX_SPLIT_SIZE: Final = 1 << 26
MAX_TARGET_BITS: Final = 40
_NODE_BYTES: Final = 96
_BLOCK_ROWS: Final = 64


@dataclass(frozen=True)
class ForestParams:
    """The parameters that the model is a function of.

    Attributes
    ----------
    task
        :data:`CLASSIFICATION` (0) or :data:`REGRESSION` (1).
    n_trees
        T, number of trees.
    trees_per_row
        k, number of distinct trees that hold a row, 1 <= k <= T.
    max_depth
        Deepest level of a node; the root has level 0.
    n_thresholds
        s, candidates per attribute of a node.
    max_features
        P, attributes per node.
    min_samples_split
        m, smallest node that is split.
    n_features
        p, number of columns.
    n_classes
        Number of classes, living or declared; 0 for regression.
    target_bits
        Fractional bits of regression targets; 0 for classification.
    categorical
        One flag per column: it holds category codes.

    Raises
    ------
    SchemaError
        A parameter is out of range; all of them are listed.
    """

    task: int
    n_trees: int
    trees_per_row: int
    max_depth: int
    n_thresholds: int
    max_features: int
    min_samples_split: int
    n_features: int
    n_classes: int
    target_bits: int
    categorical: tuple[bool, ...]

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise SchemaError(f"forest parameters: {'; '.join(problems)}")

    def header(self) -> tuple[int, ...]:
        """Return the integers in the order of the canonical form."""
        return (
            self.task,
            self.n_trees,
            self.trees_per_row,
            self.max_depth,
            self.n_thresholds,
            self.max_features,
            self.min_samples_split,
            self.n_features,
            self.n_classes,
            self.target_bits,
        )


def trees_per_row(occurrence: object, n_trees: int) -> int:
    """Return k = ceil(occurrence * n_trees) in exact decimal arithmetic.

    Binary floating point rounds 0.07 * 100 up to 8; read as the decimal it prints as, 0.07 gives 7.

    Parameters
    ----------
    occurrence
        q, 0 < q <= 1, read as the shortest decimal that prints it.
    n_trees
        T >= 1.

    Raises
    ------
    SchemaError
        ``occurrence`` is no number in (0, 1].
    """
    if not isinstance(occurrence, int | float) or not 0 < occurrence <= 1:
        raise SchemaError(f"occurrence = {occurrence!r} must be a number in (0, 1]")
    rate = Decimal(repr(float(occurrence)))
    return int((rate * n_trees).to_integral_value(rounding=ROUND_CEILING))


def memory_bound(params: ForestParams, n: int) -> int:
    """Return bytes that a forest of ``n`` rows takes at the very worst, roughly.

    As if each row ended in a leaf of its own, and each root kept all its candidates.
    """
    classes = max(2, params.n_classes)
    per_node = _NODE_BYTES + (4 * classes if classes > 2 else 0)
    nodes = params.n_trees + 2 * n * params.trees_per_row
    candidates = min(params.max_features, params.n_features) * params.n_thresholds
    blocks = params.n_trees * candidates * 4 * (1 + classes) if n >= _BLOCK_ROWS else 0
    return nodes * per_node + blocks + n * 4 * params.n_features


def _problems(p: ForestParams) -> list[str]:
    limits = (
        ("task", p.task, CLASSIFICATION, REGRESSION),
        ("n_estimators", p.n_trees, 1, MAX_TREES),
        ("trees per row", p.trees_per_row, 1, max(1, p.n_trees)),
        ("max_depth", p.max_depth, 0, MAX_DEPTH),
        ("n_thresholds", p.n_thresholds, 1, MAX_THRESHOLDS),
        ("max_features", p.max_features, 1, MAX_FEATURES),
        ("min_samples_split", p.min_samples_split, 2, MAX_SPLIT_SIZE),
        ("n_features", p.n_features, 1, MAX_FEATURES),
        ("n_classes", p.n_classes, 0, MAX_CLASSES),
        ("target_bits", p.target_bits, 0, MAX_TARGET_BITS),
    )
    found = [
        f"{name} = {value} must lie in [{low}, {high}]"
        for name, value, low, high in limits
        if not low <= value <= high
    ]
    if len(p.categorical) != p.n_features:
        found.append(f"{len(p.categorical)} categorical flags for {p.n_features} columns")
    return found
