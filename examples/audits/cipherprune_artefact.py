"""A pruned model on disk, its labelled sentences, and which of them are measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from product_party import Model, encoder_of

from privml.backbones import Encoded
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.cipherprune.thresholds import Thresholds

if TYPE_CHECKING:
    from privml.protocols.cipherprune.learning import Evaluation

TOKENS = 128
THRESHOLDS = "thresholds.json"


@dataclass(frozen=True)
class Artefact:
    """A model directory with learned thresholds.

    Attributes
    ----------
    folder
        ``FOLDER/thresholds.json`` with its safetensors file, the model in ``FOLDER/model`` or in
        FOLDER itself, and maybe ``FOLDER/fine-tuned``: the model before thresholds were learned.
        This is what ``examples/sst2_cipherprune.py`` writes.
    """

    folder: Path

    @classmethod
    def at(cls, folder: Path) -> Artefact:
        """Return the artefact of a folder.

        Raises
        ------
        FileNotFoundError
            The folder holds no model or no thresholds.
        """
        found = cls(folder)
        for path in (found.directory / "config.json", found.thresholds):
            if not path.is_file():
                raise FileNotFoundError(f"there is no {path.name} in {path.parent.name}")
        return found

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    @property
    def directory(self) -> Path:
        """Folder of the model that is pruned."""
        inner = self.folder / "model"
        return inner if inner.is_dir() else self.folder

    @property
    def thresholds(self) -> Path:
        """JSON file of the thresholds."""
        return self.folder / THRESHOLDS

    @property
    def pruned(self) -> Model:
        """The model with its thresholds."""
        return Model(name=str(self.directory), thresholds=str(self.thresholds))

    @property
    def prune(self) -> PruneSpec:
        """The default options, with reduction unless the thresholds were learned without."""
        found = Thresholds.load(self.thresholds)
        return PruneSpec(
            reduce=found.raw_beta != found.raw_theta,
            reference=found.reference,
            shortest=found.shortest,
        )

    @property
    def unpruned(self) -> Model:
        """The same weights without thresholds."""
        return Model(name=str(self.directory))

    @property
    def before(self) -> Model | None:
        """The model before thresholds were learned, if it lies in the folder."""
        folder = self.folder / "fine-tuned"
        return Model(name=str(folder)) if folder.is_dir() else None


@dataclass(frozen=True, eq=False)
class Sentences:
    """Labelled sentences as token ids without padding, cut at the plan's positions.

    Attributes
    ----------
    n
        Positions of the plan.
    cut
        How many sentences were longer than that.
    """

    ids: tuple[NDArray[np.int64], ...]
    labels: NDArray[np.int64]
    n: int
    cut: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sentence."""
        return np.array([len(row) for row in self.ids], np.int64)

    def take(self, rows: NDArray[np.intp]) -> Sentences:
        """Return some sentences."""
        return Sentences(tuple(self.ids[i] for i in rows), self.labels[rows], self.n)

    def batch(self, row: int) -> Encoded:
        """Return one sentence without padding."""
        return Encoded.of(self.ids[row][None])

    def padded(self, row: int) -> Encoded:
        """Return one sentence padded to the plan's positions."""
        return self.batch(row).padded(self.n)

    def spread(self, count: int) -> NDArray[np.intp]:
        """Return rows at evenly spaced length quantiles: (i + 1/2) / count of the sorted file.

        Sentences of one length keep the order of the file.
        """
        order = np.argsort(self.lengths, kind="stable")
        count = min(count, len(order))
        return order[((np.arange(count) + 0.5) * len(order) / count).astype(np.intp)]


def read_sentences(model: Model, path: Path) -> Sentences:
    """Read a TSV file of texts and class numbers, and tokenise it with the model's tokenizer."""
    from privml.protocols.cipherprune.learning import TaskData, tokenise

    encoder = encoder_of(model)
    data = TaskData.from_tsv(path, classes=encoder.config.labels)
    rows, n = tokenise(encoder, data), min(TOKENS, encoder.config.max_positions)
    cut = sum(len(row) > n for row in rows.ids)
    return Sentences(tuple(row[:n] for row in rows.ids), rows.labels, n, cut)


def clear_accuracy(model: Model, data: Sentences) -> float:
    """Return the accuracy of a model without pruning, in float32."""
    from privml.protocols.cipherprune.learning import Rows, evaluate

    encoder = encoder_of(model)
    return evaluate(encoder, Rows(data.ids, data.labels, encoder.config.pad_id)).accuracy


def clear_pruned(artefact: Artefact, data: Sentences) -> dict[str, object]:
    """Return accuracy and exact token counts of the clear twin with hard thresholds."""
    return clear_twin(artefact, data).as_dict()


def clear_twin(artefact: Artefact, data: Sentences) -> Evaluation:
    """Run the clear twin with hard thresholds in float32."""
    from privml.protocols.cipherprune.learning import Rows, evaluate

    encoder, found = encoder_of(artefact.pruned), Thresholds.load(artefact.thresholds)
    rows = Rows(data.ids, data.labels, encoder.config.pad_id)
    return evaluate(encoder, rows, found, reduce=artefact.prune.reduce)
