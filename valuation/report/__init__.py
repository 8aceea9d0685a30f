"""What people get from a valuation: tables, curves, prices, one page, one record for auditors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.valuation.report.comparison import Comparison, compare
    from privml.valuation.report.curves import Curve, removal_curves
    from privml.valuation.report.equal_rows import DuplicateGroup, duplicates
    from privml.valuation.report.export import csv_text, json_document, outcome_digest, run_record
    from privml.valuation.report.html import Extras, html_report
    from privml.valuation.report.payments import INCENTIVES, Prices, pricing

_HOMES = {
    "INCENTIVES": "payments",
    "Comparison": "comparison",
    "Curve": "curves",
    "DuplicateGroup": "equal_rows",
    "Extras": "html",
    "Prices": "payments",
    "compare": "comparison",
    "csv_text": "export",
    "duplicates": "equal_rows",
    "html_report": "html",
    "json_document": "export",
    "outcome_digest": "export",
    "pricing": "payments",
    "removal_curves": "curves",
    "run_record": "export",
}

__all__ = [
    "INCENTIVES",
    "Comparison",
    "Curve",
    "DuplicateGroup",
    "Extras",
    "Prices",
    "compare",
    "csv_text",
    "duplicates",
    "html_report",
    "json_document",
    "outcome_digest",
    "pricing",
    "removal_curves",
    "run_record",
]


def __getattr__(name: str) -> object:
    """Load a name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
