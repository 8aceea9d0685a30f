"""What the user chooses about pruning: thresholds, reveal mode, grid, reduction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from privml.params import check, outside
from privml.protocols.cipherprune.thresholds import Thresholds

Reveal = Literal["bucket", "count", "schedule"]

#: Token counts that ``bucket`` mode may reveal.
GRID = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
_MAX_TOKENS, _MAX_GRID = 1 << 16, 64


@dataclass(frozen=True)
class PruneSpec:
    """Options of encrypted token pruning and polynomial reduction (CipherPrune, ICLR 2025).

    Parameters
    ----------
    thresholds
        The server's secret thresholds; not part of the plan. Not needed by whoever only reads a
        plan, nor with ``reveal="schedule"``.
    reveal
        What both parties learn about the number of kept tokens of each layer. ``"bucket"``: the
        smallest value of ``grid`` that holds it. ``"count"``: the number itself. ``"schedule"``:
        nothing, because the numbers are fixed by ``schedule``.
    grid
        Increasing token counts for ``bucket`` mode; a count above the last one shows as the padded
        length.
    reduce
        Whether tokens of low importance get cheaper polynomials.
    reference
        Length that scores are normalised by, whatever the length of the text.
    shortest
        Texts of at most so many tokens are not pruned: there is little to gain, and what is left
        of a short text decides more. Compared with the length that the run reveals; none in
        ``schedule`` mode. Taken from the thresholds where it is not given.
    schedule
        For ``schedule`` mode, one pair (kept tokens, tokens of high importance) for each layer but
        the last; row 0 counts.

    Raises
    ------
    ParameterError
        Naming every option that is out of range.
    """

    thresholds: Thresholds | None = field(default=None, compare=False, repr=False)
    reveal: Reveal = field(default="bucket", kw_only=True)
    grid: tuple[int, ...] = field(default=GRID, kw_only=True)
    reduce: bool = field(default=True, kw_only=True)
    reference: int = field(default=128, kw_only=True)
    schedule: tuple[tuple[int, int], ...] = field(default=(), kw_only=True)
    shortest: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.shortest is None:
            learned = 0 if self.thresholds is None else self.thresholds.shortest
            object.__setattr__(self, "shortest", learned)
        problems = outside("shortest", self.least, 0, _MAX_TOKENS)
        if self.reveal not in ("bucket", "count", "schedule"):
            problems.append(f"reveal = {self.reveal!r}: choose bucket, count or schedule")
        if not self.grid or any(a >= b for a, b in zip((0, *self.grid), self.grid, strict=False)):
            problems.append(f"grid = {self.grid}: give increasing token counts from 1 on")
        problems += outside("entries of grid", len(self.grid), 1, _MAX_GRID)
        problems += outside("last entry of grid", max(self.grid, default=1), 1, _MAX_TOKENS)
        problems += outside("reference", self.reference, 1, _MAX_TOKENS)
        if self.reveal == "schedule" and not self.schedule:
            problems.append("reveal='schedule' needs schedule=, a pair (kept, high) for each layer")
        elif self.schedule and self.reveal != "schedule":
            problems.append("a schedule belongs to reveal='schedule', and only to it")
        problems += _schedule_problems(self.schedule, reduce=self.reduce)
        if self.thresholds is not None and self.thresholds.reference != self.reference:
            problems.append(
                f"the thresholds were learned for reference = {self.thresholds.reference}, "
                f"not {self.reference}"
            )
        check("pruning options", problems)

    @property
    def least(self) -> int:
        """Tokens of the longest text that is not pruned."""
        return self.shortest or 0

    def prunes(self, length: int) -> bool:
        """Say whether a text that shows as ``length`` tokens is pruned."""
        return self.reveal == "schedule" or length > self.least

    def public(self) -> PruneSpec:
        """Return the part that both parties may know: everything but the thresholds."""
        return PruneSpec(
            reveal=self.reveal, grid=self.grid, reduce=self.reduce, reference=self.reference,
            schedule=self.schedule, shortest=self.shortest,
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Return the public options as plain values."""
        return {
            "reveal": self.reveal, "grid": list(self.grid), "reduce": self.reduce,
            "reference": self.reference, "schedule": [list(pair) for pair in self.schedule],
            "shortest": self.least,
        }  # fmt: skip

    def bucket(self, count: int, *, limit: int) -> int:
        """Return what ``bucket`` mode shows of a count, at most ``limit``."""
        return min(next((g for g in self.grid if g >= count), limit), limit)


def _schedule_problems(schedule: tuple[tuple[int, int], ...], *, reduce: bool) -> list[str]:
    problems = []
    before = _MAX_TOKENS
    given: tuple[object, ...] = schedule
    for layer, pair in enumerate(given):
        if not isinstance(pair, tuple) or len(pair) != 2:
            problems.append(f"schedule[{layer}] = {pair!r}: give a pair (kept, high)")
            break
        kept, high = pair
        if not 1 <= high <= kept <= before:
            problems.append(
                f"schedule[{layer}] = ({kept}, {high}): needs 1 <= high <= kept <= {before}"
            )
        if not reduce and high != kept:
            problems.append(f"schedule[{layer}]: without reduction every kept token is high")
        before = kept
    return problems
