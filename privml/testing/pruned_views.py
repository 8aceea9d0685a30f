"""What the two parties of a pruned run could tell apart.

Two inputs with the same revealed counts must give transcripts of the same shape whose masked words
are uniform, whose opened keys are fresh uniform permutations, and whose opened counts are equal.
:func:`tell_apart` looks for every departure in many runs of two inputs.

False alarms: the statistics of one call exceed their limits on an honest protocol with probability
at most ``4 * alpha``. The searches for masks that are missing or used twice compare single words;
they are wrong with probability at most :func:`chance`, below 1e-8 for the models here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from privml.backbones.batch import Encoded
from privml.protocols.mpc.fields import Array
from privml.protocols.mpc.inputs import fit
from privml.protocols.mpc.primitive import Words
from privml.testing.openings import Opening, watched
from privml.testing.programs import Run, TinyModel
from privml.testing.views import ALPHA, Limits, uniform

#: Words closer than this in two runs count as the same value behind the same mask; a difference
#: of a few units comes from the rounding of the layers before.
CLOSE = 1 << 16
Key = tuple[str, int, str, int, int]
View = Mapping[Key, Opening]


@dataclass(frozen=True)
class Sample:
    """One run: what it cost and found, its message sizes, and what each party learned."""

    run: Run
    sizes: tuple[tuple[int, ...], ...]
    openings: tuple[Mapping[Key, Opening], Mapping[Key, Opening]]
    unwatched: int


def sample(model: TinyModel, batch: Encoded) -> Sample:
    """Run once with fresh keys and record everything that is opened."""
    full = fit(model.plan, batch)
    with watched() as watch:
        run = model.run(full)
    sizes = tuple(tuple(map(len, end.view)) for end in run.wires)
    learned = sum(o.words.nbytes for o in watch.openings)
    received = sum(map(sum, sizes))
    return Sample(run, sizes, (watch.of(0), watch.of(1)), received - learned)


def tell_apart(
    first: Sequence[Sample], second: Sequence[Sample], *, alpha: float = ALPHA
) -> list[str]:
    """Return every way in which the runs of two inputs differ or are not masked."""
    every = [*first, *second]
    found = [f"{s.unwatched} bytes were sent beside openings" for s in every if s.unwatched][:1]
    if len({s.sizes for s in every}) > 1:
        return [*found, "number or sizes of messages depend on the input"]
    for rank in (0, 1):
        views = [[s.openings[rank] for s in half] for half in (first, second)]
        if len({tuple((k, o.words.shape) for k, o in v.items()) for v in views[0] + views[1]}) > 1:
            return [*found, f"rank {rank}: what is opened depends on the input"]
        lines = _masked(views[0], views[1], alpha)
        lines += _hidden_once(views[0]) + _shuffled(views[0], views[1], alpha)
        lines += _public(views[0] + views[1])
        found += [f"rank {rank}: {line}" for line in dict.fromkeys(lines)]
    return found


def _keys(view: View, purpose: str) -> list[Key]:
    return [key for key, o in view.items() if o.purpose == purpose]


def _name(key: Key) -> str:
    scope, number, name, message, part = key
    return f"{scope}: {name} {number}, message {message}, array {part}"


def _flat(views: Sequence[View], key: Key) -> Array:
    """Words of one place, one row for each run."""
    return np.stack([np.ascontiguousarray(v[key].words).reshape(-1) for v in views])


def _masked(first: Sequence[View], second: Sequence[View], alpha: float) -> list[str]:
    """Bytes that are not uniform, and words or bits whose distribution depends on the input."""
    found: list[str] = []
    keys = _keys(first[0], "masked")
    limits = Limits.of(alpha / 2)
    for key in keys:
        a, b = _flat(first, key), _flat(second, key)
        n, m, bits = len(a), len(b), first[0][key].bits
        if not bits:
            lines = uniform(np.concatenate([a, b]), alpha=alpha / (2 * len(keys)))
            found += [f"{_name(key)}: {line}" for line in lines[:1]]
        elif abs(_signs(a, bits).sum() + _signs(b, bits).sum()) > limits.bits((n + m) * bits):
            found.append(f"{_name(key)}: bits are biased")
        if not bits and _distances(a, b).max() > limits.distance(n, m):
            found.append(f"{_name(key)}: the distribution of a word depends on the input")
        if n == m and np.abs(_signs(a, bits) - _signs(b, bits)).max() > limits.bits(2 * n):
            found.append(f"{_name(key)}: the count of a bit depends on the input")
    return found


def _distances(a: Array, b: Array) -> NDArray[np.float64]:
    """Kolmogorov-Smirnov statistic of each column of ``a`` against that of ``b``."""
    both = np.concatenate([a, b])
    order = np.argsort(both, axis=0, kind="stable")
    walk = np.cumsum(np.where(order < len(a), 1.0 / len(a), -1.0 / len(b)), axis=0)
    value = np.take_along_axis(both, order, axis=0)
    last = np.ones(value.shape, np.bool_)
    last[:-1] = value[1:] != value[:-1]
    out: NDArray[np.float64] = np.abs(np.where(last, walk, 0.0)).max(axis=0)
    return out


def _signs(words: Array, bits: int) -> NDArray[np.int64]:
    """Sum of the signs of every bit over the runs; of packed bits the first ``bits``."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    every = np.unpackbits(raw, axis=1, bitorder="little")[:, : bits or None]
    out: NDArray[np.int64] = (1 - 2 * every.astype(np.int64)).sum(axis=0)
    return out


