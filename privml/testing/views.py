"""A party's view of a run, and the search for structure in it.

A view is everything one party holds when a run is over: its input shares, its correlations and
every value that was opened or sent to it. In the masked family all of this is jointly uniform
whatever the secrets are, so a view is searched for any departure: bits and bytes that are not
uniform, pairs of bits that are not independent, sums and differences of words that are not uniform
(a mask used twice, a mask that the party knows), and any difference between two secrets.

False alarms: each search is told the probability ``alpha`` of one alarm on an honest protocol and
splits it over at most ``MAX_TESTS`` tests (Bonferroni), with thresholds from tail bounds that hold
at any such level: Hoeffding for bits, Laurent and Massart for chi-square, Massart for
Kolmogorov-Smirnov.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from privml.errors import internal
from privml.protocols.mpc.fields import Array
from privml.protocols.mpc.primitive import Context, Wire

ALPHA = 1e-8
"""Probability of a false alarm of one search; a suite of 100 stays below 1e-6."""
MAX_TESTS = 10_000_000
PAIR_SAMPLES = 4096
"""Samples that pairs of bits are looked at over: enough for a correlation of 0.14."""
_CELLS = 256
BLOCK_BYTES = 16

Signs = NDArray[np.float32]


@dataclass(frozen=True)
class Column:
    """One array of a view; ``planes`` says that its words are packed bits of 64 elements each."""

    array: Array
    planes: bool = False


View = Mapping[str, Column]


class Tap(Context):
    """Context that keeps what the party learns from each message.

    Parameters
    ----------
    planes_received
        Whether what rank 1 receives one way are packed bits.
    """

    def __init__(self, wire: Wire, *, planes_received: bool = False) -> None:
        super().__init__(wire)
        self.seen: dict[str, Column] = {}
        self._planes = planes_received and self.rank == 1

    def _keep(self, what: str, arrays: Sequence[Array], *, planes: bool = False) -> None:
        for array in arrays:
            self.seen[f"{what}.{len(self.seen)}"] = Column(np.array(array), planes=planes)

    def open(self, *shares: Array) -> list[Array]:
        """Open words and keep them."""
        out = super().open(*shares)
        self._keep("opened", out)
        return out

    def open_bits(self, *shares: Array) -> list[Array]:
        """Open bit planes and keep them."""
        out = super().open_bits(*shares)
        self._keep("opened", out, planes=True)
        return out

    def open_mixed(
        self, words: Sequence[Array], planes: Sequence[Array]
    ) -> tuple[list[Array], list[Array]]:
        """Open words and planes and keep both."""
        added, bits = super().open_mixed(words, planes)
        self._keep("opened", added)
        self._keep("opened", bits, planes=True)
        return added, bits

    def recv(self, *like: tuple[tuple[int, ...], str]) -> list[Array]:
        """Receive arrays and keep them."""
        out = super().recv(*like)
        self._keep("received", out, planes=self._planes)
        return out


@dataclass(frozen=True)
class Limits:
    """Thresholds that one honest search exceeds with probability at most ``alpha``."""

    log_inverse: float

    @classmethod
    def of(cls, alpha: float, tests: int = MAX_TESTS) -> Limits:
        """Split ``alpha`` over ``tests`` two-sided tests."""
        return cls(log(2 * tests / alpha))

    def bits(self, n: int) -> float:
        """Largest absolute sum of ``n`` independent signs (Hoeffding)."""
        return sqrt(2 * self.log_inverse * n)

    def chi2(self, freedom: int) -> float:
        """Largest chi-square statistic (Laurent and Massart 2000, lemma 1)."""
        return freedom + 2 * sqrt(freedom * self.log_inverse) + 2 * self.log_inverse

    def distance(self, n: int, m: int) -> float:
        """Largest distance of two empirical distributions (Massart 1990)."""
        return sqrt(self.log_inverse * (n + m) / (2.0 * n * m))


def search(first: View, second: View, *, samples: int, alpha: float = ALPHA) -> list[str]:
    """Search two views of one party, recorded for two secrets; return what stands out.

    Parameters
    ----------
    first, second
        Views with ``samples`` independent samples each; names that begin with ``own.`` are what
        the party knew before the first message.
    samples
        At least 1,024, else chi-square cells are too thin.

    Returns
    -------
    list of str
        One line per finding, at most a few per kind; empty for an honest protocol, except with
        probability ``alpha``.
    """
    internal(samples >= 1024, "a search needs at least 1,024 samples")
    internal(list(first) == list(second), "views of one protocol have the same parts")
    limits = Limits.of(alpha / 3)
    found = [f"first secret: {line}" for line in _structure(first, samples, limits)]
    found += [f"second secret: {line}" for line in _structure(second, samples, limits)]
    for name, column in first.items():
        found += _difference(name, column, second[name], samples, limits)
    return found


def alike(first: View, second: View, *, samples: int, alpha: float = ALPHA) -> list[str]:
    """Compare two views that need not be uniform, such as those that end with an output.

    Looks at every word, every bit and every pair of bits; returns what differs.
    """
    internal(list(first) == list(second), "views of one protocol have the same parts")
    limits, few = Limits.of(alpha), min(samples, PAIR_SAMPLES)
    found: list[str] = []
    for name, column in first.items():
        found += _difference(name, column, second[name], samples, limits)
    products = []
    for view in (first, second):
        rows = np.concatenate([signs(c, samples)[:, :few] for c in view.values()])
        products.append(rows @ rows.T)
    count = int((np.abs(products[0] - products[1]) > limits.bits(2 * few)).sum())
    return found + ([f"{count} pairs of bits depend on the secret"] if count else [])


def _structure(view: View, n: int, limits: Limits) -> list[str]:
    """Departures of one view from joint uniformity."""
    found: list[str] = []
    for name, column in view.items():
        found += _lanes(name, column.array, limits)
    learned = {k: c for k, c in view.items() if not k.startswith("own.")}
    found += _bit_relations(learned, view, n, limits)
    found += _word_relations(learned, view, n, limits)
    return found


def _lanes(name: str, array: Array, limits: Limits) -> list[str]:
    """Chi-square of every byte lane against the uniform distribution."""
    lanes = np.ascontiguousarray(array).reshape(-1, 1).view(np.uint8)
    if len(lanes) < 8 * _CELLS:
        lanes = lanes.reshape(-1, 1)
    expected = len(lanes) / _CELLS
    if expected < 8:
        return []
    found = []
    for lane in range(lanes.shape[1]):
        counts = np.bincount(lanes[:, lane], minlength=_CELLS)
        statistic = float(((counts - expected) ** 2).sum() / expected)
        if statistic > limits.chi2(_CELLS - 1):
            found.append(f"{name}: byte {lane} is not uniform (chi-square {statistic:.0f})")
    return found


def signs(column: Column, n: int) -> Signs:
    """Every bit of a column as a row of ``n`` signs, +1 for 0 and -1 for 1."""
    array = column.array
    if column.planes:
        raw = np.ascontiguousarray(array).reshape(-1, array.shape[-1]).view(np.uint8)
        flat: Array = np.unpackbits(raw, axis=1, bitorder="little")[:, :n]
    else:
        words = np.ascontiguousarray(_samples(array, n))
        lanes = words.view(np.uint8).reshape(words.shape[0], n, -1)
        flat = np.unpackbits(lanes, axis=2, bitorder="little").transpose(0, 2, 1).reshape(-1, n)
    return np.subtract(np.float32(1), 2 * flat.astype(np.float32))


def _samples(array: Array, n: int) -> Array:
    """Bring an array of words to rows of ``n`` samples; padding elements are left out."""
    if array.shape and array.shape[0] == n:
        return np.moveaxis(array.reshape(n, -1), 0, 1)
    if array.size % n == 0:
        return array.reshape(-1, n)
    return array.reshape(-1, array.shape[-1])[:, :n]


def gathered(views: Sequence[View], n: int) -> View:
    """Join views of separate runs with ``n`` samples each into one view with all samples."""
    out = {}
    for name, column in views[0].items():
        parts = [v[name].array for v in views]
        if not column.planes:
            parts = [_samples(p, n) for p in parts]
        out[name] = Column(np.concatenate(parts, axis=-1), planes=column.planes)
    return out


def _bit_relations(learned: View, view: View, n: int, limits: Limits) -> list[str]:
    """Biased bits, and pairs of bits that depend on each other (over fewer samples)."""
    if not learned:
        return []
    names, rows = list(learned), [signs(c, n) for c in learned.values()]
    at = np.cumsum([0] + [len(r) for r in rows])
    mine = np.concatenate(rows)
    found = [
        f"{names[_owner(at, i)]}: a bit is biased (sum {mine[i].sum():.0f} of {n})"
        for i in np.flatnonzero(np.abs(mine.sum(axis=1)) > limits.bits(n))[:3]
    ]
    few = min(n, PAIR_SAMPLES)
    mine, bound = np.ascontiguousarray(mine[:, :few]), limits.bits(few)
    for name, column in view.items():
        place = names.index(name) if name in learned else None
        theirs = signs(column, n)[:, :few] if place is None else mine[at[place] : at[place + 1]]
        products = mine @ theirs.T
        if place is not None:
            diagonal = np.arange(len(theirs))
            products[at[place] + diagonal, diagonal] = 0
        hits = np.flatnonzero((np.abs(products) > bound).any(axis=1))
        found += [f"{names[_owner(at, i)]}: a bit depends on a bit of {name}" for i in hits[:1]]
    return found


def _owner(at: NDArray[np.int64], row: int) -> int:
    return int(np.searchsorted(at, row, side="right")) - 1


def _word_relations(learned: View, view: View, n: int, limits: Limits) -> list[str]:
    """Find sums and differences of two words of a view that are not uniform."""
    found: list[str] = []
    for name, column in learned.items():
        if column.planes:
            continue
        a = _samples(column.array, n)
        for other, partner in view.items():
            if partner.planes or partner.array.dtype != a.dtype:
                continue
            b = _samples(partner.array, n)
            for i, row_a in enumerate(a):
                for k, row_b in enumerate(b):
                    if name != other or i < k:
                        found += _lanes(f"{name} - {other}", row_a - row_b, limits)
                        found += _lanes(f"{name} + {other}", row_a + row_b, limits)
    return found


def _difference(name: str, a: Column, b: Column, n: int, limits: Limits) -> list[str]:
    """Ways in which one column depends on the secret."""
    found = []
    drift = np.abs(signs(a, n).sum(axis=1) - signs(b, n).sum(axis=1))
    if drift.size and float(drift.max()) > limits.bits(2 * n):
        found.append(f"{name}: the count of a bit depends on the secret")
    if not a.planes:
        for x, y in zip(_samples(a.array, n), _samples(b.array, n), strict=True):
            if distance(x, y) > limits.distance(x.size, y.size):
                found.append(f"{name}: the distribution of a word depends on the secret")
    return found


def distance(x: Array, y: Array) -> float:
    """Two-sample Kolmogorov-Smirnov statistic of words read as unsigned numbers."""
    both = np.concatenate([x, y])
    order = np.argsort(both, kind="stable")
    steps = np.where(order < x.size, 1.0 / x.size, -1.0 / y.size)
    walk = np.cumsum(steps)
    last = np.append(both[order][1:] != both[order][:-1], True)
    return float(np.abs(walk[last]).max())


def uniform(words: Array, *, alpha: float = ALPHA) -> list[str]:
    """Departures of flat words from uniformity: each bit's count and each byte lane."""
    flat = np.ascontiguousarray(words).reshape(-1)
    limits = Limits.of(alpha, 9 * flat.itemsize)
    found = _lanes("words", flat, limits)
    bound = limits.bits(flat.size)
    for bit in range(8 * flat.itemsize):
        ones = int(((flat >> flat.dtype.type(bit)) & flat.dtype.type(1)).sum())
        if abs(2 * ones - flat.size) > bound:
            found.append(f"words: bit {bit} is set in {ones} of {flat.size}")
    return found


def blocks(messages: Iterable[bytes]) -> NDArray[np.void]:
    """Every 16-byte block of the messages at a multiple of 8 bytes, with repetitions."""
    parts = []
    for data in messages:
        words = np.frombuffer(data, np.uint64, len(data) // 8)
        if words.size >= 2:
            pairs = np.ascontiguousarray(np.stack([words[:-1], words[1:]], axis=1))
            parts.append(pairs.view(f"V{BLOCK_BYTES}").reshape(-1))
    return np.concatenate(parts) if parts else np.empty(0, f"V{BLOCK_BYTES}")


def repeated(messages: Iterable[bytes]) -> int:
    """Count the 16-byte blocks that occurred before; 0 in any set of honest runs."""
    found = blocks(messages)
    return int(found.size - np.unique(found).size)
