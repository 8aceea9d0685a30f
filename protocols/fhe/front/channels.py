"""Which coefficients of a cell become input channels.

A coefficient is (vertical frequency, horizontal frequency). Static sets depend on the block size
and on two counts alone, so they reveal nothing about any data.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from privml.errors import ParameterError
from privml.params import check

Coefficient: TypeAlias = tuple[int, int]
Coefficients: TypeAlias = tuple[Coefficient, ...]

#: Channel counts of the paper: (total, block) to the numbers of luma and of each chroma plane.
PAPER: Final = {
    **{(6, block): (4, 1) for block in (2, 4, 8)},
    **{(12, block): (8, 2) for block in (4, 8)},
    (24, 4): (12, 6),
    (24, 8): (14, 5),
    (48, 4): (16, 16),
    (48, 8): (32, 8),
    (64, 8): (44, 10),
    (192, 8): (64, 64),
}

#: Row lengths of the sets whose shape the paper fixes: (block, count) for luma and for chroma.
_LUMA_ROWS: Final = {(4, 12): (4, 4, 2, 2), (8, 14): (6, 3, 3, 1, 1), (8, 44): (7, 7, *[6] * 5)}
_CHROMA_ROWS: Final = {(4, 6): (3, 2, 1), (8, 10): (3, 3, 2, 2)}
_CHROMA_SETS: Final = {(8, 5): ((0, 0), (0, 1), (0, 3), (1, 0), (3, 0))}

_COUNTED: Final = re.compile(r"y(\d{1,2})(?:c(\d{1,2}))?", re.ASCII)
_TOTAL: Final = re.compile(r"paper-(\d{1,3})", re.ASCII)


@dataclass(frozen=True)
class ChannelSet:
    """Coefficients kept of each plane, in channel order: luma, Cb, Cr.

    Attributes
    ----------
    luma, cb, cr
        Distinct (vertical, horizontal) frequencies; luma has at least one.

    Raises
    ------
    ParameterError
        Repeated or negative coefficients, or no luma.
    """

    luma: Coefficients
    cb: Coefficients = ()
    cr: Coefficients = ()

    def __post_init__(self) -> None:
        problems = [] if self.luma else ["no luma coefficient: keep at least one"]
        for name, plane in self.planes():
            if len(set(plane)) != len(plane):
                problems.append(f"{name} names a coefficient twice")
            if any(min(pair) < 0 for pair in plane):
                problems.append(f"{name} names a negative frequency")
        check("channels", problems)

    def __len__(self) -> int:
        return len(self.luma) + len(self.cb) + len(self.cr)

    def planes(self) -> tuple[tuple[str, Coefficients], ...]:
        """Return the three planes with their names, in channel order."""
        return ("luma", self.luma), ("cb", self.cb), ("cr", self.cr)

    def labels(self) -> tuple[str, ...]:
        """Return one name for each channel, for example ``cb[0,1]``."""
        return tuple(f"{name}[{u},{v}]" for name, plane in self.planes() for u, v in plane)

    def fit_in(self, block: int, chroma_block: int) -> None:
        """Refuse coefficients that a cell does not have.

        Raises
        ------
        ParameterError
            Naming plane, largest frequency and the remedy.
        """
        sides = (block, chroma_block, chroma_block)
        problems = [
            f"{name} has {side}x{side} coefficients, {max(outside)} is not among them"
            + ("; halve the set, or use chroma='bilinear'" if name != "luma" else "")
            for (name, plane), side in zip(self.planes(), sides, strict=True)
            if (outside := [pair for pair in plane if max(pair) >= side])
        ]
        check("channels", problems)

    def keep(self, indices: Iterable[int]) -> ChannelSet:
        """Return the channels at ``indices``, in the order of this set."""
        chosen = set(indices)
        if not chosen <= set(range(len(self))):
            raise ParameterError(f"channels {sorted(chosen)} are not all among 0..{len(self) - 1}")
        numbers = itertools.count()
        planes = [
            tuple(pair for pair in plane if next(numbers) in chosen) for _, plane in self.planes()
        ]
        return ChannelSet(*planes)


def channel_set(name: str, *, block: int, chroma_block: int) -> ChannelSet:
    """Return a static set by name.

    Parameters
    ----------
    name
        ``"y4c1"``: 4 luma coefficients and 1 of each chroma plane; ``"y3"``: luma alone;
        ``"paper-24"``: the paper's set of that many channels; ``"full"``: all there are.
    block, chroma_block
        Sides of a luma and of a chroma cell.

    Returns
    -------
    ChannelSet
        The shapes of the paper where it gives one, else the lowest frequencies by distance from
        (0, 0); row-major within a plane.

    Raises
    ------
    ParameterError
        No such set, or more coefficients than a cell has.
    """
    luma, chroma = _counts(name, block, chroma_block)
    problems = [
        f"{name} asks for {count} {plane} coefficients; a cell has {side}x{side}"
        for plane, count, side in (("luma", luma, block), ("chroma", chroma, chroma_block))
        if count > side * side
    ]
    check("channels", problems)
    chosen = _static(luma, block, _LUMA_ROWS.get((block, luma)))
    colour = _CHROMA_SETS.get((block, chroma)) or _static(
        chroma, chroma_block, _CHROMA_ROWS.get((block, chroma))
    )
    return ChannelSet(chosen, colour, colour)


def select(scores: ArrayLike, keep: int) -> tuple[int, ...]:
    """Return the channels of highest importance; for sets learned by gates, then frozen.

    Parameters
    ----------
    scores
        One finite number for each channel, for example the trained gates of a network over the
        full set. They are computed from training data, and so is the set chosen by them.
    keep
        How many channels to keep, 1 <= keep <= number of scores.

    Returns
    -------
    tuple of int
        Increasing indices; of equal scores the lower index wins.

    Raises
    ------
    ParameterError
        Scores that are no finite vector, or ``keep`` out of range.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise ParameterError(f"give one finite score per channel, not shape {values.shape}")
    if not 1 <= keep <= len(values):
        raise ParameterError(f"keep = {keep} must lie in [1, {len(values)}]")
    best = np.argsort(-values, kind="stable")[:keep]
    return tuple(sorted(int(index) for index in best))


def _counts(name: str, block: int, chroma_block: int) -> tuple[int, int]:
    if name == "full":
        return block * block, chroma_block * chroma_block
    if counted := _COUNTED.fullmatch(name):
        return int(counted[1]), int(counted[2] or 0)
    if (total := _TOTAL.fullmatch(name)) and (int(total[1]), block) in PAPER:
        return PAPER[int(total[1]), block]
    known = sorted(total for total, size in PAPER if size == block)
    raise ParameterError(
        f"channels = {name!r}: give 'full', counts such as 'y4c1' or 'y3', or one of "
        + ", ".join(f"'paper-{total}'" for total in known)
    )


def _static(count: int, side: int, rows: Sequence[int] | None) -> Coefficients:
    if rows is not None:
        return tuple((u, v) for u, length in enumerate(rows) for v in range(length))
    every = itertools.product(range(side), range(side))
    nearest = sorted(every, key=lambda pair: (pair[0] ** 2 + pair[1] ** 2, pair))
    return tuple(sorted(nearest[:count]))
