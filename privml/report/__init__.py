"""Figures made of measured numbers."""

from __future__ import annotations

from privml.report.pareto import Point, efficient, pareto_png

__all__ = ["Point", "efficient", "pareto_png"]
