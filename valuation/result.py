"""What a valuation found, at what cost and with what uncertainty; saved without object formats."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privml.backbones.digests import Json, canonical_json
from privml.valuation import _files
from privml.valuation.errors import CorruptResult, RunMismatch, SettingError
from privml.valuation.intervals import half_width, largest_size, rounding
from privml.valuation.problem import Floats, Ints, PlayerId

Status: TypeAlias = Literal["converged", "budget", "interrupted", "certified", "exact"]
STATUSES: Final = ("converged", "budget", "interrupted", "certified", "exact")


@dataclass(frozen=True, eq=False, kw_only=True)
class ValuationResult:
    """Values of all players. Unknown numbers are NaN, never 0.

    Attributes
    ----------
    ids
        Name of each player.
    values, stderr, ci_low, ci_high
        (n,) float64; ``stderr`` is 0 where values are exact.
    ci_level
        Confidence of each single interval.
    rounding
        Bound of the rounding error of one value, which the intervals hold; an interval without
        spread is as wide as that, also where values are exact.
    counts
        (n,) int64 independent observations behind each value.
    truncated_counts
        (n,) int64 observations that a truncated walk set to 0.
    evaluations, rows_trained
        Coalitions scored, and rows in them.
    seconds
        Wall-clock time; not part of any digest.
    efficiency_residual
        sum of values - (U(N) - U(empty)); NaN where the axiom does not apply.
    residual_reason
        Why the residual is NaN; empty if it is not.
    status, stop_reason
        How the run ended, in one word and in words.
    target
        The quantity estimated, for example ``"shapley"`` or ``"shapley[s=20]"``.
    method
        The estimator, for example ``"Antithetic"``.
    group_mode
        ``"row"``, ``"player"`` (a group enters as a whole) or ``"sum"`` (sum over its members).
    spec_digest, data_digest
        SHA-256 of everything but the data that fixes the values, and of the data.
    seeds
        Seeds used, hexadecimal.
    versions
        Versions of the packages that computed it.
    members, membership_prob, eps_certificate, certificate_kind, trace
        Top-m extras: chosen players, probability of each player to be in the top m, the epsilon
        that holds now and whether it is ``"theory"`` or ``"nominal"``, and columns of the history.
    extras
        Further plain values of a method.
    """

    ids: tuple[PlayerId, ...]
    values: Floats
    stderr: Floats
    ci_low: Floats
    ci_high: Floats
    ci_level: float = 0.95
    rounding: float = 0.0
    counts: Ints
    truncated_counts: Ints
    evaluations: int
    rows_trained: int
    seconds: float
    efficiency_residual: float = math.nan
    residual_reason: str = ""
    status: Status
    stop_reason: str
    target: str
    method: str
    group_mode: str = "row"
    spec_digest: str = ""
    data_digest: str = ""
    seeds: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    members: Ints | None = None
    membership_prob: Floats | None = None
    eps_certificate: float = math.nan
    certificate_kind: str = ""
    trace: Mapping[str, Floats] = field(default_factory=dict)
    extras: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.ids)
        for name in _ARRAYS:
            array = getattr(self, name)
            if array.shape != (n,):
                raise SettingError(f"{name} has shape {array.shape}; {n} players need ({n},)")
        if self.status not in STATUSES:
            raise SettingError(f"status {self.status!r} is unknown; use one of {STATUSES}")
        if not 0 < self.ci_level < 1:
            raise SettingError(f"ci_level {self.ci_level} must lie strictly between 0 and 1")

    def top(self, m: int) -> Ints:
        """Return the (m,) players of largest value, best first; ties by index, unknown last."""
        return np.argsort(np.where(np.isnan(self.values), np.inf, -self.values), kind="stable")[:m]

    def bottom(self, m: int) -> Ints:
        """Return the (m,) players of smallest value, worst first; ties by index, unknown last."""
        return np.argsort(np.where(np.isnan(self.values), np.inf, self.values), kind="stable")[:m]

    def rank_ci(self) -> tuple[Ints, Ints]:
        """Return the (n,) best and worst rank (1 = largest) that the intervals leave possible.

        A rank interval holds whenever all value intervals do. NaN bounds leave every rank open.
        """
        low = np.where(np.isnan(self.ci_low), -np.inf, self.ci_low)
        high = np.where(np.isnan(self.ci_high), np.inf, self.ci_high)
        n = len(low)
        above = n - np.searchsorted(np.sort(low), high, side="right")
        below = np.searchsorted(np.sort(high), low, side="left")
        return above.astype(np.int64) + 1, n - below.astype(np.int64)

    def by_group(self, groups: Iterable[PlayerId]) -> ValuationResult:
        """Return the sums of values over groups of players.

        Standard errors are added up (they are correlated in an unknown way), which is the most the
        error of the sum can be; where they are not known the interval is NaN.

        Parameters
        ----------
        groups
            Group of each player.
        """
        if isinstance(groups, str | bytes) or not isinstance(groups, Iterable):
            raise SettingError(f"groups is a list of names, not one {type(groups).__name__}")
        groups = list(groups)  # by position: a table's own index is left out
        if len(groups) != len(self.ids):
            raise SettingError(f"{len(self.ids)} players need as many groups, not {len(groups)}")
        names = sorted(set(groups), key=lambda g: (isinstance(g, str), g))
        owner = np.array([names.index(group) for group in groups], dtype=np.int64)

        def summed(array: NDArray[Any]) -> Any:  # noqa: ANN401 - float or integer sums
            return np.bincount(owner, weights=array, minlength=len(names))

        values, stderr = summed(self.values), summed(self.stderr)
        members = float(np.bincount(owner).max())
        added = rounding(largest_size(summed(np.abs(self.values))), members)
        half = summed((self.ci_high - self.ci_low) / 2) + added
        return replace(
            self,
            ids=tuple(names),
            values=values,
            stderr=stderr,
            ci_low=values - half,
            ci_high=values + half,
            rounding=members * self.rounding + added,
            counts=summed(self.counts).astype(np.int64),
            truncated_counts=summed(self.truncated_counts).astype(np.int64),
            group_mode="sum",
            members=None,
            membership_prob=None,
        )

    def merge(self, other: ValuationResult) -> ValuationResult:
        """Return the pooled result of two independent runs of one specification.

        Values are averaged with the counts as weights; the variance follows from independence.

        Raises
        ------
        SettingError
            The other is no result.
        RunMismatch
            The specifications or data differ, or the runs share a seed.
        """
        if not isinstance(other, ValuationResult):
            raise SettingError(f"merge takes another ValuationResult, not {type(other).__name__}")
        same = self.spec_digest == other.spec_digest and self.data_digest == other.data_digest
        if not same or self.ids != other.ids:
            raise RunMismatch("results of different specifications or data cannot be merged")
        if set(self.seeds) & set(other.seeds) or not self.seeds:
            raise RunMismatch("both runs used the same seed, so their draws are not independent")
        counts = self.counts + other.counts
        with np.errstate(invalid="ignore", divide="ignore"):
            share = self.counts / counts
        mean = share * self.values + (1 - share) * other.values
        values = _known(share, self.values, other.values, mean)
        both = np.hypot(share * self.stderr, (1 - share) * other.stderr)
        stderr = _known(share, self.stderr, other.stderr, both)
        floor = max(self.rounding, other.rounding)
        floor += rounding(largest_size(self.values, other.values), 0)
        half = half_width(stderr, counts - 1, self.ci_level) + floor
        known = not math.isnan(self.efficiency_residual + other.efficiency_residual)
        extras, units = dict(self.extras), other.extras.get("units")
        if isinstance(extras.get("units"), int) and isinstance(units, int):
            extras["units"] = int(str(extras["units"])) + units
        weight = float(self.counts.sum()) / max(float(counts.sum()), 1.0)
        residual = weight * self.efficiency_residual + (1 - weight) * other.efficiency_residual
        return replace(
            self,
            values=values,
            stderr=stderr,
            ci_low=values - half,
            ci_high=values + half,
            rounding=floor,
            counts=counts,
            truncated_counts=self.truncated_counts + other.truncated_counts,
            evaluations=self.evaluations + other.evaluations,
            rows_trained=self.rows_trained + other.rows_trained,
            seconds=self.seconds + other.seconds,
            efficiency_residual=residual if known else math.nan,
            stop_reason=f"merged: {self.stop_reason}; {other.stop_reason}",
            seeds=(*self.seeds, *other.seeds),
            extras=extras,
        )

    def digest(self) -> str:
        """Return 64 hex digits of everything but the time taken and the versions."""
        state = hashlib.sha256(canonical_json(_files.head_of(self, skip=("seconds", "versions"))))
        for name, array in sorted(_files.arrays_of(self).items()):
            if name == _files.SECONDS:
                continue
            state.update(name.encode() + b"\0" + array.tobytes())
        return state.hexdigest()

    def to_dataframe(self) -> Any:  # noqa: ANN401 - pandas is optional
        """Return a pandas DataFrame with one line per player; needs pandas."""
        pd: Any = import_module("pandas")
        columns = {name: getattr(self, name) for name in _ARRAYS}
        return pd.DataFrame(columns, index=pd.Index(self.ids, name="id"))

    def save(self, folder: Path | str) -> None:
        """Write ``result.json`` and ``values.safetensors`` into ``folder``, made if missing."""
        _files.save(self, _folder(folder))

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Return a saved result.

        Raises
        ------
        CorruptResult
            A file is damaged or does not have the declared content.
        StorageError
            A file is missing.
        """
        found = _files.load(_folder(folder), {f.name for f in fields(cls)})
        try:
            return cls(**found)
        except SettingError as error:
            raise CorruptResult(f"{folder} holds no result: {error}; make it again") from error


_ARRAYS: Final = ("values", "stderr", "ci_low", "ci_high", "counts", "truncated_counts")


def _folder(folder: object) -> Path:
    if not isinstance(folder, str | Path) or "\0" in str(folder):
        raise SettingError(f"folder={folder!r}: give a path, without zero characters")
    return Path(folder)


def _known(share: Floats, a: Floats, b: Floats, both: Floats) -> Floats:
    """Return what both give, or the known one where the other was never observed."""
    return np.asarray(np.where(share == 1, a, np.where(share == 0, b, both)))
