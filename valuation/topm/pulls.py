"""Pull rules: what to observe once leader b and challenger c are known.

* ``largest_variance``: the arm of the two whose value is less certain (individual widths);
* ``both``: each once;
* ``greedy``: the arm a whose single pull lowers Var(f_b - f_c) most, that is
  argmax_a (Cov(a, b) - Cov(a, c))^2 / (Var(a) + lambda_a);
* ``pair``: U(S+b) - U(S+c) on one common coalition (ours, not part of GPGapE as described);
* ``best``: pair or greedy, whichever lowers Var(f_b - f_c) more; both cost two evaluations (ours).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from privml.valuation.errors import SettingError
from privml.valuation.topm.beliefs import Beliefs, Ties
from privml.valuation.topm.rules import Choice

PULLS: Final = ("largest_variance", "both", "greedy", "pair", "best")


def check_pull(name: str) -> str:
    """Return the name of a pull rule, or raise ``SettingError``."""
    if name not in PULLS:
        raise SettingError(f"pull={name!r} is unknown; choose one of {', '.join(PULLS)}")
    return name


def arms_to_pull(name: str, choice: Choice, beliefs: Beliefs, ties: Ties) -> list[tuple[int, ...]]:
    """Return what to observe: (arm,) for a pull, (b, c) for a pair.

    Where the posterior takes no pair of these arms, ``pair`` and ``best`` fall back to one arm.
    """
    leader, challenger = choice.leader, choice.challenger
    if name == "both":
        return [(leader,), (challenger,)]
    pairs = name in {"pair", "best"} and beliefs.posterior.can_pair(leader, challenger)
    if name == "greedy" or (name == "best" and not pairs):
        return [(_greedy(choice, beliefs, ties)[0],)]
    if name == "best":
        arm, gain = _greedy(choice, beliefs, ties)
        spread = _spread(choice, beliefs)
        paired = spread**2 / (spread + beliefs.posterior.noise_of(leader, challenger))
        return [(leader, challenger)] if paired >= gain else [(arm,)]
    if pairs:
        return [(leader, challenger)]
    both = np.array([leader, challenger])
    return [(int(both[ties.best(beliefs.variance[both])]),)]


def _greedy(choice: Choice, beliefs: Beliefs, ties: Ties) -> tuple[int, float]:
    """Return the arm whose pull lowers Var(f_b - f_c) most, and by how much. Cost O(n)."""
    across = beliefs.covariance_with(choice.leader) - beliefs.covariance_with(choice.challenger)
    gain = across**2 / (beliefs.variance + beliefs.posterior.noises)
    arm = ties.best(gain)
    return arm, float(gain[arm])


def _spread(choice: Choice, beliefs: Beliefs) -> float:
    """Return Var(f_b - f_c), at least 0."""
    across = beliefs.covariance_with(choice.leader) - beliefs.covariance_with(choice.challenger)
    return max(float(across[choice.leader] - across[choice.challenger]), 0.0)
