"""The data of a valuation: training rows, the players that own them, and the validation rows.

A player is one row, or one group of rows (source, user, cluster). Everything is checked once, here:
what a :class:`Problem` holds is finite, of one length, C-contiguous and read-only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, Self, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privml.backbones.digests import Json, canonical_json
from privml.valuation.checks import is_whole
from privml.valuation.errors import ProblemError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
PlayerId: TypeAlias = str | int
Task: TypeAlias = Literal["classification", "regression"]
GroupMode: TypeAlias = Literal["row", "player"]

_GUESSED_CLASSES: Final = 20
_SPANS: Final = 2
_WHOLE: Final = 1 << 53
_LARGEST: Final = 1e150
"""Larger numbers are refused: their squares, summed up, would not be finite."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Training rows grouped into players, and validation rows; made by :meth:`of`.

    Attributes
    ----------
    X, X_val
        (n, d) and (m, d) float64 features, read-only.
    y, y_val
        (n,) and (m,) float64: targets of a regression, class codes of a classification.
    ids
        Name of each player, in player order: the group's label, the row's id, or its number.
    row_ids
        (n,) name of each row.
    player_of
        (n,) int64 player that owns each row.
    classes
        Class labels in code order, texts or numbers; empty for a regression.
    task
        ``"classification"`` or ``"regression"``.
    group_mode
        ``"row"``: players are rows; ``"player"``: a group enters a coalition as a whole.
    """

    X: Floats
    y: Floats
    X_val: Floats
    y_val: Floats
    ids: tuple[PlayerId, ...]
    row_ids: tuple[PlayerId, ...]
    player_of: Ints
    classes: tuple[str | int | float | bool, ...]
    task: Task
    group_mode: GroupMode
    _digest: str = field(default="", repr=False)

    @classmethod
    def of(
        cls,
        X: ArrayLike,
        y: ArrayLike,
        X_val: ArrayLike,
        y_val: ArrayLike,
        *,
        ids: Iterable[PlayerId] | None = None,
        groups: Iterable[PlayerId] | None = None,
        task: Task | None = None,
    ) -> Self:
        """Check and copy tables (numpy, lists or pandas).

        Parameters
        ----------
        X, X_val
            (n, d) and (m, d) numbers, all finite and at most 1e150 in size; n, m, d >= 1.
        y, y_val
            (n,) and (m,) targets: numbers, or class labels (texts, numbers, booleans).
        ids
            Distinct name of each row, text or integer; 0..n-1 if not given.
        groups
            Group of each row; players are then the groups, in sorted order.
        task
            Guessed from ``y`` if not given: texts, booleans and few distinct whole numbers are
            classes, fractions are targets. Many distinct whole numbers must be declared.

        Raises
        ------
        ProblemError
            Anything does not fit; the message names the argument and the remedy.
        """
        rows, names = _table("X", X), _columns(X)
        val = _table("X_val", X_val)
        if rows.shape[1] != val.shape[1]:
            raise ProblemError(f"X has {rows.shape[1]} columns, X_val {val.shape[1]}; give equal")
        if names and _columns(X_val) and names != _columns(X_val):
            raise ProblemError(
                "X and X_val have differently named columns; give the same, in order"
            )
        raw, raw_val = _labels("y", y, len(rows)), _labels("y_val", y_val, len(val))
        kind = _task(raw, raw_val) if task is None else _checked_task(task)
        classes: tuple[Any, ...] = ()
        if kind == "classification":
            classes, target, target_val = _encode(raw, raw_val)
        else:
            target, target_val = _numbers("y", raw), _numbers("y_val", raw_val)
        row_ids = _names("ids", ids, len(rows))
        if len(set(row_ids)) != len(row_ids):
            raise ProblemError("ids: each row needs a name of its own; make them distinct")
        players, owner = row_ids, np.arange(len(rows), dtype=np.int64)
        if groups is not None:
            players, owner = _grouped(_names("groups", groups, len(rows)))
        return cls(
            _frozen(rows),
            _frozen(target),
            _frozen(val),
            _frozen(target_val),
            players,
            row_ids,
            _frozen(owner),
            classes,
            kind,
            "row" if groups is None else "player",
        )

    @property
    def n(self) -> int:
        """Number of training rows."""
        return len(self.X)

    @property
    def d(self) -> int:
        """Number of features."""
        return int(self.X.shape[1])

    @property
    def players(self) -> int:
        """Number of players."""
        return len(self.ids)

    @cached_property
    def codes(self) -> Ints:
        """(n,) int64 class codes 0..c-1; raises ``ProblemError`` for a regression."""
        return self._codes(self.y)

    @cached_property
    def val_codes(self) -> Ints:
        """(m,) int64 class codes of the validation rows."""
        return self._codes(self.y_val)

    @cached_property
    def row_counts(self) -> Ints:
        """(players,) int64 rows of each player."""
        return _frozen(np.bincount(self.player_of, minlength=self.players).astype(np.int64))

    @cached_property
    def _spans(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.player_of, kind="stable").astype(np.int64)
        return _frozen(order), _frozen(np.concatenate([[0], np.cumsum(self.row_counts)]))

    def rows_of(self, player: int) -> Ints:
        """Return the int64 row numbers of one player, ascending."""
        order, start = self._spans
        if not 0 <= player < self.players:
            raise ProblemError(f"there is no player {player}; players are 0..{self.players - 1}")
        return order[start[player] : start[player + 1]]

    def rows_of_all(self, coalition: Sequence[int] | Ints) -> Ints:
        """Return the int64 row numbers of a coalition, ascending."""
        if self.group_mode == "row":
            rows = np.sort(np.asarray(coalition, dtype=np.int64))
            if len(rows) and (rows[0] < 0 or rows[-1] >= self.players):
                raise ProblemError(f"a coalition names a player outside 0..{self.players - 1}")
            return rows
        parts = [self.rows_of(int(player)) for player in coalition]
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)

    def names_of(self, rows: Ints) -> tuple[PlayerId, ...]:
        """Return the names of some rows, in the order given."""
        return tuple(self.row_ids[row] for row in rows.tolist())

    def without(self, players: Iterable[int]) -> Self:
        """Return the problem without some players; the others keep their order and names.

        It is the problem that tables without their rows give: a class that no row and no validation
        row has any more is gone too. Only the task stays as it was.
        """
        gone = {_whole(player) for player in players}
        wrong = sorted(player for player in gone if not 0 <= player < self.players)
        if wrong:
            raise ProblemError(f"there are no players {wrong}; players are 0..{self.players - 1}")
        keep = [player for player in range(self.players) if player not in gone]
        if not keep:
            raise ProblemError("no player would be left; leave at least one")
        stays = ~np.isin(self.player_of, sorted(gone))
        number = np.full(self.players, -1, dtype=np.int64)
        number[keep] = np.arange(len(keep))
        classes, y, y_val = self._left_classes(self.y[stays])
        return replace(
            self,
            X=_frozen(self.X[stays]),
            y=_frozen(y),
            y_val=_frozen(y_val),
            classes=classes,
            ids=tuple(self.ids[player] for player in keep),
            row_ids=tuple(np.array(self.row_ids, dtype=object)[stays].tolist()),
            player_of=_frozen(number[self.player_of[stays]]),
            _digest="",
        )

    def digest(self) -> str:
        """Return 64 hex digits that change with any number, label, name or owner."""
        if not self._digest:
            head: Json = {
                "classes": [str(type(c).__name__) + ":" + str(c) for c in self.classes],
                "group_mode": self.group_mode,
                "ids": _tagged(self.ids),
                "row_ids": _tagged(self.row_ids),
                "shape": [self.n, len(self.X_val), self.d],
                "task": self.task,
            }
            state = hashlib.sha256(b"privml valuation problem 1\0" + canonical_json(head))
            for array in (self.X, self.y, self.X_val, self.y_val, self.player_of):
                state.update(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
            object.__setattr__(self, "_digest", state.hexdigest())
        return self._digest

    def _left_classes(
        self, y: Floats
    ) -> tuple[tuple[str | int | float | bool, ...], Floats, Floats]:
        """Return the classes that some rows and the validation rows have, and both recoded."""
        if self.task != "classification":
            return self.classes, y, self.y_val
        left = np.unique(np.concatenate([y, self.y_val]))
        if len(left) == len(self.classes):
            return self.classes, y, self.y_val
        classes = tuple(self.classes[int(code)] for code in left)
        own, val = (np.searchsorted(left, codes).astype(np.float64) for codes in (y, self.y_val))
        return classes, own, val

    def _codes(self, y: Floats) -> Ints:
        if self.task != "classification":
            raise ProblemError("a regression has no classes; use a utility for regressions")
        return _frozen(y.astype(np.int64))


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    out = np.ascontiguousarray(array)
    if out is array and array.flags.writeable:
        out = array.copy()
    out.flags.writeable = False
    return out


def _columns(table: object) -> tuple[str, ...]:
    found = getattr(table, "columns", None)
    return () if found is None else tuple(map(str, found))


def _table(name: str, given: ArrayLike) -> Floats:
    _no_mask(name, given)
    kind = getattr(getattr(given, "dtype", None), "kind", "f")
    if kind in "cmM":
        raise ProblemError(f"{name} must be a table of numbers, not {given.dtype}; encode it first")  # type: ignore[union-attr]
    try:
        with np.errstate(over="ignore"):  # what is too large becomes infinite and is refused below
            table = np.array(given, dtype=np.float64, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise ProblemError(
            f"{name} must be a table of numbers: {error}; encode it first"
        ) from error
    if table.ndim != _SPANS or 0 in table.shape:
        raise ProblemError(f"{name} has shape {table.shape}; give (rows, columns), both at least 1")
    if not np.isfinite(table).all():
        row = int(np.argmin(np.isfinite(table).all(axis=1)))
        raise ProblemError(f"{name} holds NaN or infinity, first in row {row}; impute or drop it")
    _no_giants(name, table)
    return table


def _no_giants(name: str, numbers: Floats) -> None:
    if np.abs(numbers).max() > _LARGEST:
        raise ProblemError(f"{name} holds a number beyond {_LARGEST:g}; scale it")


def _labels(name: str, given: ArrayLike, count: int) -> NDArray[Any]:
    _no_mask(name, given)
    try:
        labels = np.asarray(given)
    except ValueError as error:
        raise ProblemError(f"{name} must be one label for each row: {error}") from error
    if labels.shape != (count,):
        raise ProblemError(f"{name} has shape {labels.shape}; {count} rows need ({count},)")
    if labels.dtype.kind == "O":
        labels = _plain_labels(name, labels)
    if labels.dtype.kind not in "biufU":
        raise ProblemError(f"{name} has labels of type {labels.dtype}; use texts or numbers")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ProblemError(f"{name} holds NaN or infinity; drop those rows")
    if labels.dtype.kind == "U":
        exact = isinstance(given, np.ndarray) and given.dtype.kind == "U"
        for label in labels.tolist() if exact else list(cast("Iterable[str]", given)):
            _check_text(name, label)
    return labels


def _plain_labels(name: str, given: NDArray[Any]) -> NDArray[Any]:
    """Return labels of one kind from objects, numpy scalars among them."""
    labels = [x.item() if isinstance(x, np.generic) else x for x in given.tolist()]
    kinds = {type(label) for label in labels}
    if kinds == {str}:
        return np.array(labels, dtype=str)
    if not kinds <= {int, float, bool}:
        raise ProblemError(
            f"{name} mixes {sorted(k.__name__ for k in kinds)}; use one kind of label"
        )
    if any(isinstance(label, int) and abs(label) >= _WHOLE for label in labels):
        raise ProblemError(f"{name} holds an integer of 2^53 or more; write it as text")
    return np.array(labels, dtype=bool if kinds == {bool} else np.float64)


def _check_text(name: str, text: str) -> None:
    """Refuse texts that have no UTF-8 form, and those that numpy would cut."""
    try:
        str(text).encode()
    except UnicodeEncodeError as error:
        raise ProblemError(f"{name} holds a text that is not valid Unicode; correct it") from error
    if str(text).endswith("\0"):
        raise ProblemError(f"{name} holds a text that ends in a zero character; remove it")


def _no_mask(name: str, given: object) -> None:
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise ProblemError(f"{name} has masked entries; impute or drop them")


def _whole(player: object) -> int:
    """Return a player's number; floats and texts would name the wrong one."""
    if not is_whole(player):
        raise ProblemError(f"players are whole numbers, not {type(player).__name__}")
    return int(player)  # type: ignore[call-overload, no-any-return]


