"""scikit-learn models in the real concrete-ml environment: three modes, two sides, guards."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.tree import DecisionTreeClassifier

from privml.errors import (
    DeadlineExceeded,
    MalformedMessage,
    MemoryExceeded,
    ParameterError,
    PeerAborted,
    ProtocolError,
    UntrustedArtifact,
)
from privml.protocols.fhe.concrete_ml import (
    EncryptedEstimator,
    EstimatorClient,
    EstimatorServer,
    Limits,
    missing,
)
from privml.protocols.fhe.concrete_ml.process import Role, Worker
from privml.protocols.fhe.concrete_ml.worker.frames import blob
from privml.protocols.fhe.planned import Machine
from privml.protocols.fhe.toolkit import LicenceNotice

WHY = missing()
pytestmark = [
    pytest.mark.skipif(WHY is not None, reason=str(WHY)),
    pytest.mark.filterwarnings("ignore::privml.protocols.fhe.toolkit.LicenceNotice"),
    pytest.mark.filterwarnings("ignore:.*converge"),
    pytest.mark.timeout(900),
]

Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
WINDOW = 512


def halves(X: np.ndarray, y: np.ndarray) -> Data:
    return X[::2], y[::2], X[1::2], y[1::2]


def cancer() -> Data:
    X, y = load_breast_cancer(return_X_y=True)
    return halves(X, np.array(["malignant", "benign"])[y])


@pytest.fixture(scope="module")
def logistic() -> Iterator[EncryptedEstimator]:
    X, y, _, _ = cancer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with EncryptedEstimator(LogisticRegression(max_iter=5000)) as estimator:
            yield estimator.fit(X, y)


def test_three_modes_of_a_linear_model_agree(logistic: EncryptedEstimator) -> None:
    _, _, X, y = cancer()
    clear = logistic.scores(X)
    assert (logistic.predict(X) == y).mean() > 0.92
    assert (logistic.predict(X) == logistic.model_.predict(X)).mean() > 0.98
    assert logistic.fidelity_ > 0.99
    assert np.allclose(logistic.predict_proba(X), logistic.model_.predict_proba(X), atol=0.15)
    assert (logistic.scores(X[:20], mode="simulate") == clear[:20]).all()
    assert (logistic.scores(X[:5], mode="execute") == clear[:5]).all()
    assert logistic.predict(X[:2], mode="execute").tolist() == logistic.predict(X[:2]).tolist()


def test_rows_beyond_the_calibration_do_not_wrap(logistic: EncryptedEstimator) -> None:
    """Every feature at the end that its weight likes, far outside what was seen."""
    weights = logistic.model_.coef_[0]
    far = np.where(weights > 0, 1e9, -1e9)[None]
    for mode in ("clear", "simulate", "execute"):
        assert logistic.scores(far, mode=mode)[0, 0] > 10.0
        assert logistic.scores(-far, mode=mode)[0, 0] < -10.0


def test_memory_order_of_rows_does_not_matter(logistic: EncryptedEstimator) -> None:
    _, _, X, _ = cancer()
    rows = np.asfortranarray(X[:3])
    for mode in ("clear", "simulate", "execute"):
        assert (logistic.scores(rows, mode=mode) == logistic.scores(X[:3])).all()


def test_no_rows_give_no_predictions(logistic: EncryptedEstimator) -> None:
    none = np.zeros((0, 30))
    for mode in ("clear", "simulate", "execute"):
        assert logistic.predict(none, mode=mode).shape == (0,)


@pytest.mark.parametrize("X", [np.zeros((2, 29)), np.full((1, 30), np.nan), np.zeros(30)])
def test_bad_rows_are_refused_in_every_mode(logistic: EncryptedEstimator, X: np.ndarray) -> None:
    for mode in ("clear", "simulate", "execute"):
        with pytest.raises(ParameterError):
            logistic.predict(X, mode=mode)
    with pytest.raises(ParameterError, match="a mode is"):
        logistic.predict(np.zeros((1, 30)), mode="disable")


def test_the_plan_has_the_form_of_every_plan(logistic: EncryptedEstimator) -> None:
    plan = logistic.plan()
    assert plan.tables == 0
    assert plan.contract == "exact"
    assert plan.graph == logistic.bundle.manifest.digest
    assert "core-seconds" in str(plan)
    assert "patent" in plan.to_json().decode()


def test_client_and_server_are_apart(logistic: EncryptedEstimator, tmp_path: Path) -> None:
    """From files alone, in two processes; nothing at the server's side holds the secret key."""
    _, _, X, _ = cancer()
    digest = logistic.save(tmp_path)
    with (
        EstimatorClient.load(tmp_path / "client") as client,
        EstimatorServer.load(tmp_path / "server", digest=digest) as server,
    ):
        keys = client.keygen()
        server.use_keys(keys)
        queries = client.encrypt(X[:3])
        answers = [server.run(query) for query in queries]
        assert (client.scores(answers) == logistic.scores(X[:3])).all()
        assert (client.predict(answers) == logistic.predict(X[:3])).all()
        secret = client.secret_keys()
        files = [path.read_bytes() for path in (tmp_path / "server").iterdir()]
        files += [path.read_bytes() for path in server._worker.folder.rglob("*") if path.is_file()]
        seen = b"\0".join([*files, keys, *queries, *answers])
        windows = {secret[n : n + WINDOW] for n in range(0, len(secret) - WINDOW, 8)}
        windows = {one for one in windows if len(set(one)) > 1}
        assert len(windows) > 500
        assert not [one for one in windows if one in seen]
        with pytest.raises(MalformedMessage, match="evaluation keys"):
            server.use_keys(secret)
        for verb in ("keygen", "secret_keys", "decrypt", "encrypt", "build"):
            with pytest.raises(MalformedMessage, match="no such verb"):
                server._worker.call(verb)
        assert client.use_secret_keys(secret) == keys
        assert (client.scores(answers) == logistic.scores(X[:3])).all()
        weights = logistic.model_.coef_[0].tobytes()
        mine = _files(tmp_path / "client")
        assert not any(weights[n : n + 8] in one for one in mine for n in (0, 8))


