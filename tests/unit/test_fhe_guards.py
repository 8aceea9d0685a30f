"""Known ways to get a wrong answer without an error, each kept out by a test.

The canaries run the bare libraries and are expected to fail; the day one passes, a defect was
repaired upstream and its guard can be reconsidered.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from privml.errors import ParameterError, UnsupportedError
from privml.protocols.fhe import reference, toolkit, trace
from privml.protocols.fhe.circuits import Circuit
from privml.protocols.fhe.entry import ImageSpec, Mode
from privml.protocols.fhe.graph import Conv, Graph, Input, Output, SumPool
from privml.testing.integer_graphs import random_images
from privml.testing.tiny_graphs import conv_graph, residual_graph

NEVER = 2.0**-24

concrete = pytest.mark.skipif(toolkit.missing() is not None, reason=str(toolkit.missing()))
tenseal = pytest.mark.skipif(
    find_spec("tenseal") is None, reason="tenseal is not installed; install privml[he]"
)
pytestmark = pytest.mark.filterwarnings("ignore::privml.protocols.fhe.toolkit.LicenceNotice")


@pytest.fixture(scope="module")
def circuit() -> Iterator[Circuit]:
    with Circuit(residual_graph(exact=True), p_error=NEVER) as made:
        yield made


# 1. arrays that are not C-contiguous


@concrete
@pytest.mark.xfail(strict=True, reason="concrete-python 2.11 reads Fortran-ordered memory wrongly")
def test_canary_the_bare_library_takes_transposed_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the library leaves its output there
    fhe = toolkit.frontend()
    compiler = fhe.Compiler(lambda x: x + 1, {"x": "encrypted"})
    image = np.arange(12).reshape(4, 3).T
    settings = fhe.Configuration(p_error=NEVER, dump_artifacts_on_unexpected_failures=False)
    bare = compiler.compile([np.zeros((3, 4), np.int64), np.full((3, 4), 14)], settings)
    assert (bare.simulate(image) == image + 1).all()


def layouts(images: np.ndarray) -> list[np.ndarray]:
    wide = np.zeros((*images.shape[:-1], 2 * images.shape[-1]), np.int32)
    wide[..., ::2] = images
    axes = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    flipped = np.ascontiguousarray(images[..., ::-1])[..., ::-1]
    return [np.asfortranarray(images), wide[..., ::2], axes, flipped, images.astype(np.int8)]


@concrete
def test_memory_layout_never_changes_a_result(circuit: Circuit) -> None:
    images = random_images(circuit.graph, 2, seed=1)
    right = reference.run(circuit.graph, images)
    for mode in (Mode.CLEAR, Mode.SIMULATE):
        for view in layouts(images):
            assert (view == images).all()
            assert (circuit.run(view, mode=mode).integers == right).all(), mode
    for view in layouts(images[:1])[:1]:
        assert (circuit.run(view, mode=Mode.EXECUTE).integers == right[:1]).all()


def open_door(self: ImageSpec, x: np.ndarray) -> np.ndarray:
    """What :meth:`ImageSpec.check` would be without its copy to C order."""
    assert x.shape[1:] == self.shape
    return np.asarray(x, np.int64)


@concrete
def test_a_door_without_its_copy_would_be_noticed(
    circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deliberately broken variant of the guard gives wrong results, silently."""
    images = random_images(circuit.graph, 4, seed=1)
    right = reference.run(circuit.graph, images)
    monkeypatch.setattr(ImageSpec, "check", open_door)
    wrong = [
        (circuit.run(view, mode=Mode.SIMULATE).integers != right).any()
        for view in (np.asfortranarray(images), layouts(images)[2])
    ]
    assert all(wrong)
    assert (circuit.run(images, mode=Mode.SIMULATE).integers == right).all()


