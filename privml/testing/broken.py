"""Broken primitives, generators and supplies of the mutant corpus; never for anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from privml.protocols.mpc.arithmetic.matmul import Linear
from privml.protocols.mpc.arithmetic.mul import Mul
from privml.protocols.mpc.arithmetic.truncate import Truncate, shifted, wrap_share
from privml.protocols.mpc.boolean.compare import Compare, Signs
from privml.protocols.mpc.boolean.logic import Select, unpack
from privml.protocols.mpc.correlations.supply import PoolSupply
from privml.protocols.mpc.fields import Array, Field, Shares, clear_values
from privml.protocols.mpc.nonlinear import gelu
from privml.protocols.mpc.nonlinear.exp import Exp
from privml.protocols.mpc.nonlinear.gelu import Gelu
from privml.protocols.mpc.nonlinear.tables import FIELD, exp_late, exp_rise
from privml.protocols.mpc.primitive import HALF, ONE, TOP, Context, Primitive, Words
from privml.protocols.mpc.program import Reveal
from privml.rng import Csprng
from privml.testing.simulate import LocalSupply


class UnmaskedTruncate(Truncate):
    """Opens the value itself."""

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Truncate in the open."""
        (c,) = ctx.open(x + HALF if ctx.rank == 0 else x)
        y: Words = (c >> np.uint64(self.f)) - shifted(self.f)
        return y if ctx.rank == 0 else np.zeros_like(y)


class NoOffset(Truncate):
    """Leaves out the offset that makes values non-negative."""

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Truncate right for positive values only."""
        (c,) = ctx.open(x + corr["r"])
        y: Words = (ONE - (c >> TOP)) * wrap_share(corr["v"], self.f) - corr["u"]
        return y + (c >> np.uint64(self.f)) if ctx.rank == 0 else y


class NoWrapCorrection(Truncate):
    """Forgets that the masked sum may wrap."""

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Truncate right for half of the masks."""
        return super().run(ctx, {**corr, "v": np.zeros_like(corr["v"])}, x)


class LocalTruncate(Truncate):
    """Shifts each share by itself."""

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Truncate wrongly with a probability that grows with the value."""
        f = np.uint64(self.f)
        return x >> f if ctx.rank == 0 else -(-x >> f)


class BothFloor(Truncate):
    """Rounds both halves of the difference down."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Round the mask up, so that its negative is rounded down."""
        r = free["r"]
        rest = (r & np.uint64((1 << self.f) - 1)) != 0
        return {**super().derive(free), "u": (r >> np.uint64(self.f)) + rest.astype(np.uint64)}


class ZeroMaskMul(Mul):
    """Takes zeros for the masks; the product is right."""

    def run(self, ctx: Context, corr: Shares, x: Array, y: Array) -> Array:
        """Multiply in the open."""
        return super().run(ctx, {k: np.zeros_like(v) for k, v in corr.items()}, x, y)


class OneMaskMul(Mul):
    """Masks both factors with the same mask; the product is right."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Square the mask."""
        return {"ab": free["a"] * free["a"]}

    def run(self, ctx: Context, corr: Shares, x: Array, y: Array) -> Array:
        """Multiply with one mask."""
        return super().run(ctx, {**corr, "b": corr["a"]}, x, y)


class SwappedMul(Mul):
    """Multiplies each opened difference with the wrong mask."""

    def run(self, ctx: Context, corr: Shares, x: Array, y: Array) -> Array:
        """Multiply wrongly."""
        e, g = ctx.open(x - corr["a"], y - corr["b"])
        z: Array = e * corr["a"] + corr["b"] * g + corr["ab"]
        return z + e * g if ctx.rank == 0 else z


class BiasTwice(Linear):
    """Lets each party add the bias, as a layer on public parameters would."""

    def run(self, ctx: Context, corr: Shares, x: Words, known: Words, bias: Words | None) -> Words:
        """Multiply, with the bias doubled."""
        twice = None if bias is None else bias + bias
        return super().run(ctx, corr, x, known, twice)


