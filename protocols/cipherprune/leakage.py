"""What a pruned run opens to both parties, in words: a function of the public options alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from privml.backbones.config import EncoderConfig
from privml.protocols.cipherprune.spec import PruneSpec, Reveal

FIXED = "sizes and times, fixed by the plan"


@dataclass(frozen=True)
class Opened:
    """What is opened beside the result.

    Attributes
    ----------
    reveal
        Reveal mode.
    grid
        Counts that ``bucket`` mode may show; not used by the others.
    classes
        Whether the number of rows of high importance is opened too.
    mean
        Whether the client divides by the number of tokens left at the end, and so learns it.
    """

    reveal: Reveal
    grid: tuple[int, ...]
    classes: bool
    mean: bool

    @classmethod
    def by(cls, spec: PruneSpec, config: EncoderConfig) -> Self:
        """Return what a model opens under these options."""
        return cls(spec.reveal, spec.grid, spec.reduce, config.pooling == "mean")

    @property
    def server(self) -> str:
        """What the server learns."""
        if self.reveal == "schedule":
            return (
                "padded length and schedule, both public; nothing of the text, its length or the "
                "result"
            )
        counts = "number of tokens kept"
        counts += " and of those of high importance" if self.classes else ""
        if self.reveal == "count":
            seen = f"length of the text in tokens, and after each layer but the last the {counts}"
        else:
            ends = ", ".join(str(g) for g in self.grid)
            seen = (
                "bucket of the length of the text in tokens, and after each layer but the last of "
                f"the {counts}; buckets end at {ends} and the padded length"
            )
        return f"{seen}; nothing else of the text, nothing of the result"

    @property
    def client(self) -> str:
        """What the client learns beyond architecture, ranges and its result; may be empty."""
        if self.reveal == "schedule":
            return ""
        same = "the same numbers"
        if self.mean and self.reveal == "bucket":
            same += " and how many tokens are left at the end"
        return f", {same}, which tell about the thresholds after many queries"

    @property
    def network(self) -> str:
        """What an observer of the encrypted link learns."""
        if self.reveal == "schedule":
            return FIXED
        return "sizes and times, which show the opened numbers to whoever counts bytes"