@concrete
def test_every_way_into_the_library_passes_the_door(
    circuit: Circuit, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.asfortranarray(random_images(circuit.graph, 1, seed=1))
    seen: list[bool] = []
    check = ImageSpec.check

    def counted(self: ImageSpec, x: np.ndarray) -> np.ndarray:
        seen.append(x.flags.c_contiguous)
        return check(self, x)

    monkeypatch.setattr(ImageSpec, "check", counted)
    for mode in Mode:
        circuit.run(images, mode=mode)
    client = circuit.client()
    client.keygen()
    client.encrypt(images)
    assert seen.count(False) >= 4


def test_the_door_hands_out_c_contiguous_words() -> None:
    spec = ImageSpec((2, 3, 4), 0, 9)
    for view in layouts(np.arange(48).reshape(2, 2, 3, 4) % 10):
        checked = spec.check(view)
        assert checked.flags.c_contiguous
        assert checked.dtype == np.int64
        assert (checked == view).all()


# 2. plain bias before a matrix product under CKKS


def bias_then_product(ts: ModuleType, *, folded: bool) -> float:
    rng = np.random.default_rng(2)
    x, bias = rng.uniform(-1, 1, 16), rng.uniform(-1, 1, 8)
    first, second = rng.uniform(-1, 1, (16, 8)), rng.uniform(-1, 1, (8, 4))
    context = ts.context(ts.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 40, 60])
    context.global_scale = 2.0**40
    context.generate_galois_keys()
    if folded:
        with_one = ts.ckks_vector(context, [*x, 1.0])
        hidden = with_one.mm(np.vstack([first, bias]).tolist())
    else:
        hidden = ts.ckks_vector(context, x.tolist()).mm(first.tolist()) + bias.tolist()
    result = np.array(hidden.mm(second.tolist()).decrypt())
    return float(np.abs(result - (x @ first + bias) @ second).max())


def load_tenseal() -> Any:
    return pytest.importorskip("tenseal")


@tenseal
@pytest.mark.xfail(strict=True, reason="tenseal 0.3.18, upstream issue 462")
def test_canary_the_bare_library_adds_a_plain_bias() -> None:
    assert bias_then_product(load_tenseal(), folded=False) < 1e-3


@tenseal
def test_a_bias_folded_into_the_matrix_is_right() -> None:
    assert bias_then_product(load_tenseal(), folded=True) < 1e-3


# 3. values out of range


@concrete
@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("value", [-3, 2, 1 << 40])
def test_images_out_of_range_are_refused(circuit: Circuit, mode: Mode, value: int) -> None:
    images = random_images(circuit.graph, 2, seed=3)
    images[1, 0, 2, 1] = value
    with pytest.raises(ParameterError, match=r"lie in \[-2, 1\]"):
        circuit.run(images, mode=mode)
    with pytest.raises(ParameterError, match=r"lie in \[-2, 1\]"):
        circuit.client().encrypt(images)


@pytest.mark.parametrize("bad", [np.zeros((1, 2, 4, 4)), np.zeros((1, 2, 4, 5), int), np.zeros(3)])
def test_images_of_another_kind_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(ParameterError, match="integers of shape"):
        ImageSpec((2, 4, 4), 0, 7).check(bad)


@concrete
def test_widths_come_from_the_bounds_and_not_from_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = residual_graph(exact=True)
    dark = [np.zeros((1, *graph.input.shape), np.int64)]
    monkeypatch.setattr(trace, "samples", lambda _: dark)
    images = random_images(graph, 6, seed=4)
    with Circuit(graph, p_error=NEVER) as made:
        simulated = made.run(images, mode=Mode.SIMULATE).integers
    assert (simulated == reference.run(graph, images)).all()


@concrete
def test_a_narrower_integer_than_the_bounds_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    graph = residual_graph(exact=True)
    dark = [np.zeros((1, *graph.input.shape), np.int64)]
    monkeypatch.setattr(trace, "samples", lambda _: dark)
    monkeypatch.setattr(toolkit.frontend(), "hint", lambda x, **_: x)
    with pytest.raises(AssertionError, match="bits where"):
        Circuit(graph, p_error=NEVER)
    assert not list(tmp_path.iterdir())


