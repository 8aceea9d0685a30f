"""CKKS for real: client and server apart, errors within the noise model, hostile bytes."""

from __future__ import annotations

import ast
import gc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from privml.errors import ClaimTooWeak, MalformedMessage, ParameterError, ProtocolError
from privml.protocols.fhe.entry import Mode
from privml.protocols.he import (
    CkksParameters,
    ClientContext,
    Layer,
    PolynomialClassifier,
    PolynomialNetwork,
    ServerContext,
    tenseal_backend,
)
from privml.protocols.he.contexts import ClientSpec, EvaluationKeys
from privml.protocols.he.costs import measure
from privml.rng import ScienceSeed

pytestmark = pytest.mark.skipif(
    tenseal_backend.missing() is not None, reason=str(tenseal_backend.missing())
)


def network(
    seed: int = 1, sizes: tuple[int, ...] = (20, 30, 10), bias: float = 1.0
) -> PolynomialNetwork:
    rng = np.random.default_rng(seed)
    layers = tuple(
        Layer(f"m{k}", rng.normal(size=(b, a)) / np.sqrt(a), bias * rng.normal(size=b))
        for k, (a, b) in enumerate(pairwise(sizes))
    )
    return PolynomialNetwork(layers, 3.0, (sizes[0],))


@pytest.fixture(scope="module")
def classifier() -> PolynomialClassifier:
    made = PolynomialClassifier(network())
    return made.compile(made.plan(calibrate=True))


def images(count: int, features: int = 20, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-3, 3, (count, features))


def test_three_modes_agree_within_the_bound(classifier: PolynomialClassifier) -> None:
    x = images(300)  # three ciphertexts of 128
    clear = classifier.run(x, mode="clear")
    for mode in (Mode.SIMULATE, Mode.EXECUTE):
        found = classifier.run(x, mode=mode)
        assert found.mode is mode
        assert found.error_bound is not None
        assert 0 < np.abs(found.scores - clear.scores).max() <= found.error_bound
        assert found.scores.shape == (300, 10)
        assert type(found) is type(clear)
        assert "SEAL" in found.licence
        assert 0 < found.failure_probability < 1e-6
    assert (clear.failure_probability, clear.error_bound) == (0.0, 0.0)
    assert "not encrypted" in classifier.run(x, mode="simulate").note
    assert clear.labels == tuple(map(str, clear.classes))


def test_simulated_noise_has_the_size_of_real_noise(classifier: PolynomialClassifier) -> None:
    x = images(128)
    clear = classifier.run(x, mode="clear").scores
    real = np.median(np.abs(classifier.run(x, mode="execute").scores - clear))
    seeds = [ScienceSeed(k) for k in range(3)]
    model = np.median(
        [np.abs(classifier.run(x, mode="simulate", seed=s).scores - clear) for s in seeds]
    )
    assert 1 / 4 < real / model < 4


def test_a_large_bias_before_a_product_is_right() -> None:
    """Guard of the plain bias that TenSEAL's own vectors get wrong, in every layer of three."""
    net = network(seed=2, sizes=(16, 8, 8, 4), bias=20.0)
    made = PolynomialClassifier(net)
    chosen = made.plan()
    x = images(5, 16)
    want = made.run(x, mode="clear").scores
    found = made.compile(chosen).run(x, mode="execute").scores
    assert np.abs(found - want).max() <= chosen.error_bound
    assert np.abs(found - want).max() < 1e-4 * np.abs(want).max()


WRONG = {
    "ckks_vector", "ckks_tensor", "plain_tensor", "context", "mm", "matmul", "enc_matmul_plain",
}  # fmt: skip


