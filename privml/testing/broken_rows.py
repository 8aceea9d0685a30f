"""Broken primitives on rows of the mutant corpus; never for anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from privml.protocols.mpc.arithmetic.affine import Affine
from privml.protocols.mpc.arithmetic.moments import Moments
from privml.protocols.mpc.arithmetic.mul import ScaleRows
from privml.protocols.mpc.fields import Array, Field, Shares
from privml.protocols.mpc.nonlinear.maximum import Maximum
from privml.protocols.mpc.nonlinear.rows import RowPower
from privml.protocols.mpc.primitive import Context, Words


class OneRowMask(ScaleRows):
    """Masks a row with the mask of its factor; the product is right."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the mask of y for x."""
        return super().derive({"x": self._rows(free), "y": free["y"]})

    def run(self, ctx: Context, corr: Shares, x: Words, y: Words) -> Words:
        """Multiply with one mask for the whole row."""
        return super().run(ctx, {**corr, "x": self._rows(corr)}, x, y)

    def _rows(self, masks: Shares) -> Array:
        return np.broadcast_to(masks["y"], (self.rows, self.cols))


class OneCubicMask(RowPower):
    """Masks the cubics of all intervals with one mask; the result is right."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the mask of the first interval."""
        return super().derive({**free, "q": self._all(free)})

    def run(self, ctx: Context, corr: Shares, v: Words) -> Words:
        """Open every cubic under the first mask."""
        return super().run(ctx, {**corr, "q": self._all(corr)}, v)

    def _all(self, masks: Shares) -> Array:
        return np.broadcast_to(masks["q"][:, :1], masks["q"].shape)


class NextInterval(RowPower):
    """Takes the factor of the next interval."""

    def run(self, ctx: Context, corr: Shares, v: Words) -> Words:
        """Undo another multiplier than the one that was used."""
        moved = (*self.factors[1:], self.factors[-1])
        return RowPower.run(replace(self, factors=moved), ctx, corr, v)


class MeanInTheOpen(Moments):
    """Opens the mean without its mask; the result is right."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Take zeros for the mask."""
        return super().derive({**free, "q": np.zeros_like(free["q"])})

    def run(self, ctx: Context, corr: Shares, x: Words) -> tuple[Words, Words]:
        """Compute with the open mean."""
        return super().run(ctx, {**corr, "q": np.zeros_like(corr["q"])}, x)


class NoCrossTerm(Moments):
    """Leaves out the dealt product of the mean's mask and the mask of the row's sum."""

    def run(self, ctx: Context, corr: Shares, x: Words) -> tuple[Words, Words]:
        """Compute wrong squares."""
        return super().run(ctx, {**corr, "ua": np.zeros_like(corr["ua"])}, x)


class NoMeanWrap(Moments):
    """Leaves out the correction for the wrap of the mean's opening."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Deal zeros for the top bit of the mask and its products."""
        made = super().derive(free)
        return {**made, **{k: np.zeros_like(made[k]) for k in ("m", "mu", "ma")}}


class StrictInterval(RowPower):
    """Changes the interval above a threshold instead of at it."""

    def run(self, ctx: Context, corr: Shares, v: Words) -> Words:
        """Compare with the next integers."""
        moved = tuple(t + 1 for t in self.thresholds)
        return RowPower.run(replace(self, thresholds=moved), ctx, corr, v)


class ShortMaximum(Maximum):
    """Looks at one chunk less than its values need."""

    def fields(self) -> tuple[Field, ...]:
        """Deal for the lower chunks."""
        return Maximum.fields(self._shorter())

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Deal for the lower chunks."""
        return Maximum.derive(self._shorter(), free)

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Compare modulo too small a number."""
        return Maximum.run(self._shorter(), ctx, corr, x)

    def _shorter(self) -> Maximum:
        return Maximum(self.n, self.start, self.bits - 4)


class OneGroupMask(Maximum):
    """Masks the values of a group with one mask; the result is right."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the mask of the first value."""
        return super().derive({**free, "r": self._group(free)})

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Open all four under one mask."""
        return super().run(ctx, {**corr, "r": self._group(corr)}, x)

    def _group(self, masks: Shares) -> Array:
        return np.broadcast_to(masks["r"][:, :1], masks["r"].shape)


class LastWins(Maximum):
    """Takes the comparison of the last pair the wrong way round."""

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Compare wrongly."""
        s = np.array(corr["s"])
        s[-1] ^= np.uint64(ctx.rank * ((1 << 64) - 1))
        return super().run(ctx, {**corr, "s": s}, x)


class UnmaskedAffine(Affine):
    """Opens its input without a mask; the result is right."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Take zeros for the mask."""
        return super().derive({**free, "q": np.zeros_like(free["q"])})

    def run(
        self, ctx: Context, corr: Shares, x: Words, known: Words | None, bias: Words | None
    ) -> Words:
        """Multiply in the open."""
        return super().run(ctx, {**corr, "q": np.zeros_like(corr["q"])}, x, known, bias)
