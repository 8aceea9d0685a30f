"""Saved forests: a documented binary file that is verified by retraining, never by trust.

Layout, all little-endian: ``PVMLFMDL``, u32 version, u32 zero, u64 length of the description, u64
length of the canonical form, the description (JSON: kind of estimator, its settings, column names,
labels, version), the canonical form (see :mod:`privml.unlearning.forest.canonical`), and the
SHA-256 of all bytes before it.

A reader checks lengths and checksum, reads parameters, key and rows strictly, rebuilds the trees
and compares the whole canonical form. So a file either gives the model its rows imply, or an error.
The checksum is against accidents; it is no signature. The file holds the living rows and the key.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np

from privml._typing import Bytes
from privml.errors import CorruptModelError, ModelVersionError, ParameterError
from privml.storage.fs import File
from privml.unlearning.forest.labels import LabelTable, check_label
from privml.unlearning.forest.model import ForestModel
from privml.unlearning.forest.params import REGRESSION
from privml.unlearning.forest.parse import Parsed, parse_canonical
from privml.unlearning.forest.schema import Columns
from privml.unlearning.forest.scrub import wipe
from privml.unlearning.forest.settings import Plain, Settings

MAGIC: Final = b"PVMLFMDL"
VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sIIQQ")
_CHECKSUM_BYTES: Final = 32
_DESCRIPTION_LIMIT: Final = 1 << 26


@dataclass(frozen=True)
class Limits:
    """Largest model that is read.

    Attributes
    ----------
    max_bytes
        File size.
    max_rows
        Rows; a model of n rows is retrained to be verified, which takes what a fit takes.
    """

    max_bytes: int = 1 << 32
    max_rows: int = 1 << 26


DEFAULT_LIMITS: Final = Limits()


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a saved model has beside its canonical form."""

    estimator: Literal["classifier", "regressor"]
    version: int
    names: tuple[str, ...] | None
    label_kind: str
    labels: tuple[Plain, ...]
    labels_declared: bool
    settings: Settings


def dump_model(model: ForestModel, settings: Settings) -> bytearray:
    """Return the file of a model; resolves all tags. Overwrite it when written."""
    with model.frozen():
        body = model.canonical()
        labels = model.labels
        description = Description(
            estimator="regressor" if model.regression else "classifier",
            version=model.version,
            names=model.columns.names,
            label_kind=labels.kind,
            labels=tuple(v for v in (labels.values[c] for c in labels.order()) if v is not None),
            labels_declared=labels.declared,
            settings=settings,
        )
    text = msgspec.json.encode(description)
    head = _HEAD.pack(MAGIC, VERSION, 0, len(text), len(body)) + text
    data = bytearray(len(head) + len(body) + _CHECKSUM_BYTES)
    end = len(head) + len(body)
    data[: len(head)], data[len(head) : end] = head, body
    wipe(body)
    data[end:] = hashlib.sha256(memoryview(data)[:end]).digest()
    return data


def read_model_file(path: str | PathLike[str], limits: Limits) -> bytearray:
    """Return the bytes of a saved model. Overwrite them when done.

    Raises
    ------
    CorruptModelError
        The file is larger than the limit.
    StorageError
        It cannot be read.
    """
    with File.open(Path(path)) as file:
        if file.size > limits.max_bytes:
            raise CorruptModelError(
                f"{path} has {file.size} bytes, the limit is {limits.max_bytes}; raise the limit"
            )
        data = bytearray(file.size)
        file.read_into(0, data)
    return data


def load_model(data: Bytes, *, limits: Limits, threads: int = 1) -> tuple[ForestModel, Description]:
    """Return the model of a file and its description.

    Raises
    ------
    CorruptModelError
        The file is damaged, beyond the limits, or its trees do not follow from its rows and key.
    ModelVersionError
        The file has a newer format.
    """
    text, body = _sections(memoryview(data).cast("B"), limits)
    description = _description(text)
    parsed = parse_canonical(body, max_rows=limits.max_rows)
    model = _rebuild(parsed, description, threads)
    rebuilt = model.canonical()
    same = rebuilt == body
    wipe(rebuilt)
    if not same:
        raise CorruptModelError("the trees of the file do not follow from its rows and its key")
    return model, description


def _sections(data: memoryview, limits: Limits) -> tuple[memoryview, memoryview]:
    if len(data) > limits.max_bytes:
        raise CorruptModelError(f"the file has {len(data)} bytes, the limit is {limits.max_bytes}")
    if len(data) < _HEAD.size + _CHECKSUM_BYTES:
        raise CorruptModelError("the file is too short for a saved forest")
    magic, version, zero, text_bytes, body_bytes = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CorruptModelError("this is not a saved forest")
    if version > VERSION:
        raise ModelVersionError(
            f"the file has format {version}, this library reads up to {VERSION}; update privml"
        )
    end = len(data) - _CHECKSUM_BYTES
    if version != VERSION or zero or _HEAD.size + text_bytes + body_bytes != end:
        raise CorruptModelError("the lengths in the file do not add up; it was cut or altered")
    if hashlib.sha256(data[:end]).digest() != data[end:]:
        raise CorruptModelError("the checksum of the file is wrong; it was damaged")
    middle = _HEAD.size + text_bytes
    return data[_HEAD.size : middle], data[middle:end]


def _description(text: memoryview) -> Description:
    if len(text) > _DESCRIPTION_LIMIT:
        raise CorruptModelError("the description of the saved forest is too long")
    try:
        return msgspec.json.decode(text, type=Description)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptModelError(f"the description of the saved forest is wrong: {error}") from error


def _rebuild(parsed: Parsed, description: Description, threads: int) -> ForestModel:
    params, rows = parsed.params, parsed.rows
    regression = params.task == REGRESSION
    names = description.names
    if regression != (description.estimator == "regressor"):
        raise CorruptModelError("description and forest disagree on the kind of model")
    if names is not None and len(names) != params.n_features:
        raise CorruptModelError("the description names another number of columns")
    labels = _labels(description, params.n_classes)
    counts = np.bincount(rows.y, minlength=labels.size) if not regression else np.zeros(0)
    if not labels.declared and not counts.all():
        raise CorruptModelError("the description lists a class without rows")
    try:
        model = ForestModel(
            params,
            parsed.key,
            columns=Columns(names, params.categorical),
            labels=labels,
            version=description.version,
        )
        model.adopt(rows, threads=threads)
    except ParameterError as error:
        raise CorruptModelError(f"the saved forest cannot be built: {error}") from error
    return model


def _labels(description: Description, size: int) -> LabelTable:
    kind, values = description.label_kind, description.labels
    if len(values) != size or description.version < 0:
        raise CorruptModelError("the description lists another number of classes")
    if not values:
        return LabelTable()
    if not all(check_label(kind, v) for v in values) or list(values) != sorted(set(values)):
        raise CorruptModelError("the labels of the description are not sorted labels of one kind")
    return LabelTable(kind, values, declared=description.labels_declared)