class UnmaskedReply(Linear):
    """Leaves the server's part out of the mask, so that the client's part is all of it."""

    def fields(self) -> tuple[Field, ...]:
        """Let the client draw the mask alone."""
        return tuple(replace(f, owner=1) if f.name == "r" else f for f in super().fields())

    def run(self, ctx: Context, corr: Shares, x: Words, known: Words, bias: Words | None) -> Words:
        """Multiply; the reply shows the product to the client."""
        return super().run(ctx, _filled(corr, (self.n, self.m)), x, known, bias)


class UnmaskedProduct(UnmaskedReply):
    """Leaves the client's part out of the mask, so that the server's part is all of it."""

    def fields(self) -> tuple[Field, ...]:
        """Let the server draw the mask alone."""
        return tuple(replace(f, owner=0) if f.name == "r" else f for f in super().fields())


def _filled(corr: Shares, shape: tuple[int, ...]) -> Shares:
    """Add a zero share of the mask where there is none."""
    return corr if "r" in corr else {**corr, "r": np.zeros(shape, np.uint64)}


class SharedNodeMasks(Compare):
    """Gives all thresholds the node masks of the first one."""

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Derive everything from the first threshold's masks."""
        return super().derive({"r": free["r"], **_first(free)})

    def run(self, ctx: Context, corr: Shares, x: Array) -> Words:
        """Compare; each opening under shared masks."""
        return super().run(ctx, {**corr, **_first(corr)}, x)


def _first(masks: Shares) -> dict[str, Array]:
    return {k: np.broadcast_to(masks[k][:1], masks[k].shape) for k in ("tm0", "tm1")}


class WrongChunk(Compare):
    """Looks chunks up in the one-hot words of their neighbours."""

    def run(self, ctx: Context, corr: Shares, x: Array) -> Words:
        """Compare wrongly."""
        return super().run(ctx, {**corr, "w": np.roll(corr["w"], 1, axis=0)}, x)


class TooShort(Compare):
    """Looks at one chunk less than its values need."""

    @property
    def signs(self) -> Signs:
        """Compare modulo too small a number."""
        return replace(super().signs, bits=self.bits - 4)


class StrictCompare(Compare):
    """Tells x > t instead of x >= t."""

    def run(self, ctx: Context, corr: Shares, x: Array) -> Words:
        """Compare with the next threshold."""
        moved = Compare(self.shape, tuple(t + 1 for t in self.thresholds), self.bits)
        return moved.run(ctx, corr, x)


class UnmaskedSelect(Select):
    """Opens the selecting bit; the result is right."""

    def run(self, ctx: Context, corr: Shares, b: Words, x: Words) -> Words:
        """Select in the open."""
        (_,), (z,) = ctx.open_mixed([x + corr["r"]], [b])
        out: Words = unpack(z, self.shape) * x
        return out


class NoClip(Exp):
    """Returns the periodic continuation below the clip."""

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Exponentiate without the clip bit."""
        late, diff, z_w, _ = _exp_parts(self, ctx, corr, x)
        out: Words = (late + diff * z_w) * corr["e"]
        out += diff * (ONE - (z_w + z_w)) * corr["we"]
        return out


class NoWrapBit(Exp):
    """Takes every masked digit for one that did not wrap."""

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Exponentiate without the wrap bit."""
        late, _, _, z_b = _exp_parts(self, ctx, corr, x)
        out: Words = late * (z_b * corr["e"] + (ONE - (z_b + z_b)) * corr["be"])
        return out


def _exp_parts(
    prim: Exp, ctx: Context, corr: Shares, x: Words
) -> tuple[Words, Words, Words, Words]:
    (c,) = ctx.open(x + corr["r"])
    clip, wrapped = prim.digits.run(ctx, corr, c.reshape(-1))
    zw, zb = ctx.open_bits(wrapped ^ corr["bw"], clip ^ corr["bb"])
    field = (c >> np.uint64(prim.shift)) & FIELD
    late = exp_late(field)
    return late, exp_rise(field) - late, unpack(zw, prim.shape), unpack(zb, prim.shape)


