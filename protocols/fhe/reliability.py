"""Paired disagreement: how often faulty tables change the predicted class.

The same images run exactly and with faults; the share d whose predicted class differs is what the
contract ``measured`` rests on. The interval is Clopper-Pearson over images: runs of one image under
several seeds are not independent, so they count as one image, and fractions are rounded against us.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError
from privml.protocols.fhe.faults import Fault
from privml.protocols.fhe.graph import Graph
from privml.protocols.fhe.nodes import Ints
from privml.protocols.fhe.reference import run

Source: TypeAlias = Literal["reference", "simulate", "execute"]


@dataclass(frozen=True)
class Disagreement:
    """Measured disagreement of one graph at one failure probability.

    Attributes
    ----------
    graph
        Digest of the graph, which includes its rounding.
    p_error
        Failure probability per table.
    images, seeds
        Images, and runs of each.
    rate
        Share of runs whose class differs from the exact one.
    low, high
        Bounds of the rate over images.
    confidence
        Of the interval.
    source
        Which executor was faulty: the numpy model, the library's simulation, or ciphertexts.
    """

    graph: str
    p_error: float
    images: int
    seeds: int
    rate: float
    low: float
    high: float
    confidence: float
    source: Source

    def to_dict(self) -> dict[str, str | int | float]:
        """Return the record for a report."""
        return asdict(self)


def disagreement(
    graph: Graph, x: Ints, *, p_error: float, seeds: Sequence[int], confidence: float = 0.95
) -> Disagreement:
    """Measure disagreement with the numpy fault model.

    Parameters
    ----------
    graph
        Graph with its rounding.
    x
        Images, shape (n, ...), n >= 1; use at least 300, or zero disagreements prove little.
    p_error
        Failure probability per table.
    seeds
        One run per seed and image. Cost: one exact run and ``len(seeds)`` faulty ones.
    confidence
        Of the two-sided interval.

    Raises
    ------
    ParameterError
        No image or no seed, or a value out of range.
    """
    if not len(x) or not seeds:
        raise ParameterError("give at least one image and one seed")
    clear = classes(graph, run(graph, x))
    faulty = [classes(graph, run(graph, x, fault=Fault(p_error, seed))) for seed in seeds]
    return compare(graph, clear, faulty, p_error=p_error, source="reference", confidence=confidence)


def compare(
    graph: Graph,
    clear: NDArray[np.int64],
    faulty: Sequence[NDArray[np.int64]],
    *,
    p_error: float,
    source: Source,
    confidence: float = 0.95,
) -> Disagreement:
    """Return the record of predicted classes ``clear`` (n,) and those of faulty runs, each (n,)."""
    if not faulty or any(run.shape != clear.shape for run in faulty) or not clear.size:
        raise ParameterError("give classes of the same images for every run, at least one")
    rate = float(np.mean([run != clear for run in faulty]))
    low, high = clopper_pearson(rate * clear.size, clear.size, confidence=confidence)
    return Disagreement(
        graph=graph.digest(),
        p_error=p_error,
        images=int(clear.size),
        seeds=len(faulty),
        rate=rate,
        low=low,
        high=high,
        confidence=confidence,
        source=source,
    )


def classes(graph: Graph, integers: Ints) -> NDArray[np.int64]:
    """Return the predicted classes of integer scores, the first of equal ones."""
    result: NDArray[np.int64] = graph.scores(integers).argmax(axis=1)
    return result


def clopper_pearson(successes: float, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a probability; fractions of a success widen it.

    >>> low, high = clopper_pearson(0, 300)
    >>> low, round(high, 4)
    (0.0, 0.0122)
    """
    if not 0 <= successes <= n or n < 1 or not 0 < confidence < 1:
        raise ParameterError("0 <= successes <= n, n >= 1 and 0 < confidence < 1 are needed")
    tail = (1 - confidence) / 2
    down, up = math.floor(successes + 1e-9), math.ceil(successes - 1e-9)
    low = _solve(lambda p: 1 - _cdf(down - 1, n, p) - tail) if down else 0.0
    high = _solve(lambda p: tail - _cdf(up, n, p)) if up < n else 1.0
    return low, high


def _cdf(k: int, n: int, p: float) -> float:
    """Return P(X <= k) of a binomial variable; 0 < p < 1."""
    i = np.arange(1, k + 1)
    log_choose = np.concatenate([[0.0], np.cumsum(np.log((n - i + 1) / i))])
    terms = log_choose + np.arange(k + 1) * math.log(p) + (n - np.arange(k + 1)) * math.log1p(-p)
    return min(float(np.exp(terms).sum()), 1.0)


def _solve(rising: Callable[[float], float]) -> float:
    """Return the zero of a rising function on (0, 1) by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2
