"""Broken primitives that use one mask where several are needed; for the mutant corpus only.

All results are right: only the searches of views can tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from privml.protocols.cipherprune.gelu_low import GeluLow
from privml.protocols.mpc.arithmetic.affine import Affine
from privml.protocols.mpc.boolean.compare import Compare
from privml.protocols.mpc.fields import Array, Shares
from privml.protocols.mpc.nonlinear.exp import Exp
from privml.protocols.mpc.nonlinear.gelu import Gelu
from privml.protocols.mpc.nonlinear.maximum import Maximum
from privml.protocols.mpc.nonlinear.rows import RowPower
from privml.protocols.mpc.primitive import Context, Words


def first_for_all(masks: Shares, names: Sequence[str]) -> dict[str, Array]:
    """Return the masks with the first plane of each named field in the place of all."""
    copied = {k: np.broadcast_to(masks[k][:1], masks[k].shape).copy() for k in names}
    return {**masks, **copied}


class OneIntervalBit(RowPower):
    """Opens the bits of all thresholds under one mask."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the mask of the first threshold."""
        return super().derive(first_for_all(free, ("b",)))

    def run(self, ctx: Context, corr: Shares, v: Words) -> Words:
        """Open every bit under the first mask."""
        return super().run(ctx, first_for_all(corr, ("b",)), v)


class OneIntervalTree(RowPower):
    """Compares with all thresholds under the node masks of one."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the node masks of the first threshold."""
        return super().derive(first_for_all(free, self._levels()))

    def run(self, ctx: Context, corr: Shares, v: Words) -> Words:
        """Compare under shared masks."""
        return super().run(ctx, first_for_all(corr, self._levels()), v)

    def _levels(self) -> list[str]:
        return [f"tm{level}" for level in range(self.signs.tree.depth())]


class CubicUnderOpening(RowPower):
    """Opens the cubics under the mask of the value itself."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the mask of the first opening again."""
        return super().derive({**free, "q": self._again(free)})

    def run(self, ctx: Context, corr: Shares, v: Words) -> Words:
        """Open twice under one mask."""
        return super().run(ctx, {**corr, "q": self._again(corr)}, v)

    def _again(self, masks: Shares) -> Array:
        return np.broadcast_to(masks["r"][:, None], masks["q"].shape)


class OnePairBit(Maximum):
    """Opens the six comparisons of a group under one mask."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the mask of the first pair."""
        return super().derive(first_for_all(free, ("b",)))

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Open every bit under the first mask."""
        return super().run(ctx, first_for_all(corr, ("b",)), x)


class OnePairTree(Maximum):
    """Compares the six pairs of a group under the node masks of one."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the node masks of the first pair."""
        return super().derive(first_for_all(free, ("tm0",)))

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Compare under shared masks."""
        return super().run(ctx, first_for_all(corr, ("tm0",)), x)


class OneAffineMask(Affine):
    """Opens the product under the mask of its input."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the mask of the first opening again."""
        return super().derive({**free, "r": free["q"]})

    def run(
        self, ctx: Context, corr: Shares, x: Words, known: Words | None, bias: Words | None
    ) -> Words:
        """Open twice under one mask."""
        return super().run(ctx, {**corr, "r": corr["q"]}, x, known, bias)


class OneDigitTree(Exp):
    """Compares the wrap under node masks of the clip."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the first masks of the clip's tree for the other one."""
        return super().derive({**free, "wm0": self._again(free)})

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Compare under shared masks."""
        return super().run(ctx, {**corr, "wm0": self._again(corr)}, x)

    def _again(self, masks: Shares) -> Array:
        return np.ascontiguousarray(masks["tm0"][:, : masks["wm0"].shape[1]])


class OneExpBit(Exp):
    """Opens both selecting bits under one mask."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the mask of the wrap bit for the clip bit."""
        return super().derive({**free, "bb": free["bw"]})

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Exponentiate with one mask for both bits."""
        return super().run(ctx, {**corr, "bb": corr["bw"]}, x)


class OneGeluBit(Gelu):
    """Opens the three selecting bits under one mask."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the mask of the first bit."""
        return super().derive(first_for_all(free, ("b",)))

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Open every bit under the first mask."""
        return super().run(ctx, first_for_all(corr, ("b",)), x)


class OneLowGeluBit(GeluLow):
    """Opens both selecting bits under one mask."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the mask of the first bit."""
        return super().derive(first_for_all(free, ("b",)))

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Open every bit under the first mask."""
        return super().run(ctx, first_for_all(corr, ("b",)), x)


class OneShortTree(Compare):
    """Compares few bits with all thresholds under the node masks of one."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the node masks of the first threshold."""
        return super().derive(first_for_all(free, ("tm0",)))

    def run(self, ctx: Context, corr: Shares, x: Array) -> Words:
        """Compare under shared masks."""
        return super().run(ctx, first_for_all(corr, ("tm0",)), x)
