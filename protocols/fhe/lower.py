"""Lowering: a trained quantised network becomes an integer graph.

Normalisation is folded into gain and offset of the table that follows; its sign went into the
weights. A residual sum is fused, ``z = k*acc + r*h`` with the integers that training used
(:mod:`privml.backbones.quant_join`), so that it needs no table. Linear nodes without a
table between them merge, and channels that are always zero disappear
(:mod:`privml.protocols.fhe.simplify`). The result equals the network's own quantised pass bit for
bit: gains and offsets are float64 numbers formed by the same operations in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from privml.backbones.quant_steps import (
    ActStep,
    ConvStep,
    Floats,
    InputStep,
    JoinStep,
    LinearStep,
    PoolStep,
    Step,
)
from privml.errors import UnsupportedError, internal
from privml.protocols.fhe.graph import (
    AddScaled,
    Conv,
    Graph,
    Input,
    Linear,
    Node,
    Output,
    SumPool,
    Table,
)
from privml.protocols.fhe.simplify import simplify


class Lowerable(Protocol):
    """What lowering asks of a model; :class:`privml.backbones.quant_model.QuantModel` has it."""

    def steps(self) -> tuple[Step, ...]:
        """Return what the quantised pass computes."""
        ...


def lower(model: Lowerable, *, exact: bool = False, simplified: bool = True) -> Graph:
    """Return the integer graph of a model.

    Parameters
    ----------
    model
        A calibrated or trained model.
    exact
        Exact rounding before tables instead of approximate rounding.
    simplified
        Merge linear nodes and remove dead channels; never changes a class score.

    Raises
    ------
    UnsupportedError
        A value has no scale: its weights or statistics are not finite. The message names it.
    ParameterError
        The network does not fit a graph; the message names the node.
    """
    build = _Build(exact)
    for step in model.steps():
        build.add(step)
    graph = Graph(tuple(build.nodes.values()))
    build.check(graph)
    return simplify(graph) if simplified else graph


@dataclass
class _Build:
    """Nodes so far; ``units`` of integer values and ``affine`` maps of accumulators, by name."""

    exact: bool
    nodes: dict[str, Node] = field(default_factory=dict)
    units: dict[str, float] = field(default_factory=dict)
    affine: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Add the nodes of one step."""
        if isinstance(step, InputStep):
            self.units[step.name], self.sizes[step.name] = step.scale, step.shape
            self.nodes[step.name] = Input(step.name, step.shape, step.low, step.high)
        elif isinstance(step, ConvStep):
            self._conv(step)
        elif isinstance(step, JoinStep):
            self._join(step)
        elif isinstance(step, PoolStep):
            self._pool(step)
        elif isinstance(step, ActStep):
            self._act(step)
        else:
            self._linear(step)

    def check(self, graph: Graph) -> None:
        """Insist that tables see what they saw in training."""
        for name, drop in self.drops.items():
            internal(graph.lookups[name].dropped == drop, f"{name} rounds as in training")

    def _conv(self, step: ConvStep) -> None:
        _finite(step.name, step.gain, step.offset)
        self.affine[step.name] = step.gain, step.offset
        _, rows, columns = self.sizes[step.x]
        out, _, kh, kw = step.weight.shape
        spans = (rows + 2 * step.pad - kh, columns + 2 * step.pad - kw)
        self.sizes[step.name] = (out, spans[0] // step.stride + 1, spans[1] // step.stride + 1)
        self.nodes[step.name] = Conv(
            step.name, step.x, step.weight, step.stride, step.pad, step.groups
        )

    def _join(self, step: JoinStep) -> None:
        """Fuse the residual; the weights of the convolution before it are multiplied by ``k``."""
        _finite(step.name, step.gain, step.offset)
        conv = self.nodes[step.x]
        if not isinstance(conv, Conv):
            raise UnsupportedError(f"{step.name}: a residual joins the result of a convolution")
        weight = conv.weight * step.multiple[:, None, None, None]
        self.nodes[step.x] = replace(conv, weight=weight)
        self.affine[step.name] = step.gain, step.offset
        self.sizes[step.name] = self.sizes[step.x]
        self.nodes[step.name] = AddScaled(step.name, step.x, step.skip, step.factor)

    def _pool(self, step: PoolStep) -> None:
        channels, rows, columns = self.sizes[step.x]
        kernel = step.kernel
        count = rows * columns if kernel is None else kernel * kernel
        self.units[step.name] = self.units[step.x] / count
        size = (1, 1) if kernel is None else (rows // kernel, columns // kernel)
        self.sizes[step.name] = (channels, *size)
        self.nodes[step.name] = SumPool(step.name, step.x, kernel)

    def _act(self, step: ActStep) -> None:
        if step.x in self.affine:
            gain, offset = self.affine[step.x]
        else:
            channels = self.sizes[step.x][0]
            gain, offset = np.full(channels, self.units[step.x]), np.zeros(channels)
        self.units[step.name], self.sizes[step.name] = step.scale, self.sizes[step.x]
        self.drops[step.name] = step.drop
        self.nodes[step.name] = Table(
            step.name, step.x, gain / step.scale, offset / step.scale,
            step.low, step.high, step.keep, self.exact,
        )  # fmt: skip

    def _linear(self, step: LinearStep) -> None:
        _finite(step.name, step.gain, step.offset)
        self.nodes[step.name] = Linear(step.name, step.x, step.weight)
        self.nodes["output"] = Output("output", step.name, step.gain, step.offset)


def _finite(name: str, *values: Floats) -> None:
    for value in values:
        bad = np.flatnonzero(~np.isfinite(value))
        if len(bad):
            raise UnsupportedError(
                f"{name}: gain or offset of channel {bad[0]} is not finite; train with a lower "
                "rate, or load the model again"
            )
