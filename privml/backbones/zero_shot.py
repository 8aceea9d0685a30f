"""Zero-shot classification by sentence embeddings; torch-free, runs at the client in the clear.

A text gets the label whose prompt, for instance "This text is about sports.", has the closest
embedding by cosine similarity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privml.errors import ParameterError

DEFAULT_TEMPLATE = "This text is about {label}."
_SLOT = "{label}"
_FLOOR = 1e-12


@dataclass(frozen=True)
class Verdict:
    """The label chosen for one text.

    ``score`` is the cosine similarity of the winner in [-1, 1]; ``scores`` has one entry per label
    in the order the labels were given; ``margin`` is the distance to the second best.
    """

    label: str
    score: float
    scores: tuple[float, ...]

    @property
    def margin(self) -> float:
        """Best minus second best score; infinite if there is one label only."""
        best = sorted(self.scores, reverse=True)
        return best[0] - best[1] if len(best) > 1 else float("inf")


def label_prompts(labels: Sequence[str], *, template: str = DEFAULT_TEMPLATE) -> tuple[str, ...]:
    """Return the text that stands for each label.

    Raises
    ------
    ParameterError
        If there is no label, a label is empty or repeats, or the template does not have
        ``{label}`` once and no other braces.
    """
    cleaned = [label.strip() for label in labels]
    if not cleaned or not all(cleaned):
        raise ParameterError("labels are missing or empty; pass for instance labels=('a', 'b')")
    if len(set(cleaned)) != len(cleaned):
        raise ParameterError("labels repeat; pass each label once")
    if template.count(_SLOT) != 1 or set(template.replace(_SLOT, "")) & set("{}"):
        raise ParameterError(f"the template must contain {_SLOT} exactly once and no other braces")
    return tuple(template.replace(_SLOT, label) for label in cleaned)


def similarity(
    embeddings: NDArray[np.floating], label_embeddings: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Return cosine similarities.

    Parameters
    ----------
    embeddings
        Shape ``(B, d)``, any float dtype, any length of the vectors.
    label_embeddings
        Shape ``(C, d)``.

    Returns
    -------
    ndarray
        Shape ``(B, C)``, float64, in [-1, 1] up to rounding; 0 for a zero vector.

    Raises
    ------
    ParameterError
        If the shapes do not fit or a value is not finite.
    """
    if embeddings.ndim != 2 or label_embeddings.ndim != 2:
        raise ParameterError("embeddings must be matrices, one row per text or label")
    if embeddings.shape[1] != label_embeddings.shape[1]:
        raise ParameterError(
            f"widths differ: texts {embeddings.shape[1]}, labels {label_embeddings.shape[1]}"
        )
    if not (np.isfinite(embeddings).all() and np.isfinite(label_embeddings).all()):
        raise ParameterError("embeddings have values that are not finite")
    cosines: NDArray[np.float64] = _unit(embeddings) @ _unit(label_embeddings).T
    return cosines


def zero_shot(
    embeddings: NDArray[np.floating],
    label_embeddings: NDArray[np.floating],
    *,
    labels: Sequence[str],
) -> tuple[Verdict, ...]:
    """Choose the closest label for each text; ties fall to the label given first.

    Parameters
    ----------
    embeddings
        Text embeddings, shape ``(B, d)``.
    label_embeddings
        Embeddings of :func:`label_prompts`, shape ``(C, d)``, in the order of ``labels``.
    labels
        Names, one per row of ``label_embeddings``.

    Raises
    ------
    ParameterError
        If shapes or the number of labels do not fit.
    """
    cosines = similarity(embeddings, label_embeddings)
    if len(labels) != cosines.shape[1] or not labels:
        raise ParameterError(f"{len(labels)} labels for {cosines.shape[1]} label embeddings")
    return tuple(
        Verdict(label=labels[best], score=float(row[best]), scores=tuple(row.tolist()))
        for row, best in zip(cosines, cosines.argmax(axis=1).tolist(), strict=True)
    )


def _unit(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    wide = rows.astype(np.float64)
    norms = np.sqrt(np.square(wide).sum(axis=1, keepdims=True))
    result: NDArray[np.float64] = wide / np.maximum(norms, _FLOOR)
    return result
