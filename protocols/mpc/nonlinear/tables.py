"""Exponential tables in integers: the same words on every machine.

Public factors that both parties multiply their shares with must be bit-equal on both hosts, so no
floating-point exponential is used: 1,024-entry tables are computed with :mod:`decimal` (40 digits,
correctly rounded by its specification) and joined by integer arithmetic.

A 20-bit argument t (16 fractional bits, so t / 2^16 in [0, 16)) is split into k = t >> 10 and
j = t mod 2^10: exp(t/2^16) = exp(k/2^6) * (1 + e_j), e_j < 2^-6.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal, localcontext
from functools import cache

import numpy as np

from privml.protocols.mpc.primitive import Words

FIELD_BITS = 20
FIELD = np.uint64((1 << FIELD_BITS) - 1)
_LOW = np.uint64(10)
_FINE = 24


def _table(first: Decimal, step: Decimal, *, scale: int, minus_one: bool = False) -> Words:
    with localcontext() as ctx:
        ctx.prec = 40
        values = []
        for i in range(1024):
            e = (first + step * i).exp() - (1 if minus_one else 0)
            values.append(int((abs(e) * (1 << scale)).to_integral_value()))
    return np.array(values, np.uint64)


@cache
def _tables() -> dict[str, Words]:
    coarse, fine = Decimal(1) / 64, Decimal(1) / 65536
    zero = Decimal(0)
    return {
        "rise": _table(zero, coarse, scale=22),
        "rise_lo": _table(zero, fine, scale=_FINE, minus_one=True),
        "late": _table(Decimal(-16), coarse, scale=40),
        "fall": _table(zero, -coarse, scale=42),
        "fall_lo": _table(zero, -fine, scale=_FINE, minus_one=True),
    }


@cache
def public() -> Words:
    """Tables that the kernel of exp reads: of exp_rise, the fine one of both, of exp_late."""
    t = _tables()
    return np.concatenate([t["rise"], t["rise_lo"], t["late"]])


@cache
def digest() -> bytes:
    """SHA-256 of all tables."""
    h = hashlib.sha256()
    for name, table in sorted(_tables().items()):
        h.update(name.encode() + table.astype("<u8").tobytes())
    return h.digest()


def _split(t: Words) -> tuple[Words, Words]:
    return t >> _LOW, t & np.uint64(1023)


def exp_rise(t: Words) -> Words:
    """exp(t/2^16) at scale 18; relative error below 2^-18 for every 20-bit t."""
    k, j = _split(t)
    hi = _tables()["rise"][k]
    return (hi + ((hi * _tables()["rise_lo"][j]) >> np.uint64(_FINE))) >> np.uint64(4)


def exp_late(t: Words) -> Words:
    """exp(t/2^16 - 16) at scale 18; absolute error below 2^-17.9 for every 20-bit t."""
    k, j = _split(t)
    hi = _tables()["late"][k]
    return (hi + ((hi * _tables()["rise_lo"][j]) >> np.uint64(_FINE))) >> np.uint64(22)


def exp_fall(t: Words) -> Words:
    """exp(-t/2^16) at scale 42; relative error below 2^-24.9, plus 2 units, for every 20-bit t."""
    k, j = _split(t)
    hi = _tables()["fall"][k]
    return hi - ((hi * _tables()["fall_lo"][j]) >> np.uint64(_FINE))
