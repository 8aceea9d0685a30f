"""Games with known answers, full enumeration, and checks of the axioms.

Teaching and test material that is public on purpose: an estimator is judged against
:func:`exact_values`, which enumerates all 2^n coalitions of any game, or against the closed form
of a game here. References: Shapley 1953; Littlechild and Owen 1973 (airport); Deegan and Packel
1978 and the textbooks for the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from privml.valuation.errors import SettingError
from privml.valuation.laws import SizeLaw
from privml.valuation.problem import Floats, Ints
from privml.valuation.utilities.base import Coalitions, Game, batches

MOST_ENUMERATED: Final = 20
_CHUNK: Final = 1 << 12


class TableGame(Game):
    """A game given by all its 2^n utilities.

    Parameters
    ----------
    table
        (2^n,) float64: U of the coalition whose members are the bits of the index, player i being
        bit i; ``table[0]`` is U(empty).
    """

    def __init__(self, table: Floats) -> None:
        table = np.array(table, dtype=np.float64)
        players = table.size.bit_length() - 1
        if table.ndim != 1 or table.size != 1 << players or players < 1:
            raise SettingError(f"a table has 2^n entries, n >= 1, not shape {table.shape}")
        super().__init__(players, float(table[0]))
        self.table = table

    def _score(self, coalitions: Coalitions) -> Floats:
        return self.table[[int((1 << members).sum()) for members in coalitions]]

    def _walks(self, orders: Ints) -> Floats:
        return self.table[np.cumsum(1 << orders, axis=1)]


class AdditiveGame(Game):
    """U(S) = base + sum of weights: every semivalue of a player is its weight."""

    def __init__(self, weights: Sequence[float], *, base: float = 0.0) -> None:
        super().__init__(len(weights), base)
        self.weights = np.array(weights, dtype=np.float64)

    def _score(self, coalitions: Coalitions) -> Floats:
        return np.array([self.empty + self.weights[members].sum() for members in coalitions])

    def shapley(self) -> Floats:
        """Return (n,) the Shapley values."""
        return self.weights.copy()


class AirportGame(Game):
    """U(S) = largest cost in S: the runway that the largest aircraft needs."""

    def __init__(self, costs: Sequence[float]) -> None:
        super().__init__(len(costs), 0.0)
        self.costs = np.array(costs, dtype=np.float64)
        if (self.costs < 0).any():
            raise SettingError("costs of an airport game are at least 0")

    def _score(self, coalitions: Coalitions) -> Floats:
        return np.array([self.costs[members].max() for members in coalitions])

    def _walks(self, orders: Ints) -> Floats:
        return np.asarray(np.maximum.accumulate(self.costs[orders], axis=1))

    def shapley(self) -> Floats:
        """Return (n,) the Shapley values: each stretch is shared by those that need it."""
        order = np.argsort(self.costs, kind="stable")
        steps = np.diff(self.costs[order], prepend=0.0)
        out = np.empty(self.players)
        out[order] = np.cumsum(steps / np.arange(self.players, 0, -1))
        return out


class VotingGame(Game):
    """U(S) = 1 if the votes of S reach the quota, else 0.

    Parameters
    ----------
    votes
        Whole numbers of votes, at least 0.
    quota
        At least 1.
    """

    def __init__(self, votes: Sequence[int], quota: int) -> None:
        super().__init__(len(votes), 0.0)
        self.votes = np.array(votes, dtype=np.int64)
        self.quota = quota
        if quota < 1 or (self.votes < 0).any():
            raise SettingError("votes are at least 0 and the quota at least 1")

    def _score(self, coalitions: Coalitions) -> Floats:
        return np.array([float(self.votes[members].sum() >= self.quota) for members in coalitions])

    def _walks(self, orders: Ints) -> Floats:
        reached = np.cumsum(self.votes[orders], axis=1)
        return np.asarray(np.where(reached >= self.quota, 1.0, 0.0))

    def shapley(self) -> Floats:
        """Return (n,) the Shapley-Shubik index, by counting swings per size; O(n^2 quota)."""
        n, quota, out = self.players, self.quota, np.zeros(self.players)
        log_weights = SizeLaw.shapley(n).log_weights()
        for player, own in enumerate(self.votes.tolist()):
            count = np.zeros((n, quota))  # coalitions of the others by size and votes below quota
            count[0, 0] = 1.0
            for other, votes in enumerate(self.votes.tolist()):
                if other != player and votes < quota:
                    count[1:, votes:] += count[:-1, : quota - votes].copy()
            swings = count[:, max(0, quota - own) :].sum(axis=1)
            out[player] = (swings * np.exp(log_weights)).sum() if own else 0.0
        return out


class UnanimityGame(Game):
    """U(S) = 1 if S holds the whole carrier, else 0."""

    def __init__(self, players: int, carrier: Sequence[int]) -> None:
        super().__init__(players, 0.0)
        self.carrier = np.unique(np.array(carrier, dtype=np.int64))
        inside = self.carrier.size and self.carrier[0] >= 0 and self.carrier[-1] < players
        if not inside:
            raise SettingError(f"a carrier holds at least one of the players 0..{players - 1}")

    def _score(self, coalitions: Coalitions) -> Floats:
        return np.array([float(np.isin(self.carrier, members).all()) for members in coalitions])

    def shapley(self) -> Floats:
        """Return (n,) the Shapley values: members of the carrier share 1."""
        out = np.zeros(self.players)
        out[self.carrier] = 1.0 / len(self.carrier)
        return out


class GloveGame(Game):
    """U(S) = pairs of gloves in S: the smaller of its left and right ones.

    Parameters
    ----------
    left, right
        Number of players with one left glove (they come first) and one right glove.
    """

    def __init__(self, left: int, right: int) -> None:
        super().__init__(left + right, 0.0)
        self.left = left

    def _score(self, coalitions: Coalitions) -> Floats:
        lefts = np.array([float((members < self.left).sum()) for members in coalitions])
        sizes = np.array([float(len(members)) for members in coalitions])
        return np.asarray(np.minimum(lefts, sizes - lefts))


class SpanningTreeGame(Game):
    """U(S) = cost of a minimum spanning tree that joins S to the source.

    Parameters
    ----------
    costs
        (n+1, n+1) symmetric non-negative costs; row 0 is the source, row i+1 player i.
    """

    def __init__(self, costs: Floats) -> None:
        costs = np.array(costs, dtype=np.float64)
        square = costs.ndim == 2 and costs.shape[0] == costs.shape[1]
        if not square or not np.array_equal(costs, costs.T) or (costs < 0).any():
            raise SettingError("costs form a symmetric square table of numbers of at least 0")
        super().__init__(len(costs) - 1, 0.0)
        self.costs = costs

    def _score(self, coalitions: Coalitions) -> Floats:
        return np.array([self._tree(members + 1) for members in coalitions])

    def _tree(self, nodes: Ints) -> float:
        """Prim's algorithm from the source."""
        waiting, nearest, total = nodes, self.costs[0, nodes], 0.0
        while len(waiting):
            at = int(nearest.argmin())
            total += float(nearest[at])
            joined = self.costs[waiting[at], waiting]
            nearest = np.delete(np.minimum(nearest, joined), at)
            waiting = np.delete(waiting, at)
        return total