def _files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in folder.iterdir()]


def test_hostile_messages_are_refused(logistic: EncryptedEstimator, tmp_path: Path) -> None:
    digest = logistic.save(tmp_path)
    _, _, X, _ = cancer()
    with EstimatorClient.load(tmp_path / "client") as client:
        with pytest.raises(ParameterError, match="no keys"):
            client.encrypt(X[:1])
        keys = client.keygen()
        (query,) = client.encrypt(X[:1])
        with pytest.raises(ParameterError, match="1024"):
            client.encrypt(np.zeros((1025, 30)))
        for answer in (b"", query, bytes(client.info.answer_bytes + 100)):
            with pytest.raises(ProtocolError):
                client.scores([answer])
        with pytest.raises(MalformedMessage):
            client.use_secret_keys(keys)
    with EstimatorServer.load(tmp_path / "server", digest=digest) as server:
        with pytest.raises(MalformedMessage, match="before a query"):
            server.run(query)
        server.use_keys(keys)
        for bad in (b"", query[:-1], query * 2):
            with pytest.raises(ProtocolError):
                server.run(bad)
    with EstimatorServer.load(tmp_path / "server", digest=digest) as server:
        server.use_keys(keys)
        with pytest.raises(ProtocolError):
            server.run(bytes(len(query)))
    library = tmp_path / "server" / "sharedlib.so"
    library.write_bytes(library.read_bytes() + b"\0")
    with pytest.raises(UntrustedArtifact):
        EstimatorServer.load(tmp_path / "server", digest=digest)


def test_the_builder_refuses_hostile_requests() -> None:
    rows = np.array([[0, 0], [3, 3]])
    tree = {
        "rows": rows, "starts": np.array([0, 3]), "left": np.array([1, -1, -1]),
        "right": np.array([2, -1, -1]), "feature": np.zeros(3, np.int64),
        "threshold": np.ones(3, np.int64), "value": np.eye(2)[[0, 0, 1]], "output": np.array([0]),
    }  # fmt: skip
    fields = {"family": "forest", "leaf_bits": 8, "p_error": 0.01, "groups": 2, "regression": False}
    changes: list[dict[str, np.ndarray]] = [
        {"left": np.array([0, -1, -1])},  # a cycle
        {"left": np.array([2, -1, -1])},  # one child twice
        {"left": np.array([9, -1, -1])},  # outside
        {"right": np.array([-1, -1, -1])},
        {"feature": np.full(3, 2)},
        {"feature": np.full(3, -1)},
        {"threshold": np.full(3, 2**40)},
        {"starts": np.array([0, 2])},
        {"starts": np.array([0])},
        {"value": np.full((3, 2), np.nan)},
        {"value": np.zeros((2, 2))},
        {"value": np.zeros((3, 2))},
        {"rows": rows.astype(float)},
    ]
    with Worker(Role.BUILDER) as worker:
        assert worker.offline
        assert worker.versions["concrete-ml"] == "1.9.0"
        for change in changes:
            with pytest.raises(MalformedMessage):
                worker.call("build", fields, {**tree, **change})
        for change_fields in (
            {"p_error": 2.0},
            {"p_error": "x"},
            {"leaf_bits": 99},
            {"leaf_bits": True},
        ):
            with pytest.raises(MalformedMessage):
                worker.call("build", {**fields, **change_fields}, tree)
        with pytest.raises(Exception, match="no such family"):
            worker.call("build", {**fields, "family": "svm"}, tree)
        with pytest.raises(MalformedMessage):
            worker.call("build", {"family": "linear"}, {})
        with pytest.raises(MalformedMessage, match="no model"):
            worker.call("clear", {}, {"rows": rows})
        for verb in ("keygen", "run", "__init__", ""):
            with pytest.raises(MalformedMessage, match="no such verb"):
                worker.call(verb)


