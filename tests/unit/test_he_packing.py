"""Slot layout and the product by diagonals, against plain matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privml.errors import DepthExceeded, InsecureParameters, ParameterError
from privml.protocols.he.evaluate import Circuit
from privml.protocols.he.network import Layer, PolynomialNetwork
from privml.protocols.he.packing import Diagonals, Packing, rotation_count
from privml.protocols.he.parameters import MAX_MODULUS_BITS, CkksParameters
from privml.protocols.he.twin import Noise, Twin


@given(
    log=st.integers(0, 5), spare=st.integers(0, 4), outputs=st.integers(1, 32),
    inputs=st.integers(1, 32), seed=st.integers(0, 1 << 20),
)  # fmt: skip
def test_diagonals_multiply_by_the_matrix(
    log: int, spare: int, outputs: int, inputs: int, seed: int
) -> None:
    dimension = 1 << log
    outputs, inputs = min(outputs, dimension), min(inputs, dimension)
    rng = np.random.default_rng(seed)
    packing = Packing(dimension, dimension << spare)
    weight, bias = rng.normal(size=(outputs, inputs)), rng.normal(size=outputs)
    weight[rng.random(weight.shape) < 0.3] = 0.0
    weight[0, 0] = 1.0
    network = PolynomialNetwork((Layer("a", weight, bias),), 10.0, (inputs,))
    circuit, twin = Circuit(network, packing), Twin()
    x = rng.normal(size=(packing.images, inputs))
    slots = circuit.run(twin, packing.pack(x), circuit.prepare(twin))
    found = packing.unpack(slots, images=packing.images, features=outputs)
    np.testing.assert_allclose(found, x @ weight.T + bias, atol=1e-12)
    one = circuit.maps[0]
    assert one.rotations <= rotation_count(one.rows, dimension)
    assert all(0 < step < packing.slots for step in circuit.steps)


def test_packing_keeps_images_apart(rng: np.random.Generator) -> None:
    packing = Packing(8, 64)
    x = rng.normal(size=(5, 6))
    slots = packing.pack(np.asfortranarray(x))
    assert np.array_equal(packing.unpack(slots, images=5, features=6), x)
    assert np.count_nonzero(slots) == x.size
    for bad in (np.zeros((9, 6)), np.zeros((1, 9)), np.zeros(6)):
        with pytest.raises(ParameterError):
            packing.pack(bad)
    for sizes in ((3, 8), (16, 8), (0, 8)):
        with pytest.raises(ParameterError):
            Packing(*sizes)


def test_rotations_are_about_twice_the_square_root() -> None:
    dense = Diagonals(Packing(64, 4096), np.ones((64, 64)))
    assert (dense.rotations, dense.products) == (14, 64)
    assert Diagonals(Packing(64, 4096), np.ones((10, 64))).rotations == 8


@pytest.mark.parametrize("depth", range(1, 12))
def test_parameters_are_secure_and_the_cheapest(depth: int) -> None:
    chosen = CkksParameters.for_depth(depth)
    assert chosen.modulus_bits <= MAX_MODULUS_BITS[chosen.degree]
    assert len(chosen.prime_bits) == depth + 2
    assert chosen.prime_bits[0] == chosen.prime_bits[-1] > chosen.scale_bits >= 30
    for degree in MAX_MODULUS_BITS:
        if degree < chosen.degree:
            with pytest.raises(InsecureParameters, match="128-bit"):
                CkksParameters(degree, 30, depth)


def test_too_deep_or_weak_is_refused() -> None:
    with pytest.raises(DepthExceeded, match="late: 13 multiplicative levels") as caught:
        CkksParameters.for_depth(13, layer="late")
    assert (caught.value.layer, caught.value.value, caught.value.limit) == ("late", 13, 11)
    with pytest.raises(InsecureParameters, match="larger degree"):
        CkksParameters(8192, 45, 3)
    for bad in ((8192, 20, 1), (8192, 30, 0), (1000, 30, 1)):
        with pytest.raises(ParameterError):
            CkksParameters(*bad)


def test_noise_is_largest_in_slots_near_one() -> None:
    noise = Noise.of(CkksParameters.for_depth(3))
    assert noise.switch.shape == (4096,)
    assert noise.switch[0] == noise.switch.max() > 10 * np.median(noise.switch)
    assert noise.rescale < np.median(noise.switch)