def _hidden_once(views: Sequence[View]) -> list[str]:
    """Words of two runs of one input that are close, by themselves or as differences of places."""
    one, two = views[:2]
    words: dict[Key, tuple[Array, Array]] = {}
    found: list[str] = []
    for key in _keys(one, "masked"):
        if one[key].words.dtype == np.uint64 and not one[key].bits:
            a, b = one[key].words.reshape(-1), two[key].words.reshape(-1)
            words[key] = (a, b)
            if _close(a - b):
                found.append(f"{_name(key)}: a word has no mask")
    for x, y in combinations(words, 2):
        size = min(words[x][0].size, words[y][0].size)
        first, second = (words[x][i][:size] - words[y][i][:size] for i in (0, 1))
        crossed = [words[x][i][:size] ^ words[y][i][:size] for i in (0, 1)]
        if _close(first - second) or not (crossed[0] ^ crossed[1]).all():
            found.append(f"{_name(x)} and {_name(y)} have one mask")
    return found


def _close(difference: Words) -> bool:
    return bool((difference + np.uint64(CLOSE) < np.uint64(2 * CLOSE)).any())


def chance(sampled: Sample) -> float:
    """Bound of the probability that the searches for reused masks are wrong on honest runs."""
    total = 0
    for view in sampled.openings:
        sizes = [view[k].words.size for k in _keys(view, "masked")]
        total += sum(sizes) + sum(min(p) for p in combinations(sizes, 2))
    return total * (2.0 * CLOSE + 1.0) / 2.0**64


def _shuffled(first: Sequence[View], second: Sequence[View], alpha: float) -> list[str]:
    """Find opened keys that are no fresh uniform permutations."""
    keys = _keys(first[0], "shuffled")
    found: list[str] = []
    orders = {k: _flat([*first, *second], k).astype(np.int64) for k in keys}
    for key, rows in orders.items():
        if not (np.sort(rows, axis=1) == np.arange(rows.shape[1])).all():
            return [f"{_name(key)}: opened keys are no permutation"]
        found += _cells(_name(key), rows, alpha)
        found += _cells(f"{_name(key)} against the run before", _quotients(rows[1:], rows[:-1]),
                        alpha)  # fmt: skip
    for x, y in combinations(keys, 2):
        if orders[x].shape == orders[y].shape:
            found += _cells(f"{_name(x)} against {_name(y)}", _quotients(orders[x], orders[y]),
                            alpha)  # fmt: skip
    return found


def _quotients(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Key in ``b`` of the row that has key 0, 1, 2 and so on in ``a``, if the shuffle is one."""
    return np.take_along_axis(b, np.argsort(a, axis=1), axis=1)


def _cells(what: str, rows: NDArray[np.int64], alpha: float) -> list[str]:
    """Hold how often each value stands at each place against the uniform distribution."""
    runs, size = rows.shape
    counts = np.stack([np.bincount(rows[:, i], minlength=size) for i in range(size)])
    drift = float(np.abs(counts - runs / size).max())
    limit = float(np.sqrt(Limits.of(alpha).log_inverse * runs / 2))  # Hoeffding, each cell
    return [f"{what}: the shuffle is not uniform"] if drift > limit else []


def _public(views: Sequence[View]) -> list[str]:
    """Find counts, buckets and unlisted openings that differ between runs."""
    keys = [k for what in ("count", "bucket", "") for k in _keys(views[0], what)]
    return [
        f"{_name(key)}: an opened number depends on the input"
        for key in keys
        if (_flat(views, key) != views[0][key].words.reshape(-1)).any()
    ]
