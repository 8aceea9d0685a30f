"""What every utility keeps: a frozen setting that opens, on a problem, a counted game.

Rules of a :class:`Game`
------------------------
* U(empty) is the stated constant ``empty``; it is never evaluated and costs nothing.
* Every other coalition that is scored counts one evaluation and its number of rows, also when the
  implementation gets it cheaper than by training: costs are compared across methods in evaluations.
* A score does not depend on how requests are batched, nor on the number of processes.
* A score that is not finite, or an exception of the model, is ``UtilityFailed``; never a number.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.backbones.digests import Json
from privml.errors import PrivmlError
from privml.valuation.errors import ProblemError, SettingError, UtilityFailed
from privml.valuation.problem import Floats, Ints, Problem
from privml.valuation.utilities.culprit import culprit

Coalitions: TypeAlias = Sequence[Ints]
_MATRIX = 2
_CHUNK = 256
_LARGEST = 1e150
_SLACK = 1e-6


class Tally:
    """Cost counters; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._evaluations = self._rows = 0

    def __getstate__(self) -> tuple[int, int]:
        return self._evaluations, self._rows

    def __setstate__(self, state: tuple[int, int]) -> None:
        self._lock = threading.Lock()
        self._evaluations, self._rows = state

    @property
    def evaluations(self) -> int:
        """Coalitions scored, the empty one not counted."""
        return self._evaluations

    @property
    def rows_trained(self) -> int:
        """Rows in all coalitions scored."""
        return self._rows

    def add(self, evaluations: int, rows_trained: int) -> None:
        """Add to both counters."""
        with self._lock:
            self._evaluations += evaluations
            self._rows += rows_trained


@dataclass(frozen=True)
class Truncation:
    """When a walk stops early: once ``abs(full - U(prefix)) < tolerance``.

    Attributes
    ----------
    full
        U of all players.
    tolerance
        At least 0; at 0 no walk stops.
    """

    full: float
    tolerance: float


