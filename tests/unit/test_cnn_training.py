"""Training: digits in seconds, resumption to the same network, augmentation, files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from privml.backbones.cnn import Bits, small_cnn
from privml.backbones.cnn_data import Arrays, Augment, FlipRule, Images, flip_rule
from privml.backbones.cnn_saving import CHECKPOINT, load_model, network_arrays, save_model
from privml.backbones.cnn_training import Recipe, Store, Training, accuracy, fit
from privml.backbones.quant_model import QuantModel
from privml.errors import Corrupt, MalformedMessage, ParameterError, StorageError
from privml.protocols.fhe.lower import lower
from privml.protocols.fhe.reference import run
from privml.rng import ScienceSeed

QUICK = Training(
    first=Recipe(epochs=8, rate=0.1, batch=32),
    second=Recipe(epochs=4, rate=2e-3, batch=32, optimiser="adamw", frozen=1 / 3),
    calibration=256,
)
SHORT = Training(
    first=Recipe(epochs=2, rate=0.1, batch=8),
    second=Recipe(epochs=2, rate=2e-3, batch=8, optimiser="adamw", frozen=0.5),
    calibration=16,
)


class Stopped(Exception):
    """Raised by a progress call."""


def haar(images: np.ndarray) -> np.ndarray:
    """Return three coefficients of 2x2 blocks of (n, 8, 8) images, standardised."""
    a, b = images[:, 0::2, 0::2], images[:, 0::2, 1::2]
    c, d = images[:, 1::2, 0::2], images[:, 1::2, 1::2]
    x = np.stack([a + b + c + d, a - b + c - d, a + b - c - d], 1)
    mean, std = x.mean((0, 2, 3), keepdims=True), x.std((0, 2, 3), keepdims=True)
    return (x - mean) / std


def small_data(rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    x = rng.normal(size=(48, 3, 4, 4))
    labels = (x[:, 0].mean((1, 2)) > 0).astype(np.int64)
    augment = Augment(shift=1, flip=flip_rule([0, 1, 0]))
    return Arrays(x[:32], labels[:32], augment=augment), Arrays(x[32:], labels[32:])


def new_model() -> QuantModel:
    return QuantModel(small_cnn((3, 4, 4), (4, 4), classes=2, residual=True, seed=ScienceSeed(1)))


def test_digits_are_learned_in_seconds_and_survive_lowering() -> None:
    digits = load_digits()
    x, labels = haar(digits.images), digits.target
    train, valid = Arrays(x[:1300], labels[:1300]), Arrays(x[1300:], labels[1300:])
    model = QuantModel(small_cnn((3, 4, 4), (8, 12), residual=True), bits=Bits(accumulator=12))
    history = fit(model, train, valid, training=QUICK, seed=ScienceSeed(3))
    assert [epoch.stage for epoch in history] == ["float"] * 8 + ["quantised"] * 4
    assert history[-1].accuracy is not None
    assert history[-1].accuracy > 0.85
    assert history[-1].accuracy == accuracy(model, valid)
    graph = lower(model)
    integers = run(graph, model.quantise(valid.x))
    assert np.array_equal(integers, model.integers(model.quantise(valid.x)))
    assert (graph.scores(integers).argmax(1) == valid.labels).mean() == history[-1].accuracy


@pytest.mark.parametrize("stop", [1, 5, 8, 9, 13, 15])
def test_an_interrupted_run_gives_the_same_network(
    tmp_path: Path, rng: np.random.Generator, stop: int
) -> None:
    train, valid = small_data(rng)
    whole = new_model()
    want = fit(whole, train, valid, training=SHORT, seed=ScienceSeed(4))
    calls = iter(range(1000))

    def progress(stage: str, done: float) -> None:
        if next(calls) == stop:
            raise Stopped

    store = Store(tmp_path, seconds=0.0)
    options = {"training": SHORT, "seed": ScienceSeed(4), "store": store}
    with pytest.raises(Stopped):
        fit(new_model(), train, valid, progress=progress, **options)
    resumed = new_model()
    assert fit(resumed, train, valid, **options) == want
    for name, array in network_arrays(whole.net).items():
        np.testing.assert_array_equal(network_arrays(resumed.net)[name], array, err_msg=name)


def test_progress_counts_up_in_both_stages(rng: np.random.Generator) -> None:
    told: list[tuple[str, float]] = []
    train, _ = small_data(rng)
    fit(
        new_model(), train, training=SHORT, seed=ScienceSeed(0),
        progress=lambda stage, done: told.append((stage, done)),
    )  # fmt: skip
    for stage in ("float", "quantised"):
        shares = [done for name, done in told if name == stage]
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_another_run_or_damage_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    train, valid = small_data(rng)
    store = Store(tmp_path, seconds=0.0)
    fit(new_model(), train, valid, training=SHORT, seed=ScienceSeed(4), store=store)
    with pytest.raises(ParameterError, match="other data"):
        fit(new_model(), train, valid, training=SHORT, seed=ScienceSeed(5), store=store)
    path = tmp_path / CHECKPOINT
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corrupt):
        fit(new_model(), train, valid, training=SHORT, seed=ScienceSeed(4), store=store)


def test_a_model_is_saved_and_read_back(tmp_path: Path, rng: np.random.Generator) -> None:
    model = QuantModel(new_model().net, bits=Bits(act=3), front={"block": 2, "channels": "y3"})
    model.calibrate(rng.normal(size=(32, 3, 4, 4)))
    save_model(model, tmp_path / "m")
    read = load_model(tmp_path / "m")
    assert (read.net.spec, read.bits, read.front) == (model.net.spec, model.bits, model.front)
    assert lower(read).digest() == lower(model).digest()
    with pytest.raises(StorageError):
        save_model(model, tmp_path / "m")
    save_model(model, tmp_path / "m", replace=True)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"}, {"bits": {"weight": "4"}}, {"bits": {"odd": 4}}, {"bits": 3},
        {"front": 3}, {"network": {}}, {"bits": {"weight": 99}},
    ],
)  # fmt: skip
def test_a_hostile_description_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    save_model(new_model(), tmp_path)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(MalformedMessage):
        load_model(tmp_path)


@pytest.mark.parametrize("damage", ["digest", "cut", "other"])
def test_hostile_weights_are_refused(tmp_path: Path, damage: str) -> None:
    save_model(new_model(), tmp_path)
    path = tmp_path / "model.safetensors"
    if damage == "other":
        save_model(QuantModel(small_cnn((3, 4, 4), (4,), classes=2)), tmp_path / "o")
        path.write_bytes((tmp_path / "o" / "model.safetensors").read_bytes())
        description = json.loads((tmp_path / "model.json").read_text())
        other = json.loads((tmp_path / "o" / "model.json").read_text())
        description["weights"] = other["weights"]
        (tmp_path / "model.json").write_text(json.dumps(description))
    else:
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data if damage == "digest" else data[: len(data) // 2])
    with pytest.raises(Corrupt):
        load_model(tmp_path)


def test_mirrored_coefficients_are_those_of_mirrored_images(rng: np.random.Generator) -> None:
    images = rng.integers(0, 256, (5, 8, 8)).astype(np.float64)
    a, b = images[:, 0::2, 0::2], images[:, 0::2, 1::2]
    c, d = images[:, 1::2, 0::2], images[:, 1::2, 1::2]
    mean, std = np.array([100.0, 3.0]), np.array([50.0, 7.0])

    def coefficients(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
        x = np.stack([a + b + c + d, a - b + c - d], 1)
        return (x - mean[:, None, None]) / std[:, None, None]

    plain = coefficients(a, b, c, d)
    mirrored = coefficients(*(part[..., ::-1] for part in (b, a, d, c)))
    rule = flip_rule([0, 1], mean=mean, std=std)

    class Always:
        def random(self, count: int) -> np.ndarray:
            return np.zeros(count)

    got = Augment(flip=rule)(plain, Always())
    np.testing.assert_allclose(got, mirrored, rtol=1e-6)


def test_images_are_changed_before_the_front_end(rng: np.random.Generator) -> None:
    images = rng.integers(1, 256, (6, 3, 8, 8)).astype(np.uint8)
    source = Images(
        images, np.zeros(6, np.int64), front=lambda x: x[:, :, ::2, ::2] / 255.0, version="half",
        augment=Augment(shift=2, flip=True, cut=2),
    )  # fmt: skip
    which = np.arange(6)
    plain, again = source.batch(which, rng=None), source.batch(which, rng=None)
    assert plain.dtype == np.float32
    assert np.array_equal(plain, again)
    one = source.batch(which, rng=ScienceSeed(1).generator())
    assert one.shape == plain.shape
    assert not np.array_equal(one, plain)
    assert np.array_equal(one, source.batch(which, rng=ScienceSeed(1).generator()))
    assert (
        source.digest()
        != Images(images, np.zeros(6, np.int64), front=source.front, version="other").digest()
    )


def test_data_are_checked(rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 3, 4, 4))
    for build in (
        lambda: Arrays(x, [0, 1, 2]),
        lambda: Arrays(x, [0, 1, 2, -1]),
        lambda: Arrays(x, [0.0, 1.0, 2.0, 1.0]),
        lambda: Arrays(x * np.nan, [0, 1, 1, 0]),
        lambda: Arrays(x, [0, 1, 1, 0], augment=Augment(flip=True)),
        lambda: flip_rule([0, 1], mean=[1.0]),
        lambda: Images(x, [0, 1, 1, 0], front=lambda i: i, version=""),  # type: ignore[arg-type]
        lambda: Augment(shift=-1),
        lambda: Augment(flip=FlipRule((1.0,), (0.0,)))(x, ScienceSeed(0).generator()),
        lambda: fit(new_model(), Arrays(x, [0, 1, 2, 1]), seed=ScienceSeed(0)),
        lambda: Recipe(epochs=-1, rate=0.1),
    ):
        with pytest.raises(ParameterError):
            build()
