"""The keyed hash and the node generator over arrays; equal to :mod:`.siphash` word for word."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.unlearning.forest import siphash as sh

Words: TypeAlias = NDArray[np.uint64]


def child_keys(key: bytes, kappa: Words, side: Words) -> Words:
    """Return ``keyed_hash(key, CHILD, kappa, side)`` elementwise.

    Parameters
    ----------
    key
        16 bytes.
    kappa
        (n,) uint64 keys of the parents.
    side
        (n,) uint64, 0 for the left child and 1 for the right.
    """
    eight, high = np.uint64(8), np.uint64(56)
    first: Words = (kappa << eight) | np.uint64(sh.CHILD)
    second: Words = (kappa >> high) | (side << eight)
    last: Words = (side >> high) | np.uint64(17 << 56)  # a message of 17 bytes
    k0, k1 = (np.uint64(int.from_bytes(part, "little")) for part in (key[:8], key[8:]))
    ones = np.ones_like(kappa)
    v0: Words = ones * (k0 ^ np.uint64(0x736F6D6570736575))
    v1: Words = ones * (k1 ^ np.uint64(0x646F72616E646F6D))
    v2: Words = ones * (k0 ^ np.uint64(0x6C7967656E657261))
    v3: Words = ones * (k1 ^ np.uint64(0x7465646279746573))
    for word in (first, second, last):
        v0, v1, v2, v3 = _round(*_round(v0, v1, v2, v3 ^ word))
        v0 = v0 ^ word
    v2 = v2 ^ np.uint64(0xFF)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


def node_draws(kappa: Words, tag: int, a: Words, j: Words, v: Words) -> Words:
    """Return ``node_draw(kappa, tag, a, j, v)`` elementwise; all arrays are (n,) uint64."""
    step: Words = np.uint64(sh.GOLDEN) * (v + np.uint64(1))
    return _fmix(draw_bases(kappa, tag, a, j) + step)


def draw_bases(kappa: Words, tag: int, a: Words, j: Words) -> Words:
    """Return the part of :func:`node_draws` that is the same for all ``v``."""
    place: Words = np.uint64(tag << 56) ^ (a << np.uint64(24)) ^ j
    return _fmix(kappa ^ place)


def _fmix(z: Words) -> Words:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _round(v0: Words, v1: Words, v2: Words, v3: Words) -> tuple[Words, Words, Words, Words]:
    v0, v2 = v0 + v1, v2 + v3
    v1, v3 = _turn(v1, 13) ^ v0, _turn(v3, 16) ^ v2
    v0, v2 = _turn(v0, 32) + v3, v2 + v1
    v3, v1 = _turn(v3, 21) ^ v0, _turn(v1, 17) ^ v2
    return v0, v1, _turn(v2, 32), v3


def _turn(words: Words, by: int) -> Words:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))