def _numbers(name: str, labels: NDArray[Any]) -> Floats:
    if labels.dtype.kind == "U":
        raise ProblemError(f"{name} holds texts; a regression needs numbers")
    numbers = labels.astype(np.float64)
    _no_giants(name, numbers)
    return numbers


def _checked_task(task: str) -> Task:
    if task not in ("classification", "regression"):
        raise ProblemError(f"task={task!r} is unknown; use 'classification' or 'regression'")
    return cast("Task", task)


def _task(y: NDArray[Any], y_val: NDArray[Any]) -> Task:
    if y.dtype.kind in "bU":
        return "classification"
    both = np.concatenate([y, y_val.astype(y.dtype)]) if y_val.dtype.kind != "U" else y
    if (both != np.round(both)).any():
        return "regression"
    if len(np.unique(both)) > _GUESSED_CLASSES:
        raise ProblemError(
            "y holds many distinct whole numbers: say task='classification' or task='regression'"
        )
    return "classification"


def _encode(y: NDArray[Any], y_val: NDArray[Any]) -> tuple[tuple[Any, ...], Floats, Floats]:
    if (y.dtype.kind == "U") != (y_val.dtype.kind == "U"):
        raise ProblemError("y and y_val have labels of different types; use one type")
    both = np.concatenate([y, y_val])
    for labels in (y, y_val):
        if (
            both.dtype.kind == "f"
            and labels.dtype.kind in "iu"
            and (np.abs(labels) >= _WHOLE).any()
        ):
            raise ProblemError("y holds an integer of 2^53 or more; write labels as texts")
    found, codes = np.unique(both, return_inverse=True)
    numbers = codes.astype(np.float64)
    return tuple(found.tolist()), numbers[: len(y)], numbers[len(y) :]


def _names(name: str, given: Iterable[PlayerId] | None, count: int) -> tuple[PlayerId, ...]:
    if given is None:
        return tuple(range(count))
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ProblemError(f"{name} is a list of names, not one {type(given).__name__}")
    plain = [value.item() if isinstance(value, np.generic) else value for value in given]
    if len(plain) != count:
        raise ProblemError(f"{name} has {len(plain)} entries; {count} rows need {count}")
    for value in plain:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ProblemError(f"{name} holds {type(value).__name__}; use texts or integers")
        if isinstance(value, str):
            _check_text(name, value)
        elif abs(value) >= _WHOLE:
            raise ProblemError(f"{name} holds an integer of 2^53 or more; write it as text")
    return tuple(plain)


def _grouped(groups: tuple[PlayerId, ...]) -> tuple[tuple[PlayerId, ...], Ints]:
    players = sorted(set(groups), key=lambda g: (isinstance(g, str), g))
    number = {group: at for at, group in enumerate(players)}
    return tuple(players), np.array([number[group] for group in groups], dtype=np.int64)


def _tagged(names: Sequence[PlayerId]) -> list[Json]:
    return [f"s{name}" if isinstance(name, str) else int(name) for name in names]
