"""Figures made of measured numbers, and pages that hold them."""

from __future__ import annotations

from privml.report.figures import Series, bars_png, curves_png, distribution_png
from privml.report.page import Page
from privml.report.pareto import Point, efficient, pareto_png

__all__ = [
    "Page",
    "Point",
    "Series",
    "bars_png",
    "curves_png",
    "distribution_png",
    "efficient",
    "pareto_png",
]
