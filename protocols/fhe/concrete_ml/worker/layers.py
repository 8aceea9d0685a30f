"""Linear models and small neural nets, from weight matrices."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import numpy as np

from .built import Built  # noqa: TID251
from .frames import Array, Frame, FrameError  # noqa: TID251

MAX_WEIGHTS: Final = 1 << 22
MAX_LAYERS: Final = 16
_BITS: Final = (2, 8)


def linear(request: Frame, fhe: Any) -> Built:  # noqa: ANN401
    """Build a linear model: ``weights`` (features, outputs), ``bias`` (outputs)."""
    del fhe
    rows, weights, bias = (_floats(request, name) for name in ("rows", "weights", "bias"))
    if bias.shape != weights.shape[1:] or weights.ndim != 2 or rows.shape[1] != len(weights):
        raise FrameError("weights, bias and rows do not fit together")
    scikit = import_module("sklearn.linear_model").LinearRegression()
    single = weights.shape[1] == 1
    scikit.coef_ = weights[:, 0].copy() if single else weights.T.copy()
    scikit.intercept_ = float(bias[0]) if single else bias.copy()
    scikit.n_features_in_ = len(weights)
    kind = import_module("concrete.ml.sklearn").LinearRegression
    model = kind.from_sklearn_model(scikit, rows, n_bits=_bits(request, "bits"))
    model.compile(np.concatenate([rows, _ends(request, len(weights))]), **error(request))
    (inputs,), (outputs,) = model.input_quantizers, model.output_quantizers
    return Built(
        circuit=model.fhe_circuit,
        clear=lambda integers: model._inference(integers),
        features=len(weights),
        quantisers={**_inputs(inputs, len(weights)), **outputs_of(outputs)},
    )


def mlp(request: Frame, fhe: Any) -> Built:  # noqa: ANN401
    """Build a neural net: ``weights0``, ``bias0``, and so on; ``activation`` between them."""
    torch = import_module("torch")
    rows, count = _floats(request, "rows"), request.fields["layers"]
    if type(count) is not int or not 1 <= count <= MAX_LAYERS:
        raise FrameError(f"a net has 1 to {MAX_LAYERS} layers")
    activations = {
        "relu": torch.nn.ReLU,
        "tanh": torch.nn.Tanh,
        "logistic": torch.nn.Sigmoid,
        "identity": torch.nn.Identity,
    }
    activation = activations.get(request.fields["activation"])
    if activation is None:
        raise FrameError("there is no such activation")
    parts, width = [], rows.shape[1]
    for number in range(count):
        weights, bias = _floats(request, f"weights{number}"), _floats(request, f"bias{number}")
        if weights.ndim != 2 or len(weights) != width or bias.shape != weights.shape[1:]:
            raise FrameError(f"layer {number} does not fit to the one before it")
        width = weights.shape[1]
        part = torch.nn.Linear(*weights.shape)
        part.weight.data = torch.tensor(weights.T, dtype=torch.float32)
        part.bias.data = torch.tensor(bias, dtype=torch.float32)
        parts += [part, activation()]
    bits = _bits(request, "bits")
    module = import_module("concrete.ml.torch.compile").build_quantized_module(
        torch.nn.Sequential(*parts[:-1]),
        rows,
        n_bits={"op_inputs": bits, "op_weights": bits, "model_inputs": bits, "model_outputs": 8},
        rounding_threshold_bits={
            "n_bits": _bits(request, "rounding"),
            "method": fhe.Exactness.APPROXIMATE,
        },
    )
    seen = np.concatenate([rows, _ends(request, rows.shape[1])])
    module.compile(seen, **error(request))
    (inputs,), (outputs,) = module.input_quantizers, module.output_quantizers
    return Built(
        circuit=module.fhe_circuit,
        clear=lambda integers: module.quantized_forward(integers, fhe="disable"),
        features=rows.shape[1],
        quantisers={**_inputs(inputs, rows.shape[1]), **outputs_of(outputs)},
    )


def quantiser(one: Any) -> dict[str, Array]:  # noqa: ANN401
    """Return scale, zero point and range of a quantiser of concrete-ml, as scalars."""
    low = -int(one.offset)
    return {
        "in_scale": np.asarray(one.scale, np.float64).reshape(()),
        "in_zero": np.asarray(one.zero_point, np.float64).reshape(()),
        "in_low": np.asarray(low + int(one.is_narrow), np.int64),
        "in_high": np.asarray(2 ** int(one.n_bits) - 1 + low, np.int64),
    }


def _inputs(one: Any, features: int) -> dict[str, Array]:  # noqa: ANN401
    parts = quantiser(one)
    return {name: np.repeat(part[None], features) for name, part in parts.items()}


def outputs_of(one: Any) -> dict[str, Array]:  # noqa: ANN401
    """Return scale and zero point of outputs; the zero point may differ by output."""
    zero = np.asarray(one.zero_point, np.float64)
    return {
        "out_scale": np.asarray(one.scale, np.float64).reshape(()),
        "out_zero": zero.reshape(-1) if zero.size > 1 else zero.reshape(()),
    }


def error(request: Frame) -> dict[str, float]:
    """Return the probability of failure of one table, as concrete-ml takes it."""
    value = request.fields["p_error"]
    if not isinstance(value, float) or not 0 < value < 1:
        raise FrameError("p_error lies between 0 and 1")
    return {"p_error": value}


def _bits(request: Frame, name: str) -> int:
    value = request.fields[name]
    if type(value) is not int or not _BITS[0] <= value <= _BITS[1]:
        raise FrameError(f"{name} lies between {_BITS[0]} and {_BITS[1]}")
    return value


def _ends(request: Frame, features: int) -> Array:
    """Return the rows that drive accumulators to their ends; quantisers are not fitted to them."""
    ends = _floats(request, "ends")
    if ends.ndim != 2 or ends.shape[1] != features:
        raise FrameError("the rows at the ends do not fit to the others")
    return ends


def _floats(request: Frame, name: str) -> Array:
    array = request.arrays[name]
    if array.dtype != np.float64 or not 0 < array.size <= MAX_WEIGHTS * 16:
        raise FrameError(f"{name}: an array of float64 is needed")
    if not np.isfinite(array).all():
        raise FrameError(f"{name} holds a value that is not finite")
    return array
