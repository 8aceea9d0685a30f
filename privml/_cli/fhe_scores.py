"""Class scores of images for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from privml.protocols.fhe.entry import Scores

if TYPE_CHECKING:
    from rich.console import RenderableType

_SHOWN = 3


def documents(names: Sequence[str], answer: Scores, labels: Sequence[str]) -> list[dict[str, Any]]:
    """Return one entry per image: name, class, label and all scores."""
    return [
        {
            "image": name, "class": int(best), "label": labels[best] if labels else str(best),
            "scores": [float(value) for value in scores],
        }
        for name, best, scores in zip(names, answer.classes, answer.scores, strict=True)
    ]  # fmt: skip


def table(results: Sequence[dict[str, Any]], *, quiet: bool) -> RenderableType:
    """Return the classes, and unless ``quiet`` the best scores, one line an image."""
    if quiet:
        return "\n".join(str(result["label"]) for result in results)
    from rich import box
    from rich.table import Table

    found = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("image", "class", "best scores"):
        found.add_column(column)
    for result in results:
        order = sorted(range(len(result["scores"])), key=lambda i: -result["scores"][i])
        best = ", ".join(f"{i}: {result['scores'][i]:.3g}" for i in order[:_SHOWN])
        found.add_row(result["image"], result["label"], best)
    return found
