"""How thresholds are learned: everything a user may choose."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from privml.params import check, outside
from privml.protocols.cipherprune.learning.loop import Recipe

SOFT = Recipe(epochs=1, rate=5e-5, decay=0.0)
HARD = Recipe(epochs=2, rate=5e-5, decay=0.0)


@dataclass(frozen=True, kw_only=True)
class Options:
    """How thresholds are learned.

    Attributes
    ----------
    budget
        Mean share of tokens kept over the layers but the first, in texts that are pruned.
    shortest
        Texts of at most so many tokens are not pruned: they have no token to spare, and cost
        little.
    reduce
        Whether tokens of low importance get cheap polynomials.
    high
        Share of the kept tokens that is to be of high importance.
    soft, hard
        Recipes of the two stages.
    widths
        Width of the soft masks at the beginning and at the end of stage 1, in units of the spread
        of the logarithm of each layer's scores.
    threshold_rate
        Learning rate of the thresholds, in the same units.
    ramp
        Share of stage 1 in which thresholds and targets go from the first ones to the budget.
    first_drop
        Share of tokens that the first thresholds drop.
    distil
        Weight of the unpruned model's answers in the loss.
    likeness
        Weight of the error of the pooled hidden state, measured against the unpruned model's.
    reference
        Length that scores are normalised by.
    sample
        Training rows on which the budget is met.
    seed
        Seed of all that is random.
    """

    budget: float = 0.55
    shortest: int = 16
    reduce: bool = True
    high: float = 0.5
    soft: Recipe = SOFT
    hard: Recipe = HARD
    widths: tuple[float, float] = (0.3, 0.1)
    threshold_rate: float = 0.005
    ramp: float = 0.5
    first_drop: float = 0.05
    distil: float = 0.9
    likeness: float = 0.5
    reference: int = 128
    sample: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        problems = outside("budget", self.budget, 0.01, 1.0) + outside("high", self.high, 0.0, 1.0)
        problems += outside("shortest", self.shortest, 0, 1 << 16)
        problems += outside("ramp", self.ramp, 0.0, 1.0) + outside("distil", self.distil, 0.0, 1.0)
        problems += outside("likeness", self.likeness, 0.0, 1e3)
        problems += outside("first_drop", self.first_drop, 0.0, 1.0)
        problems += outside("threshold_rate", self.threshold_rate, 0.0, 10.0)
        problems += outside("reference", self.reference, 1, 1 << 16)
        problems += outside("sample", self.sample, 1, 1 << 24)
        if not 0 < self.widths[1] <= self.widths[0]:
            problems.append("widths must be positive and not grow")
        check("learning options", problems)

    def as_dict(self) -> dict[str, Any]:
        """Return the options as plain values."""
        tree = asdict(self)
        return {**tree, "widths": list(self.widths)}
