"""Small convolutional networks with a floating-point and an integer forward pass.

Constructors of the usual shapes: :func:`small_cnn`, :func:`resnet20` and :func:`resnet18`, each on
a grid of frequency coefficients (``form="dct"``) or on pixels (``form="rgb"``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from privml.backbones.cnn_blocks import (
    SUM_BITS,
    AnyBlock,
    Bits,
    Draw,
    build_block,
)
from privml.backbones.cnn_spec import Basic as Basic
from privml.backbones.cnn_spec import (
    Block,
    CnnSpec,
    MeanPool,
    Plain,
    Shape,
    expect_grid,
    stages,
)
from privml.backbones.quant import (
    Accumulated,
    QuantAct,
    QuantLinear,
    Scaled,
    as_accumulated,
    sum_pool,
)
from privml.backbones.recorder import Recorder
from privml.rng import ScienceSeed

__all__ = [
    "Basic",
    "Bits",
    "Cnn",
    "CnnSpec",
    "MeanPool",
    "Plain",
    "resnet18",
    "resnet20",
    "small_cnn",
]

Form = Literal["dct", "rgb"]


class Cnn(nn.Module):
    """A network; ``forward`` is floating point, :meth:`integers` the quantised pass.

    Parameters
    ----------
    spec
        Its shape.
    bits
        Widths of its integers.
    seed
        Of the initial weights.

    Attributes
    ----------
    pool_table
        Whether pooled features pass a table of their own: only if the last layer's accumulator
        could otherwise need more than 16 bits.
    """

    def __init__(
        self, spec: CnnSpec, *, bits: Bits | None = None, seed: ScienceSeed | None = None
    ) -> None:
        super().__init__()
        self.spec, self.bits = spec, Bits() if bits is None else bits
        self.start = QuantAct(bits=self.bits.input, signed=True)
        draw = Draw(ScienceSeed(0) if seed is None else seed)
        blocks: list[AnyBlock] = []
        channels = spec.shape[0]
        for number, block in enumerate(spec.blocks):
            blocks.append(
                build_block(
                    block, channels, f"b{number}", self.bits, draw, blocks[-1] if blocks else None
                )
            )
            channels = channels if isinstance(block, MeanPool) else block.width
        self.blocks = nn.ModuleList(blocks)
        self._order = tuple(blocks)
        signed = blocks[-1].act.signed
        self.pool_table = self._needs_table(blocks[-1].act)
        self.features = QuantAct(bits=self.bits.act, signed=signed)
        weight = draw("head", (spec.classes, channels), fan=channels)
        self.head = QuantLinear(weight, bits=self.bits.head_bits)

    def _needs_table(self, last: QuantAct) -> bool:
        channels, rows, columns = self.spec.shapes()[-1]
        limit = (1 << (self.bits.head_bits - 1)) - 1
        largest = rows * columns * max(last.high, -last.low) * limit * channels
        return largest >= 1 << (SUM_BITS - 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, classes) scores of (n, C, H, W) input in floating point."""
        for block in self._order:
            x = block.float_forward(x)
        pooled = x.mean((2, 3))
        if self.pool_table:
            pooled = self.features.float_forward(pooled)
        return self.head.float_forward(pooled)

    def quantise(self, x: Tensor) -> Scaled:
        """Return the integers of a real input (n, C, H, W), as the client computes them."""
        return self.start.quantise(x)

    def integers(self, x: Scaled, recorder: Recorder | None = None) -> Accumulated:
        """Return integer class scores (n, classes); what is computed is told to a recorder."""
        note = recorder if recorder is not None else Recorder()
        x = note.start(x, self.spec.shape)
        for block in self._order:
            x = block(x, note)
        if x.values.shape[2] * x.values.shape[3] > 1:
            x = note.pool("pool", x, sum_pool(x, None), None)
        else:
            x = note.renamed(x, Scaled(x.values.flatten(1), x.scale, x.low, x.high))
        if self.pool_table:
            x = self._looked_up(x, note)
        return note.linear("head", x, self.head, self.head(x))

    def _looked_up(self, x: Scaled, note: Recorder) -> Scaled:
        acc = note.renamed(x, as_accumulated(x))
        keep = self.bits.round_to
        return note.act("features", acc, self.features, self.features(acc, keep), keep)

    def scores(self, x: Tensor) -> Tensor:
        """Return (n, classes) class scores of a real input through the quantised pass."""
        acc = self.integers(self.quantise(x))
        return acc.gain * acc.values.to(acc.gain.dtype) + acc.offset

    def acts(self) -> list[QuantAct]:
        """Return all quantisers of activations that are in use."""
        every = [m for m in self.modules() if isinstance(m, QuantAct)]
        return every if self.pool_table else [m for m in every if m is not self.features]

    def freeze_statistics(self) -> None:
        """Stop learning statistics of batch normalisation; call after ``train()``."""
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()


