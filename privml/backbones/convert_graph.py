"""The layers of any ``nn.Module`` in order, read from a trace of its forward pass.

Functions and methods that stand for a layer count as that layer. A sum is taken where it closes a
residual block of the usual kind: two 3x3 convolutions, and nothing or a 1x1 convolution beside
them. Whatever else the forward pass does is returned as a problem with its name in the trace.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import fx, nn

from privml.errors import UnsupportedLayer


@dataclass(frozen=True, eq=False)
class Residual:
    """A residual block: convolutions with their normalisations; no ``skip`` is the identity."""

    first: tuple[nn.Conv2d, nn.BatchNorm2d | None]
    second: tuple[nn.Conv2d, nn.BatchNorm2d | None]
    skip: tuple[nn.Conv2d, nn.BatchNorm2d | None] | None


@dataclass(frozen=True)
class Unknown:
    """A step that stands for no layer."""

    kind: str
    replacement: str


Step = nn.Module | Residual | Unknown
Named = tuple[str, Step]

_RELU = (F.relu, torch.relu, "relu", "relu_")
_FLATTEN = (torch.flatten, "flatten", "view", "reshape")
_MEAN = (torch.mean, "mean")
_ADD = (operator.add, operator.iadd, torch.add, "add", "add_")
_NOTHING = (F.dropout, F.dropout2d, "contiguous", "dropout")
_FUNCTIONS: dict[str, type[nn.Module]] = {
    "max_pool2d": nn.MaxPool2d, "gelu": nn.GELU, "silu": nn.SiLU, "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh, "softmax": nn.Softmax, "log_softmax": nn.LogSoftmax,
    "leaky_relu": nn.LeakyReLU, "layer_norm": nn.LayerNorm,
}  # fmt: skip
_RESIDUAL = (
    "a sum only after two 3x3 convolutions with BatchNorm2d, with the input or its 1x1 "
    "convolution, and before a ReLU"
)
_OTHER = "Conv2d, BatchNorm2d, ReLU, AvgPool2d, Flatten and Linear"


def traced(module: nn.Module) -> list[Named]:
    """Return the steps of a module's forward pass, first one first.

    Raises
    ------
    UnsupportedLayer
        The forward pass cannot be followed: its control flow depends on values.
    """
    try:
        graph = fx.Tracer().trace(module)
    except (TypeError, fx.proxy.TraceError, RuntimeError) as error:
        raise UnsupportedLayer(
            f"the forward pass of {type(module).__name__} cannot be followed ({error}); write it "
            "without conditions on values, or as an nn.Sequential"
        ) from error
    return _Walk(module, graph).steps()


class _Walk:
    """From the output of a trace back to its input."""

    def __init__(self, module: nn.Module, graph: fx.Graph) -> None:
        self.layers = dict(module.named_modules())
        self.output = next(node for node in reversed(graph.nodes) if node.op == "output")

    def steps(self) -> list[Named]:
        found: list[Named] = []
        node = self._input(self.output)
        while node is not None and node.op != "placeholder":
            block = self._residual(node)
            if block is None:
                found.append((self._name(node), self._layer(node)))
                node = self._input(node)
            else:
                step, node = block
                found.append(step)
        return found[::-1]

    def _residual(self, node: fx.Node) -> tuple[Named, fx.Node] | None:
        """Return the block that a ReLU closes and the node it starts from, if it is one."""
        total = self._input(node)
        if not isinstance(self._layer(node), nn.ReLU) or total is None or not _is(total, _ADD):
            return None
        sides = [side for side in total.args if isinstance(side, fx.Node)]
        for main, other in (sides, sides[::-1]) if len(sides) == 2 else ():
            second, middle = self._convolved(main)
            if second is None or middle is None or not isinstance(self._layer(middle), nn.ReLU):
                continue
            first, start = self._convolved(self._input(middle))
            skip, origin = (None, other) if other is start else self._convolved(other)
            if first is None or start is None or origin is not start:
                continue
            if other is not start and skip is None:
                continue
            return (self._name(total), Residual(first, second, skip)), start
        return None

    def _convolved(
        self, node: fx.Node | None
    ) -> tuple[tuple[nn.Conv2d, nn.BatchNorm2d | None] | None, fx.Node | None]:
        """Return a convolution with its normalisation, and what it reads."""
        norm = None
        if node is not None and isinstance(layer := self._layer(node), nn.BatchNorm2d):
            norm, node = layer, self._input(node)
        if node is None or not isinstance(conv := self._layer(node), nn.Conv2d):
            return None, None
        return (conv, norm), self._input(node)

    def _layer(self, node: fx.Node) -> Step:
        """Return the layer that a node is or stands for."""
        if node.op == "call_module":
            layer: nn.Module = self.layers[str(node.target)]
            return layer
        if _is(node, _RELU):
            return nn.ReLU()
        if _is(node, _FLATTEN):
            return nn.Flatten()
        if _is(node, _NOTHING):
            return nn.Identity()
        if _is(node, _MEAN):
            dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
            if dims in ((2, 3), [2, 3], (-2, -1), [-2, -1]):
                return nn.AdaptiveAvgPool2d(1)
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if _is(node, (F.avg_pool2d,)) and len(node.args) == 2 and isinstance(node.args[1], int):
            return nn.AvgPool2d(node.args[1])
        if _is(node, (F.adaptive_avg_pool2d,)) and node.args[1:] in ((1,), ((1, 1),)):
            return nn.AdaptiveAvgPool2d(1)
        if name in _FUNCTIONS:
            return _stand_in(name)
        if _is(node, _ADD):
            return Unknown("sum", _RESIDUAL)
        return Unknown(name or node.op, _OTHER)

    def _input(self, node: fx.Node) -> fx.Node | None:
        found = [arg for arg in node.all_input_nodes if not _is(arg, ("size", getattr))]
        return found[0] if found else None

    def _name(self, node: fx.Node) -> str:
        return str(node.target) if node.op == "call_module" else node.name


def _stand_in(name: str) -> nn.Module:
    """Return a layer of the kind that a function stands for; only its kind is looked at."""
    kind = _FUNCTIONS[name]
    made: nn.Module = kind(2) if kind in (nn.MaxPool2d, nn.LayerNorm) else kind()
    return made


def _is(node: fx.Node, targets: tuple[object, ...]) -> bool:
    return node.op in ("call_function", "call_method") and node.target in targets
