"""Broken primitives of the pruning protocol for the mutant corpus; never for anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np

from privml.protocols.cipherprune.blocks import BlockMatMul
from privml.protocols.cipherprune.compact import Compact, Index, places
from privml.protocols.cipherprune.exp_low import ExpLow
from privml.protocols.cipherprune.gelu_low import CUT, GeluLow
from privml.protocols.cipherprune.keys import StableKeys
from privml.protocols.mpc.boolean.digits import Digits
from privml.protocols.mpc.fields import Array, Field, Shares
from privml.protocols.mpc.ops import pack_bits, unpack_bits
from privml.protocols.mpc.primitive import Context, Words
from privml.rng import Csprng


class UnmaskedKeys(Compact):
    """Opens row keys without their mask; the rows are right."""

    def run(
        self, ctx: Context, corr: Shares, x: Words, keys: Words, counts: Words | None = None
    ) -> tuple[Words, Words]:
        """Compact with keys in the open."""
        zeros = {name: np.zeros_like(corr[name]) for name in ("mk", "pk")}
        return super().run(ctx, {**corr, **zeros}, x, keys, counts)


class KeysBeforeShuffle(Compact):
    """Opens row keys where the rows stand; the rows are right."""

    def run(
        self, ctx: Context, corr: Shares, x: Words, keys: Words, counts: Words | None = None
    ) -> tuple[Words, Words]:
        """Compact by opened positions."""
        all_keys = self._all_keys(ctx, keys)
        ctx.open(x - corr["mx"], all_keys - corr["mk"])
        told = np.zeros(0, np.uint64) if counts is None else counts
        found, told = ctx.open(all_keys, told)
        return x[places(found)[: self.kept(told)]], told


class IdentityShuffle(Compact):
    """Leaves every row where it is before the keys are opened."""

    def permutation(self, free: Shares) -> Index:
        """Keep the order."""
        return np.arange(self.slots)


class OneSidedShuffle(Compact):
    """Lets the server alone draw the permutation."""

    def fields(self) -> tuple[Field, ...]:
        """Make the server the owner of the permutation."""
        return tuple(replace(f, owner=0) if f.name == "order" else f for f in super().fields())


class OneSidedByClient(Compact):
    """Lets the client alone draw the permutation."""

    def fields(self) -> tuple[Field, ...]:
        """Make the client the owner of the permutation."""
        return tuple(replace(f, owner=1) if f.name == "order" else f for f in super().fields())


class ResidualStays(Compact):
    """Moves the first half of each row and leaves the other half."""

    def run(
        self, ctx: Context, corr: Shares, x: Words, keys: Words, counts: Words | None = None
    ) -> tuple[Words, Words]:
        """Compact half of each row."""
        rows, told = super().run(ctx, corr, x, keys, counts)
        half = self.width // 2
        rows[:, half:] = x[: len(rows), half:]
        return rows, told


class SameShuffle(Compact):
    """Draws one permutation and deals it again and again."""

    def permutation(self, free: Shares) -> Index:
        """Return the permutation of the first call."""
        return np.argsort(_once(self.slots), kind="stable")


@cache
def _once(slots: int) -> Words:
    return Csprng.fresh().words(slots, 0)


class ReversedTies(StableKeys):
    """Puts the later of two rows of one class first."""

    def run(self, ctx: Context, corr: Shares, planes: Words) -> tuple[Words, Words]:
        """Sort the rows from the last to the first."""
        flipped = unpack_bits(planes, self.size).reshape(self.classes, self.n)[:, ::-1]
        keys, ring = super().run(ctx, corr, pack_bits(flipped.astype(np.uint8).reshape(-1)))
        return keys[::-1], ring.reshape(self.classes, self.n)[:, ::-1].reshape(-1)


class UnmaskedClasses(StableKeys):
    """Opens class bits without their mask; the keys are right."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Take zeros for the mask."""
        return super().derive({"b": np.zeros_like(free["b"])})

    def run(self, ctx: Context, corr: Shares, planes: Words) -> tuple[Words, Words]:
        """Sort in the open."""
        return super().run(ctx, {**corr, "b": np.zeros_like(corr["b"])}, planes)


class NoLowClip(ExpLow):
    """Returns the periodic continuation below the clip."""

    @property
    def digits(self) -> Digits:
        """Clip at the end of the range."""
        honest = super().digits
        return replace(honest, threshold=-(1 << (honest.start + 4 * honest.skip + 22)))


class LowMargin(ExpLow):
    """Puts the clip at the end of the digit, without the unit that its rounding needs."""

    @property
    def digits(self) -> Digits:
        """Keep what is rounded up to the clip."""
        honest = super().digits
        unit = 1 << (honest.start + 4 * honest.skip)
        return replace(honest, threshold=honest.threshold - unit)


class OneBitMask(ExpLow):
    """Opens both selecting bits under one mask; the result is right."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Use the mask of the wrap bit for the clip bit."""
        return super().derive({**free, "bb": free["bw"]})

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Exponentiate with one mask for both bits."""
        return super().run(ctx, {**corr, "bb": corr["bw"]}, x)


class NoLowZero(GeluLow):
    """Follows the parabola below the lower cut."""

    @property
    def thresholds(self) -> tuple[int, int]:
        """Move the lower cut to the end of the range."""
        return (-(1 << 62), CUT)


class OneBlock(BlockMatMul):
    """Deals the product of each block by itself, and not the sum up to it."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Take differences of the running sums."""
        sums = super().derive(free)["c"]
        return {"c": np.concatenate([sums[:1], sums[1:] - sums[:-1]])}
