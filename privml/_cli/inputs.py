"""Texts and labels from the command line and from files, checked before anything is started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

from privml._cli.output import UsageError
from privml.backbones.zero_shot import DEFAULT_TEMPLATE, label_prompts
from privml.errors import Corrupt, MalformedMessage, ParameterError
from privml.protocols.mpc.plan import Plan
from privml.storage.files import read_file

MAX_FILE_BYTES = 16 << 20
MAX_TEXTS, MAX_LABELS = 256, 64


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be classified; private to the client.

    Attributes
    ----------
    texts
        Sentences.
    labels
        Candidate labels; empty if the model has its own.
    template
        Text that stands for a label, with ``{label}``.
    truncate
        Cut texts that are too long instead of refusing them.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    template: str = DEFAULT_TEMPLATE
    truncate: bool = False

    def prompts(self) -> tuple[str, ...]:
        """Return the texts that stand for the labels."""
        return label_prompts(self.labels, template=self.template) if self.labels else ()

    def to_json(self) -> bytes:
        """Return the question for a private file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_file(cls, path: Path) -> Question:
        """Read what :meth:`to_json` wrote."""
        try:
            return msgspec.json.decode(read_file(path, limit=MAX_FILE_BYTES), type=cls)
        except msgspec.DecodeError as error:
            raise Corrupt(f"{path} holds no question: {error}") from error


def question(
    *,
    texts: Sequence[str],
    files: Sequence[Path],
    labels: str,
    template: str,
    truncate: bool,
) -> Question:
    """Collect and check what the user asks.

    Parameters
    ----------
    texts
        Values of ``--text``.
    files
        Values of ``--file``, one text per line.
    labels
        Value of ``--labels``, separated by commas; may be empty for a model with its own classes.

    Raises
    ------
    UsageError
        No text, an empty text, too many, or labels that are empty or repeat.
    """
    every = [*texts, *(line for file in files for line in _lines(file))]
    if not every:
        raise UsageError('no text was given; pass --text "..." or --file texts.txt')
    for number, text in enumerate(every, start=1):
        if not text.strip():
            raise UsageError(f"text {number} is empty; pass a text with words")
    if len(every) > MAX_TEXTS:
        raise UsageError(f"{len(every)} texts are too many for one call; pass at most {MAX_TEXTS}")
    names = _labels(labels)
    asked = Question(texts=tuple(every), labels=names, template=template, truncate=truncate)
    try:
        asked.prompts()
    except ParameterError as error:
        raise UsageError(str(error)) from error
    return asked


def _labels(text: str) -> tuple[str, ...]:
    """Split the labels; two or more different ones, or none at all."""
    if not text.strip():
        return ()
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise UsageError("a label is empty; pass labels like --labels sports,politics,business")
    folded = [name.casefold() for name in names]
    twice = sorted({name for name in names if folded.count(name.casefold()) > 1})
    if twice:
        raise UsageError(f"labels repeat: {', '.join(twice)}; pass each label once")
    if len(names) < 2:
        raise UsageError("one label leaves nothing to choose; pass at least two, like --labels a,b")
    if len(names) > MAX_LABELS:
        raise UsageError(f"{len(names)} labels are too many; pass at most {MAX_LABELS}")
    return names


def fit_labels(asked: Question, own: Sequence[str], *, model: str) -> Question:
    """Check the labels against the model; a classifier keeps its own.

    Parameters
    ----------
    own
        Class names of a classifier, empty for an embedding model.

    Raises
    ------
    UsageError
        Labels are missing, or some are unknown to the classifier.
    """
    if not own:
        if not asked.labels:
            raise UsageError(
                "labels are missing or empty; pass at least two, like --labels sports,politics"
            )
        return asked
    unknown = [name for name in asked.labels if name not in own]
    if unknown:
        raise UsageError(
            f"{model} is a classifier and does not know the labels {', '.join(unknown)}; it has "
            f"{', '.join(own)}: leave --labels out"
        )
    return replace(asked, labels=())


def _lines(path: Path) -> list[str]:
    try:
        text = read_file(path, limit=MAX_FILE_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text; convert it first") from error
    lines = text.splitlines()
    if not lines:
        raise UsageError(f"{path} is empty; it needs one text per line")
    return [line for line in lines if line.strip()]


def load_plan(path: Path) -> Plan:
    """Read a plan file.

    Raises
    ------
    Corrupt
        The file is damaged or no plan.
    """
    try:
        return Plan.load(path)
    except MalformedMessage as error:
        raise Corrupt(
            f"cannot use the plan {path}: {error}; get it again, or make one with `privml plan`"
        ) from error