def reaches_wrong_interfaces(source: str, *, backend: bool) -> bool:
    """Return whether code uses tenseal's vectors, tensors or contexts, or loads tenseal itself."""
    tree = list(ast.walk(ast.parse(source)))
    imported = [a.name for n in tree if isinstance(n, ast.Import) for a in n.names]
    imported += [n.module or "" for n in tree if isinstance(n, ast.ImportFrom)]
    texts = [n.value for n in tree if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    loaded = {t for t in (*imported, *texts) if t.split(".")[0] == "tenseal" and " " not in t}
    loaded -= {"tenseal", "tenseal.sealapi"} if backend else set()
    attributes = {n.attr for n in tree if isinstance(n, ast.Attribute)}
    named = attributes | {t for t in texts if t in WRONG}
    used = named & (WRONG - ({"context"} if backend or not loaded else set()))
    used |= {n.module or "" for n in tree if isinstance(n, ast.ImportFrom)} & {"tenseal"}
    return bool(loaded or used)


def test_the_wrong_interfaces_of_tenseal_are_not_used() -> None:
    """No path reaches tenseal's vectors, tensors or contexts: only its bindings of SEAL."""
    folder = Path(tenseal_backend.__file__).parent
    for path in folder.glob("*.py"):
        own = path.name == "tenseal_backend.py"
        assert not reaches_wrong_interfaces(path.read_text(), backend=own), path


@pytest.mark.parametrize(
    "source",
    [
        "import tenseal as ts\n\ndef f(c, x, b, w): return (ts.ckks_vector(c, x) + b).mm(w)",
        "from tenseal import ckks_vector",
        "from importlib import import_module\nm = import_module('tenseal')",
        "def f(x, b, w): return (x + b).matmul(w)",
        "def f(ts, c, x): return getattr(ts, 'ckks_tensor')(c, x)",
    ],
)
def test_broken_variants_are_found(source: str) -> None:
    """What the check above must see, in code that would add a plain bias before a product."""
    assert reaches_wrong_interfaces(source, backend=False)


def test_a_bias_that_is_lost_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(seed=2, sizes=(16, 8, 4), bias=20.0)
    made = PolynomialClassifier(net)
    chosen, x = made.plan(), images(2, 16)
    want = made.run(x, mode="clear").scores
    monkeypatch.setattr(tenseal_backend.SealEvaluator, "add_clear", lambda self, y, slots: y)
    found = made.compile(chosen).run(x, mode="execute").scores
    assert np.abs(found - want).max() > 1e3 * chosen.error_bound


@pytest.mark.parametrize("view", ["fortran", "strided", "float32"])
def test_memory_layout_never_changes_a_result(classifier: PolynomialClassifier, view: str) -> None:
    x = images(4).astype(np.float32).astype(np.float64)
    wide = np.zeros((4, 40))
    wide[:, ::2] = x
    same = {"fortran": np.asfortranarray(x), "strided": wide[:, ::2],
            "float32": x.astype(np.float32)}[view]  # fmt: skip
    want = classifier.run(x, mode="clear").scores
    assert np.abs(classifier.run(same, mode="execute").scores - want).max() < 1e-3
    client = ClientContext(classifier.server.spec)
    slots = client._secret.decrypt(client.encrypt(same)[0], limit=1 << 20)
    assert (
        np.abs(classifier.server.spec.packing.unpack(slots, images=4, features=20) - x).max() < 1e-6
    )


def test_two_contexts_share_no_secret(classifier: PolynomialClassifier) -> None:
    spec = classifier.server.spec
    client, other = ClientContext(spec), ClientContext(spec)
    keys = client.evaluation_keys()
    server = ServerContext(classifier.network, spec.parameters)
    loaded = server.load_keys(keys)
    x = images(3)
    (query,) = client.encrypt(x)
    answer = server.run(query, loaded)
    right = client.decrypt([answer], images=3)
    assert np.abs(right - classifier.network.run(x)).max() < 1e-3
    assert np.abs(other.decrypt([answer], images=3) - right).max() > 1e3
    assert "hidden" in repr(client) + repr(client._secret)
    assert client.encrypt(x)[0] != query


def reachable(root: object) -> list[object]:
    """Return objects that an object of ours refers to, library handles included."""
    found, waiting = [], [root]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type) or type(one).__name__ == "module":
            continue
        seen.add(id(one))
        found.append(one)
        waiting += [r for r in gc.get_referents(one) if not callable(r)]
    return found


def test_the_server_holds_no_secret_key(classifier: PolynomialClassifier) -> None:
    spec = classifier.server.spec
    client = ClientContext(spec)
    server = ServerContext(classifier.network, spec.parameters)
    loaded = server.load_keys(client.evaluation_keys())
    server.run(client.encrypt(images(1))[0], loaded)
    kinds = {type(one).__name__ for side in (server, loaded) for one in reachable(side)}
    assert not kinds & {"SecretKey", "KeyGenerator", "Decryptor", "Encryptor", "Secret"}
    assert "Decryptor" in {type(one).__name__ for one in reachable(client)}
    assert not issubclass(ServerContext, ClientContext)
    assert not issubclass(ClientContext, ServerContext)
    public = [n for kind in (ServerContext, tenseal_backend.SealEvaluator) for n in dir(kind)]
    assert not [n for n in public if "secret" in n.lower() or "decrypt" in n.lower()]


