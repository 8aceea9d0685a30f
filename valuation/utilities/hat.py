"""Exact deletion of players from a ridge model, by the hat matrix."""

from __future__ import annotations

import numpy as np

from privml.valuation.errors import UtilityFailed
from privml.valuation.problem import Floats
from privml.valuation.utilities.ridge import RidgeGame, design, targets


class RidgeHat:
    """The model of all rows, ready to lose any player.

    Parameters
    ----------
    game
        Game of a ridge utility.

    Notes
    -----
    With Z the rows (and a constant column where the intercept is free), A = Z'Z + alpha on the
    penalised weights, theta = A^-1 Z'T, residuals e and H = Z A^-1 Z':
    ``theta(-R) = theta - A^-1 Z_R' (I - H_RR)^-1 e_R``. Cost: one factorisation, O(d^2) a row.
    """

    def __init__(self, game: RidgeGame) -> None:
        self._game, problem = game, game.problem
        z, z_val = design(problem, game.intercept)
        penalty = np.full(z.shape[1], game.alpha)
        if game.intercept == "free":
            z = np.column_stack([z, np.ones(len(z))])
            z_val = np.column_stack([z_val, np.ones(len(z_val))])
            penalty = np.append(penalty, 0.0)
        self._z, self._t = z, targets(problem)
        self._solved = _solved(z.T @ z + np.diag(penalty), z.T)  # A^-1 Z', (d, n)
        self._theta = self._solved @ self._t
        self._error = self._t - z @ self._theta
        self._full: Floats = z_val @ self._theta
        self._moves: Floats = z_val @ self._solved  # (m, n)

    def scores(self) -> tuple[float, Floats]:
        """Return U of all players, and (players,) U without each; U(empty) if nobody is left."""
        game = self._game
        full = game.score_decisions(np.arange(game.problem.n), self._full)
        out = np.full(game.players, game.empty)
        if game.players > 1:
            for player in range(game.players):
                out[player] = self._without(player)
        return full, out

    def _without(self, player: int) -> float:
        rows = self._game.problem.rows_of(player)
        hat = self._z[rows] @ self._solved[:, rows]
        gone = _solved(np.eye(len(rows)) - hat, self._error[rows])
        left = np.delete(np.arange(self._game.problem.n), rows)
        return self._game.score_decisions(left, self._full - self._moves[:, rows] @ gone)


def _solved(matrix: Floats, right: Floats) -> Floats:
    try:
        return np.asarray(np.linalg.solve(matrix, right), dtype=np.float64)
    except np.linalg.LinAlgError as error:
        raise UtilityFailed(
            "the closed form of leave-one-out is singular; scale the columns, raise alpha, or use "
            "closed_form=False"
        ) from error
