"""Errors of data valuation; all derive from :class:`privml.errors.PrivmlError`.

An exception of a user's model never becomes a score: it is raised as :class:`UtilityFailed` with
the coalition in its message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from privml.errors import Corrupt, ParameterError, PrivmlError

_SHOWN = 10


class ValuationError(PrivmlError):
    """A valuation cannot be carried out."""

    code = "valuation"
    remedy = "do what the message says"


class ProblemError(ParameterError, ValueError):
    """Rows, labels, groups or ids of a valuation problem do not fit together.

    Also a ``ValueError``, as callers of scikit-learn estimators expect.
    """

    code = "parameter.valuation"
    remedy = "correct the table or the argument that the message names"


class SettingError(ParameterError, ValueError):
    """A setting of a utility, sampler, stopping rule or method is out of range.

    Also a ``ValueError``, as callers of scikit-learn estimators expect.
    """

    code = "parameter.valuation_setting"
    remedy = "change the setting that the message names"


class UtilityFailed(ValuationError):
    """A utility raised, or gave a score that is not a finite number.

    Attributes
    ----------
    coalition
        Player indices, sorted; empty if not known.
    reason
        What went wrong, without the coalition.
    """

    code = "valuation.utility_failed"
    remedy = "correct the model or metric; the message names the coalition"

    def __init__(self, message: str, *, coalition: Sequence[int] = ()) -> None:
        self.reason = message
        self.coalition = tuple(sorted(int(player) for player in coalition))
        super().__init__(message + _described(self.coalition))

    def of(self, coalition: Sequence[int]) -> UtilityFailed:
        """Return the error with a coalition, where none was known."""
        return self if self.coalition else UtilityFailed(self.reason, coalition=coalition)

    def named(self, ids: Sequence[str | int]) -> UtilityFailed:
        """Return the error with the names of the players in its message."""
        error = UtilityFailed(self.reason, coalition=self.coalition)
        names = [ids[player] for player in self.coalition if player < len(ids)]
        error.args = (self.reason + _described(names),)
        return error


class NotConverged(ValuationError):
    """The budget ended before the stopping rule was met, and the caller asked for it to be met."""

    code = "valuation.not_converged"
    remedy = "raise the budget or accept wider intervals"


class RunMismatch(ValuationError):
    """A checkpoint or result belongs to another problem, utility, sampler or seed."""

    code = "valuation.run_mismatch"
    remedy = "use the settings and data it was made with, or another path"


class CorruptResult(Corrupt):
    """A saved result or checkpoint is damaged or does not have the declared content."""

    code = "storage.corrupt_result"
    remedy = "restore the file from a copy, or run the valuation again"


@contextmanager
def naming(ids: Sequence[str | int]) -> Iterator[None]:
    """Give the players in the message of a :class:`UtilityFailed` their names."""
    try:
        yield
    except UtilityFailed as error:
        raise error.named(ids) from (error.__cause__ or error)


def _described(coalition: Sequence[str | int]) -> str:
    if not coalition:
        return ""
    shown = ", ".join(map(str, coalition[:_SHOWN]))
    more = f" and {len(coalition) - _SHOWN} more" if len(coalition) > _SHOWN else ""
    return f"; players {shown}{more}"
