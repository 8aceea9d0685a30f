"""Problems: what is checked, what is read-only, what the digest sees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from privml.errors import ParameterError, PrivmlError
from privml.valuation.errors import ProblemError, UtilityFailed
from privml.valuation.problem import Problem

X = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
Y = ["b", "a", "b", "a"]
XV, YV = X[:2] + 1, ["a", "b"]


def made(**changes: object) -> Problem:
    given: dict[str, object] = {"X": X, "y": Y, "X_val": XV, "y_val": YV, **changes}
    tables = [given.pop(name) for name in ("X", "y", "X_val", "y_val")]
    return Problem.of(*tables, **given)  # type: ignore[arg-type]


def test_labels_become_codes_and_tables_are_read_only_copies() -> None:
    table = X.copy()
    problem = made(X=table)
    assert problem.classes == ("a", "b")
    assert problem.codes.tolist() == [1, 0, 1, 0]
    assert problem.val_codes.tolist() == [0, 1]
    for array in (problem.X, problem.y, problem.X_val, problem.y_val, problem.player_of):
        assert array.flags.c_contiguous
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    table[0, 0] = 99
    assert problem.X[0, 0] == 0


def test_rows_are_players_unless_grouped() -> None:
    rows = made(ids=["p", "q", "r", "s"])
    assert (rows.players, rows.group_mode, rows.ids) == (4, "row", ("p", "q", "r", "s"))
    assert rows.rows_of(2).tolist() == [2]
    assert rows.rows_of_all([3, 0]).tolist() == [0, 3]
    grouped = made(groups=["z", "y", "z", "x"])
    assert (grouped.players, grouped.group_mode, grouped.ids) == (3, "player", ("x", "y", "z"))
    assert grouped.rows_of(2).tolist() == [0, 2]
    assert grouped.rows_of_all([2, 0]).tolist() == [0, 2, 3]
    assert grouped.row_counts.tolist() == [1, 1, 2]
    assert len(grouped.rows_of_all([])) == 0


def test_pandas_is_accepted_and_column_names_must_agree() -> None:
    frame, val = pd.DataFrame(X, columns=["u", "v"]), pd.DataFrame(XV, columns=["u", "v"])
    problem = made(X=frame, y=pd.Series(Y), X_val=val, y_val=pd.Series(YV))
    assert problem.digest() == made().digest()
    with pytest.raises(ProblemError, match="differently"):
        made(X=frame, X_val=val[["v", "u"]])


def test_without_keeps_names_and_owners() -> None:
    problem = made(groups=["z", "y", "z", "x"], ids=[10, 11, 12, 13])
    left = problem.without([1])
    assert left.ids == ("x", "z")
    assert left.row_ids == (10, 12, 13)
    assert left.player_of.tolist() == [1, 1, 0]
    assert left.digest() != problem.digest()
    assert left.digest() == problem.without([1]).digest()
    for wrong in ([3], [-1], [0, 1, 2]):
        with pytest.raises(ProblemError):
            problem.without(wrong)


def test_the_digest_sees_every_part() -> None:
    changes: list[dict[str, object]] = [
        {"X": [*X, [0, 0], [0, 0], [0, 1e-300], [0, 0]]},
        {"X": X * 2},
        {"y": ["a", "a", "b", "b"]},
        {"X_val": XV * 2},
        {"y_val": ["b", "a"]},
        {"ids": ["0", "1", "2", "3"]},
        {"groups": [0, 1, 2, 3]},
        {"groups": [0, 0, 1, 1]},
        {"y": ["c", "a", "c", "a"], "y_val": ["a", "c"]},
    ]
    digests = [made(**change).digest() for change in changes[1:]]
    assert len({made().digest(), *digests}) == len(digests) + 1
    assert made().digest() == made(X=X.tolist(), ids=range(4)).digest()


@pytest.mark.parametrize(
    ("y", "y_val", "task"),
    [
        ([0, 1, 1, 0], [0, 1], "classification"),
        ([True, False, True, True], [True, False], "classification"),
        ([0.5, 1.0, 2.0, 3.0], [1.0, 2.0], "regression"),
        ([1.0, 2.0, 1.0, 2.0], [1.0, 2.0], "classification"),
    ],
)
def test_the_task_is_guessed_only_where_it_is_clear(y: object, y_val: object, task: str) -> None:
    assert made(y=y, y_val=y_val).task == task
    assert made(y=[3, 1, 4, 1], y_val=[5, 9], task="regression").y.tolist() == [3, 1, 4, 1]
    many = np.arange(30)
    with pytest.raises(ProblemError, match="say task"):
        Problem.of(np.ones((30, 1)), many, np.ones((2, 1)), many[:2])


BAD: list[tuple[dict[str, object], str]] = [
    ({"X": X[0]}, "rows, columns"),
    ({"X": np.empty((0, 2))}, "at least 1"),
    ({"X": [["a", "b"]] * 4}, "table of numbers"),
    ({"X": np.where(X == 3, np.nan, X)}, "row 1"),
    ({"X_val": np.where(XV[0, 0] == XV, np.inf, XV)}, "X_val"),
    ({"X_val": XV[:, :1]}, "columns"),
    ({"y": Y[:3]}, "4 rows"),
    ({"y": [["a"]] * 4}, "shape"),
    ({"y": ["a", 1, "b", None]}, "mixes"),
    ({"y": [1, 2, 1, 2]}, "different types"),
    ({"y": [1.0, np.nan, 1.0, 2.0], "y_val": [1.0, 2.0]}, "NaN"),
    ({"ids": ["p", "p", "q", "r"]}, "distinct"),
    ({"ids": ["p"]}, "4"),
    ({"ids": [1.5, 2.5, 3.5, 4.5]}, "texts or integers"),
    ({"ids": [1 << 53, 1, 2, 3]}, "2\\^53"),
    ({"groups": [True, False, True, True]}, "texts or integers"),
    ({"task": "ranking"}, "task"),
    ({"task": "regression"}, "texts"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_what_does_not_fit_is_refused_with_its_name(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(ProblemError, match=message) as caught:
        made(**change)
    assert isinstance(caught.value, ParameterError | ValueError)


def test_a_regression_has_no_codes_and_players_are_bounded() -> None:
    problem = made(y=[0.5, 1, 2, 3], y_val=[1.0, 2.0])
    calls: list[Callable[[], object]] = [lambda: problem.codes, lambda: problem.rows_of(4)]
    for call in calls:
        with pytest.raises(ProblemError):
            call()


def test_a_failed_coalition_is_named_but_not_at_length() -> None:
    error = UtilityFailed("it failed", coalition=range(100))
    assert error.coalition == tuple(range(100))
    assert "and 90 more" in str(error)
    assert isinstance(error, PrivmlError)
