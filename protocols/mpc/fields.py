"""Correlated randomness as named fields, cut into two seeds and one stream of corrections.

A primitive declares the randomness it needs as a tuple of :class:`Field`. *Free* fields are drawn
by the parties from their own seeds (a mask is the sum, or XOR, of both draws; a field with an
``owner`` is one party's draw alone). *Derived* fields are functions of the free ones: party 0 draws
its share from its seed as well, and party 1 receives ``value - share`` as a correction. Hence party
0's whole supply is one 32-byte seed, party 1's a seed and a stream of corrections.

Source: the seed-compressed dealer is folklore; the layout is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privml.errors import internal
from privml.rng import Csprng

Array = NDArray[Any]
Shares = Mapping[str, Array]
Group = Literal["add", "xor"]

#: Streams reserved for one item; more fields than this would make nonces collide.
STREAMS_PER_ITEM = 64


@dataclass(frozen=True)
class Field:
    """One array of correlated randomness.

    Parameters
    ----------
    name
        Key under which protocol code finds the share.
    shape
        Shape of the array.
    dtype
        ``"u8"`` and so on in numpy notation without byte order: the width of one entry.
    group
        ``"add"``: shares sum to the value modulo the width; ``"xor"``: they XOR to it.
    derived
        Whether the value is a function of the free fields (and so needs a correction).
    owner
        Rank of the only party that knows a free field, or ``None`` if it is shared.
    setup
        Name of a stream of the once-per-pool key instead of the run's key, or ``None``.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "u8"
    group: Group = "add"
    derived: bool = False
    owner: int | None = None
    setup: str | None = None

    @property
    def nbytes(self) -> int:
        """Size of one share in bytes."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


def mask(name: str, shape: tuple[int, ...], *, dtype: str = "u8") -> Field:
    """Free additive mask, uniform over the whole ring."""
    return Field(name, shape, dtype)


def bits(name: str, shape: tuple[int, ...]) -> Field:
    """Free XOR-shared bit planes; the last axis counts 64-bit words."""
    return Field(name, shape, group="xor")


def derived(name: str, shape: tuple[int, ...], *, dtype: str = "u8", group: Group = "add") -> Field:
    """Value that the dealer computes from the free fields."""
    return Field(name, shape, dtype, group, derived=True)


def correction_bytes(fields: tuple[Field, ...]) -> int:
    """Bytes that party 1 receives for these fields."""
    return sum(f.nbytes for f in fields if f.derived)


@dataclass(frozen=True)
class Seeds:
    """Keys one holder has: per-run keys by rank (``None`` where unknown) and the set-up key."""

    runs: tuple[Csprng | None, Csprng | None]
    setup: Csprng | None

    @classmethod
    def of_party(cls, rank: int, run: Csprng, setup: Csprng | None) -> Seeds:
        """Keys of one party."""
        return cls((run, None) if rank == 0 else (None, run), setup)


def _draw(seeds: Seeds, rank: int, field: Field, nonce: int) -> Array:
    if field.setup is not None and seeds.setup is not None:
        return setup_mask(seeds.setup, field.setup, field.shape)
    source = seeds.runs[rank]
    if field.setup is not None or source is None:
        raise AssertionError("internal error in privml: a key that this holder lacks")
    return source.words(field.shape, nonce, dtype=np.dtype(field.dtype))


def _join(field: Field, a: Array, b: Array) -> Array:
    return a + b if field.group == "add" else a ^ b


def _split(field: Field, value: Array, share: Array) -> Array:
    return value - share if field.group == "add" else value ^ share


def _numbered(fields: tuple[Field, ...], item: int) -> Iterator[tuple[int, Field]]:
    internal(len(fields) <= STREAMS_PER_ITEM, "too many fields in one item")
    return ((item * STREAMS_PER_ITEM + k, f) for k, f in enumerate(fields))


Derive = Callable[[Shares], Mapping[str, Array]]


def clear_values(fields: tuple[Field, ...], derive: Derive, item: int, seeds: Seeds) -> Shares:
    """Return the clear value of every field (dealer and simulator only).

    Cost: two keystreams of the size of the free fields, plus what ``derive`` computes.
    """
    values: dict[str, Array] = {}
    for nonce, f in _numbered(fields, item):
        if f.derived:
            continue
        if f.owner is not None:
            values[f.name] = _draw(seeds, f.owner, f, nonce)
        else:
            values[f.name] = _join(f, _draw(seeds, 0, f, nonce), _draw(seeds, 1, f, nonce))
    values.update(derive(values))
    return values


class LazyValues(Mapping[str, Array]):
    """Clear field values for the simulator, drawn when asked for."""

    def __init__(self, fields: tuple[Field, ...], derive: Derive, item: int, seeds: Seeds) -> None:
        self._fields = {f.name: (nonce, f) for nonce, f in _numbered(fields, item)}
        self._derive, self._seeds = derive, seeds
        self._done: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._done:
            nonce, f = self._fields[name]
            if f.derived:
                self._done.update(self._derive(self))
            elif f.owner is not None:
                self._done[name] = _draw(self._seeds, f.owner, f, nonce)
            else:
                self._done[name] = _join(
                    f, _draw(self._seeds, 0, f, nonce), _draw(self._seeds, 1, f, nonce)
                )
        return self._done[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def setup_mask(setup: Csprng, weight: str, shape: tuple[int, ...]) -> Array:
    """Return the once-per-pool mask B of the weight matrix named ``weight``."""
    return setup.child("setup", weight).words(shape, 0)


def corrections(
    fields: tuple[Field, ...], derive: Derive, item: int, seeds: Seeds
) -> Iterator[Array]:
    """Yield party 1's correction for each derived field, in field order."""
    values = clear_values(fields, derive, item, seeds)
    for nonce, f in _numbered(fields, item):
        if f.derived:
            internal(values[f.name].shape == f.shape, f"shape of {f.name}")
            internal(values[f.name].dtype == np.dtype(f.dtype), f"dtype of {f.name}")
            yield _split(f, values[f.name], _draw(seeds, 0, f, nonce))


def expand(
    fields: tuple[Field, ...],
    item: int,
    rank: int,
    seeds: Seeds,
    read: Callable[[int], memoryview] | None,
) -> Shares:
    """Return this party's share of every field it holds; once-per-pool masks are left out.

    Parameters
    ----------
    read
        For party 1: returns the next ``n`` bytes of its correction stream.
    """
    shares: dict[str, Array] = {}
    for nonce, f in _numbered(fields, item):
        if f.setup is not None or f.owner not in (None, rank):
            continue
        if f.derived and rank == 1:
            internal(read is not None, "party 1 needs its corrections")
            raw = read(f.nbytes) if read else b""
            shares[f.name] = np.frombuffer(raw, dtype=np.dtype(f.dtype)).reshape(f.shape)
        else:
            shares[f.name] = _draw(seeds, rank, f, nonce)
    return shares