class Game(ABC):
    """U of coalitions of players, with counted cost.

    Parameters
    ----------
    players
        Number of players.
    empty
        U of the empty coalition.
    row_counts
        (players,) int64 rows of each player; one each if not given.

    Attributes
    ----------
    tally
        Evaluations and rows trained so far.
    """

    batch: int = 8
    """Walks worth evaluating together; a hint for schedulers, without effect on scores."""

    local: ClassVar[bool] = False
    """Whether U of a coalition depends on its own rows, their names and the validation rows alone,
    bit for bit; then scores stay valid when other players are deleted."""

    def __init__(self, players: int, empty: float, *, row_counts: Ints | None = None) -> None:
        if players < 1:
            raise SettingError("a game needs at least one player")
        if not np.isfinite(empty):
            raise SettingError(f"U(empty) = {empty} is not a finite number; give another constant")
        self.players = players
        self.empty = float(empty)
        self.row_counts = np.ones(players, np.int64) if row_counts is None else row_counts
        self.tally = Tally()

    def score(self, coalitions: Sequence[Sequence[int] | Ints]) -> Floats:
        """Return U of each coalition.

        Parameters
        ----------
        coalitions
            Distinct player indices each, in any order; empty ones are allowed.

        Returns
        -------
        ndarray
            (k,) float64.

        Raises
        ------
        SettingError
            An index is out of range or repeated.
        UtilityFailed
            The model or metric failed.
        """
        sets = [_sorted_set(coalition, self.players) for coalition in coalitions]
        out = np.full(len(sets), self.empty)
        asked = [at for at, members in enumerate(sets) if len(members)]
        if asked:
            chosen = [sets[at] for at in asked]
            out[asked] = self._checked(lambda: self._scored_all(chosen), chosen)
            rows = sum(int(self.row_counts[members].sum()) for members in chosen)
            self.tally.add(len(asked), rows)
        return out

    def walks(self, orders: Ints, *, truncation: Truncation | None = None) -> Floats:
        """Return U of every prefix of each order.

        Parameters
        ----------
        orders
            (w, L) int64 distinct player indices per row, 1 <= L <= players.
        truncation
            When to stop a walk early; never if not given.

        Returns
        -------
        ndarray
            (w, L+1) float64; column 0 is U(empty). NaN, and not counted, after an early stop.

        Raises
        ------
        SettingError
            An index is out of range or repeated.
        UtilityFailed
            The model or metric failed.
        """
        orders = _checked_orders(orders, self.players)
        out = np.full((len(orders), orders.shape[1] + 1), self.empty)
        if not len(orders):
            return out
        if truncation is None or truncation.tolerance <= 0:
            out[:, 1:] = self._checked(lambda: self._walk_all(orders), orders)
        else:
            out[:, 1:] = self._truncated_walks(orders, truncation)
        self.tally.add(*walk_cost(orders, out, self.row_counts))
        return out

    @abstractmethod
    def _score(self, coalitions: Coalitions) -> Floats:
        """Return (k,) U of non-empty coalitions, each sorted."""

    def _walks(self, orders: Ints) -> Floats:
        """Return (w, L) U of the non-empty prefixes; override where prefixes share work."""
        w, length = orders.shape
        out = np.empty((w, length))
        for row, order in enumerate(orders):
            for start in range(0, length, _CHUNK):
                stop = min(start + _CHUNK, length)
                prefixes = [np.sort(order[: k + 1]) for k in range(start, stop)]
                out[row, start:stop] = self._scored_all(prefixes)
        return out

    def _truncated_walks(self, orders: Ints, truncation: Truncation) -> Floats:
        """Return (w, L) with NaN after the stop; override where prefixes share work."""
        w, length = orders.shape
        out = np.full((w, length), np.nan)
        live = np.arange(w)
        before = np.full(w, self.empty)
        for k in range(length):
            live = live[np.abs(truncation.full - before[live]) >= truncation.tolerance]
            if not len(live):
                break
            prefixes = [np.sort(orders[row, : k + 1]) for row in live]
            found = self._checked(lambda p=prefixes: self._scored_all(p), prefixes)
            before[live] = out[live, k] = found
        return out

    def _scored_all(self, coalitions: Coalitions) -> Any:  # noqa: ANN401 - what a game answers
        """Return one score for each coalition, and see to it that there is one."""
        found = np.asarray(self._score(coalitions))
        if found.shape != (len(coalitions),):
            raise UtilityFailed(
                f"{type(self).__name__} gave shape {found.shape} for {len(coalitions)} coalitions"
            )
        return found

    def _walk_all(self, orders: Ints) -> Any:  # noqa: ANN401 - what a game answers
        found = np.asarray(self._walks(orders))
        if found.shape != orders.shape:
            raise UtilityFailed(
                f"{type(self).__name__} gave shape {found.shape} for {orders.shape}"
            )
        return found

    def _checked(self, evaluate: Any, coalitions: Coalitions | Ints) -> Floats:  # noqa: ANN401
        try:
            found = np.asarray(evaluate())
            if found.dtype.kind == "c":
                raise TypeError("a score is one real number")
            scores = found.astype(np.float64)
        except UtilityFailed as error:
            if error.coalition:
                raise
            raise error.of(culprit(coalitions, self._score, self._walks)) from (
                error.__cause__ or error
            )
        except (PrivmlError, MemoryError):
            raise
        except Exception as error:
            raise UtilityFailed(
                f"{type(self).__name__} raised {type(error).__name__}: {error}",
                coalition=culprit(coalitions, self._score, self._walks),
            ) from error
        fits = np.abs(scores) <= _LARGEST
        if not fits.all():
            at, *place = np.argwhere(~fits)[0].tolist()
            members = coalitions[at][: place[0] + 1] if place else coalitions[at]
            raise UtilityFailed(
                f"{type(self).__name__} gave a score that is not finite or beyond {_LARGEST:g}",
                coalition=members.tolist(),
            )
        return scores


class Utility(ABC):
    """A frozen dataclass of settings; :meth:`open` binds it to a problem."""

    kind: ClassVar[str] = ""
    """Stable name in digests; bumped, with a number, when scores change."""

    @abstractmethod
    def open(self, problem: Problem) -> Game:
        """Return the game of a problem.

        Raises
        ------
        ProblemError
            The utility does not fit the task.
        SettingError
            A setting is out of range.
        """

    def spec(self) -> dict[str, Json]:
        """Return the settings as JSON: what, with the data, fixes every score."""
        return {"kind": self.kind or type(self).__name__, **settings_json(self)}