def small_cnn(
    shape: Shape, widths: Sequence[int] = (16, 16, 16), *, classes: int = 10,
    residual: bool = False, seed: ScienceSeed | None = None,
) -> Cnn:  # fmt: skip
    """Return a network for small images.

    Parameters
    ----------
    shape
        (channels, rows, columns), of a square grid.
    widths
        Of the layers. The first keeps the grid, the following ones halve it down to 2 cells.
    residual
        Residual blocks after the first layer instead of single convolutions.
    """
    side = shape[1]
    blocks: list[Block] = [Plain(widths[0])]
    for width in widths[1:]:
        stride = 2 if side > 2 else 1
        side = (side - 1) // stride + 1
        blocks.append(Basic(width, stride) if residual else Plain(width, stride=stride))
    name = "small residual network" if residual else "small network"
    return Cnn(CnnSpec(name, shape, classes, tuple(blocks)), seed=seed)


def resnet20(
    shape: Shape, *, widths: Sequence[int] = (48, 56, 64), skip_downsample: int = 0,
    form: Form = "dct", final_grid: int = 8, classes: int = 10, seed: ScienceSeed | None = None,
) -> Cnn:  # fmt: skip
    """Return a ResNet-20: a stem with ReLU and three stages of three residual blocks.

    Parameters
    ----------
    shape
        (channels, rows, columns).
    widths
        Of the stages.
    skip_downsample
        How many of the two halvings are left out: 1 on a 16x16 grid, 2 on 8x8.
    form
        ``"dct"`` has a 1x1 stem, ``"rgb"`` a 3x3 stem.
    final_grid
        Side of the last grid.

    Raises
    ------
    ParameterError
        The last grid is not ``final_grid``; the message says what to change.
    """
    stem = Plain(widths[0], kernel=1 if form == "dct" else 3)
    blocks: tuple[Block, ...] = (
        stem,
        *stages((3,) * len(widths), widths, skip_downsample=skip_downsample),
    )
    spec = CnnSpec(f"ResNet-20 {form}", shape, classes, blocks)
    return Cnn(expect_grid(spec, final_grid, skip_downsample=skip_downsample), seed=seed)


def resnet18(
    shape: Shape, *, widths: Sequence[int] = (64, 128, 256, 512), skip_downsample: int = 0,
    form: Form = "dct", final_grid: int | None = None, classes: int = 10,
    seed: ScienceSeed | None = None,
) -> Cnn:  # fmt: skip
    """Return a ResNet-18: four stages of two residual blocks.

    The ``"dct"`` form has a 1x1 stem that quantises without ReLU, and no pooling. The ``"rgb"``
    form has a 3x3 stem up to 64 pixels; above, a 7x7 stem of stride 2 and a 2x2 mean in place of
    the usual maximum, which would cost a table for each comparison.

    Parameters
    ----------
    shape
        (channels, rows, columns).
    widths
        Of the stages.
    skip_downsample
        How many of the three halvings are left out: 1 on a 16x16 grid of CIFAR.
    final_grid
        Side of the last grid; if not given 4 up to 64 cells, else 7 for every 224 pixels or 56
        cells.

    Raises
    ------
    ParameterError
        The last grid is not ``final_grid``; the message says what to change.
    """
    side = shape[1]
    small = side <= (64 if form == "rgb" else 32)
    stem: tuple[Block, ...] = (Plain(widths[0], kernel=1, relu=False),)
    if form == "rgb":
        large = (Plain(widths[0], kernel=7, stride=2), MeanPool(2))
        stem = (Plain(widths[0]),) if small else large
    if final_grid is None:
        final_grid = 4 if small else 7 * max(1, round(side / (224 if form == "rgb" else 56)))
    blocks = (*stem, *stages((2,) * len(widths), widths, skip_downsample=skip_downsample))
    spec = CnnSpec(f"ResNet-18 {form}", shape, classes, blocks)
    return Cnn(expect_grid(spec, final_grid, skip_downsample=skip_downsample), seed=seed)
