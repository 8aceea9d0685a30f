"""The native forest core behind ctypes: shapes, buffers and error codes, nothing else."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privml import _native
from privml._native import address
from privml.errors import (
    DuplicateIdError,
    EmptyForestError,
    ModelUnusable,
    ParameterError,
    SchemaError,
    UnknownIdError,
    UnlearningError,
    UnsupportedError,
    internal,
)
from privml.unlearning.forest.ids import Records
from privml.unlearning.forest.interface import Change
from privml.unlearning.forest.keys import ForestKey
from privml.unlearning.forest.params import REGRESSION, ForestParams
from privml.unlearning.forest.reference import Floats, Rows

BLOCK_ROWS: Final = 64
"""Nodes with more rows keep candidate statistics; has no influence on the model."""

_U32, _U64, _I32, _I64 = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int32, ctypes.c_int64
_PTR: Final = ctypes.c_void_p
_SIGNATURES: Final[dict[str, list[Any]]] = {
    "destroy": [_PTR],
    "create": [_PTR, _PTR, ctypes.POINTER(_PTR)],
    "fit": [_PTR, _U64, _PTR, _PTR, _PTR, _U32],
    "learn": [_PTR, _U64, _PTR, _PTR, _PTR, _PTR],
    "unlearn": [_PTR, _U64, _PTR, _PTR],
    "predict": [_PTR, _U64, _PTR, _PTR, _U32, _U32],
    "contains": [_PTR, _U64, _PTR, _PTR],
    "affected": [_PTR, _U64, _PTR, _PTR],
    "resolve": [_PTR, _I64, _U32, _PTR],
    "purge": [_PTR],
    "rows": [_PTR, _U64, _PTR, _PTR, _PTR],
    "class_counts": [_PTR, _U32, _PTR],
    "canonical_size": [_PTR, _PTR, _U32, _PTR],
    "canonical_write": [_PTR, _PTR, _U32, _PTR, _U64],
    "program": [_PTR, _U64, *[_PTR] * 6, _U32, _PTR, _U32, _PTR],
    "audit": [_PTR, _I32, _PTR, _U64],
    "stats": [_PTR, _PTR],
    "hold": [_PTR],
    "release": [_PTR],
    "renew": [_PTR],
}
_OK, _OUT_OF_MEMORY, _CHANGED = 0, 2, 21
_ERRORS: Final[dict[int, tuple[type[Exception], str]]] = {
    1: (ParameterError, "use parameters within the limits of ForestParams"),
    3: (ParameterError, "use a processor with the instruction set asked for"),
    16: (SchemaError, "nothing was changed"),
    17: (UnknownIdError, "nothing was changed"),
    18: (DuplicateIdError, "give each id once; nothing was changed"),
    19: (EmptyForestError, "fit or learn rows first"),
    20: (ModelUnusable, "fit the forest again"),
}
_STATS: Final = (
    "rows", "classes", "tagged", "row_bytes", "node_bytes", "block_bytes", "member_bytes",
    "work_bytes", "nodes", "blocks", "members",
)  # fmt: skip
_OPERATIONS: Final = ("query", "delete", "add")
_ChangeAbi: Final = _I64 * 6
_Start: Final = ctypes.c_char * 0
_FINDINGS: Final = 1 << 16


class _Params(ctypes.Structure):
    """Mirror of ``ForestParamsAbi`` in ``native/forest_abi.cpp``."""

    _fields_ = (
        ("size", _U32),
        ("task", _U32),
        ("trees", _U32),
        ("per_row", _U32),
        ("max_depth", _U32),
        ("thresholds", _U32),
        ("max_features", _U32),
        ("min_split", _U32),
        ("features", _U32),
        ("classes", _U32),
        ("target_bits", _U32),
        ("block_rows", _U32),
        ("isa", _I32),
        ("key", ctypes.c_uint8 * 32),
        ("occurrence", ctypes.c_uint8 * 16),
        ("tree", ctypes.c_uint8 * 16),
    )


def available() -> bool:
    """Return whether the native library is loaded and holds the forest."""
    library = _native.load()
    return library is not None and hasattr(library, "privml_forest_create")


class ForestCore:
    """A forest in native memory; see :class:`privml.unlearning.forest.interface.Core`.

    Calls release the interpreter lock. Predictions of several threads run side by side; a change
    waits for them and they wait for it, so each answer speaks of one version.

    Parameters
    ----------
    params
        Parameters of the model. The number of class codes grows with ``fit`` and ``learn``.
    key
        Key of the forest.
    block_rows
        Nodes with more rows keep candidate statistics. Trades memory for the cost of a query
        after a deletion; has no influence on the model.
    isa
        Instruction set as in :data:`privml._native.ISAS`, None for the one in use; has no
        influence on the model.

    Raises
    ------
    UnsupportedError
        The native library is missing.
    """

    def __init__(
        self,
        params: ForestParams,
        key: ForestKey,
        *,
        block_rows: int = BLOCK_ROWS,
        isa: int | None = None,
    ) -> None:
        self._handle = _PTR()
        if not available():
            raise UnsupportedError(
                "the native library holds no forest; run `pip install -e .` with a C++20 compiler"
            )
        self._params = params
        self._classes = 0 if params.task == REGRESSION else params.n_classes
        record = _Params(
            ctypes.sizeof(_Params),
            params.task,
            params.n_trees,
            params.trees_per_row,
            params.max_depth,
            params.n_thresholds,
            params.max_features,
            params.min_samples_split,
            params.n_features,
            params.n_classes,
            params.target_bits,
            block_rows,
            _native.isa_level() if isa is None else isa,
        )
        record.key[:] = key.master
        record.occurrence[:] = key.occurrence
        record.tree[:] = key.tree
        flags = np.array(params.categorical, dtype=np.uint8)
        create = _function("create")
        _check(create(ctypes.byref(record), address(flags), ctypes.byref(self._handle)))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            _function("destroy")(self._handle)
            self._handle = _PTR()

    @property
    def n_rows(self) -> int:
        """Number of living rows."""
        return int(self.stats()["rows"])

    def fit(self, X: Floats, y: NDArray[np.int64], ids: Records, *, threads: int = 1) -> None:
        """Replace all rows.

        Raises
        ------
        DuplicateIdError
            An id is repeated.
        SchemaError
            A feature is infinite, a category code not an integer below 2^24, a target too large.
        """
        X, y, ids = self._rows_in(X, y, ids)
        self._call("fit", len(y), address(X), address(y), address(ids), threads)

    def learn(self, X: Floats, y: NDArray[np.int64], ids: Records) -> None:
        """Add rows; a new class code retrains the forest.

        Raises
        ------
        DuplicateIdError
            An id is repeated or that of a living row.
        SchemaError
            As for :meth:`fit`.
        """
        X, y, ids = self._rows_in(X, y, ids)
        self._call("learn", len(y), address(X), address(y), address(ids), _ChangeAbi())

    def unlearn(self, ids: Records) -> Change:
        """Remove rows.

        Raises
        ------
        UnknownIdError
            An id is not that of a living row.
        DuplicateIdError
            An id is repeated.
        """
        ids = _buffer(ids, np.uint64)
        change = _ChangeAbi()
        _check(_function("unlearn")(self._handle, len(ids), _place(ids), change))
        trees, nodes, tags, _, scrubbed, pending = change[:]
        return Change(trees, nodes, tags, scrubbed, pending)

    def predict(self, X: Floats, *, threads: int = 1) -> NDArray[np.float64]:
        """Return (n, codes) class frequencies or (n,) targets.

        Raises
        ------
        EmptyForestError
            No row is left.
        """
        X = self._features(X)
        classes = self._classes
        while True:
            shape = (len(X), classes) if classes else (len(X),)
            out = np.empty(shape, dtype=np.float64)
            code = self._try("predict", len(X), address(X), address(out), classes, threads)
            if code != _CHANGED:
                _check(code)
                return out
            classes = self._classes = self.stats()["classes"]

    def contains(self, ids: Records) -> NDArray[np.bool_]:
        """Return which ids are those of living rows."""
        ids = _buffer(ids, np.uint64)
        out = np.zeros(len(ids), dtype=np.uint8)
        self._call("contains", len(ids), address(ids), address(out))
        return out.astype(bool)

    def affected(self, ids: Records) -> NDArray[np.uint32]:
        """Return (n, k) the trees that hold, or would hold, each id; sorted in each row."""
        ids = _buffer(ids, np.uint64)
        out = np.zeros((len(ids), self._params.trees_per_row), dtype=np.uint32)
        self._call("affected", len(ids), address(ids), address(out))
        return out

    def class_counts(self) -> NDArray[np.int64]:
        """Return the number of living rows per class code; empty for regression."""
        while True:
            out = np.zeros(self.stats()["classes"], dtype=np.int64)
            code = self._try("class_counts", len(out), address(out))
            if code != _CHANGED:
                _check(code)
                return out

    def rows(self) -> Rows:
        """Return a copy of the living rows in canonical order."""
        while True:
            n = self.n_rows
            ids = np.zeros((n, 3), dtype=np.uint64)
            X = np.zeros((n, self._params.n_features), dtype=np.float32)
            y = np.zeros(n, dtype=np.int64)
            code = self._try("rows", n, address(ids), address(X), address(y))
            if code != _CHANGED:
                _check(code)
                return Rows(ids, X, y)

    def canonical(self, class_order: Sequence[int]) -> bytearray:
        """Return the canonical form; resolves all tags.

        Parameters
        ----------
        class_order
            Class codes in the order of the canonical form; empty for regression.
        """
        order = np.array(class_order, dtype=np.uint32)
        while True:
            size = _U64()
            at = address(order), len(order)
            self._call("canonical_size", *at, ctypes.byref(size))
            out = bytearray(size.value)
            view = np.frombuffer(out, dtype=np.uint8)
            code = self._try("canonical_write", *at, address(view), len(out))
            if code != _CHANGED:
                _check(code)
                return out

    def resolve(self, budget_s: float | None = None, *, threads: int = 1) -> bool:
        """Decide tagged nodes for about ``budget_s`` seconds; return whether none is left."""
        done = _I32()
        budget = -1 if budget_s is None else int(budget_s * 1e9)
        self._call("resolve", budget, threads, ctypes.byref(done))
        return bool(done.value)

    def purge(self) -> None:
        """Overwrite everything freed and lay the forest out afresh."""
        self._call("purge")

    def hold(self) -> None:
        """Keep all other calls out, once those in progress are done, until :meth:`release`."""
        self._call("hold")

    def release(self) -> None:
        """Let other calls in again, after :meth:`hold`."""
        self._call("release")

    def renew(self) -> None:
        """Do what :meth:`release` does, in a forked child: the threads that wait are not there."""
        self._call("renew")

    def audit(self, level: int) -> Sequence[str]:
        """Recompute the invariants of the structure; return what is violated, one line each."""
        text = ctypes.create_string_buffer(_FINDINGS)
        self._call("audit", level, text, _FINDINGS)
        return tuple(text.value.decode().splitlines())

    def run_program(
        self,
        operations: Sequence[tuple[str, int, int]],
        X: Floats,
        y: NDArray[np.int64],
        ids: Records,
    ) -> NDArray[np.int64]:
        """Run single operations in one native call and time each.

        Parameters
        ----------
        operations
            In order: ``("query", row, 0)``, ``("delete", 0, id)`` or ``("add", row, id)`` with
            positions in ``X`` and ``y``, and in ``ids``.
        X, y, ids
            Rows to ask about or to add, and ids to delete or to add under.

        Returns
        -------
        ndarray
            (n,) int64 thread CPU time of each operation, ns.

        Raises
        ------
        UnlearningError, SchemaError
            As the single calls do; the operations before the failing one were done.
        """
        X, y, ids = self._features(X), _buffer(y, np.int64), _buffer(ids, np.uint64)
        kind = np.array([_OPERATIONS.index(name) for name, _, _ in operations], dtype=np.uint8)
        row = np.array([row for _, row, _ in operations], dtype=np.uint32)
        named = np.array([place for _, _, place in operations], dtype=np.uint32)
        uses_row, uses_id = kind != _OPERATIONS.index("delete"), kind != 0
        internal(bool((row[uses_row] < len(X)).all()), "rows of the program lie in X")
        internal(bool((row[kind == _OPERATIONS.index("add")] < len(y)).all()), "and in y")
        internal(bool((named[uses_id] < len(ids)).all()), "ids of the program lie in ids")
        classes = self.stats()["classes"]
        out, ns = np.empty(max(classes, 1)), np.zeros(len(kind), dtype=np.int64)
        at = [address(a) for a in (kind, row, named, X, y, ids)]
        features = self._params.n_features
        self._call("program", len(kind), *at, features, address(out), classes, address(ns))
        return ns

    def stats(self) -> Mapping[str, int]:
        """Return sizes: rows, classes, tagged nodes, nodes, blocks, (row, tree) pairs, bytes."""
        out = np.zeros(len(_STATS), dtype=np.int64)
        self._call("stats", address(out))
        return dict(zip(_STATS, out.tolist(), strict=True))

    def memory(self) -> Mapping[str, int]:
        """Return bytes per part, and under ``"total"`` their sum."""
        parts = {k: v for k, v in self.stats().items() if k.endswith("_bytes")}
        return {**parts, "total": sum(parts.values())}

    def _features(self, X: Floats) -> Floats:
        X = _buffer(X, np.float32)
        internal(X.ndim == 2 and X.shape[1] == self._params.n_features, "features of (n, p)")
        return X

    def _rows_in(
        self, X: Floats, y: NDArray[np.int64], ids: Records
    ) -> tuple[Floats, NDArray[np.int64], Records]:
        X, y, ids = self._features(X), _buffer(y, np.int64), _buffer(ids, np.uint64)
        internal(y.shape == (len(X),) and ids.shape == (len(X), 3), "one target and id per row")
        return X, y, ids

    def _try(self, name: str, *arguments: Any) -> int:  # noqa: ANN401 - as the C signature says
        return int(_function(name)(self._handle, *arguments))

    def _call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        _check(self._try(name, *arguments))


def _buffer(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    internal(array.dtype == dtype, "buffers have the type of the native core")
    return np.ascontiguousarray(array)


def _place(array: Any) -> Any:  # noqa: ANN401 - a ctypes array or an address
    """Return a pointer argument to a buffer, a microsecond faster than :func:`address` if ours."""
    return _Start.from_buffer(array) if array.flags.writeable else address(array)


def _check(code: int) -> None:
    if code == _OK:
        return
    if code == _OUT_OF_MEMORY:
        raise MemoryError("the forest: no memory; if a change was under way, fit it again")
    text = _message()().decode()
    error, fix = _ERRORS.get(code, (UnlearningError, "fit the forest again"))
    raise error(f"{text or 'the native forest refused its arguments'}; {fix}")


@cache
def _message() -> Any:  # noqa: ANN401 - as below
    """Return the last error's text of this thread; an object of its own, complete when shared."""
    library: Any = _native.load()
    function = library["privml_forest_message"]
    function.argtypes, function.restype = (), ctypes.c_char_p
    return function


@cache
def _function(name: str) -> Any:  # noqa: ANN401 - ctypes functions have no common static type
    library: Any = _native.load()
    internal(library is not None, "the native library is loaded")
    symbol = f"privml_forest_{name}"
    function = getattr(library, symbol)
    function.argtypes = _SIGNATURES[name]
    function.restype = None if name == "destroy" else _I32
    return function
