"""The security claim of a run, computed from its components and never typed by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from privml.errors import ParameterError
from privml.protocols.cipherprune.leakage import FIXED, Opened

#: What each source of correlated randomness assumes.
SOURCES: Final = {"dealer": "dealer(third party, off line, no collusion)"}

_DEALER = (
    "dealer: the plan (architecture, sizes, ranges) and no message; together with either party it "
    "learns everything"
)


@dataclass(frozen=True)
class SecurityClaim:
    """What a run guarantees, against whom, and with which failure probability.

    Attributes
    ----------
    source
        Name of the source of correlated randomness.
    embedding
        ``"released"`` or ``"private"``.
    failure_prob
        Probability that any truncation or comparison of one inference is wrong.
    opened
        What token pruning opens to both parties; ``None`` without pruning.
    """

    source: str
    embedding: str
    failure_prob: float
    opened: Opened | None = None

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ParameterError(
                f"unknown source {self.source!r}; choose one of {', '.join(SOURCES)}"
            )

    def __str__(self) -> str:
        claim = (
            f"2pc semi-honest, static, security with abort | {SOURCES[self.source]} | "
            f"embedding={self.embedding} | lambda=128"
        )
        return claim if self.opened is None else f"{claim} | reveal={self.opened.reveal}"

    @property
    def failure(self) -> str:
        """Failure probability in words, with its condition."""
        return (
            f"{self.failure_prob:g} per inference while values stay inside the calibrated ranges "
            "plus 2 bits"
        )

    def leakage(self) -> tuple[str, ...]:
        """Say what each party learns beyond its input and output."""
        tables = (
            "client: token, position and type embedding tables and the embedding LayerNorm"
            if self.embedding == "released"
            else "client: nothing of the embedding tables"
        )
        server = "batch size and padded length; nothing of the text, its length or the result"
        more, network = "", FIXED
        if self.opened is not None:
            server, more, network = self.opened.server, self.opened.client, self.opened.network
        return (
            f"server: {server}",
            f"client: architecture, calibrated ranges, its own result{more}",
            tables,
            _DEALER,
            f"network: {network}",
        )
