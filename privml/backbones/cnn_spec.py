"""Shapes of small convolutional networks as plain values; no torch.

A network is a sequence of blocks on a grid of cells, a global mean and one linear layer. Every
convolution is followed by batch normalisation and by one activation, a table under encryption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from privml.backbones.digests import Json
from privml.errors import MalformedMessage, ParameterError
from privml.params import check, outside

_MAX_WIDTH, _MAX_GRID, _MAX_BLOCKS = 4096, 4096, 512


@dataclass(frozen=True)
class Plain:
    """Convolution, normalisation, activation.

    Attributes
    ----------
    width
        Output channels.
    kernel, stride
        Of the convolution.
    pad
        Zero cells on each side; ``kernel // 2`` if not given.
    groups
        Groups of channels.
    relu
        Whether the activation cuts at zero; otherwise it is signed and only quantises.
    """

    width: int
    kernel: int = 3
    stride: int = 1
    pad: int | None = None
    groups: int = 1
    relu: bool = True

    @property
    def padding(self) -> int:
        """Zero cells on each side."""
        return self.kernel // 2 if self.pad is None else self.pad


@dataclass(frozen=True)
class Basic:
    """Residual block of two 3x3 convolutions; a 1x1 convolution on the skip where shapes change."""

    width: int
    stride: int = 1


@dataclass(frozen=True)
class MeanPool:
    """Mean over ``kernel`` by ``kernel`` cells, which must divide the grid, then requantised."""

    kernel: int = 2


Block: TypeAlias = Plain | Basic | MeanPool
Shape: TypeAlias = tuple[int, int, int]
Kind: TypeAlias = Literal["plain", "basic", "pool"]


@dataclass(frozen=True)
class CnnSpec:
    """A network.

    Attributes
    ----------
    name
        For people.
    shape
        (channels, rows, columns) of the input.
    classes
        Number of classes.
    blocks
        What comes before the global mean and the linear layer.

    Raises
    ------
    ParameterError
        A size is out of range, or a block does not fit its grid; the message names the block.
    """

    name: str
    shape: Shape
    classes: int
    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        problems = []
        for size, limit in zip(self.shape, (_MAX_WIDTH, _MAX_GRID, _MAX_GRID), strict=True):
            problems += outside("shape", size, 1, limit)
        problems += outside("classes", self.classes, 2, _MAX_WIDTH)
        problems += outside("number of blocks", len(self.blocks), 1, _MAX_BLOCKS)
        check(f"network {self.name!r}", problems)
        self.shapes()

    def shapes(self) -> tuple[Shape, ...]:
        """Return the shape after each block."""
        found = [self.shape]
        for number, block in enumerate(self.blocks):
            found.append(_after(block, found[-1], f"network {self.name!r}, block {number}"))
        return tuple(found[1:])

    def to_json(self) -> dict[str, Json]:
        """Return the network as plain values."""
        blocks: list[Json] = [{"kind": _kind(b), **asdict(b)} for b in self.blocks]
        return {
            "name": self.name, "shape": list(self.shape), "classes": self.classes,
            "blocks": blocks,
        }  # fmt: skip

    @classmethod
    def from_json(cls, tree: object) -> CnnSpec:
        """Return the network that :meth:`to_json` described.

        Raises
        ------
        MalformedMessage
            The values do not describe a network.
        """
        try:
            if not isinstance(tree, Mapping) or tree.keys() != {
                "name", "shape", "classes", "blocks",
            }:  # fmt: skip
                raise TypeError("a network has name, shape, classes and blocks")
            channels, rows, columns = (_int(n) for n in tree["shape"])
            blocks = tuple(_block(block) for block in tree["blocks"])
            name, classes = str(tree["name"]), _int(tree["classes"])
            return cls(name, (channels, rows, columns), classes, blocks)
        except (TypeError, ValueError, KeyError, ParameterError) as error:
            raise MalformedMessage(f"no description of a network: {error}") from error


def halved(grid: int, stride: int) -> int:
    """Return the side of a grid after a padded convolution of odd size with a stride."""
    return (grid - 1) // stride + 1


def stages(
    blocks: Sequence[int], widths: Sequence[int], *, skip_downsample: int
) -> tuple[Basic, ...]:
    """Return residual stages; each after the first halves the grid, but for the skipped ones.

    Parameters
    ----------
    blocks, widths
        Of each stage.
    skip_downsample
        How many halvings are left out, the earliest first.

    Raises
    ------
    ParameterError
        The lists differ in length, or there are fewer halvings than are to be skipped.
    """
    problems = [] if len(blocks) == len(widths) else ["give one width for each stage"]
    problems += outside("skip_downsample", skip_downsample, 0, len(widths) - 1)
    check("residual stages", problems)
    found = []
    for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
        stride = 2 if stage > skip_downsample else 1
        found += [Basic(width, stride if number == 0 else 1) for number in range(count)]
    return tuple(found)


def expect_grid(spec: CnnSpec, final: int, *, skip_downsample: int) -> CnnSpec:
    """Return ``spec`` if its last grid has side ``final``.

    Raises
    ------
    ParameterError
        It has another; the message says so and what to change.
    """
    _, rows, columns = spec.shapes()[-1]
    if (rows, columns) != (final, final):
        what = "raise" if rows < final else "lower"
        raise ParameterError(
            f"network {spec.name!r}: input {spec.shape[1]}x{spec.shape[2]} with "
            f"skip_downsample={skip_downsample} ends at {rows}x{columns}, expected "
            f"{final}x{final}; {what} skip_downsample, or give final_grid={rows}"
        )
    return spec


def _after(block: Block, shape: Shape, where: str) -> Shape:
    channels, rows, columns = shape
    if isinstance(block, MeanPool):
        problems = outside("kernel", block.kernel, 1, min(rows, columns))
        if not problems and (rows % block.kernel or columns % block.kernel):
            problems.append(
                f"a {block.kernel}x{block.kernel} mean does not divide the {rows}x{columns} grid"
            )
        check(where, problems)
        return channels, rows // block.kernel, columns // block.kernel
    problems = outside("width", block.width, 1, _MAX_WIDTH)
    problems += outside("stride", block.stride, 1, 16)
    if isinstance(block, Basic):
        check(where, problems)
        return block.width, halved(rows, block.stride), halved(columns, block.stride)
    problems += outside("kernel", block.kernel, 1, 64) + outside("pad", block.padding, 0, 64)
    if block.groups < 1 or channels % block.groups or block.width % block.groups:
        problems.append(f"{block.groups} groups do not divide {channels} and {block.width}")
    if block.kernel > min(rows, columns) + 2 * block.padding:
        problems.append(f"a kernel of {block.kernel} is larger than the padded grid")
    if block.padding >= block.kernel:
        problems.append("padding is as large as the kernel")
    check(where, problems)
    spans = [side + 2 * block.padding - block.kernel for side in (rows, columns)]
    return block.width, spans[0] // block.stride + 1, spans[1] // block.stride + 1


def _kind(block: Block) -> Kind:
    if isinstance(block, Plain):
        return "plain"
    return "basic" if isinstance(block, Basic) else "pool"


def _block(tree: Mapping[str, object]) -> Block:
    values = dict(tree)
    kind = values.pop("kind")
    relu, pad = values.pop("relu", True), values.pop("pad", None)
    sizes = {name: _int(value) for name, value in values.items()}
    if kind == "plain":
        if not isinstance(relu, bool):
            raise TypeError("relu is true or false")
        return Plain(**sizes, relu=relu, pad=None if pad is None else _int(pad))
    if kind == "basic":
        return Basic(**sizes)
    if kind == "pool":
        return MeanPool(**sizes)
    raise ValueError(f"unknown block {kind!r}")


def _int(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no integer")
    return value
