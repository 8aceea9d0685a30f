"""``privml value scaling``: more sites, or more per site? A law fitted to a table, and a plan."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml._cli.value_data import numbers, read_sheet


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
    law = ScalingLaw.fit(x, score, max_score=options.max_score, method=method)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", ExtrapolationWarning)
        found = [float(law.predict_score([size])[0]) for size in options.predict]
    notes = sorted({str(one.message) for one in said})
    rows = [
        ("law", f"gap = {law.a:.4g} x^{law.b:.4g}, r = {law.r:.3f}, {len(x)} sizes"),
        *((f"at {size:g}", f"score {value:.4g} of {options.max_score:g}")
          for size, value in zip(options.predict, found, strict=True)),
    ]  # fmt: skip
    out.show(facts(f"{options.score} by {options.x}", rows))
    for note in notes:
        out.note(note)
    out.document({
        "ok": True, "a": law.a, "b": law.b, "r": law.r, "warnings": notes,
        "predictions": dict(zip(map(str, options.predict), found, strict=True)),
    })  # fmt: skip