def enumerate_utilities(game: Game) -> Floats:
    """Return (2^n,) float64 U of all coalitions, player i being bit i of the index.

    Raises
    ------
    SettingError
        There are more than 20 players.
    """
    n = game.players
    if n > MOST_ENUMERATED:
        raise SettingError(
            f"{n} players have 2^{n} coalitions; enumerate at most {MOST_ENUMERATED}"
        )
    table = np.empty(1 << n)
    players = np.arange(n)
    for part in batches(1 << n, _CHUNK):
        index = np.arange(part.start, part.stop)
        table[part] = game.score([players[(number >> players) & 1 == 1] for number in index])
    return table


def table_values(table: Floats, law: SizeLaw) -> Floats:
    """Return (n,) float64 exact semivalues of a game given by its (2^n,) table."""
    n = law.n
    index = np.arange(1 << n)
    size = np.zeros(1 << n, dtype=np.int64)
    for player in range(n):
        size += (index >> player) & 1
    with np.errstate(under="ignore"):
        weight = np.exp(np.append(law.log_weights(), -np.inf))[size]
    out = np.empty(n)
    for player in range(n):
        without = index[(index >> player) & 1 == 0]
        out[player] = math.fsum(weight[without] * (table[without | 1 << player] - table[without]))
    return out


def exact_values(game: Game, law: SizeLaw) -> Floats:
    """Return (n,) float64 semivalues by enumerating all 2^n coalitions.

    Raises
    ------
    SettingError
        There are more than 20 players, or the law is of another number.
    """
    if law.n != game.players:
        raise SettingError(f"the law is of {law.n} players, the game has {game.players}")
    return table_values(enumerate_utilities(game), law)


def exact_difference(table: Floats, pair: SizeLaw, b: int, c: int) -> float:
    """Return f(b) - f(c) from a (2^n,) table by the same-coalition law of pairs."""
    n = pair.n + 1
    others = np.array([player for player in range(n) if player not in (b, c)])
    total = 0.0
    for number in range(1 << (n - 2)):
        members = others[(number >> np.arange(n - 2)) & 1 == 1]
        base, size = int((1 << members).sum()), len(members)
        share = math.exp(pair.log_p[size]) / math.comb(n - 2, size)
        total += share * float(table[base | 1 << b] - table[base | 1 << c])
    return total
