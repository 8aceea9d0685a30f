"""A network with its front end: float and integer passes, and the steps that lowering reads."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from privml.backbones.cnn import Bits, Cnn
from privml.backbones.digests import Json, canonical_json, sha256
from privml.backbones.quant import QuantConv2d, QuantLinear, Scaled
from privml.backbones.quant_steps import Step
from privml.backbones.recorder import Recorder
from privml.errors import ParameterError

_CHUNK = 256


class QuantModel:
    """A network whose evaluation is integer arithmetic.

    Parameters
    ----------
    net
        The network; it is used, not copied.
    bits
        Widths of integers. The network is built anew from its shape with these and keeps its
        weights; its own widths if not given.
    front
        Description of the front end, plain values, stored with the model: the JSON of its
        specification with statistics, and ``labels``, the names of the classes, if they have any.

    Notes
    -----
    Training: :func:`privml.backbones.cnn_training.fit`. Before any training the scales are
    arbitrary; :meth:`calibrate` sets them.
    """

    def __init__(
        self, net: Cnn, *, bits: Bits | None = None, front: Mapping[str, Json] | None = None
    ) -> None:
        if bits is not None and bits != net.bits:
            other = Cnn(net.spec, bits=bits)
            other.load_state_dict(net.state_dict())
            net = other
        self.net = net
        self.front: dict[str, Json] = dict(front or {})

    @property
    def bits(self) -> Bits:
        """Widths of the integers."""
        return self.net.bits

    @property
    def front_digest(self) -> str:
        """Digest of the front end's specification, statistics included; empty without one."""
        tree = {name: value for name, value in self.front.items() if name != "labels"}
        return sha256(canonical_json(tree)) if tree else ""

    def check_front(self, digest: str) -> None:
        """Refuse data that went through another front end than the model's.

        Parameters
        ----------
        digest
            Of the data's front end; an empty one is not compared.

        Raises
        ------
        ParameterError
            It is another one.
        """
        if digest and self.front and digest != self.front_digest:
            raise ParameterError(
                f"the data went through front end {digest[:12]}, the model belongs to "
                f"{self.front_digest[:12]}; use one front end, fitted once on the training images"
            )

    def calibrate(self, x: ArrayLike) -> None:
        """Set all scales from the present weights and floating-point activations.

        Parameters
        ----------
        x
            (n, C, H, W) inputs like those of training; a few hundred.
        """
        net, inputs = self.net, self._inputs(x)
        net.eval()
        for act in net.acts():
            act.observed = []
        with torch.no_grad():
            net.start.float_forward(inputs)
            for chunk in _chunks(inputs):
                net(chunk)
        for act in net.acts():
            act.calibrate()
        for layer in net.modules():
            if isinstance(layer, QuantConv2d | QuantLinear):
                layer.calibrate()

    def quantise(self, x: ArrayLike) -> NDArray[np.int64]:
        """Return the integers (n, C, H, W) that a client encrypts, C-contiguous."""
        self.net.eval()
        with torch.no_grad():
            values = self.net.quantise(self._inputs(x)).values
        return np.ascontiguousarray(values.numpy(force=True).astype(np.int64))

    def integers(self, x: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return integer class scores (n, classes) of the fake-quantised pass on integers."""
        net = self.net.eval()
        found = []
        with torch.no_grad():
            scale = net.start.scale()
            for first in range(0, len(x), _CHUNK):
                part = x[first : first + _CHUNK].astype(np.float32)
                values = torch.from_numpy(part).to(scale.device)
                start = Scaled(values, scale, net.start.low, net.start.high)
                found.append(net.integers(start).values.numpy(force=True).astype(np.int64))
        return np.concatenate(found)

    def scores(self, x: ArrayLike) -> NDArray[np.float64]:
        """Return class scores (n, classes) of real inputs through the quantised pass."""
        net, inputs = self.net.eval(), self._inputs(x)
        with torch.no_grad():
            parts = [net.scores(chunk).double() for chunk in _chunks(inputs)]
        result: NDArray[np.float64] = torch.cat(parts).numpy(force=True)
        return result

    def predict(self, x: ArrayLike) -> NDArray[np.int64]:
        """Return class numbers (n,) of real inputs through the quantised pass."""
        classes: NDArray[np.int64] = self.scores(x).argmax(1).astype(np.int64)
        return classes

    def steps(self) -> tuple[Step, ...]:
        """Return what the quantised pass computes, for lowering."""
        found: list[Step] = []
        net = self.net.eval()
        with torch.no_grad():
            blank = self._inputs(np.zeros((1, *net.spec.shape)))
            net.integers(net.quantise(blank), Recorder(found))
        return tuple(found)

    def _inputs(self, x: ArrayLike) -> torch.Tensor:
        array = np.ascontiguousarray(x, dtype=np.float32)
        if array.ndim != 4 or array.shape[1:] != self.net.spec.shape or not len(array):
            raise ParameterError(
                f"inputs have shape {array.shape}, the network takes (n, "
                f"{', '.join(map(str, self.net.spec.shape))}) with n at least 1"
            )
        if not np.isfinite(array).all():
            raise ParameterError("inputs must be finite")
        return torch.from_numpy(array).to(self.net.head.weight.device)


def _chunks(x: torch.Tensor) -> list[torch.Tensor]:
    return [x[first : first + _CHUNK] for first in range(0, len(x), _CHUNK)]
