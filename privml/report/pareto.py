"""Accuracy against time and bytes: which points no other point beats, and the plot."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privml.errors import ParameterError, UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Point:
    """One measured configuration.

    Attributes
    ----------
    label
        What stands beside the point.
    accuracy
        Share of right answers, 0 to 1.
    seconds
        Time of one answer, s.
    megabytes
        Traffic of one answer, both directions, MB (10^6 bytes).
    reference
        Whether the point is only there to compare with; it is drawn as a cross and off the line.
    """

    label: str
    accuracy: float
    seconds: float
    megabytes: float
    reference: bool = False


def efficient(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points that no other one beats in accuracy, time and bytes at once, in order.

    A point beats another one if it is nowhere worse and somewhere better.
    """

    def beats(a: Point, b: Point) -> bool:
        gains = (a.accuracy - b.accuracy, b.seconds - a.seconds, b.megabytes - a.megabytes)
        return min(gains) >= 0 and max(gains) > 0

    return tuple(p for p in points if not any(beats(other, p) for other in points))


def pareto_png(points: Sequence[Point], *, title: str, dpi: int = 150) -> bytes:
    """Draw accuracy against seconds and against megabytes, side by side.

    Parameters
    ----------
    points
        At least one; those that are no references are joined in the order of their cost.
    title
        Line above both panels: what was measured, where, under which claim.
    dpi
        Dots per inch; the figure is 10 by 4.2 inches.

    Returns
    -------
    bytes
        A PNG file.

    Raises
    ------
    ParameterError
        There is no point.
    UnsupportedError
        Matplotlib is not installed.
    """
    if not points:
        raise ParameterError("nothing to draw: give at least one point")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError(
            "plots need matplotlib; install it with `pip install privml[report]`"
        ) from error
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, sharey=True)
    _panel(left, points, [p.seconds for p in points], "seconds on line per sentence")
    _panel(right, points, [p.megabytes for p in points], "MB on line per sentence, both directions")
    left.set_ylabel("accuracy, %")
    figure.suptitle(title, fontsize=9)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=dpi)
    return out.getvalue()


def _panel(axes: Axes, points: Sequence[Point], costs: Sequence[float], label: str) -> None:
    """Draw one panel."""
    pairs = [(c, p) for c, p in zip(costs, points, strict=True) if not p.reference]
    pairs.sort(key=lambda pair: pair[0])
    axes.plot([c for c, _ in pairs], [100 * p.accuracy for _, p in pairs], "o-", color="tab:blue")
    for cost, point in zip(costs, points, strict=True):
        if point.reference:
            axes.plot(cost, 100 * point.accuracy, "x", color="tab:red")
        axes.annotate(
            point.label, (cost, 100 * point.accuracy), xytext=(4, 5), fontsize=7,
            textcoords="offset points",
        )  # fmt: skip
    axes.set_xlim(0, 1.45 * max(costs))  # room for the labels
    axes.set_xlabel(label)
    axes.grid(visible=True, alpha=0.3)
