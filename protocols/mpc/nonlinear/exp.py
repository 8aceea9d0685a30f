r"""exp(x) for x <= 0 from one opening: a public exponential times a dealt one.

With c = x + r opened, let c', r' be the 20 bits of c and r above ``shift`` (16 fractional bits).
Then c' - r' mod 2^20 is x rounded to 16 fractional bits, down or up by the borrow of the low bits
(unbiased, like the masked truncation), and

.. math:: e^x = e^{c'} e^{-r'} \cdot (1 \text{ if } c' < r' \text{ else } e^{-16}) .

The dealer shares E = exp(-r') at scale 42; exp(c') is public, at scale 18. w = 1{c' < r'} is one
comparison of 20-bit words on the one-hot chunks that the clip test needs anyway. Both bits are
opened under masks, and products of E with the masks are dealt, so the selection is local. The
result has scale 60 and peak 2^60. Where the clip bit is 0 the result is exactly 0: always below
-15.5 and never from -15.4375 on, because the clip test looks at 24 bits, of which the lowest stands
for 2^-4. Hence |x| must stay below 2^19.

The caller passes x minus one unit of 2^-16, which makes x <= -2^-16 and removes the tie c' = r';
in a softmax the common factor exp(-2^-16) cancels.

Error: at most 2^-16.9 relative to 1 before the final truncation (rounding of x: 2^-16 relative;
clip: exp(-15.4375) = 2.0e-7). 3 flights (open, compare, select), 8 B + 20 bit per element and
direction. Two parties, semi-honest, dealer-hybrid; the view is uniform words and bits. Source:
ours; the digit form replaces the repeated squarings of the limit approximation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from privml import _native
from privml.errors import ParameterError
from privml.protocols.mpc.boolean.compare import packed
from privml.protocols.mpc.boolean.digits import Digits
from privml.protocols.mpc.boolean.logic import unpack
from privml.protocols.mpc.fields import Array, Field, Shares, bits, derived, mask
from privml.protocols.mpc.nonlinear.tables import (
    FIELD,
    digest,
    exp_fall,
    exp_late,
    exp_rise,
    public,
)
from privml.protocols.mpc.primitive import ONE, Context, Cost, Primitive, Words, both, peak

#: Below this (in natural units) the result is exactly zero.
CLIP = 15.5
#: Scale of the result.
OUT_SCALE = 60
#: Magnitude of x, in natural units, from which on the clip test is not right.
RANGE = 2.0**19
#: Largest shift: the clip's window ends at the top of the ring.
MAX_SHIFT = 28
_CHUNKS, _SKIP = 5, 3


@dataclass(frozen=True)
class Exp(Primitive):
    """exp of an array of ``shape`` whose fixed-point scale is ``16 + shift``; shift % 4 == 0."""

    shape: tuple[int, ...]
    shift: int
    name: ClassVar[str] = "exp"

    def __post_init__(self) -> None:
        if self.shift % 4 or not 0 <= self.shift <= MAX_SHIFT:
            raise ParameterError(
                f"exp takes 16 to {16 + MAX_SHIFT} fractional bits in steps of 4, not "
                f"{16 + self.shift}; rescale its input"
            )

    def constants(self) -> bytes:
        return digest()

    @property
    def digits(self) -> Digits:
        """The comparisons c' < r' and x >= the clip, one unit of the clip's window up."""
        one = 1 << (16 + self.shift)
        threshold = -int(CLIP * one) + (1 << (self.shift + 4 * _SKIP))
        return Digits(prod(self.shape), self.shift, _CHUNKS, _SKIP, threshold)

    def fields(self) -> tuple[Field, ...]:
        pw = (packed(prod(self.shape)),)
        return (
            mask("r", self.shape), bits("bw", pw), bits("bb", pw),
            derived("e", self.shape), derived("be", self.shape),
            derived("we", self.shape), derived("wbe", self.shape),
            *self.digits.fields(),
        )  # fmt: skip

    def derive(self, free: Shares) -> Mapping[str, Array]:
        e = exp_fall((free["r"] >> np.uint64(self.shift)) & FIELD)
        we = unpack(free["bw"], self.shape) * e
        rho_b = unpack(free["bb"], self.shape)
        return {
            "e": e, "be": rho_b * e, "we": we, "wbe": rho_b * we,
            **self.digits.derive(free["r"], free),
        }  # fmt: skip

    def online(self) -> Cost:
        n = prod(self.shape)
        return both(8 * n).then(self.digits.cost()).then(both(16 * packed(n)))

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Return a share of exp(x) at scale 60."""
        (c,) = ctx.open(x + corr["r"])
        clip, wrapped = self.digits.run(ctx, corr, c.reshape(-1))
        zw, zb = ctx.open_bits(wrapped ^ corr["bw"], clip ^ corr["bb"])
        return self.terms(c, zw, zb, corr)

    def terms(self, c: Words, zw: Words, zb: Words, corr: Shares) -> Words:
        """Share of the result.

        Parameters
        ----------
        c
            Opened ``x + r``, of ``shape``.
        zw, zb
            Packed: opened wrap and clip bits under masks.
        corr
            This party's shares.
        """
        library = _native.load()
        if library is None:
            return self.ref_terms(c, zw, zb, corr)
        out = np.empty(c.shape, np.uint64)
        shares = (corr[k] for k in ("e", "be", "we", "wbe"))
        arrays = [np.ascontiguousarray(a, np.uint64) for a in (public(), c, zw, zb, *shares)]
        code = library.privml_exp(
            _native.isa_level(), c.size, self.shift, *map(_native.address, [*arrays, out])
        )
        _native.check(code, "exp")
        return out

    def ref_terms(self, c: Words, zw: Words, zb: Words, corr: Shares) -> Words:
        """Twin of :meth:`terms`."""
        z_w, z_b = unpack(zw, self.shape), unpack(zb, self.shape)
        field = (c >> np.uint64(self.shift)) & FIELD
        late = exp_late(field)
        diff = exp_rise(field) - late
        s_w, s_b = ONE - (z_w + z_w), ONE - (z_b + z_b)
        both_open = late + diff * z_w
        out: Words = both_open * (z_b * corr["e"] + s_b * corr["be"])
        out += (diff * s_w) * (z_b * corr["we"] + s_b * corr["wbe"])
        return out

    def reach(self, x: Words) -> float:
        """Return the magnitude as a share of :data:`RANGE`; 1 or more if x is not below 0."""
        share = peak(x) / (RANGE * 2.0 ** (16 + self.shift))
        return share if not x.size or x.view(np.int64).max() < 0 else max(share, 1.0)

    def simulate(self, masks: Shares, x: Words) -> Words:
        """Return exp at scale 60 with the mask's rounding."""
        r = masks["r"]
        c, s = x + r, np.uint64(self.shift)
        up, down = (c >> s) & FIELD, (r >> s) & FIELD
        factor = np.where(up < down, exp_rise(up), exp_late(up))
        out: Words = self.digits.kept(x, r) * factor * exp_fall(down)
        return out
