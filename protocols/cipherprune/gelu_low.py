r"""GELU of low-importance rows: a parabola on |x| < T, the identity above, zero below.

.. math:: GELU(x) \approx m (c_2 x^2 + x/2) + h x, \qquad
          m = 1\{-T \le x < T\}, \quad h = 1\{x \ge T\}.

One opening of x gives the powers, both comparisons and both selections; products of the selection
masks with powers of the mask r are dealt. Input scale 12, output scale 32, no truncation: the
square has scale 24 and c2 = 73/256 has scale 8. Exact in the ring for any input whose x has
magnitude below 2^30 (it can then be truncated).

Continuous up to 5e-6 at both cuts; maximum error against GELU 0.070, rms on [-8, 8] 0.022. 4
flights, 8 B + 68 bit per element and direction; 3 flights, 8 B + 22 bit where 24 bits hold x
(``bits``). Two parties, semi-honest, dealer-hybrid; the view
is uniform words and bits. The form is that of CipherPrune; coefficients and the one-opening
evaluation are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Final

import numpy as np

from privml import _native
from privml.protocols.mpc.boolean.compare import Signs, at_least, farthest, packed, shift
from privml.protocols.mpc.boolean.logic import unpack
from privml.protocols.mpc.fields import Array, Field, Shares, derived, mask
from privml.protocols.mpc.fields import bits as planes
from privml.protocols.mpc.primitive import ONE, Context, Cost, Primitive, Words, both

IN_SCALE, OUT_SCALE = 12, 32
#: The cut T at scale 12 and the coefficient of x^2 at scale 8.
CUT: Final = 7182
SQUARE: Final = 73
_HALF_X: Final = OUT_SCALE - IN_SCALE - 1
#: Elements that are combined at a time, so that intermediate words stay in the cache.
_BLOCK: Final = 1 << 14


@dataclass(frozen=True)
class GeluLow(Primitive):
    """Two-piece GELU of an array of ``shape`` at scale 12; the output has scale 32.

    The comparisons look at ``bits`` bits: x and x plus or minus the cut must fit.
    """

    shape: tuple[int, ...]
    bits: int = 64
    name: ClassVar[str] = "gelu_low"

    def constants(self) -> bytes:
        return repr((IN_SCALE, OUT_SCALE, CUT, SQUARE)).encode()

    @property
    def signs(self) -> Signs:
        """Comparisons with -T and T."""
        return Signs(prod(self.shape), 2, self.bits)

    @property
    def thresholds(self) -> tuple[int, int]:
        """Ring integers of the two cuts."""
        return (-CUT, CUT)

    def fields(self) -> tuple[Field, ...]:
        s = self.shape
        return (
            mask("r", s), planes("b", (2, packed(prod(s)))), derived("r2", s),
            derived("m", (3, *s)), derived("h", (2, *s)), *self.signs.fields(),
        )  # fmt: skip

    def derive(self, free: Shares) -> Mapping[str, Array]:
        r = free["r"]
        middle, high = (unpack(b, self.shape) for b in free["b"])
        r2 = r * r
        return {
            "r2": r2, "m": np.stack([middle, middle * r, middle * r2]),
            "h": np.stack([high, high * r]), **self.signs.derive(r, free),
        }  # fmt: skip

    def online(self) -> Cost:
        n = prod(self.shape)
        return both(8 * n).then(self.signs.cost()).then(both(16 * packed(n)))

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Return a share of GELU(x) at scale 32."""
        (c,) = ctx.open(x + corr["r"])
        low, high = self.signs.run(ctx, corr, shift(c.reshape(-1), self.thresholds))
        (opened,) = ctx.open_bits(np.stack([low ^ high, high]) ^ corr["b"])
        return self.terms(c, opened, corr, ctx.rank)

    def terms(self, c: Words, opened: Words, corr: Shares, rank: int) -> Words:
        """Share of the result.

        Parameters
        ----------
        c
            Opened ``x + r``, of ``shape``.
        opened
            (2, packed(n)): opened bits 1{-T <= x < T} and 1{x >= T} under masks.
        corr, rank
            This party's shares, and its rank.
        """
        library = _native.load()
        if library is None:
            return self.ref_terms(c, opened, corr, rank)
        out = np.empty(c.shape, np.uint64)
        coef = np.array([SQUARE, 1 << _HALF_X], np.uint64)
        shares = (corr[k] for k in ("r", "r2", "m", "h"))
        arrays = [np.ascontiguousarray(a, np.uint64) for a in (coef, c, opened, *shares)]
        code = library.privml_gelu_low(
            _native.isa_level(), c.size, rank, *map(_native.address, [*arrays, out])
        )
        _native.check(code, "gelu_low")
        return out

    def ref_terms(self, c: Words, opened: Words, corr: Shares, rank: int) -> Words:
        """Twin of :meth:`terms`."""
        flat, n = c.reshape(-1), c.size
        z_m, z_h = unpack(opened[0], (n,)), unpack(opened[1], (n,))
        r, r2 = corr["r"].reshape(-1), corr["r2"].reshape(-1)
        m, h = corr["m"].reshape(3, -1), corr["h"].reshape(2, -1)
        out = np.empty(n, np.uint64)
        for at in range(0, n, _BLOCK):
            cut = slice(at, at + _BLOCK)
            middle = _chosen(z_m[cut], [None, r[cut], r2[cut]], m[:, cut], rank)
            above = _chosen(z_h[cut], [None, r[cut]], h[:, cut], rank)
            out[cut] = _combined(flat[cut], middle, above)
        return out.reshape(self.shape)

    def reach(self, x: Words) -> float:
        """Return the largest difference from a cut, as a share of what ``bits`` hold."""
        return farthest(x, self.thresholds) / 2.0 ** (self.bits - 1)

    def simulate(self, masks: Shares, x: Words) -> Words:
        """Return the clear two-piece GELU at scale 32."""
        low, high = at_least(x, self.thresholds, self.bits)
        linear = x << np.uint64(_HALF_X)
        out: Words = (low - high) * (np.uint64(SQUARE) * (x * x) + linear)
        out += high * (linear + linear)
        return out


def _chosen(z: Words, powers: list[Array | None], hidden: Array, rank: int) -> list[Words]:
    """Shares of bit * r^j for each j: opened z = bit ^ rho, dealt r^j and rho * r^j."""
    sign = ONE - (z + z)
    out: list[Words] = []
    for power, product in zip(powers, hidden, strict=True):
        share = sign * product
        if power is not None:
            share += z * power
        elif rank == 0:
            share += z
        out.append(share)
    return out


def _combined(c: Words, middle: list[Words], above: list[Words]) -> Words:
    """Add up both pieces at x = c - r from shares of their bit times 1, r and r^2."""
    constant, linear, square = middle
    parabola: Words = (c * constant - (linear + linear)) * c + square
    slope: Words = c * (constant + (above[0] + above[0])) - (linear + (above[1] + above[1]))
    return parabola * np.uint64(SQUARE) + (slope << np.uint64(_HALF_X))
