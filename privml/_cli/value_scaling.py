"""``privml value scaling``: more sites, or more per site? A law fitted to a table, and a plan."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml._cli.value_data import numbers, read_sheet

if TYPE_CHECKING:
    from privml.valuation.scaling import ScalingLaw

_BAND_POINTS: Final = 4


@dataclass(frozen=True)
class Options:
    """Options of the verb."""

    x: str
    score: str
    max_score: float
    method: str
    predict: tuple[float, ...] = ()


def run(out: Output, *, file: Path, options: Options) -> None:
    """Fit the law and show it, with predictions on request."""
    from privml.valuation.scaling import ExtrapolationWarning, ScalingLaw

    sheet = read_sheet(file)
    for name in (options.x, options.score):
        if name not in sheet.columns:
            raise UsageError(f"{file.name} has no column {name!r}; see {', '.join(sheet.columns)}")
    x, score = numbers(sheet, options.x), numbers(sheet, options.score)
    if options.method not in {"ols", "nls"}:
        raise UsageError("--method is ols or nls; binomial fits need Python")
    method: Any = options.method
    if options.method == "ols" and (score >= options.max_score).any():
        raise UsageError(
            f"a {options.score} reaches --max {options.max_score:g}: a gap of 0 has no logarithm; "
            "take --method nls, leave the row out, or fit successes in Python (method='binomial')"
        )
    law = ScalingLaw.fit(x, score, max_score=options.max_score, method=method)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ExtrapolationWarning)
        found = [float(law.predict_score([size])[0]) for size in options.predict]
        spans = _spans(law, options)
    notes = sorted({str(one.message) for one in said})
    rows = [
        ("law", f"gap = {law.a:.4g} x^{law.b:.4g}, r = {law.r:.3f}, {len(x)} sizes"),
        *((f"at {size:g}", f"score {value:.4g}{_words(span)} of {options.max_score:g}")
          for size, value, span in zip(options.predict, found, spans, strict=True)),
    ]  # fmt: skip
    out.show(facts(f"{options.score} by {options.x}", rows))
    for note in notes:
        out.note(note)
    out.document({
        "ok": True, "a": law.a, "b": law.b, "r": law.r, "warnings": notes,
        "predictions": dict(zip(map(str, options.predict), found, strict=True)),
        "intervals": dict(zip(map(str, options.predict), spans, strict=True)),
    })  # fmt: skip


def _spans(law: ScalingLaw, options: Options) -> list[tuple[float, float] | None]:
    """Return the 95 % limits of the law's score at each size; None for fewer than 4 sizes."""
    if not options.predict or len(law.x) < _BAND_POINTS:
        return [None] * len(options.predict)
    low, high = law.bands(list(options.predict))
    most = options.max_score
    return [(most * float(1 - b), most * float(1 - a)) for a, b in zip(low, high, strict=True)]


def _words(span: tuple[float, float] | None) -> str:
    return "" if span is None else f" ({span[0]:.4g} to {span[1]:.4g})"
