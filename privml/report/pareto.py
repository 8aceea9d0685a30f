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
        At least one, of positive cost. A line joins those that are no references and that no
        cheaper one beats.
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
    """Draw one panel; costs on a logarithmic scale, for references cost many times as much."""
    pairs = sorted(zip(costs, points, strict=True), key=lambda pair: (pair[0], -pair[1].accuracy))
    front = _front([(c, p.accuracy) for c, p in pairs if not p.reference])
    axes.plot([c for c, _ in front], [100 * a for _, a in front], "-", color="tab:blue")
    for at, (cost, point) in enumerate(pairs):
        marker, color = ("x", "tab:red") if point.reference else ("o", "tab:blue")
        axes.plot(cost, 100 * point.accuracy, marker, color=color)
        side = (0, 9) if point.reference else (6, 2 if at % 2 else -9)
        axes.annotate(
            point.label, (cost, 100 * point.accuracy), xytext=side, fontsize=7,
            textcoords="offset points", ha="center" if point.reference else "left",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(0.8 * min(costs), 2 * max(costs))  # room for the labels
    axes.margins(y=0.12)
    axes.set_xlabel(label)
    axes.grid(visible=True, alpha=0.3)


def _front(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the (cost, accuracy) pairs that no cheaper one reaches; they come ordered by cost."""
    found: list[tuple[float, float]] = []
    for cost, accuracy in pairs:
        if not found or accuracy > found[-1][1]:
            found.append((cost, accuracy))
    return found
