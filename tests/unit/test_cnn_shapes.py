"""Shapes of the networks: the paper's grids and table counts, and refusals at construction."""

from __future__ import annotations

import json
import math

import pytest

from privml.backbones.cnn import Bits, Cnn, resnet18, resnet20, small_cnn
from privml.backbones.cnn_spec import Basic, CnnSpec, MeanPool, Plain
from privml.errors import MalformedMessage, ParameterError


def tables(net: Cnn) -> int:
    """Return tables of an image: one for each output of a layer, two for each of a residual."""
    total = 0
    for block, shape in zip(net.spec.blocks, net.spec.shapes(), strict=True):
        total += math.prod(shape) * (2 if isinstance(block, Basic) else 1)
    return total


def test_resnet20_has_the_grids_of_the_paper() -> None:
    dct = resnet20((24, 16, 16), skip_downsample=1)
    rgb = resnet20((3, 32, 32), form="rgb")
    grids = [[shape[1] for shape in net.spec.shapes()[::3]] for net in (dct, rgb)]
    assert grids == [[16, 16, 16, 8], [32, 32, 16, 8]]
    assert [shape[0] for shape in dct.spec.shapes()[::3]] == [48, 48, 56, 64]
    assert (tables(dct), tables(rgb)) == (196_608, 454_656)
    assert (dct.spec.blocks[0].kernel, rgb.spec.blocks[0].kernel) == (1, 3)


def test_resnet18_forms() -> None:
    large = resnet18((64, 56, 56), widths=(4, 4, 4, 4), classes=100)
    assert [shape[1] for shape in large.spec.shapes()[::2]] == [56, 56, 28, 14, 7][:5]
    assert large.spec.blocks[0].relu is False
    assert large.blocks[0].act.signed
    rgb = resnet18((3, 224, 224), widths=(4, 4, 4, 4), form="rgb")
    assert isinstance(rgb.spec.blocks[1], MeanPool)
    assert rgb.spec.shapes()[-1][1:] == (7, 7)
    cifar = resnet18((24, 16, 16), widths=(4, 4, 4, 4), skip_downsample=1)
    assert cifar.spec.shapes()[-1][1:] == (4, 4)
    twin = resnet18((3, 32, 32), widths=(4, 4, 4, 4), form="rgb")
    assert twin.spec.shapes()[-1][1:] == (4, 4)


@pytest.mark.parametrize(
    ("shape", "skip", "words"),
    [
        ((24, 16, 16), 0, "ends at 4x4, expected 8x8; raise skip_downsample"),
        ((3, 32, 32), 1, "ends at 16x16, expected 8x8; lower skip_downsample"),
        ((6, 16, 16), 3, "skip_downsample = 3"),
    ],
)
def test_a_wrong_final_grid_is_refused(shape: tuple[int, int, int], skip: int, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        resnet20(shape, skip_downsample=skip, widths=(2, 2, 2))


@pytest.mark.parametrize(
    ("block", "words"),
    [
        (MeanPool(5), "block 0: a 5x5 mean does not divide the 7x7 grid"),
        (Plain(4, kernel=9, pad=0), "larger than the padded grid"),
        (Plain(4, groups=3), "3 groups do not divide"),
        (Plain(4, kernel=1, pad=1), "as large as the kernel"),
        (Plain(0), "width = 0"),
        (Basic(4, 0), "stride = 0"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(block: Plain, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        CnnSpec("n", (4, 7, 7), 2, (block,))


def test_small_networks() -> None:
    net = small_cnn((3, 4, 4), (16, 16, 16), residual=True)
    assert [shape[1] for shape in net.spec.shapes()] == [4, 2, 2]
    assert tables(net) == 16 * 16 + 2 * 2 * 16 * 4


def test_a_network_is_described_by_json() -> None:
    spec = CnnSpec("n", (4, 8, 8), 3, (Plain(4, pad=0), Basic(4, 2), MeanPool(3)))
    assert CnnSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("change"),
    [
        {"shape": [4, 8]}, {"shape": [4, 8, "8"]}, {"classes": True}, {"classes": 1 << 40},
        {"blocks": [{"kind": "other"}]}, {"blocks": [{"kind": "basic", "width": 4, "x": 1}]},
        {"blocks": [{"kind": "plain", "width": 4, "relu": 1}]}, {"blocks": 3}, {"extra": 1},
    ],
)  # fmt: skip
def test_a_hostile_description_is_refused(change: dict[str, object]) -> None:
    tree = CnnSpec("n", (4, 8, 8), 3, (Plain(4),)).to_json() | change
    with pytest.raises(MalformedMessage):
        CnnSpec.from_json(tree)


@pytest.mark.parametrize(
    "bits", [{"weight": 1}, {"act": 9}, {"input": 1}, {"round_to": 17}, {"accumulator": 30}]
)
def test_bits_out_of_range_are_refused(bits: dict[str, int]) -> None:
    with pytest.raises(ParameterError):
        Bits(**bits)
