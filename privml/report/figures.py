"""Figures of a report as PNG bytes: distributions with intervals, curves, bars."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError, UnsupportedError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
_DPI = 110
_WHISKERS = 400


@dataclass(frozen=True, eq=False)
class Series:
    """One curve.

    Attributes
    ----------
    label
        Its name in the legend.
    x, y
        (k,) float64; NaN is left out.
    low, high
        (k,) float64 band around it, or None.
    """

    label: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


def distribution_png(
    values: Floats,
    low: Floats,
    high: Floats,
    *,
    label: str = "value",
    marked: NDArray[np.int64] | None = None,
) -> bytes:
    """Draw a histogram, and beside it all values in order with their intervals.

    Parameters
    ----------
    values, low, high
        (n,) float64; NaN is left out. Above 400 values the intervals become a band.
    label
        What the values are.
    marked
        Indices of values that are shown in another colour.
    """
    known = np.flatnonzero(np.isfinite(values))
    if not len(known):
        raise ParameterError("nothing to draw: no value is known")
    figure, (left, right) = _figure(2)
    bins = int(np.clip(np.sqrt(len(known)) * 2, 5, 60))
    left.hist(values[known], bins=bins, color="tab:blue", alpha=0.8)
    left.axvline(0.0, color="black", linewidth=0.8)
    left.set_xlabel(label)
    left.set_ylabel("players")
    order = known[np.argsort(values[known], kind="stable")]
    rank = np.arange(len(order), dtype=np.float64)
    below, above = values[order] - low[order], high[order] - values[order]
    bars = np.nan_to_num(np.maximum(np.stack([below, above]), 0.0))
    if len(order) > _WHISKERS:
        middle = values[order]
        right.fill_between(rank, middle - bars[0], middle + bars[1], color="tab:blue", alpha=0.3)
        right.plot(rank, middle, color="tab:blue", linewidth=1)
    else:
        right.errorbar(
            rank, values[order], yerr=bars, fmt=".", markersize=3, elinewidth=0.7, color="tab:blue"
        )
    if marked is not None and len(marked):
        inside = np.isin(order, marked)
        right.plot(rank[inside], values[order][inside], "o", markersize=4, color="tab:red")
    right.axhline(0.0, color="black", linewidth=0.8)
    right.set_xlabel("rank, smallest first")
    right.set_ylabel(label)
    return _png(figure)


def curves_png(series: Sequence[Series], *, x: str, y: str, logarithmic: bool = False) -> bytes:
    """Draw curves into one panel.

    Parameters
    ----------
    series
        At least one.
    x, y
        Names of the axes.
    logarithmic
        Whether both axes are logarithmic; numbers at or below zero are left out.
    """
    if not series:
        raise ParameterError("nothing to draw: give at least one curve")
    figure, (axes,) = _figure(1)
    for one in series:
        height = np.where(one.y > 0, one.y, np.nan) if logarithmic else one.y
        (line,) = axes.plot(one.x, height, ".-", markersize=4, linewidth=1.2, label=one.label)
        if one.low is not None and one.high is not None:
            axes.fill_between(one.x, one.low, one.high, color=line.get_color(), alpha=0.2)
    if logarithmic and any((one.x > 0).any() and (one.y > 0).any() for one in series):
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(fontsize=8)
    return _png(figure)


def bars_png(names: Sequence[str], values: Floats, low: Floats, high: Floats, *, x: str) -> bytes:
    """Draw one horizontal bar with an interval for each name, in the given order.

    Parameters
    ----------
    names
        At least one.
    values, low, high
        (k,) float64.
    x
        Name of the axis.
    """
    if not names:
        raise ParameterError("nothing to draw: give at least one bar")
    height = 0.9 + 0.28 * len(names)
    figure, (axes,) = _figure(1, height=height)
    place = np.arange(len(names))
    bars = np.nan_to_num(np.maximum(np.stack([values - low, high - values]), 0.0))
    axes.barh(place, np.nan_to_num(values), xerr=bars, color="tab:blue", alpha=0.8, capsize=2)
    axes.set_yticks(place, [_plain(name) for name in names], fontsize=8)
    axes.invert_yaxis()
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_xlabel(x)
    return _png(figure)


def _figure(panels: int, *, height: float = 3.4) -> tuple[Figure, Sequence[Any]]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError(
            "plots need matplotlib; install it with `pip install privml[report]`"
        ) from error
    figure = Figure(figsize=(4.4 * panels + 1.4, height), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(1, panels, squeeze=False)
    for axes in grid[0]:
        axes.grid(visible=True, alpha=0.3)
    return figure, list(grid[0])


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=_DPI, metadata={"Software": None})
    return out.getvalue()


def _plain(name: str) -> str:
    """Return a name that matplotlib takes as it is: no mathematics, one short line."""
    line = "".join(c if c.isprintable() else "?" for c in name).replace("$", r"\$")
    return line if len(line) <= 40 else line[:39] + "…"
