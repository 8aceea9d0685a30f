"""Strict reading of a canonical form's parameters, key and rows: anything unusual is an error."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from privml.errors import CorruptModelError, ModelVersionError, ParameterError
from privml.unlearning.forest.canonical import MAGIC, VERSION, row_type
from privml.unlearning.forest.ids import INTEGER, TEXT, Records, order
from privml.unlearning.forest.keys import KEY_BYTES, ForestKey
from privml.unlearning.forest.params import CLASSIFICATION, REGRESSION, ForestParams
from privml.unlearning.forest.reference import Floats, Rows
from privml.unlearning.forest.schema import SUM_LIMIT_BITS, TARGET_LIMIT_BITS

_HEAD: Final = struct.Struct("<8sI10Q")
_COUNT: Final = struct.Struct("<Q")
_TREE_BYTES: Final = 5  # marker and kind
_POSITION_BYTES: Final = 8
_CODE_LIMIT: Final = 1 << 24


@dataclass(frozen=True)
class Parsed:
    """Parameters, key and rows of a canonical form; its trees are not read but rebuilt."""

    params: ForestParams
    key: ForestKey
    rows: Rows


def parse_canonical(data: memoryview, *, max_rows: int) -> Parsed:
    """Return what a canonical form says its trees follow from.

    Parameters
    ----------
    data
        The canonical form.
    max_rows
        Largest number of rows accepted.

    Raises
    ------
    CorruptModelError
        The bytes do not follow the format or hold values that no model has.
    ModelVersionError
        The format is newer than this library.
    """
    params, at = _parameters(data)
    _need(data, at + KEY_BYTES + _COUNT.size)
    key = ForestKey(bytes(data[at : at + KEY_BYTES]))
    (n,) = _COUNT.unpack_from(data, at + KEY_BYTES)
    at += KEY_BYTES + _COUNT.size
    if n > max_rows:
        raise CorruptModelError(f"the model has {n} rows, the limit is {max_rows}; raise the limit")
    kind = row_type(params.n_features)
    trees = _TREE_BYTES * params.n_trees + _POSITION_BYTES * n * params.trees_per_row
    _need(data, at + n * kind.itemsize + trees)
    packed = np.frombuffer(data, dtype=kind, count=n, offset=at)
    rows = Rows(packed["id"].copy(), packed["x"].copy(), packed["y"].copy())
    _check_ids(rows.ids)
    _check_features(rows.X, params)
    _check_targets(rows, params)
    return Parsed(params, key, rows)


def _parameters(data: memoryview) -> tuple[ForestParams, int]:
    _need(data, _HEAD.size)
    magic, version, *header = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CorruptModelError("this is not the canonical form of a forest")
    if version > VERSION:
        raise ModelVersionError(
            f"the model has format {version}, this library reads up to {VERSION}; update privml"
        )
    p = header[7]
    _need(data, _HEAD.size + p)
    flags = bytes(data[_HEAD.size : _HEAD.size + p])
    if version != VERSION or flags.strip(b"\0\1"):
        raise CorruptModelError("the header of the forest is damaged")
    try:
        params = _from_header(header, flags)
    except ParameterError as error:
        raise CorruptModelError(f"the header of the forest is damaged: {error}") from error
    if (params.n_classes if params.task == REGRESSION else params.target_bits) != 0:
        raise CorruptModelError("the header mixes classification and regression")
    return params, _HEAD.size + p


def _from_header(header: list[int], flags: bytes) -> ForestParams:
    task, trees, per_row, depth, thresholds, features, smallest, p, classes, bits = header
    return ForestParams(
        task=task,
        n_trees=trees,
        trees_per_row=per_row,
        max_depth=depth,
        n_thresholds=thresholds,
        max_features=features,
        min_samples_split=smallest,
        n_features=p,
        n_classes=classes,
        target_bits=bits,
        categorical=tuple(map(bool, flags)),
    )


def _check_ids(ids: Records) -> None:
    kinds, low, high = ids[:, 0], ids[:, 1], ids[:, 2]
    legal = ((kinds == INTEGER) & (high == 0)) | (kinds == TEXT)
    arranged = np.array_equal(order(ids), np.arange(len(ids)))
    repeated = (ids[1:] == ids[:-1]).all(axis=1).any()
    del low
    if not legal.all() or not arranged or repeated:
        raise CorruptModelError("the rows of the forest are not sorted by distinct ids")


def _check_features(X: Floats, params: ForestParams) -> None:
    bits = X.view(np.uint32)
    missing = np.isnan(X)
    nan = np.float32(np.nan).view(np.uint32)
    negative_zero = bits == np.uint32(1 << 31)
    if np.isinf(X).any() or negative_zero.any() or (bits[missing] != nan).any():
        raise CorruptModelError("a feature of the forest is not a canonical finite number")
    codes = X[:, list(params.categorical)]
    codes = codes[~np.isnan(codes)]
    if not ((codes >= 0) & (codes < _CODE_LIMIT) & (codes % 1 == 0)).all():
        raise CorruptModelError("a category code of the forest is out of range")


def _check_targets(rows: Rows, params: ForestParams) -> None:
    low, high = (int(rows.y.min()), int(rows.y.max())) if len(rows.y) else (0, 0)
    if params.task == CLASSIFICATION:
        legal = low >= 0 and (high < params.n_classes or not len(rows.y))
    else:
        largest = max(abs(low), abs(high))
        sums = largest * len(rows.y) < 1 << SUM_LIMIT_BITS
        legal = largest < 1 << TARGET_LIMIT_BITS and sums
    if not legal:
        raise CorruptModelError("a target of the forest is out of range")


def _need(data: memoryview, size: int) -> None:
    if len(data) < size:
        raise CorruptModelError(f"the model needs {size} bytes and has {len(data)}; it was cut")
