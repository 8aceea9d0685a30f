"""Task data: texts with class numbers, read from TSV files, tokenised, cut into batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privml.backbones.batch import Encoded
from privml.backbones.digests import sha256
from privml.backbones.encoder import Encoder
from privml.errors import Corrupt, ParameterError, UnsupportedError
from privml.rng import ScienceSeed
from privml.storage.files import read_file

MAX_FILE_BYTES = 256 << 20
_POOL = 50  # batches that are sorted by length together
#: Words that name the columns of a file in its first line.
_TEXT_COLUMN, _CLASS_COLUMN = ("text", "sentence"), ("label", "class")
_SHOWN = 40

Header = Literal["auto"] | bool


@dataclass(frozen=True, repr=False, eq=False)
class TaskData:
    """Texts and their classes; ``repr`` shows the size only.

    Parameters
    ----------
    texts
        One text for each row, none empty.
    labels
        Class numbers, int64, shape ``(len(texts),)``.

    Raises
    ------
    ParameterError
        There is no row, a text is empty, or the labels do not fit.
    """

    texts: tuple[str, ...]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        fits = self.labels.shape == (len(self.texts),) and self.labels.dtype == np.int64
        if not self.texts or not fits or int(self.labels.min()) < 0:
            raise ParameterError("task data needs a text and an int64 class number >= 0 per row")
        empty = next((i for i, text in enumerate(self.texts, 1) if not text.strip()), None)
        if empty is not None:
            raise ParameterError(f"text {empty} of the task data is empty")

    @classmethod
    def from_tsv(
        cls, path: Path | str, *, classes: Sequence[str] = (), header: Header = "auto"
    ) -> TaskData:
        """Read a file with one row per line: text, tab, class.

        Parameters
        ----------
        classes
            Names that may stand for class numbers, in the order of the numbers.
        header
            Whether line 1 names the columns. ``"auto"``: it does if it is ``text`` or
            ``sentence``, tab, ``label`` or ``class``, and its last word is none of ``classes``.

        Notes
        -----
        A class is a number from 0 on, or one of ``classes``. Empty lines and lines with an empty
        text are left out.

        Raises
        ------
        Corrupt
            A line has no tab or no known class, named with the fix, or the file is no UTF-8 text.
        ParameterError
            The file has no rows, or ``header`` is no choice.
        """
        if header not in ("auto", True, False):
            raise ParameterError(f"header = {header!r}: choose True, False or 'auto'")
        data = read_file(path, limit=MAX_FILE_BYTES)
        try:
            lines = data.decode("utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise Corrupt(f"{path} is not UTF-8 text: {error}") from error
        numbers = {name: number for number, name in enumerate(classes)}
        first = _first_row(lines[0], numbers, header)
        texts, labels = [], []
        for at, line in enumerate(lines[first:], first + 1):
            if not line.strip():
                continue
            text, number = _row(line, numbers, where=f"{path}, line {at}")
            if text:
                texts.append(text)
                labels.append(number)
        if not texts:
            raise ParameterError(f"{path} has no rows; each line is text, tab and a class")
        return cls(tuple(texts), np.array(labels, np.int64))

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"TaskData(rows={len(self.texts)})"

    def take(self, rows: NDArray[np.int64]) -> TaskData:
        """Return some rows, in the order given."""
        return TaskData(tuple(self.texts[int(i)] for i in rows), self.labels[rows])

    def split(self, held: int, *, seed: int = 0) -> tuple[TaskData, TaskData]:
        """Return the data without ``held`` rows drawn at random, and those rows.

        Raises
        ------
        ParameterError
            ``held`` leaves one of the two parts empty.
        """
        if not 0 < held < len(self):
            raise ParameterError(f"held = {held} must lie in [1, {len(self) - 1}]")
        order = ScienceSeed(seed).child("cipherprune", "split").generator().permutation(len(self))
        return self.take(np.sort(order[held:])), self.take(np.sort(order[:held]))


@dataclass(frozen=True, repr=False, eq=False)
class Rows:
    """Tokenised task data.

    Attributes
    ----------
    ids
        Token ids of each row, without padding.
    labels
        Class numbers.
    pad_id
        Token id of padding.
    """

    ids: tuple[NDArray[np.int64], ...]
    labels: NDArray[np.int64]
    pad_id: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each row."""
        return np.array([len(row) for row in self.ids], np.int64)

    def digest(self) -> str:
        """Return the digest of ids and labels."""
        lengths = self.lengths.astype("<i8").tobytes()
        ids = np.concatenate(self.ids).astype("<i8").tobytes()
        return sha256(lengths + ids + self.labels.astype("<i8").tobytes())

    def batch(self, which: NDArray[np.int64]) -> Encoded:
        """Return some rows as one batch, padded to the longest of them."""
        rows = [self.ids[int(i)] for i in which]
        shape = (len(rows), max(len(row) for row in rows))
        ids, mask = np.full(shape, self.pad_id, np.int64), np.zeros(shape, np.bool_)
        for at, row in enumerate(rows):
            ids[at, : len(row)] = row
            mask[at, : len(row)] = True
        return Encoded.of(ids, mask)

    def in_order(self, size: int) -> Iterator[NDArray[np.int64]]:
        """Yield all rows once, short ones first, ``size`` at a time."""
        order = np.argsort(self.lengths, kind="stable")
        for at in range(0, len(order), size):
            yield order[at : at + size]

    def shuffled(self, size: int, *, seed: ScienceSeed) -> list[NDArray[np.int64]]:
        """Return the batches of one epoch: random, rows of like length together.

        All batches have ``size`` rows, except that a set smaller than that is one batch; up to
        ``size - 1`` rows of each epoch are left out otherwise.
        """
        if len(self) <= size:
            return [np.arange(len(self), dtype=np.int64)]
        generator = seed.generator()
        order, lengths = generator.permutation(len(self)), self.lengths
        order = order[: len(order) // size * size]
        batches: list[NDArray[np.int64]] = []
        for at in range(0, len(order), size * _POOL):
            pool = order[at : at + size * _POOL]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += [pool[i : i + size] for i in range(0, len(pool), size)]
        return [batches[int(i)] for i in generator.permutation(len(batches))]


def tokenise(encoder: Encoder, data: TaskData) -> Rows:
    """Tokenise task data with the model's tokenizer; longer texts are cut at the model's limit.

    Raises
    ------
    UnsupportedError
        The model has no tokenizer or no classifier.
    ParameterError
        A label is not a class of the model, or a text has no token.
    """
    classes, tokenizer = len(encoder.config.labels), encoder.tokenizer
    if tokenizer is None:
        raise UnsupportedError("the model has no tokenizer, so it cannot read task data")
    if classes < 2:
        raise UnsupportedError(
            "learning needs a classifier with two classes or more; add one with with_classifier()"
        )
    if int(data.labels.max()) >= classes:
        raise ParameterError(f"labels must lie in [0, {classes - 1}], the model's classes")
    ids: list[NDArray[np.int64]] = []
    for at in range(0, len(data), 512):
        batch = tokenizer.encode(data.texts[at : at + 512], truncate=True)
        ids += [row[mask] for row, mask in zip(batch.ids, batch.mask, strict=True)]
    return Rows(tuple(ids), data.labels, encoder.config.pad_id)


def _first_row(line: str, numbers: Mapping[str, int], header: Header) -> int:
    """Return the number of lines that come before the rows: one with a header, else none."""
    if header != "auto":
        return int(header)
    text, _, name = line.rpartition("\t")
    named = text.strip().lower() in _TEXT_COLUMN and name.strip().lower() in _CLASS_COLUMN
    return int(named and name.strip() not in numbers)


def _row(line: str, numbers: Mapping[str, int], *, where: str) -> tuple[str, int]:
    """Read one line; ``where`` names it in errors."""
    text, tab, name = line.rpartition("\t")
    name = name.strip()
    if not tab:
        raise Corrupt(f"{where}: there is no tab; write the text, a tab and its class")
    number = numbers.get(name, _number(name))
    if number is not None:
        return text.strip(), number
    known = f"or one of {', '.join(numbers)}" if numbers else "or give the names of the classes"
    skip = "; pass header=True if the line names the columns" if where.endswith(" line 1") else ""
    raise Corrupt(
        f"{where}: the class {_cut(name)!r} is unknown; write a number from 0 on, {known}{skip}"
    )


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _number(text: str) -> int | None:
    stripped = text.strip()
    return (
        int(stripped) if stripped.isascii() and stripped.isdigit() and len(stripped) < 8 else None
    )
