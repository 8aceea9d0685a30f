"""Paired disagreement and its interval."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from privml.errors import ParameterError
from privml.protocols.fhe.graph import Graph
from privml.protocols.fhe.reference import run
from privml.protocols.fhe.reliability import classes, clopper_pearson, compare, disagreement
from privml.testing.integer_graphs import random_graph, random_images


@pytest.mark.parametrize("n", [1, 2, 17, 300, 5000])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_the_interval_is_that_of_scipy(n: int, confidence: float) -> None:
    for k in {0, 1, n // 3, n // 2, n - 1, n}:
        wanted = stats.binomtest(k, n).proportion_ci(confidence, method="exact")
        assert clopper_pearson(k, n, confidence=confidence) == pytest.approx(
            tuple(wanted), abs=1e-9
        )


def test_fractions_widen_the_interval() -> None:
    low, high = clopper_pearson(2.5, 100)
    assert (low, high) == (clopper_pearson(2, 100)[0], clopper_pearson(3, 100)[1])
    assert clopper_pearson(0.1 + 0.2 + 2.7, 100) == clopper_pearson(3, 100)


@pytest.mark.parametrize(
    ("k", "n", "confidence"), [(-1, 5, 0.9), (6, 5, 0.9), (0, 0, 0.9), (1, 5, 1.0)]
)
def test_impossible_counts_are_refused(k: int, n: int, confidence: float) -> None:
    with pytest.raises(ParameterError):
        clopper_pearson(k, n, confidence=confidence)


def busy_graph() -> Graph:
    """Return the first random graph whose class depends on the image."""
    for seed in range(100):
        graph = random_graph(seed)
        found = classes(graph, run(graph, random_images(graph, 40, seed=1)))
        if len(np.unique(found)) > 2:
            return graph
    raise AssertionError("no such graph")


def test_disagreement_counts_changed_classes() -> None:
    graph = busy_graph()
    images = random_images(graph, 60, seed=2)
    none = disagreement(graph, images, p_error=0.0, seeds=[1, 2])
    assert (none.rate, none.low, none.images, none.seeds) == (0.0, 0.0, 60, 2)
    assert none.graph == graph.digest()
    some = disagreement(graph, images, p_error=0.4, seeds=[1, 2, 3])
    assert 0 < some.low < some.rate < some.high < 1
    assert some == disagreement(graph, images, p_error=0.4, seeds=[1, 2, 3])
    assert some.to_dict()["source"] == "reference"


def test_runs_of_one_image_count_once() -> None:
    graph = busy_graph()
    clear = np.zeros(300, np.int64)
    wrong = clear.copy()
    wrong[:3] = 1
    one = compare(graph, clear, [wrong], p_error=0.1, source="execute")
    ten = compare(graph, clear, [wrong] * 10, p_error=0.1, source="execute")
    assert (one.rate, one.low, one.high) == (ten.rate, ten.low, ten.high)
    with pytest.raises(ParameterError):
        compare(graph, clear, [], p_error=0.1, source="execute")
    with pytest.raises(ParameterError):
        compare(graph, clear, [clear[:5]], p_error=0.1, source="execute")
    with pytest.raises(ParameterError):
        disagreement(graph, random_images(graph, 2, seed=1)[:0], p_error=0.1, seeds=[1])
