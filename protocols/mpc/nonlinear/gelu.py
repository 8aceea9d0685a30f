r"""GELU by a quartic on |x| < T and the identity or zero outside, from one opening.

With u = 1{x < -T}, v = 1{x < 0}, w = 1{x < T}, E(x) = c4 x^4 + c2 x^2 + x/2 + c0 and
O(x) = c3 x^3 + c1 x (a polynomial in |x| equals E + sgn(x) O):

.. math:: GELU(x) = trunc((w - u) E + (u + w - 2v) O) + (1 - w) x .

One opening of x gives every power, all three comparisons and all selections: products of the
selection masks with powers of r are dealt. (1 - w) x is added after the truncation at its own
scale, so large x cannot overflow. Input scale 12, polynomial scale 60, output scale 16.

Maximum error of ``ring4`` 0.0022 on [-8, 8] in the 64-bit ring, rounding included; exact (up to
rounding) beyond. 5 flights, 16 B + 102 bit per element and direction; 4 flights, 16 B + 33 bit
where 24 bits hold x (``bits``). Two parties, semi-honest, dealer-hybrid. Piecewise form: BOLT
(ePrint 2023/1893) and BumbleBee (ePrint 2023/1678); coefficients and the one-opening evaluation
are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from privml import _native
from privml.protocols.mpc.arithmetic import truncate
from privml.protocols.mpc.boolean.compare import Signs, at_least, farthest, packed, shift
from privml.protocols.mpc.boolean.logic import unpack
from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.fields import bits as planes
from privml.protocols.mpc.ops import unpack_bits
from privml.protocols.mpc.primitive import HALF, ONE, TOP, Context, Cost, Primitive, Words, both

IN_SCALE, POLY_SCALE, OUT_SCALE = 12, 60, 16


@dataclass(frozen=True)
class Quartic:
    """Coefficients of the quartic in |x| (the linear part x/2 is implied) and its cut T."""

    cut: float
    c4: float
    c3: float
    c2: float
    c1: float
    c0: float
    max_err: float

    def integers(self) -> dict[str, int]:
        """Coefficients at the scales that bring every term to scale 60."""
        at = {"c4": self.c4, "c3": self.c3, "c2": self.c2, "c1": self.c1, "c0": self.c0}
        out = {k: round(v * 2 ** (POLY_SCALE - IN_SCALE * int(k[1]))) for k, v in at.items()}
        out["half"] = 1 << (POLY_SCALE - IN_SCALE - 1)
        out["cut"] = round(self.cut * 2**IN_SCALE)
        return out


#: Approximations by name; the handshake binds the numbers, not the name.
QUARTICS: Mapping[str, Quartic] = {
    "ring4": Quartic(3.2, 87 / 4096, -0.18515186, 0.54303227, -0.0386564, 0.00163329, 0.0023),
    "bolt4": Quartic(
        2.7, 0.020848611754127593, -0.18352506127082727, 0.5410550166368381,
        -0.03798164612714154, 0.001620808531841547, 0.0096,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Gelu(Primitive):
    """GELU of an array of ``shape`` at scale 12; the output has scale ``out``, 16 by default.

    The comparisons look at ``bits`` bits: x and x plus or minus the cut must fit.
    """

    shape: tuple[int, ...]
    variant: str = "ring4"
    out: int = OUT_SCALE
    bits: int = 64
    name: ClassVar[str] = "gelu"

    def constants(self) -> bytes:
        return repr(QUARTICS[self.variant].integers()).encode()

    @property
    def f(self) -> int:
        """Bits that the truncation drops."""
        return POLY_SCALE - self.out

    @property
    def signs(self) -> Signs:
        """Comparisons with -T, 0 and T."""
        return Signs(prod(self.shape), 3, self.bits)

    @property
    def thresholds(self) -> tuple[int, int, int]:
        """Ring integers of the three cuts."""
        cut = QUARTICS[self.variant].integers()["cut"]
        return (-cut, 0, cut)

    def fields(self) -> tuple[Field, ...]:
        s = self.shape
        return (
            mask("r", s), planes("b", (3, packed(prod(s)))), mask("q", s),
            derived("r2", s), derived("r3", s), derived("r4", s),
            derived("g", (5, *s)), derived("h", (5, *s)), derived("k", (4, *s)),
            derived("u", s), derived("v", s, dtype=truncate.wrap_dtype(self.f)),
            *self.signs.fields(),
        )  # fmt: skip

    def derive(self, free: Shares) -> Mapping[str, Array]:
        r = free["r"]
        powers = [np.ones_like(r), r, r * r]
        powers += [powers[2] * r, powers[2] * powers[2]]
        rho = [unpack(b, self.shape) for b in free["b"]]
        q = free["q"]
        return {
            "r2": powers[2], "r3": powers[3], "r4": powers[4],
            "g": np.stack([rho[0] * p for p in powers]),
            "h": np.stack([rho[2] * p for p in powers]),
            "k": np.stack([rho[1] * p for p in powers[:4]]),
            "u": q >> np.uint64(self.f), "v": (q >> TOP).astype(truncate.wrap_dtype(self.f)),
            **self.signs.derive(r, free),
        }  # fmt: skip

    def online(self) -> Cost:
        n = prod(self.shape)
        return both(16 * n, 2).then(self.signs.cost()).then(both(24 * packed(n)))

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Return a share of GELU(x) at scale 16."""
        (c,) = ctx.open(x + corr["r"])
        ge = self.signs.run(ctx, corr, shift(c.reshape(-1), self.thresholds))
        (opened,) = ctx.open_bits(ge ^ corr["b"])
        masked, large = self.terms(c, opened, corr, ctx.rank)
        masked += corr["q"]
        if ctx.rank == 0:
            masked += HALF
        (d,) = ctx.open(masked)
        out = truncate.finish(d, corr, self.f, ctx.rank)
        large <<= np.uint64(self.out - IN_SCALE)
        out += large
        return out

    def terms(self, c: Words, opened: Words, corr: Shares, rank: int) -> tuple[Words, Words]:
        """Shares of the polynomial part at scale 60 and of (1 - w) x at scale 12.

        Parameters
        ----------
        c
            Opened ``x + r``, of ``shape``.
        opened
            (3, packed(n)): opened bits 1{x >= -T}, 1{x >= 0}, 1{x >= T} under masks.
        corr, rank
            This party's shares, and its rank.
        """
        library = _native.load()
        if library is None:
            return self.ref_terms(c, opened, corr, rank)
        coef = np.array([_w(k) for k in self._integers()])
        shares = (corr[k] for k in ("r", "r2", "r3", "r4", "g", "h", "k"))
        arrays = [np.ascontiguousarray(a, np.uint64) for a in (coef, c, opened, *shares)]
        arrays += [np.empty(c.shape, np.uint64), np.empty(c.shape, np.uint64)]
        code = library.privml_gelu(_native.isa_level(), c.size, rank, *map(_native.address, arrays))
        _native.check(code, "gelu")
        return arrays[-2], arrays[-1]

    def ref_terms(self, c: Words, opened: Words, corr: Shares, rank: int) -> tuple[Words, Words]:
        """Twin of :meth:`terms`."""
        z = unpack_bits(opened, c.size).reshape(3, *self.shape)
        powers: list[Array | None] = [None, corr["r"], corr["r2"], corr["r3"], corr["r4"]]
        even, odd = self._expand(c)
        # at least -T, 0, T: u = 1 - ge0, v = 1 - ge1, w = 1 - ge2 gives
        # (w - u) = ge0 - ge2 and (u + w - 2v) = 2 ge1 - ge0 - ge2.
        poly = _bit_times(z[0], powers, corr["g"], _sub(even, odd), rank)
        poly -= _bit_times(z[2], powers, corr["h"], _add(even, odd), rank)
        poly += _bit_times(z[1], powers, corr["k"], [o + o for o in odd[:4]], rank)
        linear = [c, np.full_like(c, (1 << 64) - 1)]
        return poly, _bit_times(z[2], powers, corr["h"], linear, rank)

    def _integers(self) -> tuple[int, ...]:
        k = QUARTICS[self.variant].integers()
        return k["c4"], k["c3"], k["c2"], k["c1"], k["c0"], k["half"]

    def _expand(self, c: Words) -> tuple[list[Words], list[Words]]:
        """Coefficients of E and O as polynomials in r, with x = c - r."""
        c4, c3_, c2_, c1, c0, half = self._integers()
        c2 = c * c
        c3 = c2 * c
        zero = np.zeros_like(c)
        even = [
            _w(c4) * (c2 * c2) + _w(c2_) * c2 + _w(half) * c + _w(c0),
            _w(-4 * c4) * c3 - _w(2 * c2_) * c - _w(half),
            _w(6 * c4) * c2 + _w(c2_),
            _w(-4 * c4) * c,
            zero + _w(c4),
        ]
        odd = [
            _w(c3_) * c3 + _w(c1) * c,
            _w(-3 * c3_) * c2 - _w(c1),
            _w(3 * c3_) * c,
            zero - _w(c3_),
            zero,
        ]
        return even, odd

    def reach(self, x: Words) -> float:
        """Return the largest difference from a cut, as a share of what ``bits`` hold."""
        return farthest(x, self.thresholds) / 2.0 ** (self.bits - 1)

    def simulate(self, masks: Shares, x: Words) -> Words:
        """Return GELU at scale 16 with the mask's rounding."""
        c4, c3, c2, c1, c0, half = self._integers()
        x2 = x * x
        even = _w(c4) * (x2 * x2) + _w(c2) * x2 + _w(half) * x + _w(c0)
        odd = _w(c3) * (x2 * x) + _w(c1) * x
        low, mid, high = at_least(x, self.thresholds, self.bits)
        poly = (low - high) * even + (mid + mid - low - high) * odd
        out = truncate.simulate(poly, masks["q"], self.f)
        out += (high * x) << np.uint64(self.out - IN_SCALE)
        return out


def _w(value: int) -> np.uint64:
    """Ring word of a signed public integer."""
    return np.uint64(value % (1 << 64))


def _add(a: list[Words], b: list[Words]) -> list[Words]:
    return [x + y for x, y in zip(a, b, strict=True)]


def _sub(a: list[Words], b: list[Words]) -> list[Words]:
    return [x - y for x, y in zip(a, b, strict=True)]


def _bit_times(
    z: Words, powers: list[Array | None], masked: Array, coef: list[Words], rank: int
) -> Words:
    """Share of bit * P(r): opened z = bit ^ rho, dealt powers r^j and rho * r^j."""
    plain = np.zeros_like(z)
    hidden = np.zeros_like(z)
    for j, a in enumerate(coef):
        hidden += a * masked[j]
        power = powers[j]
        if power is not None:
            plain += a * power
        elif rank == 0:
            plain += a
    return z * plain + (ONE - (z + z)) * hidden
