r"""exp(x) for x <= 0 of low-importance rows: a 12-bit argument instead of a 20-bit one.

As in the engine's exp, with c = x + r opened, c' and r' are the digits of c and r with 9 fractional
bits and period 8. c' - r' mod 2^12 is x rounded to 9 fractional bits, down or up by the borrow of
the low bits (unbiased), and

.. math:: e^x = e^{c'} e^{-r'} \cdot (1 \text{ if } c' < r' \text{ else } e^{-8}) .

The dealer shares E = exp(-r') at scale 22; exp(c') is public, at scale 8; the result has scale 30.
w = 1{c' < r'} is one comparison of three 4-bit chunks, on the one-hot words that the clip test
needs anyway. Both bits are opened under masks, and products of E with the masks are dealt, so the
selection is local. The result is exactly 0 below -8, and never from -8 + 2^-5 on: the clip test
looks at 24 bits, of which the lowest stands for 2^-5. Hence |x| must stay below 2^18.

The caller passes x minus one unit of 2^-9, which makes x <= -2^-9 and removes the tie c' = r' = x
rounded up to 0 (it would read as -8); in a softmax the common factor exp(-2^-9) cancels.

Error: at most 2^-8 absolute before the caller's truncation: half from the rounding of x, half from
the rounding of the public factor; up to exp(-7.97) = 3.5e-4 is cut. 3 flights (open, compare,
select), 8 B + 16 bit per element and direction. Two parties, semi-honest, dealer-hybrid; the view
is uniform words and bits. Source: ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cache
from math import prod
from typing import ClassVar, Final

import numpy as np

from privml import _native
from privml.errors import ParameterError
from privml.protocols.mpc.boolean.compare import packed
from privml.protocols.mpc.boolean.digits import Digits
from privml.protocols.mpc.boolean.logic import unpack
from privml.protocols.mpc.fields import Array, Field, Shares, bits, derived, mask
from privml.protocols.mpc.primitive import ONE, Context, Cost, Primitive, Words, both, peak

#: Below this (in natural units) the result is exactly zero.
CLIP: Final = -8
#: Fractional bits of the digit, its width, and the scale of the result.
FRACTION, DIGIT_BITS, OUT_SCALE = 9, 12, 30
_PUBLIC, _DEALT = 8, 22
_SKIP: Final = 16 - FRACTION
_CHUNKS: Final = DIGIT_BITS // 4
_WINDOW: Final = 1  # chunks of the digit below the clip's window
#: Magnitude of x, in natural units, from which on the clip test is not right.
RANGE: Final = 2.0**18
#: Largest shift: the clip's window ends at the top of the ring.
MAX_SHIFT: Final = 29
_DIGIT = np.uint64((1 << DIGIT_BITS) - 1)


@dataclass(frozen=True)
class ExpLow(Primitive):
    """Short exp of an array of ``shape`` whose scale is ``16 + shift``; shift % 4 == 1.

    The condition puts the digit's lowest bit, ``shift + 7``, on a chunk of the comparison.
    """

    shape: tuple[int, ...]
    shift: int
    name: ClassVar[str] = "exp_low"

    def __post_init__(self) -> None:
        if self.shift % 4 != 1 or not 0 <= self.shift <= MAX_SHIFT:
            raise ParameterError(
                f"the low exp takes 17 to {16 + MAX_SHIFT} fractional bits in steps of 4, not "
                f"{16 + self.shift}; rescale its input"
            )

    def constants(self) -> bytes:
        return digest()

    @property
    def digits(self) -> Digits:
        """The comparisons c' < r' and x >= the clip, one unit of the clip's window up."""
        start = self.shift + _SKIP
        threshold = (CLIP << (16 + self.shift)) + (1 << (start + 4 * _WINDOW))
        return Digits(prod(self.shape), start, _CHUNKS, _WINDOW, threshold)

    def fields(self) -> tuple[Field, ...]:
        s, pw = self.shape, (packed(prod(self.shape)),)
        return (
            mask("r", s), bits("bw", pw), bits("bb", pw),
            derived("be", s), derived("wbe", s), derived("se", s), derived("wse", s),
            *self.digits.fields(),
        )  # fmt: skip

    def derive(self, free: Shares) -> Mapping[str, Array]:
        e = _tables()["fall"][self._digit(free["r"])]
        we = unpack(free["bw"], self.shape) * e
        rho = unpack(free["bb"], self.shape)
        sign = ONE - (rho + rho)
        return {
            "be": rho * e, "wbe": rho * we, "se": sign * e, "wse": sign * we,
            **self.digits.derive(free["r"], free),
        }  # fmt: skip

    def online(self) -> Cost:
        n = prod(self.shape)
        return both(8 * n).then(self.digits.cost()).then(both(16 * packed(n)))

    def _digit(self, x: Words) -> Words:
        return (x >> np.uint64(self.shift + _SKIP)) & _DIGIT

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Return a share of exp(x) at scale 30."""
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
        shares = (corr[k] for k in ("be", "wbe", "se", "wse"))
        arrays = [np.ascontiguousarray(a, np.uint64) for a in (_public(), c, zw, zb, *shares)]
        code = library.privml_exp_low(
            _native.isa_level(), c.size, self.shift + _SKIP, *map(_native.address, [*arrays, out])
        )
        _native.check(code, "exp_low")
        return out

    def ref_terms(self, c: Words, zw: Words, zb: Words, corr: Shares) -> Words:
        """Twin of :meth:`terms`."""
        at = self._digit(c)
        at |= unpack(zw, self.shape) << np.uint64(DIGIT_BITS)
        factor, other = (table[at] for table in _factors())
        # bit_b e = rho_b e + z_b (1 - 2 rho_b) e, and likewise for the product with w
        out: Words = unpack(zb, self.shape) * (factor * corr["se"] + other * corr["wse"])
        out += factor * corr["be"]
        out += other * corr["wbe"]
        return out

    def reach(self, x: Words) -> float:
        """Return the magnitude as a share of :data:`RANGE`; 1 or more if x is not below 0."""
        share = peak(x) / (RANGE * 2.0 ** (16 + self.shift))
        return share if not x.size or x.view(np.int64).max() < 0 else max(share, 1.0)

    def simulate(self, masks: Shares, x: Words) -> Words:
        """Return exp at scale 30 with the mask's rounding."""
        r = masks["r"]
        up, down = self._digit(x + r), self._digit(r)
        tables = _tables()
        factor = np.where(up < down, tables["rise"][up], tables["late"][up])
        out: Words = self.digits.kept(x, r) * factor * tables["fall"][down]
        return out