def test_a_killed_worker_is_a_clear_error() -> None:
    with Worker(Role.SERVER) as worker:
        assert worker._process is not None
        os.kill(worker._process.pid, signal.SIGKILL)
        with pytest.raises(PeerAborted, match="server process ended killed"):
            worker.call("run", {}, {"query": blob(b"x")})
        with pytest.raises(ProtocolError, match="has ended"):
            worker.call("run")


def test_limits_of_time_and_memory_hold() -> None:
    X, _, _, _ = cancer()
    slow = EncryptedEstimator(LinearRegression(), limits=Limits(call_s=0.05))
    with slow, pytest.raises(DeadlineExceeded):
        slow.fit(X, np.arange(len(X)))
    with pytest.raises(ProtocolError, match="no compiled model"):
        slow.plan()
    big = blob(bytes(600 << 20))  # the worker holds it several times over
    small = Limits(memory_bytes=1 << 30)
    with (
        Worker(Role.CLIENT, limits=small) as worker,
        pytest.raises((ProtocolError, MemoryExceeded)),
    ):
        worker.call("load", {}, {"info": big})


def test_a_worker_ends_with_its_owner_and_the_licence_is_shown() -> None:
    with pytest.warns(LicenceNotice, match="patent"):
        worker = Worker(Role.CLIENT)
    assert worker._process is not None
    pid, folder = worker._process.pid, worker.folder
    worker.close()
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not folder.exists()


def test_trees_fitted_here_make_the_same_splits_there() -> None:
    X, y, Z, _ = cancer()
    with EncryptedEstimator(DecisionTreeClassifier(max_depth=2, random_state=0), p_error=0.01) as e:
        e.fit(X, y)
        places = e._present().head.quantise(Z).astype(float)
        assert np.allclose(e.predict_proba(Z), e.model_.predict_proba(places), atol=0.01)
        assert e.fidelity_ == 1.0
        plan = e.plan()
        assert 0 < plan.pbs < 40
        assert any("each tree" in text for text in plan.warnings)
        with pytest.raises(MemoryExceeded):
            e.plan(Machine("small", 1, 1 << 28))


def test_a_small_net_is_converted_with_its_own_layers() -> None:
    X, y = load_digits(return_X_y=True)
    net = MLPClassifier(hidden_layer_sizes=(8,), max_iter=200, random_state=0).fit(X[::2], y[::2])
    with EncryptedEstimator(net, p_error=0.01) as e:
        e.convert(X[::2])
        assert (e.predict(X[1::2]) == y[1::2]).mean() > net.score(X[1::2], y[1::2]) - 0.03
        plan = e.plan()
        assert plan.pbs == 8
        assert plan.contract == "measured"
        simulated = e.predict(X[1:41:2], mode="simulate")
        assert (simulated == e.predict(X[1:41:2])).mean() >= 0.75


MODELS: list[Any] = [
    DecisionTreeClassifier(max_depth=3, random_state=0),
    RandomForestClassifier(4, max_depth=3, random_state=0),
    GradientBoostingClassifier(n_estimators=4, max_depth=2, random_state=0),
    HistGradientBoostingClassifier(max_iter=3, max_leaf_nodes=4),
    RandomForestRegressor(4, max_depth=2, random_state=0),
    GradientBoostingRegressor(n_estimators=4, max_depth=2, random_state=0),
]


@pytest.mark.nightly
def test_a_small_net_is_executed() -> None:
    X, y = load_digits(return_X_y=True)
    net = MLPClassifier(hidden_layer_sizes=(8,), max_iter=200, random_state=0).fit(X[::2], y[::2])
    with EncryptedEstimator(net, p_error=2.0**-20) as e:
        e.convert(X[::2])
        assert (e.predict(X[1:9], mode="execute") == e.predict(X[1:9])).mean() >= 0.75


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["fit", "convert"])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
def test_execution_is_the_clear_evaluation(model: Any, way: str) -> None:
    regression = type(model).__name__.endswith("Regressor")
    X, y, Z, _ = halves(*load_diabetes(return_X_y=True)) if regression else cancer()
    with EncryptedEstimator(model.fit(X, y)) as e:
        e.fit(X, y) if way == "fit" else e.convert(X)
        start = time.perf_counter()
        assert (e.scores(Z[:2], mode="execute") == e.scores(Z[:2])).all()
        assert time.perf_counter() - start < 300
        assert e.fidelity_ > (0.9 if way == "convert" else 0.99)