class GeluLastTerm(Gelu):
    """Selects the identity from 0 on, not from the cut on."""

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Add x between 0 and the cut as well, through a comparison of its own sign."""
        planes: list[Array] = []
        tapped = _LastPlanes(ctx, planes)
        y = super().run(tapped, corr, x)
        z = unpack(planes[-1][1], self.shape)
        top = unpack(planes[-1][2], self.shape)
        c = tapped.words[0]
        powers: list[Array | None] = [None, corr["r"]]
        linear = [c, np.full_like(c, (1 << 64) - 1)]
        more: Words = gelu._bit_times(z, powers, corr["k"], linear, ctx.rank)
        more -= gelu._bit_times(top, powers, corr["h"], linear, ctx.rank)
        more <<= np.uint64(gelu.OUT_SCALE - gelu.IN_SCALE)
        return y + more


class _LastPlanes(Context):
    """Context that remembers what it opened."""

    def __init__(self, ctx: Context, planes: list[Array]) -> None:
        super().__init__(ctx.wire)
        self._inner, self._planes = ctx, planes
        self.words: list[Array] = []

    def open(self, *shares: Array) -> list[Array]:
        out = self._inner.open(*shares)
        self.words += out
        return out

    def open_bits(self, *shares: Array) -> list[Array]:
        out = self._inner.open_bits(*shares)
        self._planes += out
        return out


class RevealToBoth(Reveal):
    """Opens the result to the server as well."""

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Exchange the shares."""
        (y,) = ctx.open(x)
        return y


class ShortRange(Csprng):
    """Never sets the top bit of a word."""

    def words(
        self, shape: int | tuple[int, ...], nonce: int, dtype: DTypeLike = np.uint64
    ) -> NDArray[Any]:
        """Return words of half the range."""
        out = super().words(shape, nonce, dtype)
        out >>= out.dtype.type(1)
        return out


class ModuloBias(Csprng):
    """Reduces words modulo five eighths of their range."""

    def words(
        self, shape: int | tuple[int, ...], nonce: int, dtype: DTypeLike = np.uint64
    ) -> NDArray[Any]:
        """Return words below 5/8 of the range, the lower 3/8 twice as often."""
        out = super().words(shape, nonce, dtype)
        out %= out.dtype.type(5 << (8 * out.itemsize - 3))
        return out


class OnePeriod(Csprng):
    """Draws 64-bit words within one period of exp, 36 bits at scale 32."""

    def words(
        self, shape: int | tuple[int, ...], nonce: int, dtype: DTypeLike = np.uint64
    ) -> NDArray[Any]:
        """Return short words."""
        out = super().words(shape, nonce, dtype)
        return out >> np.uint64(28) if out.itemsize == 8 and nonce % 64 == 0 else out


class OneStream(Csprng):
    """Ignores the number of the stream."""

    def words(
        self, shape: int | tuple[int, ...], nonce: int, dtype: DTypeLike = np.uint64
    ) -> NDArray[Any]:
        """Return the head of stream 0."""
        return super().words(shape, 0, dtype)


class ClearCorrections(LocalSupply):
    """Gives rank 1 the derived values themselves and rank 0 zeros."""

    def take(self, prim: Primitive, item: int) -> Shares:
        """Expand one item."""
        shares = dict(super().take(prim, item))
        fields = prim.fields()
        values = clear_values(fields, prim.derive, item, self._seeds)
        for f in fields:
            if f.derived:
                shares[f.name] = values[f.name] if self._rank else np.zeros_like(values[f.name])
        return shares


class FirstItemAgain(LocalSupply):
    """Deals every item from the streams of the first."""

    def take(self, prim: Primitive, item: int) -> Shares:
        """Expand item 0."""
        return super().take(prim, 0)


class ObligingSupply(PoolSupply):
    """Hands out whatever is asked for, as often as it is asked for."""

    def take(self, prim: Primitive, item: int) -> Shares:
        """Return the shares of any item."""
        kept: dict[int, Shares] = self.__dict__.setdefault("kept", {})
        while self._made <= item:
            at = self._made
            kept[at] = self._make()
        return kept[item]
