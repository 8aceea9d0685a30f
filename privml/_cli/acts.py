"""The acts of ``privml demo``, in order; an area adds its own to :data:`ACTS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from privml._cli.output import Output


@dataclass(frozen=True)
class Act:
    """One part of the demo.

    Attributes
    ----------
    name
        Key of its section in the JSON document.
    title
        One line shown before it runs.
    perform
        Does the job, shows it on the given output, and returns its section of the document.
    """

    name: str
    title: str
    perform: Callable[[Output], dict[str, Any]]


TEXTS = (
    "The goalkeeper saved two penalties and her team reached the final.",
    "Parliament voted for the new budget after a long night of debate.",
    "The central bank left interest rates alone, and shares rose a little.",
    "The new phone has a faster chip and a battery that lasts two days.",
    "He broke the national record in the marathon by eleven seconds.",
    "The minister resigned over the letter she had sent to the court.",
)
LABELS = ("sports", "politics", "business", "technology")


def _private_inference(out: Output) -> dict[str, Any]:
    from privml._cli.infer import classify_here
    from privml._cli.inputs import Question

    return classify_here(out, Question(texts=TEXTS, labels=LABELS), model="minilm-l6")


def _forget(out: Output) -> dict[str, Any]:
    from privml._cli.forest_act import forget_a_patient

    return forget_a_patient(out)


def _value(out: Output) -> dict[str, Any]:
    from privml._cli.value_act import find_wrong_labels

    return find_wrong_labels(out)


def _digits(out: Output) -> dict[str, Any]:
    from privml._cli.fhe_act import classify_digits

    return classify_digits(out)


def _prune(out: Output) -> dict[str, Any]:
    from privml._cli.prune_act import prune_long_texts

    return prune_long_texts(out)


PRUNED = Act(
    "pruned_inference",
    "CipherPrune: tokens that matter little are dropped under encryption, and cost nothing more",
    _prune,
)
"""What ``--cipherprune`` shows instead of the others."""

ACTS: tuple[Act, ...] = (
    Act(
        "private_inference",
        "Private inference: a server classifies sentences that it never sees",
        _private_inference,
    ),
    Act(
        "forgetting",
        "Exact unlearning: a forest forgets a patient, as if it had never seen the record",
        _forget,
    ),
    Act(
        "valuation",
        "Data valuation: wrong labels in a table, and the records that a model owes most to",
        _value,
    ),
    Act(
        "encrypted_images",
        "Encrypted images: a server classifies JPEG files that only the client can open",
        _digits,
    ),
)