def test_no_frame_carries_secret_key_bytes(classifier: PolynomialClassifier) -> None:
    """The secret key's own words occur in nothing that is sent."""
    client = ClientContext(classifier.server.spec)
    secret = tenseal_backend._bytes(client._secret._keygen.secret_key())
    frames = [*client.encrypt(images(1)), *vars(client.evaluation_keys()).values()]
    raw = client._secret._keygen.secret_key()
    needle = secret[-64:]
    assert raw is not None
    assert len(secret) > 1000
    assert all(needle not in frame and secret not in frame for frame in frames)


def test_hostile_bytes_are_refused(classifier: PolynomialClassifier) -> None:
    spec = classifier.server.spec
    client = ClientContext(spec)
    server = classifier.server
    keys = client.evaluation_keys()
    loaded = server.load_keys(keys)
    (query,) = client.encrypt(images(1))
    answer = server.run(query, loaded)
    cut = [query[:0], query[:15], query[: len(query) // 2], query[:-1], query * 8, b"x" * 100]
    for bad in [*cut, keys.relin, keys.galois, answer]:
        with pytest.raises(MalformedMessage):
            server.run(bad, loaded)
    for relin, galois in (
        (keys.relin[:-5], keys.galois), (keys.relin, keys.galois[:-5]), (b"", keys.galois),
        (keys.relin, b""), (query, keys.galois), (keys.relin * 9, keys.galois),
    ):  # fmt: skip
        with pytest.raises(MalformedMessage):
            server.load_keys(EvaluationKeys(relin, galois))
    with pytest.raises(MalformedMessage):
        client.decrypt([answer[:-3]], images=1)
    with pytest.raises(ProtocolError):
        client.decrypt([answer, answer], images=1)
    few = EvaluationKeys(*client._secret.evaluation_keys(spec.steps[:1]))
    with pytest.raises(MalformedMessage, match="lack rotations"):
        server.load_keys(few)
    shallow = ClientContext(ClientSpec.of(network(sizes=(20, 10)), CkksParameters.for_depth(1)))
    with pytest.raises(MalformedMessage):
        server.run(shallow.encrypt(images(1))[0], loaded)


def test_values_out_of_range_never_reach_a_ciphertext(classifier: PolynomialClassifier) -> None:
    client = ClientContext(classifier.server.spec)
    for bad in (np.full((1, 20), 3.01), np.full((1, 20), np.inf), np.zeros((1, 19)), np.zeros(20),
                np.zeros((0, 20))):  # fmt: skip
        with pytest.raises(ParameterError):
            client.encrypt(bad)
    extreme = 3.0 * np.sign(classifier.network.layers[0].weight)
    want = classifier.run(extreme, mode="clear").scores
    assert np.abs(classifier.run(extreme, mode="execute").scores - want).max() < 1e-2


def test_modes_are_strict(
    classifier: PolynomialClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in ("", "EXECUTE", "fhe"):
        with pytest.raises(ParameterError, match="clear, simulate, execute"):
            classifier.run(images(1), mode=mode)
    fresh = PolynomialClassifier(network())
    with pytest.raises(ProtocolError, match="compile"):
        fresh.run(images(1), mode="execute")
    with pytest.raises(ParameterError, match="another network"):
        fresh.compile(PolynomialClassifier(network(seed=9)).plan())

    def refuse(*_: object, **__: object) -> None:
        raise ClaimTooWeak("not this one")

    monkeypatch.setattr(PolynomialClassifier, "_simulate", refuse)
    assert classifier.run(images(1), mode="execute").mode is Mode.EXECUTE
    monkeypatch.setattr(PolynomialClassifier, "_execute", refuse)
    with pytest.raises(ClaimTooWeak):
        classifier.run(images(1), mode="execute")


def test_the_plan_predicts_this_machine(classifier: PolynomialClassifier) -> None:
    x = images(128)
    classifier.run(x, mode="execute")
    chosen = classifier.plan(costs=measure(classifier.plan().parameters))
    runs = sorted(classifier.run(x, mode="execute").core_s for _ in range(5))
    assert 0.4 < runs[2] / chosen.call_core_s(128).expected < 2.5  # a busy machine is noisy
    client = ClientContext(classifier.server.spec)
    keys, (query,) = client.evaluation_keys(), client.encrypt(x)
    assert abs(keys.size / 1e6 / chosen.keys_mb - 1) < 0.1
    assert abs(len(query) / chosen.query_bytes - 1) < 0.1
