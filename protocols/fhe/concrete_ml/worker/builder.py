"""Builder verbs: quantise, rebuild a model from arrays, compile it, evaluate it in the clear.

Models come as arrays and are rebuilt by family from a fixed list; no object format is read.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final

import numpy as np

from . import forests, layers  # noqa: TID251
from .built import Built  # noqa: TID251
from .frames import Array, Frame, FrameError, blob  # noqa: TID251
from .refusals import Refusal  # noqa: TID251

PACKAGES: Final = ("concrete-ml", "concrete-python", "scikit-learn", "torch", "numpy", "xgboost")
MAX_BITS: Final = 16
CALIBRATION_ROWS: Final = 1000


def versions() -> dict[str, str]:
    """Return the versions that a program depends on."""
    found = {name: metadata.version(name) for name in PACKAGES}
    found["python"] = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {**found, "machine": platform.machine()}


class Builder:
    """State of a builder process: the compiled model."""

    def __init__(self) -> None:
        self._fhe: Any = import_module("concrete.fhe")
        self._quantisation: Any = import_module("concrete.ml.quantization.quantizers")
        import_module("concrete.ml.sklearn")
        self._built: Built | None = None

    def verbs(self) -> Mapping[str, Callable[[Frame], Frame]]:
        """Return what this role answers."""
        return {
            "quantise": self.quantise,
            "build": self.build,
            "clear": self.clear,
            "simulate": self.simulate,
            "export": self.export,
        }

    def quantise(self, request: Frame) -> Frame:
        """Return concrete-ml's quantiser of each column of ``rows``: scale, zero, low, high."""
        rows, bits = finite(request.arrays["rows"], 2), number(request.fields["bits"], 1, MAX_BITS)
        columns = [
            self._quantisation.QuantizedArray(n_bits=bits, values=column).quantizer
            for column in rows.T
        ]
        parts = [layers.quantiser(column) for column in columns]
        return Frame({}, {name: np.stack([part[name] for part in parts]) for name in parts[0]})

    def build(self, request: Frame) -> Frame:
        """Rebuild and compile the model in the frame; return its counts and quantisers."""
        families: Mapping[object, Callable[..., Built]] = {
            "linear": layers.linear,
            "mlp": layers.mlp,
            "forest": forests.forest,
            "boosted": forests.boosted,
        }
        family = request.fields.get("family")
        if family not in families:
            raise Refusal("unsupported", "there is no such family of models")
        try:
            self._built = families[family](request, self._fhe)
        except (RuntimeError, AssertionError, ValueError) as error:
            if isinstance(error, FrameError):
                raise
            raise Refusal("unsupported", _reason(error)) from error
        return Frame({"counts": counts(self._built.circuit)}, self._built.quantisers)

    def clear(self, request: Frame) -> Frame:
        """Return the integers of the clear evaluation of ``rows``, int64 (n, *shape)."""
        built = self._present()
        return Frame({}, {"rows": whole(built.clear(self._rows(request)))})

    def simulate(self, request: Frame) -> Frame:
        """Return the integers of the compiler's simulation, with faults at ``p_error``."""
        built, circuit = self._present(), self._present().circuit
        rows = self._rows(request)
        if circuit.statistics["packing_key_switch_count"]:  # its own simulation is too slow there
            outputs = [circuit.graph(row[None], p_error=circuit.p_error) for row in rows]
        else:
            outputs = [circuit.simulate(row[None]) for row in rows]
        return Frame({}, {"rows": whole(np.concatenate(outputs) if outputs else built.clear(rows))})

    def export(self, request: Frame) -> Frame:
        """Return the public parameters for the client and the compiled code for the server."""
        del request
        circuit = self._present().circuit
        folder = Path(circuit.server._library.get_output_dir_path())
        info = bytes(circuit.client.specs.program_info.serialize())
        names = ("sharedlib.so", "program_info.concrete.params.json")
        files = {name: blob((folder / name).read_bytes()) for name in names}
        return Frame({}, {"info": blob(info), **files})

    def _present(self) -> Built:
        if self._built is None:
            raise Refusal("malformed", "no model was built")
        return self._built

    def _rows(self, request: Frame) -> Array:
        rows, built = request.arrays["rows"], self._present()
        if rows.dtype != np.int64 or rows.shape[1:] != (built.features,):
            raise Refusal("malformed", "the rows have another type or shape than the model")
        return np.ascontiguousarray(rows)


def counts(circuit: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return what the compiler counted, as JSON."""
    return {
        "pbs": int(circuit.programmable_bootstrap_count),
        "complexity": float(circuit.complexity),
        "max_bits": int(circuit.graph.maximum_integer_bit_width()),
        "p_error": float(circuit.p_error),
        "global_p_error": float(circuit.global_p_error),
        "keys_bytes": int(circuit.size_of_bootstrap_keys + circuit.size_of_keyswitch_keys),
        "query_bytes": int(circuit.size_of_inputs),
        "answer_bytes": int(circuit.size_of_outputs),
    }


def finite(array: Array, axes: int) -> Array:
    """Return a float64 array of ``axes`` axes, if all of it is finite and there is some."""
    if array.dtype != np.float64 or array.ndim != axes or not array.size:
        raise FrameError(f"an array of float64 with {axes} axes is needed")
    if not np.isfinite(array).all():
        raise FrameError("an array holds a value that is not finite")
    return array


def number(value: object, low: int, high: int) -> int:
    """Return an integer in a range."""
    if type(value) is not int or not low <= value <= high:
        raise FrameError(f"an integer from {low} to {high} is needed, not {value!r}")
    return value


def whole(array: Any) -> Array:  # noqa: ANN401
    """Return integers as int64."""
    return np.ascontiguousarray(np.asarray(array), np.int64)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"concrete-ml cannot compile this model: {text or type(error).__name__}"
