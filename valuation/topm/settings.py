"""Settings of a top-m run: everything the method's description leaves open is a parameter here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from privml.backbones.digests import Json
from privml.valuation.checks import is_finite, is_whole
from privml.valuation.errors import SettingError
from privml.valuation.topm.evidence import FitSettings, Hyperparameters
from privml.valuation.topm.pulls import check_pull
from privml.valuation.topm.rules import Rule, rule_named
from privml.valuation.topm.widths import Width

POSTERIORS: Final = ("auto", "joint", "features", "independent")
JOINT_LIMIT: Final = 5_000


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All choices of a top-m run.

    Attributes
    ----------
    m
        Number of arms to find, 1 <= m < n.
    eps, delta
        Tolerance of the answer and error probability of its certificate.
    sign
        1 finds the largest values, -1 the smallest.
    rule, paired
        Gap-index rule; paired or individual widths, None for the rule's own.
    pull
        ``largest_variance``, ``both``, ``greedy``, ``pair`` or ``best``.
    width, norm, sub_gaussian
        Multiplier (number, ``heuristic``, ``theory``) and, for theory, B and R.
    posterior
        ``auto`` is joint up to 5 000 arms and features above; ``independent`` shares nothing.
    kernel, lengthscale, select_kernel
        Kernel name or function, factor of the median distance, and kernel names among which the
        evidence chooses at each fit (empty: no choice).
    rank, feature_map, storage, residual
        Feature space: number of features, ``nystrom`` or ``fourier``, ``float32`` or ``float64``,
        and whether variance that the features miss is added to the arms' own terms.
    max_promoted, refresh_every, band
        Feature space: see :class:`~privml.valuation.topm.posterior_features.FeaturePosterior`.
    warm
        Units before the switch: ``auto``, ``walks``, ``blocks``, ``singles``.
    switch
        When gap-focused pulls begin: ``evaluations:<count>``, ``evaluations:<factor>n`` (players),
        or ``never``.
    scan
        Search of the widest pair: ``auto``, ``exact`` or ``anchor``.
    ties
        ``random`` (seeded) or ``index``.
    noise
        ``pooled``: one variance for all pulls; ``per-arm``: each arm its own, shrunk to the pooled
        one with the weight of ``noise_weight`` pulls; ``auto``: per arm while all arms are observed
        alike, pooled once pulls follow the data (then mean and variance of few pulls go together,
        and arms that were lucky would look certain).
    noise_weight
        See ``noise``.
    prior_mean
        ``fit``, or a number in units of the utility.
    hyperparameters
        Fixed hyperparameters; None fits them to the data.
    fit
        Settings of the fits.
    rebuild_every
        Updates between two computations of the posterior from scratch.
    draws
        Posterior samples for membership probabilities.
    preset
        Name of the preset these settings started from.
    """

    m: int = 10
    eps: float = 0.01
    delta: float = 0.05
    sign: int = 1
    rule: str = "gpgape"
    paired: bool | None = None
    pull: str = "pair"
    width: float | str = 2.0
    norm: float = 1.0
    sub_gaussian: float = 1.0
    posterior: str = "auto"
    kernel: Any = "rbf-label"
    lengthscale: float = 1.0
    select_kernel: tuple[str, ...] = ()
    rank: int = 256
    feature_map: str = "nystrom"
    storage: str = "float32"
    residual: bool = True
    max_promoted: int = 256
    refresh_every: int = 1
    band: int = 4096
    warm: str = "auto"
    switch: str = "evaluations:10n"
    scan: str = "auto"
    ties: str = "random"
    noise: str = "auto"
    noise_weight: float = 10.0
    prior_mean: float | str = "fit"
    hyperparameters: Hyperparameters | None = None
    fit: FitSettings = field(default_factory=FitSettings)
    rebuild_every: int = 5_000
    draws: int = 400
    preset: str = "default"

    def __post_init__(self) -> None:
        if not self.eps >= 0:
            raise SettingError(f"eps={self.eps} must be at least 0")
        if self.sign not in {1, -1}:
            raise SettingError(f"sign={self.sign}: 1 finds the largest values, -1 the smallest")
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise SettingError(f"{name}={value!r}: choose one of {', '.join(allowed)}")
        for name in _COUNTS:
            value = getattr(self, name)
            if not is_whole(value) or value < 1:
                raise SettingError(f"{name} must be at least 1, a whole number")
        if self.prior_mean != "fit" and not is_finite(self.prior_mean):
            raise SettingError(f"prior_mean={self.prior_mean!r}: give fit or a number")
        if not is_finite(self.noise_weight) or self.noise_weight <= 0:
            raise SettingError(f"noise_weight={self.noise_weight!r} must be a positive number")
        if not is_finite(self.lengthscale) or not 1e-100 <= self.lengthscale <= 1e100:
            raise SettingError(
                f"lengthscale={self.lengthscale!r} must be positive, 1e-100 to 1e100"
            )
        if self.hyperparameters is not None and not isinstance(
            self.hyperparameters, Hyperparameters
        ):
            raise SettingError("hyperparameters: give Hyperparameters, or None to fit them")
        check_pull(self.pull)
        self.rule_used()
        self.width_used()
        switch_after(self.switch, 1)

    def rule_used(self) -> Rule:
        """Return the gap-index rule."""
        return rule_named(self.rule, paired=self.paired)

    def width_used(self) -> Width:
        """Return the width multiplier."""
        return Width(self.width, self.delta, norm=self.norm, sub_gaussian=self.sub_gaussian)

    def back_end(self, arms: int) -> str:
        """Return the posterior back end for a number of arms."""
        if self.posterior != "auto":
            return self.posterior
        return "joint" if arms <= JOINT_LIMIT else "features"

    def as_json(self) -> dict[str, Json]:
        """Return the settings as JSON; a kernel function is named, not stored."""
        out: dict[str, Json] = {}
        for name in [part.name for part in fields(self)]:
            value = getattr(self, name)
            if name == "kernel" and callable(value):
                value = f"function:{type(value).__name__}:{_name_of(value)}"
            elif name == "fit":
                value = asdict(value)
            elif name == "hyperparameters":
                value = None if value is None else value.as_json()
            elif isinstance(value, tuple):
                value = list(value)
            out[name] = value
        return out


