"""Keyed hash and node generator of the forest, slow and obvious.

``H_k(domain, f1, f2, ...)`` is SipHash-2-4 (64-bit output) over one domain byte followed by the
fields as little-endian 64-bit words. ``G`` draws the numbers of one node from the node's key with
the splitmix64 finaliser (Stafford's mix 13). Both are part of format version 1 of the forest.

Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT 2012.
"""

from __future__ import annotations

from typing import Final

MASK: Final = (1 << 64) - 1
GOLDEN: Final = 0x9E3779B97F4A7C15

ROOT: Final = 0
CHILD: Final = 1
MEMBERSHIP: Final = 2
"""Domain bytes of ``H``."""

PERMUTATION: Final = 1
THRESHOLD: Final = 2
MISSING_SIDE: Final = 3
CATEGORY: Final = 4
"""Tags of ``G``."""


def siphash24(key: bytes, data: bytes) -> int:
    """Return SipHash-2-4 of ``data`` under a key of 16 bytes, 0 <= result < 2^64."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    state = (
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    )
    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        v0, v1, v2, v3 = state
        v0, v1, v2, v3 = _round(*_round(v0, v1, v2, v3 ^ word))
        state = v0 ^ word, v1, v2, v3
    v0, v1, v2, v3 = state
    v2 ^= 0xFF
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def keyed_hash(key: bytes, domain: int, *fields: int) -> int:
    """Return ``H_key(domain, fields...)``, 0 <= result < 2^64."""
    words = b"".join(field.to_bytes(8, "little") for field in fields)
    return siphash24(key, bytes([domain]) + words)


def bounded(hashed: int, limit: int) -> int:
    """Map 64 uniform bits to 0..limit-1: the high word of the 128-bit product."""
    return (hashed * limit) >> 64


def node_draw(kappa: int, tag: int, a: int, j: int, v: int = 0) -> int:
    """Return ``G(kappa, tag, a, j, v)``, 64 bits.

    Parameters
    ----------
    kappa
        Key of the node.
    tag
        :data:`PERMUTATION`, :data:`THRESHOLD`, :data:`MISSING_SIDE` or :data:`CATEGORY`.
    a
        Attribute, or the step of the permutation.
    j
        Candidate index.
    v
        Category code.
    """
    inner = fmix(kappa ^ (tag << 56) ^ (a << 24) ^ j)
    return fmix((inner + GOLDEN * (v + 1)) & MASK)


def fmix(z: int) -> int:
    """Return the splitmix64 finaliser of a 64-bit word: a bijection that mixes all bits."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0, v2 = (v0 + v1) & MASK, (v2 + v3) & MASK
    v1, v3 = _turn(v1, 13) ^ v0, _turn(v3, 16) ^ v2
    v0, v2 = (_turn(v0, 32) + v3) & MASK, (v2 + v1) & MASK
    v3, v1 = _turn(v3, 21) ^ v0, _turn(v1, 17) ^ v2
    return v0, v1, _turn(v2, 32), v3


def _turn(word: int, by: int) -> int:
    return ((word << by) | (word >> (64 - by))) & MASK
