"""The client's job: embed labels and texts privately, in as few runs as the plan allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privml._cli.inputs import Question
from privml._cli.output import Failure
from privml._cli.tables import count
from privml.backbones.batch import Encoded
from privml.backbones.public import PublicPart
from privml.backbones.tokenizer import Tokenizer
from privml.backbones.zero_shot import Verdict, zero_shot
from privml.errors import ParameterError, PrivmlError, UnsupportedError
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.runtime import Bill, ClientRun

Connect = Callable[[], AbstractContextManager[ClientRun]]


@dataclass(frozen=True)
class Answers:
    """Verdicts in the order of the texts, and what each run cost."""

    verdicts: tuple[Verdict, ...]
    bills: tuple[Bill, ...] = field(default=())


def runs_needed(rows: int, plan: Plan) -> int:
    """Return how many runs of the plan embed so many rows."""
    return -(-rows // plan.rows)


def rows_of(asked: Question) -> int:
    """Return how many rows a question has: its labels and its texts."""
    return len(asked.labels) + len(asked.texts)


def ask(
    plan: Plan, asked: Question, connect: Connect, *, public: PublicPart | None = None
) -> Answers:
    """Classify texts with a remote model; only this side learns the answers.

    Parameters
    ----------
    asked
        A question that fits the model, see :func:`privml._cli.inputs.fit_labels`.
    connect
        Opens one run.
    public
        The model's public part, if it is here already: then texts are checked before connecting.

    Raises
    ------
    ParameterError
        A text is longer than the plan; no run was spent.
    ProtocolError
        The only run was aborted; there is no partial answer.
    RunFailed
        One of several runs failed; there is no partial answer.
    """
    batch = None if public is None else tokenise(plan, asked, public)
    parts: list[NDArray[np.float64]] = []
    bills: list[Bill] = []
    rows = rows_of(asked)
    runs = runs_needed(rows, plan)
    for number in range(runs):
        with _named(number, runs), connect() as run:
            if batch is None:
                batch = tokenise(plan, asked, run.public)
            start = number * plan.rows
            parts.append(run.execute(batch.rows(start, min(start + plan.rows, rows))))
            bills.append(run.bill)
    return Answers(decide(plan, asked, np.concatenate(parts)), tuple(bills))


class RunFailed(Failure):
    """One of several runs failed, after ``finished`` others."""

    def __init__(self, error: PrivmlError, *, finished: int, runs: int) -> None:
        done = f"{count(finished, 'run')} before it finished" if finished else "none before it"
        super().__init__(
            error.code, f"run {finished + 1} of {runs} failed, {done}: {error}", error.exit_code
        )


@contextmanager
def _named(number: int, runs: int) -> Iterator[None]:
    """Say which of several runs failed."""
    try:
        yield
    except PrivmlError as error:
        if runs == 1:
            raise
        raise RunFailed(error, finished=number, runs=runs) from error


def tokenise(plan: Plan, asked: Question, public: PublicPart) -> Encoded:
    """Turn labels and texts into one batch that fits the plan's length."""
    tokenizer = need_tokenizer(public.tokenizer, model=plan.config.name)
    return encode(tokenizer, asked, length=min(plan.length, tokenizer.max_length))


def need_tokenizer(tokenizer: Tokenizer | None, *, model: str) -> Tokenizer:
    """Return the tokenizer, or refuse a model without one."""
    if tokenizer is None:
        raise UnsupportedError(f"the model {model} has no tokenizer, so it cannot read text")
    return tokenizer


def encode(tokenizer: Tokenizer, asked: Question, *, length: int | None = None) -> Encoded:
    """Tokenise a question: first the rows of the labels, then those of the texts.

    Parameters
    ----------
    length
        Longest row in tokens; the model's limit if not given.

    Raises
    ------
    ParameterError
        A text or label is too long or has no token.
    """
    parts = []
    for what, rows in (("label", asked.prompts()), ("text", asked.texts)):
        if not rows:
            continue
        try:
            parts.append(tokenizer.encode(rows, length=length, truncate=asked.truncate))
        except ParameterError as error:
            text = str(error).replace("truncate=True", "--truncate")
            raise ParameterError(what + text.removeprefix("text")) from error
    longest = max(part.length for part in parts)
    full = [part.padded(longest, pad_id=tokenizer.pad_id) for part in parts]
    return Encoded(
        np.concatenate([part.ids for part in full]),
        np.concatenate([part.mask for part in full]),
        np.concatenate([part.type_ids for part in full]),
    )


def decide(plan: Plan, asked: Question, outputs: NDArray[np.float64]) -> tuple[Verdict, ...]:
    """Turn the model's outputs for the rows of :func:`encode` into verdicts."""
    if plan.config.labels:
        return tuple(_of_logits(plan.config.labels, row) for row in outputs)
    count = len(asked.labels)
    return zero_shot(outputs[count:], outputs[:count], labels=asked.labels)


def _of_logits(labels: tuple[str, ...], row: NDArray[np.float64]) -> Verdict:
    best = int(row.argmax())
    return Verdict(labels[best], float(row[best]), tuple(row.tolist()))


def as_documents(asked: Question, names: tuple[str, ...], answers: Answers) -> list[dict[str, Any]]:
    """Return one plain record per text."""
    return [
        {"text": text, "label": v.label, "score": v.score,
         "margin": v.margin if len(v.scores) > 1 else None,
         "scores": dict(zip(names, v.scores, strict=True))}
        for text, v in zip(asked.texts, answers.verdicts, strict=True)
    ]  # fmt: skip
