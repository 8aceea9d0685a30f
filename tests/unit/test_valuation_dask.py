"""A Dask cluster as the backend: the same bits as threads, processes and one job."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from sklearn.base import clone

from privml.valuation import MaxUnits, RidgeUtility, Shapley, TopM
from privml.valuation.methods.data_oob import DataOOB

distributed = pytest.importorskip(
    "distributed", reason="dask[distributed] is not installed: pip install 'privml[scale]'"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two worker processes on this machine."""
    with (
        distributed.LocalCluster(  # type: ignore[attr-defined]
            n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
        ) as local,
        distributed.Client(local),  # type: ignore[attr-defined]
    ):
        yield


def table() -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(3)
    X, X_val = rng.normal(size=(24, 4)), rng.normal(size=(30, 4))
    return X, (X[:, 0] > 0).astype(int), X_val, (X_val[:, 0] > 0).astype(int)


@pytest.mark.usefixtures("cluster")
def test_a_cluster_gives_the_bits_of_one_job() -> None:
    alone = Shapley(RidgeUtility(), stopping=MaxUnits(24), round_units=8)
    wanted = alone.fit(*table()).result_.digest()
    for backend in ("dask", "threading", "loky"):
        method = clone(alone).set_params(n_jobs=2, backend=backend)
        assert method.fit(*table()).result_.digest() == wanted, backend


@pytest.mark.usefixtures("cluster")
def test_top_m_and_bags_on_a_cluster() -> None:
    kinds = {"n_jobs": 2, "backend": "dask"}
    for make in (
        lambda **k: TopM(m=4, budget="6n", batch=2, **k),
        lambda **k: DataOOB(bags=24, **k),
    ):
        assert make(**kinds).fit(*table()).result_.digest() == make().fit(*table()).result_.digest()
