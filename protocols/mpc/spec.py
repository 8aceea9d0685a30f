"""What the user chooses about a private run: ring, scales, approximations, embedding mode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from privml.params import check, outside
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.mpc.nonlinear.gelu import QUARTICS

EmbeddingMode = Literal["released", "private"]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Numerical and security options of a private model.

    Attributes
    ----------
    ring
        Bits of a ring word; the transformer lanes are built for 64.
    f
        Fractional bits of activations; 16.
    weight_bits
        Fractional bits of weights, 8 to 16.
    gelu
        Name of the quartic: ``"ring4"`` (default, max error 0.0022) or ``"bolt4"``.
    exp
        ``"digit20"``: one-opening exponential with 16 fractional bits.
    embedding
        ``"released"``: the client receives the embedding tables and looks tokens up itself;
        ``"private"``: the tables stay with the server, at the cost of one one-hot product.
    prune
        Token pruning and polynomial reduction, or ``None``.

    Raises
    ------
    ParameterError
        Naming every option that is out of range.
    """

    ring: int = 64
    f: int = 16
    weight_bits: int = 12
    gelu: str = "ring4"
    exp: str = "digit20"
    embedding: EmbeddingMode = "released"
    prune: PruneSpec | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.ring != 64:
            problems.append(f"ring = {self.ring}: transformer programs run on ring=64")
        if self.f != 16:
            problems.append(f"f = {self.f}: the lanes are built for f=16")
        problems += outside("weight_bits", self.weight_bits, 8, 16)
        if self.gelu not in QUARTICS:
            problems.append(f"gelu = {self.gelu!r}: choose one of {', '.join(sorted(QUARTICS))}")
        if self.exp != "digit20":
            problems.append(f"exp = {self.exp!r}: choose digit20")
        if self.embedding not in ("released", "private"):
            problems.append(f"embedding = {self.embedding!r}: choose released or private")
        given: object = self.prune
        if given is not None and not isinstance(given, PruneSpec):
            problems.append(f"prune is a {type(given).__name__}: give PruneSpec(thresholds)")
        check("options", problems)

    def as_dict(self) -> dict[str, Any]:
        """Return the public options as plain values."""
        values = {name: value for name, value in vars(self).items() if name != "prune"}
        return values if self.prune is None else values | {"prune": self.prune.as_dict()}

    def public(self) -> Spec:
        """Return the options without the server's thresholds."""
        return self if self.prune is None else replace(self, prune=self.prune.public())