# 4. padding and strides of convolutions


@concrete
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [4, 5])
@pytest.mark.parametrize("pad", [0, 1, 2])
def test_padded_convolutions_are_those_of_torch(side: int, stride: int, pad: int) -> None:
    graph = conv_graph(side, stride=stride, pad=pad)
    weight = next(n.weight for n in graph.nodes if isinstance(n, Conv))
    images = random_images(graph, 3, seed=5)
    right = torch.nn.functional.conv2d(
        torch.from_numpy(images).double(),
        torch.from_numpy(weight.copy()).double(),
        stride=stride,
        padding=pad,
    )
    with Circuit(graph, p_error=NEVER) as made:
        simulated = made.run(images, mode=Mode.SIMULATE).integers
    assert (simulated == right.long().numpy().reshape(3, -1)).all()


# 5. simulation in place of execution


@concrete
def test_no_mode_stands_in_for_another(circuit: Circuit, monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(circuit.graph, 1, seed=6)

    def refuse(*_: object) -> None:
        raise RuntimeError("not this one")

    others = {Mode.CLEAR: "reference.run", Mode.SIMULATE: "Circuit._simulate"}
    with monkeypatch.context() as patch:
        for target in others.values():
            patch.setattr(f"privml.protocols.fhe.circuits.{target}", refuse)
        assert circuit.run(images, mode="execute").mode is Mode.EXECUTE
    with monkeypatch.context() as patch:
        patch.setattr("privml.protocols.fhe.circuits.Circuit._execute", refuse)
        assert circuit.run(images, mode="simulate").mode is Mode.SIMULATE
        with pytest.raises(RuntimeError, match="not this one"):
            circuit.run(images, mode="execute")


@concrete
@pytest.mark.parametrize("mode", ["", "fhe", "EXECUTE", None, True])
def test_unknown_modes_are_refused(circuit: Circuit, mode: Any) -> None:
    with pytest.raises(ParameterError, match="clear, simulate, execute"):
        circuit.run(random_images(circuit.graph, 1, seed=7), mode=mode)


# 6. windows that do not divide, and the order of channels


def test_pools_that_drop_rows_are_refused() -> None:
    one = np.ones(4)
    with pytest.raises(UnsupportedError, match="rows would be dropped"):
        Graph((Input("x", (1, 7, 7), 0, 3), SumPool("p", "x", 5), Output("y", "p", one, one)))


@concrete
def test_channels_rows_and_columns_keep_their_places() -> None:
    one = np.ones(2 * 2 * 2)
    weight = np.array([[1, 10, 100], [0, 0, 1]]).reshape(2, 3, 1, 1)
    nodes = (
        Input("x", (3, 4, 2), 0, 7),
        Conv("c", "x", weight),
        SumPool("p", "c", kernel=1),
        Conv("d", "p", np.eye(2, dtype=np.int64).reshape(2, 2, 1, 1), stride=1),
        SumPool("q", "d", kernel=None),
        Output("y", "q", one[:2], one[:2]),
    )
    images = np.zeros((3, 3, 4, 2), np.int64)
    images[0, 0], images[1, 1], images[2, 2] = 1, 2, 3  # one colour each
    with Circuit(Graph(nodes), p_error=NEVER) as made:
        found = made.run(images, mode=Mode.SIMULATE).integers
    assert found.tolist() == [[8, 0], [160, 0], [2400, 24]]
    spread = Graph((*nodes[:2], Output("y", "c", np.ones(16), np.ones(16))))
    image = np.arange(24).reshape(1, 3, 4, 2) % 8
    with Circuit(spread, p_error=NEVER) as made:
        found = made.run(image, mode=Mode.SIMULATE).integers
    right = np.einsum("oc,nchw->nohw", weight[:, :, 0, 0], image).reshape(1, -1)
    assert (found == right).all()
