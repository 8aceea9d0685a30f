"""Files of a result: canonical JSON and safetensors, checked field by field on reading."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from privml.backbones.digests import Json, canonical_json, sha256
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write
from privml.valuation.errors import CorruptResult

if TYPE_CHECKING:
    from privml.valuation.result import ValuationResult

FORMAT: Final = "privml valuation result 2"
JSON_FILE: Final = "result.json"
ARRAY_FILE: Final = "values.safetensors"
_LIMIT: Final = 1 << 30
_TRACE: Final = "trace."
SECONDS: Final = _TRACE + "seconds"
_FLOATS: Final = ("values", "stderr", "ci_low", "ci_high")
_INTS: Final = ("counts", "truncated_counts")
_OPTIONAL: Final = {"members": np.int64, "membership_prob": np.float64}
_TEXTS: Final = (
    "residual_reason", "status", "stop_reason", "target", "method", "group_mode", "spec_digest",
    "data_digest", "certificate_kind",
)  # fmt: skip
_NUMBERS: Final = ("ci_level", "seconds", "efficiency_residual", "eps_certificate", "rounding")
_COUNTS: Final = ("evaluations", "rows_trained")
_PLAIN: Final = (*_TEXTS, *_NUMBERS, *_COUNTS, "versions", "extras")

_DAMAGE: Final = (
    safetensors.SafetensorError,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    RecursionError,
    OverflowError,
)

Head = dict[str, Json]
Arrays = dict[str, NDArray[Any]]


def head_of(result: ValuationResult, *, skip: Sequence[str] = ()) -> Head:
    """Return everything that is not an array as JSON; NaN and infinity as texts."""
    head: Head = {name: _out(getattr(result, name)) for name in _PLAIN if name not in skip}
    head["ids"] = [[str(name), isinstance(name, int)] for name in result.ids]
    head["seeds"] = list(result.seeds)
    return head


def arrays_of(result: ValuationResult) -> Arrays:
    """Return the arrays by name; columns of the trace as ``trace.<name>``."""
    out: Arrays = {name: np.ascontiguousarray(getattr(result, name)) for name in (*_FLOATS, *_INTS)}
    for name in _OPTIONAL:
        array = getattr(result, name)
        if array is not None:
            out[name] = np.ascontiguousarray(array)
    for name, column in result.trace.items():
        out[_TRACE + name] = np.ascontiguousarray(column, dtype=np.float64)
    return out


def save(result: ValuationResult, folder: Path) -> None:
    """Write both files; the JSON, which names the digests of both, comes last."""
    data, head = safetensors.numpy.save(arrays_of(result)), head_of(result)
    digests: Head = {"arrays": sha256(data), "head": sha256(canonical_json(head))}
    text = canonical_json({"format": FORMAT, **digests, "result": head})
    fs.ensure_dir(folder)
    atomic_write(folder / ARRAY_FILE, data)
    atomic_write(folder / JSON_FILE, text)


def load(folder: Path, known: set[str]) -> dict[str, Any]:
    """Return the constructor arguments of a saved result; raises ``CorruptResult``."""
    text = read_file(folder / JSON_FILE, limit=_LIMIT)
    data = read_file(folder / ARRAY_FILE, limit=_LIMIT)
    try:
        tree = json.loads(text)
        if tree["format"] != FORMAT:
            raise ValueError(f"format {tree['format']!r} is not {FORMAT!r}")
        if tree["arrays"] != sha256(data):
            raise ValueError("the two files do not belong together")
        if tree["head"] != sha256(canonical_json(tree["result"])):
            raise ValueError(f"{JSON_FILE} is damaged")
        arrays = dict(safetensors.numpy.load(data))
        found = {**_head_in(tree["result"]), **_arrays_in(arrays)}
        if not set(found) <= known:
            raise ValueError(f"unknown fields {sorted(set(found) - known)}")
        count = len(found["ids"])
        if any(found[name].shape != (count,) for name in (*_FLOATS, *_INTS)):
            raise ValueError("arrays are not of one length")
    except _DAMAGE as error:
        raise CorruptResult(f"{folder} holds no result: {error}; make it again") from error
    return found


def _head_in(head: Mapping[str, Any]) -> dict[str, Any]:
    expected = {*_PLAIN, "ids", "seeds"}
    if set(head) != expected:
        raise ValueError(f"fields differ from the format: {sorted(set(head) ^ expected)}")
    out: dict[str, Any] = {name: _text(head[name]) for name in _TEXTS}
    out |= {name: _number(head[name]) for name in _NUMBERS}
    out |= {name: _count(head[name]) for name in _COUNTS}
    out["ids"] = tuple(_id(pair) for pair in head["ids"])
    out["seeds"] = tuple(_text(seed) for seed in head["seeds"])
    out["versions"] = {_text(k): _text(v) for k, v in dict(head["versions"]).items()}
    out["extras"] = dict(head["extras"])
    return out


def _arrays_in(arrays: Arrays) -> dict[str, Any]:
    out: dict[str, Any] = {"trace": {}}
    for name, array in arrays.items():
        kind = np.int64 if name in _INTS else _OPTIONAL.get(name, np.float64)
        if array.dtype != kind or array.ndim != 1:
            raise ValueError(f"{name} has dtype {array.dtype} and {array.ndim} axes")
        if name.startswith(_TRACE):
            out["trace"][name.removeprefix(_TRACE)] = array
        elif name in _FLOATS or name in _INTS or name in _OPTIONAL:
            out[name] = array
        else:
            raise ValueError(f"unknown array {name!r}")
    return out


def _out(value: Any) -> Json:  # noqa: ANN401 - any field
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {str(k): _out(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_out(v) for v in value]
    plain: Json = value.item() if isinstance(value, np.generic) else value
    return plain


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a text belongs")
    return value


def _number(value: object) -> float:
    if isinstance(value, str) and value in {"nan", "inf", "-inf"}:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{type(value).__name__} where a number belongs")
    return float(value)


def _count(value: object) -> int:
    number = _number(value)
    if number < 0 or number != int(number):
        raise ValueError(f"{number} is not a count")
    return int(number)


def _id(pair: Any) -> str | int:  # noqa: ANN401 - untrusted JSON
    text, whole = pair
    return int(_text(text)) if whole is True else _text(text)
