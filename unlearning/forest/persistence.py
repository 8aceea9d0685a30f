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
import os
import struct
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from stat import S_ISREG
from typing import Final, Literal, TypeAlias

import msgspec
import numpy as np

from privml._typing import Bytes
from privml.errors import (
    CorruptModelError,
    ModelUnusable,
    ModelVersionError,
    ParameterError,
    StorageError,
)
from privml.storage.fs import File
from privml.storage.publish import atomic_write
from privml.unlearning.forest.labels import LabelTable, check_label
from privml.unlearning.forest.model import ForestModel
from privml.unlearning.forest.params import REGRESSION, memory_bound
from privml.unlearning.forest.parse import Parsed, parse_canonical
from privml.unlearning.forest.schema import Columns
from privml.unlearning.forest.scrub import wipe
from privml.unlearning.forest.settings import Plain, Settings, forest_params

MAGIC: Final = b"PVMLFMDL"
VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sIIQQ")
_CHECKSUM_BYTES: Final = 32
_DESCRIPTION_LIMIT: Final = 1 << 26

Kind: TypeAlias = Literal["classifier", "regressor"]


@dataclass(frozen=True)
class Limits:
    """Largest model that is read.

    Attributes
    ----------
    max_bytes
        File size.
    max_rows
        Rows; a model of n rows is retrained to be verified, which takes what a fit takes.
    max_memory
        Bytes that retraining may take at worst, a rough bound; None for this machine's memory.
    """

    max_bytes: int = 1 << 32
    max_rows: int = 1 << 26
    max_memory: int | None = None

    def require_memory(self, needed: int) -> None:
        """Raise :class:`CorruptModelError` if ``needed`` bytes are too many."""
        limit = self.max_memory
        if limit is None:
            limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > limit:
            raise CorruptModelError(
                f"retraining the model may take {needed} bytes of memory, the limit is {limit}; "
                "raise max_memory if you trust the file"
            )


DEFAULT_LIMITS: Final = Limits()


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a saved model has beside its canonical form."""

    estimator: Kind
    version: int
    names: tuple[str, ...] | None
    label_kind: str
    labels: tuple[Plain, ...]
    labels_declared: bool
    settings: Settings


def dump_model(model: ForestModel, settings: Settings) -> bytearray:
    """Return the file of a model; resolves all tags. Overwrite it when written.

    Raises
    ------
    ModelUnusable
        The model contradicts itself, so that no reader would accept the file.
    """
    with model.frozen():
        wrong = model.contradictions()
        if wrong:
            raise ModelUnusable(
                f"the model contradicts itself ({'; '.join(wrong)}); nothing was written, fit it "
                "again and report this"
            )
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


def write_model_file(path: str | PathLike[str], data: Bytes) -> None:
    """Put a saved model at ``path`` durably, mode 0600, in place of an older one.

    Raises
    ------
    StorageError
        The folder is missing, or the file could not be written; the old one, if any, is whole.
    """
    try:
        place = Path(path)
        if not place.name:
            raise StorageError(f"{str(path)!r} names no file; give the path of a file")
        if not place.parent.is_dir():
            raise StorageError(
                f"{place.parent} is not a folder; make it before saving {place.name}"
            )
        if os.path.lexists(place) and not S_ISREG(place.lstat().st_mode):
            raise StorageError(f"{place} is no regular file; give the path of the file itself")
        atomic_write(place, data)
    except (ValueError, OSError) as error:
        raise StorageError(f"{str(path)!r} cannot be written: {error}") from error


def read_model_file(path: str | PathLike[str], limits: Limits) -> bytearray:
    """Return the bytes of a saved model. Overwrite them when done.

    Raises
    ------
    CorruptModelError
        The file is larger than the limit.
    StorageError
        It cannot be read.
    """
    with _opened(path) as file:
        if file.size > limits.max_bytes:
            raise CorruptModelError(
                f"{path} has {file.size} bytes, the limit is {limits.max_bytes}; raise the limit"
            )
        data = bytearray(file.size)
        file.read_into(0, data)
    return data


def _opened(path: str | PathLike[str]) -> File:
    try:
        return File.open(Path(path))
    except ValueError as error:  # a NUL or a lone surrogate
        raise StorageError(f"{str(path)!r} is no path of a file: {error}") from error


def load_model(
    data: Bytes, *, limits: Limits, threads: int = 1, kind: Kind | None = None
) -> tuple[ForestModel, Description]:
    """Return the model of a file and its description.

    Parameters
    ----------
    data
        Content of the file.
    limits
        Largest file and forest that are accepted.
    threads
        Threads for retraining.
    kind
        What the file must hold; None for either.

    Raises
    ------
    CorruptModelError
        The file is damaged, of the other kind, beyond the limits, or its trees do not follow from
        its rows and key.
    ModelVersionError
        The file has a newer format.
    """
    text, body = _sections(memoryview(data).cast("B"), limits)
    description = _description(text)
    if kind not in (None, description.estimator):
        right = f"DynForest{description.estimator.capitalize()}"
        raise CorruptModelError(f"the file holds a {description.estimator}; use {right}.load")
    parsed = parse_canonical(body, max_rows=limits.max_rows)
    limits.require_memory(memory_bound(parsed.params, len(parsed.rows.y)))
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
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
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
    columns = Columns(names, params.categorical)
    try:
        arguments = msgspec.structs.asdict(description.settings)
        if regression != (arguments["target_bits"] is not None):
            raise CorruptModelError("the settings are those of another kind of model")
        arguments["target_bits"] = arguments["target_bits"] or 0
        if forest_params(arguments, task=params.task, columns=columns, labels=labels) != params:
            raise CorruptModelError("the settings of the description do not give this forest")
        model = ForestModel(
            params,
            parsed.key,
            columns=columns,
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
