"""Writes down what an integer forward pass computes, as steps without torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privml.backbones.quant import Accumulated, QuantAct, QuantConv2d, QuantLinear, Scaled
from privml.backbones.quant_join import Joined
from privml.backbones.quant_steps import (
    ActStep,
    ConvStep,
    InputStep,
    JoinStep,
    LinearStep,
    PoolStep,
    Step,
)

_Value = TypeVar("_Value", Scaled, Accumulated)


class Recorder:
    """Listens to a forward pass; by default it keeps nothing.

    Every method returns the value it was told about, under the name of its step.

    Parameters
    ----------
    steps
        List that the steps are added to.
    """

    def __init__(self, steps: list[Step] | None = None) -> None:
        self.steps = steps

    def renamed(self, old: Scaled | Accumulated, new: _Value) -> _Value:
        """Return ``new`` under the name of ``old``, which it equals."""
        return replace(new, name=old.name)

    def start(self, x: Scaled, shape: tuple[int, int, int]) -> Scaled:
        """Note the input."""
        if self.steps is not None:
            self.steps.append(InputStep("input", shape, x.scale.item(), x.low, x.high))
        return replace(x, name="input")

    def conv(
        self, name: str, x: Scaled, layer: QuantConv2d, acc: Accumulated, reach: float | None
    ) -> Accumulated:
        """Note a convolution."""
        if self.steps is not None:
            weight = _ints(layer.signed_weight(reach)[0])
            if acc.multiple is not None:
                weight = weight * acc.multiple.reshape(-1, 1, 1, 1)
            gain, offset = _floats(acc.gain), _floats(acc.offset)
            self.steps.append(
                ConvStep(name, x.name, weight, layer.stride, layer.pad, layer.groups, gain, offset)
            )
        return replace(acc, name=name)

    def join(
        self, name: str, x: Accumulated, skip: Scaled, joined: Joined, layer: QuantConv2d | None
    ) -> Accumulated:
        """Note a residual sum, and before it the convolution on the skip if there is one."""
        total, source = joined.total, skip.name
        if self.steps is not None:
            gain, offset = _floats(total.gain), _floats(total.offset)
            if layer is not None and joined.weight is not None:
                source = f"{name}.skip"
                weight, own = _ints(joined.weight), _floats(joined.offset)
                self.steps.append(
                    ConvStep(
                        source, skip.name, weight, layer.stride, layer.pad, layer.groups, gain, own
                    )
                )
            self.steps.append(
                JoinStep(name, x.name, source, joined.multiple, joined.factor, gain, offset)
            )
        return replace(total, name=name)

    def pool(self, name: str, x: Scaled, pooled: Scaled, kernel: int | None) -> Scaled:
        """Note a mean."""
        if self.steps is not None:
            self.steps.append(PoolStep(name, x.name, kernel))
        return replace(pooled, name=name)

    def act(
        self, name: str, acc: Accumulated, layer: QuantAct, y: Scaled, keep: int | None
    ) -> Scaled:
        """Note a table."""
        if self.steps is not None:
            scale = y.scale.item()
            self.steps.append(ActStep(name, acc.name, scale, y.low, y.high, keep, layer.drop))
        return replace(y, name=name)

    def linear(self, name: str, x: Scaled, layer: QuantLinear, acc: Accumulated) -> Accumulated:
        """Note the last layer."""
        if self.steps is not None:
            weight = _ints(layer.integer_weight(None)[0])
            gain, offset = _floats(acc.gain), _floats(acc.offset)
            self.steps.append(LinearStep(name, x.name, weight, gain, offset))
        return replace(acc, name=name)


def _ints(x: Tensor) -> NDArray[np.int64]:
    array: NDArray[np.int64] = x.detach().numpy(force=True).astype(np.int64)
    return array


def _floats(x: Tensor) -> NDArray[np.float64]:
    array: NDArray[np.float64] = x.detach().double().numpy(force=True).copy()
    return array