@cache
def _tables() -> dict[str, Words]:
    """exp(t/2^9) and exp(t/2^9 - 8) at scale 8, exp(-t/2^9) at scale 22, for every digit t."""
    step = Decimal(1) / (1 << FRACTION)
    return {
        "rise": _table(Decimal(0), step, scale=_PUBLIC),
        "late": _table(Decimal(CLIP), step, scale=_PUBLIC),
        "fall": _table(Decimal(0), -step, scale=_DEALT),
    }


def _table(first: Decimal, step: Decimal, *, scale: int) -> Words:
    """Correctly rounded exponentials, the same words on every machine."""
    with localcontext() as ctx:
        ctx.prec = 40
        exact = [(first + step * t).exp() * (1 << scale) for t in range(1 << DIGIT_BITS)]
        return np.array([int(v.to_integral_value()) for v in exact], np.uint64)


@cache
def _factors() -> tuple[Words, Words]:
    """Public factor by opened bit and digit, and what the bit's mask changes it by."""
    rise, late = _tables()["rise"], _tables()["late"]
    return np.concatenate([late, rise]), np.concatenate([rise - late, late - rise])


@cache
def _public() -> Words:
    """Tables of the public factor that the kernel reads: at digits that do not wrap, then late."""
    return np.concatenate([_tables()["rise"], _tables()["late"]])


@cache
def digest() -> bytes:
    """SHA-256 of all tables."""
    h = hashlib.sha256()
    for name, table in sorted(_tables().items()):
        h.update(name.encode() + table.astype("<u8").tobytes())
    return h.digest()