_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "posterior": POSTERIORS,
    "feature_map": ("nystrom", "fourier"),
    "storage": ("float32", "float64"),
    "scan": ("auto", "exact", "anchor"),
    "ties": ("random", "index"),
    "noise": ("auto", "pooled", "per-arm"),
    "warm": ("auto", "walks", "blocks", "singles"),
}
_COUNTS: Final = ("m", "rank", "refresh_every", "band", "rebuild_every", "draws")


def _name_of(function: object) -> str:
    return str(getattr(function, "__qualname__", ""))


def switch_after(switch: str, players: int) -> float:
    """Return the evaluations after which gap-focused pulls begin; infinite for ``never``.

    Raises
    ------
    SettingError
        The text is not ``never``, ``evaluations:<count>`` or ``evaluations:<factor>n``.
    """
    if switch == "never":
        return float("inf")
    head, _, amount = str(switch).partition(":")
    factor = players if amount.endswith("n") else 1
    try:
        value = float(amount.removesuffix("n"))
    except ValueError:
        value = -1.0
    if head != "evaluations" or not 0 <= value < float("inf"):
        raise SettingError(
            f"switch={switch!r}: give never, evaluations:500 or evaluations:10n (n: players)"
        )
    return value * factor


PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "default": {},
    "paper": {
        "rule": "gpgape",
        "pull": "largest_variance",
        "paired": True,
        "width": "theory",
        "switch": "evaluations:1n",
        "kernel": "rbf-label",
        "noise": "pooled",
    },
}
"""``default``: our choices. ``paper``: our reading of GPGapE; details are reconstructed."""

DEVIATIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "paper": {
        "rule": "reconstructed: members by means, widest gap; the paper's text was not at hand",
        "kernel": "reconstructed: the paper's kernel and features are not known to us",
        "hyperparameters": "fitted to the pulls; the theory width assumes they are given",
        "warm": "one sweep of walks instead of isolated pulls: one evaluation per marginal",
    },
    "default": {
        "pull": "same-coalition pairs are not part of GPGapE as described",
        "switch": "walks smoothed by the posterior before gap-focused pulls are ours",
        "width": "a fixed multiplier: certificates are nominal, not theory",
    },
}


def from_preset(preset: str, given: Mapping[str, Any]) -> Settings:
    """Return the settings of a preset with the ``given`` ones in their place.

    Raises
    ------
    SettingError
        The preset or a name is unknown, or a value is out of range.
    """
    if preset not in PRESETS:
        raise SettingError(f"preset={preset!r} is unknown; choose one of {', '.join(PRESETS)}")
    known = {part.name for part in fields(Settings)}
    wrong = sorted(set(given) - known)
    if wrong:
        raise SettingError(f"unknown settings {', '.join(wrong)}")
    return replace(Settings(**{**PRESETS[preset], "preset": preset}), **given)


def deviations(settings: Settings) -> dict[str, str]:
    """Return what differs from GPGapE as described, and what was changed in the preset."""
    base = from_preset(settings.preset, {}).as_json()
    found = dict(DEVIATIONS[settings.preset])
    own = {"m", "eps", "delta", "sign"}
    for name, value in settings.as_json().items():
        if name not in own and value != base[name]:
            found[name] = f"set to {value!r} instead of the preset's {base[name]!r}"
    return found
