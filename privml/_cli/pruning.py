"""Token pruning on the command line: options to a spec, and what a typical text costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from privml._cli.output import UsageError
from privml._cli.tables import both_ways
from privml.errors import Corrupt
from privml.protocols.cipherprune.spec import GRID, PruneSpec, Reveal
from privml.protocols.cipherprune.thresholds import Thresholds
from privml.protocols.mpc.plan import LINKS, Plan
from privml.protocols.mpc.spec import Spec
from privml.storage.files import read_file

if TYPE_CHECKING:
    from privml.backbones.encoder import Encoder

#: What `learn-thresholds` leaves beside the thresholds.
REPORT = "report.json"
#: Share of its tokens that a layer keeps when nothing was learned.
KEEP = 0.75
#: A schedule that nobody learned leaves texts of at most so many tokens whole, labels among them.
SHORTEST = 16
#: Who says what is kept where every run keeps the same.
SCHEDULE = "the schedule"
_MAX_REPORT = 16 << 20
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says about pruning."""

    thresholds: Path | None = None
    reveal: Reveal | None = None
    grid: str = ""
    reduce: bool = True
    schedule: str = ""
    expect: str = ""

    @property
    def wanted(self) -> bool:
        """Whether tokens are to be pruned at all."""
        return self != Options()

    def spec(self) -> PruneSpec | None:
        """Return the options of the run, ``None`` without pruning.

        Raises
        ------
        UsageError, ParameterError
            A list is no list, or the options do not fit together.
        """
        if not self.wanted:
            return None
        if self.reveal == "schedule" and not self.schedule:
            raise UsageError(
                "--reveal schedule needs --schedule, the tokens kept after each layer but the "
                "last, like --schedule 96,72,54,40,30"
            )
        if self.schedule and self.reveal not in (None, "schedule"):
            raise UsageError(
                f"a --schedule opens nothing, so it does not go with --reveal {self.reveal}; leave "
                "one of the two out"
            )
        learned = None if self.thresholds is None else thresholds_of(self.thresholds)
        grid = tuple(kept for kept, _ in _pairs("--grid", self.grid)) if self.grid else GRID
        return PruneSpec(
            learned, reveal=self.reveal or ("schedule" if self.schedule else "bucket"), grid=grid,
            reduce=self.reduce, reference=learned.reference if learned else 128,
            schedule=_pairs("--schedule", self.schedule) if self.schedule else (),
        )  # fmt: skip


def with_thresholds(spec: Spec, path: Path | None) -> Spec:
    """Add the server's thresholds to the options of a plan.

    Raises
    ------
    UsageError
        The plan needs thresholds and there are none, or the other way round.
    """
    need = spec.prune is not None and spec.prune.reveal != "schedule"
    if need and path is None:
        raise UsageError(
            "the plan prunes tokens, so this side needs the model's --thresholds FILE, which "
            "`privml learn-thresholds` or `privml calibrate-thresholds` makes"
        )
    if path is None or spec.prune is None:
        if path is not None:
            raise UsageError("the plan prunes no tokens; leave --thresholds out, or plan --prune")
        return spec
    return replace(spec, prune=replace(spec.prune, thresholds=thresholds_of(path)))


def thresholds_of(path: Path) -> Thresholds:
    """Load thresholds by ``NAME``, one of its two files, or the folder of a verb that made them.

    Raises
    ------
    UsageError
        Nothing is there.
    """
    path = _named(path)
    if not (path.is_file() or path.with_name(f"{path.name}.json").is_file()):
        raise UsageError(
            f"there are no thresholds at {path}; name what `privml learn-thresholds` or `privml "
            "calibrate-thresholds` wrote, as in DIR/thresholds"
        )
    return Thresholds.load(path)


def _named(path: Path) -> Path:
    return path / "thresholds" if path.is_dir() else path


@dataclass(frozen=True, kw_only=True)
class Local:
    """How `infer` prunes: by thresholds from a file, or without any training."""

    thresholds: Path | None = None
    reveal: Reveal | None = None
    keep: float = KEEP

    def spec(self, encoder: Encoder, length: int) -> PruneSpec:
        """Return options for a model and a padded length.

        Without a file, a classifier gets calibrated thresholds. The labels of an embedding model
        are short texts that such thresholds would cut to pieces, so it gets a schedule, which
        never keeps fewer than 16 tokens and so leaves shorter texts whole.
        """
        if self.thresholds is not None:
            learned = thresholds_of(self.thresholds)
            learned.require(encoder)
            reveal = self.reveal or "bucket"
            return PruneSpec(learned, reveal=reveal, reference=learned.reference)
        if (self.reveal or ("bucket" if encoder.config.labels else "schedule")) == "schedule":
            layers, least = encoder.config.layers, min(SHORTEST, length)
            schedule = even_schedule(length, layers, keep=self.keep, least=least)
            return PruneSpec(reveal="schedule", schedule=schedule, reduce=False)
        from privml.protocols.cipherprune import calibrate_thresholds

        learned = calibrate_thresholds(encoder, keep=self.keep)
        return PruneSpec(learned, reveal=self.reveal or "bucket")


def even_schedule(length: int, layers: int, *, keep: float, least: int = 1) -> Pairs:
    """Return a schedule in which each layer keeps a share of its tokens, all of them exact.

    No layer keeps fewer than ``least``.
    """
    pairs, left = [], float(length)
    for _ in range(layers - 1):
        left *= keep
        kept = max(least, round(left))
        pairs.append((kept, kept))
    return tuple(pairs)