def settings_json(settings: object) -> dict[str, Json]:
    """Return the fields of a dataclass of plain values as JSON."""
    names = [field.name for field in fields(settings)]  # type: ignore[arg-type]
    return {name: plain(getattr(settings, name)) for name in names}


def plain(value: object) -> Json:
    """Return numpy scalars and tuples as JSON values; raises ``SettingError`` for objects."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    raise SettingError(
        f"a setting of type {type(value).__name__} has no JSON form; use plain values"
    )


def class_codes(predicted: Any, *, rows: int, classes: int) -> Ints:  # noqa: ANN401 - of a model
    """Return (rows,) predicted class codes; raises ``UtilityFailed`` for anything else."""
    found = np.asarray(predicted)
    if found.shape != (rows,):
        raise UtilityFailed(f"a model predicted shape {found.shape} for {rows} rows")
    if found.dtype.kind not in "biuf" or not np.isin(found, np.arange(classes)).all():
        raise UtilityFailed(
            f"a model predicted something else than the class codes 0..{classes - 1}"
        )
    return found.astype(np.int64)


def class_shares(model: Any, x: Any, *, classes: int) -> Floats:  # noqa: ANN401 - of a model
    """Return (rows, classes) probabilities; raises ``UtilityFailed`` if they are none."""
    found, given = np.zeros((len(x), classes)), np.asarray(model.predict_proba(x))
    found[:, np.asarray(model.classes_, dtype=np.int64)] = given
    if not ((found >= -_SLACK) & (found <= 1.0 + _SLACK)).all():
        raise UtilityFailed("a model gave probabilities outside 0 to 1")
    return found


def single(name: str, table: Floats) -> NDArray[np.float32]:
    """Return float32 numbers; raises ``ProblemError`` for those that it cannot hold."""
    with np.errstate(over="ignore"):
        out = np.ascontiguousarray(table, dtype=np.float32)
    if not np.isfinite(out).all():
        raise ProblemError(f"{name} holds a number too large for float32; scale the columns")
    return out


def walk_cost(orders: Ints, scores: Floats, row_counts: Ints) -> tuple[int, int]:
    """Return evaluations and rows trained of the scored prefixes of walks.

    Parameters
    ----------
    orders
        (w, L) players.
    scores
        (w, L+1) as :meth:`Game.walks` returns them; NaN is not counted.
    row_counts
        (players,) rows of each player.
    """
    scored = ~np.isnan(scores[:, 1:])
    rows = np.cumsum(row_counts[orders], axis=1)
    return int(scored.sum()), int(rows[scored].sum())


def batches(count: int, size: int) -> Iterator[slice]:
    """Yield slices of at most ``size`` that cover ``range(count)``."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _sorted_set(coalition: Sequence[int] | Ints, players: int) -> Ints:
    members = np.sort(np.asarray(coalition, dtype=np.int64).reshape(-1))
    if len(members) and (members[0] < 0 or members[-1] >= players):
        raise SettingError(f"a coalition names a player outside 0..{players - 1}")
    if (members[1:] == members[:-1]).any():
        raise SettingError("a coalition names a player twice")
    members.flags.writeable = False
    return members


def _checked_orders(orders: Ints, players: int) -> Ints:
    orders = np.ascontiguousarray(orders, dtype=np.int64)
    if orders.ndim != _MATRIX or not 1 <= orders.shape[1] <= players:
        raise SettingError(
            f"orders have shape {orders.shape}; give (walks, 1 to {players} players)"
        )
    in_order = np.sort(orders, axis=1)
    if orders.size and (in_order[:, 0].min() < 0 or in_order[:, -1].max() >= players):
        raise SettingError(f"a walk names a player outside 0..{players - 1}")
    if (in_order[:, 1:] == in_order[:, :-1]).any():
        raise SettingError("a walk names a player twice")
    orders = orders.view()
    orders.flags.writeable = False
    return orders