def expected(plan: Plan, options: Options) -> dict[str, Any] | None:
    """Return cost of a text with the expected tokens per layer, or ``None`` if nobody says them.

    They come from ``--expect``, else from the report beside the thresholds, else from the schedule.

    Raises
    ------
    UsageError
        Their number does not fit the model.
    Corrupt
        The report is damaged.
    """
    prune = plan.spec.prune
    if prune is None:
        return None
    length, pairs, source = _expectation(plan, options)
    if not pairs:
        return None
    if len(pairs) != plan.config.layers - 1:
        raise UsageError(
            f"{source} gives tokens for {len(pairs)} layers; {plan.config.name} needs "
            f"{plan.config.layers - 1}, one for each layer but the last, or the text's length and "
            "these"
        )
    top, counts, before = length, [], length
    if prune.reveal == "bucket":
        top = prune.bucket(length, limit=plan.length)
    for kept, high in pairs:
        before = min(kept, before)
        counts.append(shown(prune, before, min(high, before), top))
    return {"source": source, "length": top, "kept": counts, **_price(plan, top, counts)}


def expected_rows(found: Mapping[str, Any] | None, plan: Plan) -> list[tuple[str, str]]:
    """Return the expected cost as rows of a table; without one, how to get it."""
    if plan.spec.prune is None:
        return []
    if found is None:
        pairs = even_schedule(plan.length, plan.config.layers, keep=KEEP)
        like = ",".join(str(kept) for kept, _ in ((plan.length, 0), *pairs))
        return [("expected", f"less, by what a text keeps: price one with --expect {like}")]
    if found["source"] == SCHEDULE:
        shape = tokens(found["length"], found["kept"])
        return [("tokens", f"{shape}, by {SCHEDULE}; every run costs what is said above")]
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in found["predicted_s"].items())
    moved = both_ways(found["online_mb_client_to_server"], found["online_mb_server_to_client"])
    return [
        ("expected", tokens(found["length"], found["kept"]) + f", by {found['source']}"),
        ("", f"then {found['flights']} flights, {moved}"),
        ("", f"predicted {seconds}"),
    ]


def tokens(length: float, counts: Sequence[Sequence[float]]) -> str:
    """Return the token counts of the layers in words."""
    kept = ", ".join(f"{pair[0]:.0f}" for pair in counts)
    high = ", ".join(f"{pair[-1]:.0f}" for pair in counts)
    exact = "" if kept == high else f", of which exact {high}"
    return f"{length:.0f} tokens, after the layers {kept}{exact}"


def _expectation(plan: Plan, options: Options) -> tuple[int, Pairs, str]:
    """Return length of the text, pairs, and who says so."""
    prune, layers = plan.spec.prune, plan.config.layers
    if prune is not None and prune.reveal == "schedule":
        if options.expect:
            raise UsageError("a schedule fixes the tokens of every layer; leave --expect out")
        return plan.length, prune.schedule, SCHEDULE
    if options.expect:
        pairs, source = _pairs("--expect", options.expect), "--expect"
    else:
        pairs, source = _reported(options.thresholds), "the report of the thresholds"
    if len(pairs) == layers:
        return min(pairs[0][0], plan.length), pairs[1:], source
    return plan.length, pairs, source


def shown(prune: PruneSpec, kept: int, high: int, top: int) -> tuple[int, int]:
    """Return what a run opens of a pair of counts."""
    if not prune.reduce:
        high = kept
    if prune.reveal == "bucket":
        kept, high = (prune.bucket(count, limit=top) for count in (kept, high))
    return kept, min(high, kept)


def _price(plan: Plan, length: int, counts: Sequence[tuple[int, int]]) -> dict[str, Any]:
    cost = plan.cost_of(length, counts)
    rows = [length, *(kept for kept, _ in counts)]
    share = sum(rows) / (len(rows) * plan.length)
    return {
        "flights": cost.flights,
        "online_mb_client_to_server": cost.sent[1] / 1e6,
        "online_mb_server_to_client": cost.sent[0] / 1e6,
        "predicted_s": {
            name: round(plan.predict(name, cost=cost, share=share), 3) for name in LINKS
        },
    }


class _Spread(msgspec.Struct):
    mean: float


class _Layer(msgspec.Struct):
    tokens: _Spread
    high: _Spread


class _Pruned(msgspec.Struct):
    layers: list[_Layer]


class _Report(msgspec.Struct):
    """The part of a learning report that is read here."""

    pruned: _Pruned


def _reported(thresholds: Path | None) -> Pairs:
    """Return the mean tokens per layer of the report beside the thresholds, rounded up."""
    path = None if thresholds is None else _named(thresholds).with_name(REPORT)
    if path is None or not path.is_file():
        return ()
    try:
        report = msgspec.json.decode(read_file(path, limit=_MAX_REPORT), type=_Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(
            f"{path} is no report of learn-thresholds: {error}; remove it, or pass --expect"
        ) from error
    found = [(layer.tokens.mean, layer.high.mean) for layer in report.pruned.layers]
    if not all(0 <= mean <= 1 << 16 for pair in found for mean in pair):
        raise Corrupt(f"{path} holds token counts out of range; remove it, or pass --expect")
    return tuple((max(1, -int(-kept // 1)), max(1, -int(-high // 1))) for kept, high in found)


def _pairs(option: str, text: str) -> Pairs:
    """Read ``55,54`` or ``55/20,54/20``: tokens kept, and of high importance (all if not said)."""
    found = []
    for part in text.split(","):
        kept, slash, high = part.strip().partition("/")
        numbers = (kept, high if slash else kept)
        if not all(n.isascii() and n.isdigit() and len(n) < 6 and int(n) for n in numbers):
            raise UsageError(
                f"{option} {text!r} is no list of token counts; write for instance 55,54,50 or "
                "55/20,54/20,50/20 with the tokens of high importance behind the slash"
            )
        found.append((int(numbers[0]), int(numbers[1])))
    return tuple(found)
