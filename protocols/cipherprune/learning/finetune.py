"""Fine-tuning of a plain classifier, the starting point of threshold learning."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch

from privml.backbones.digests import canonical_json, sha256
from privml.backbones.encoder import Encoder
from privml.errors import UnsupportedError
from privml.protocols.cipherprune.learning import checkpoint
from privml.protocols.cipherprune.learning.data import TaskData, tokenise
from privml.protocols.cipherprune.learning.loop import (
    Loop,
    Progress,
    Recipe,
    Store,
    store_precision,
)
from privml.protocols.cipherprune.learning.machine import Precision
from privml.protocols.cipherprune.learning.objectives import PlainObjective, TaskLoss
from privml.protocols.cipherprune.thresholds import model_digest
from privml.rng import ScienceSeed

FINE_TUNING = Recipe(epochs=3, rate=1e-4)
_STD = 0.02
_SMOOTHING = 0.05


def with_classifier(
    encoder: Encoder, labels: tuple[str, ...], *, max_length: int | None = None, seed: int = 0
) -> Encoder:
    """Return a copy of an encoder with a fresh classifier on the pooler's output.

    Parameters
    ----------
    encoder
        A BERT-type encoder; load it with ``pooling="pooler"`` to keep the pooler it has.
    labels
        Names of the classes.
    max_length
        Longest text in tokens; that of the encoder if not given.

    Raises
    ------
    UnsupportedError
        The encoder is a causal model.
    ParameterError
        Labels or length do not fit.
    """
    if encoder.config.causal:
        raise UnsupportedError("a classifier on the pooler needs a model that is not causal")
    config = replace(
        encoder.config, labels=labels, pooling="pooler", normalize=False,
        max_length=max_length or encoder.config.max_length,
    )  # fmt: skip
    root = ScienceSeed(seed).child("cipherprune", "classifier")
    width = config.hidden
    params = {name: np.array(array) for name, array in encoder.params().items()}
    params |= {
        "classifier.weight": _normal(root.child("classifier"), len(labels), width),
        "classifier.bias": np.zeros(len(labels), np.float32),
    }
    if "pooler.weight" not in params:
        params |= {
            "pooler.weight": _normal(root.child("pooler"), width, width),
            "pooler.bias": np.zeros(width, np.float32),
        }
    tokenizer = encoder.tokenizer
    if tokenizer is not None and tokenizer.max_length != config.max_length:
        tokenizer = type(tokenizer).from_bytes(tokenizer.to_json(), max_length=config.max_length)
    return Encoder(config, params, tokenizer=tokenizer).eval()


def fine_tune(
    model: Encoder,
    data: TaskData,
    *,
    recipe: Recipe = FINE_TUNING,
    seed: int = 0,
    precision: Precision = "auto",
    checkpoint_dir: Path | str | None = None,
    checkpoint_seconds: float = 120.0,
    progress: Progress | None = None,
) -> Encoder:
    """Return a fine-tuned copy of a classifier.

    Parameters
    ----------
    model
        A classifier with a tokenizer, see :func:`with_classifier`.
    data
        Training rows.
    recipe
        Hyper-parameters.
    precision
        See :func:`privml.protocols.cipherprune.learning.machine.choose`.
    checkpoint_dir, checkpoint_seconds
        As in :func:`privml.protocols.cipherprune.learning.learn_thresholds`; a folder of its own.
    progress
        Told the stage and how far it is.

    Warns
    -----
    UserWarning
        The rows make so few steps that the weights hardly move.

    Notes
    -----
    Cost for 57,600 short phrases, three epochs, 6 layers of width 384: about 11 minutes of
    processor time with bfloat16 instructions. On busy cores set ``OMP_WAIT_POLICY=passive`` before
    torch is loaded, or threads that wait for each other take several times as much.
    """
    copy, rows = copied(model), tokenise(model, data)
    store, start = None, None
    if checkpoint_dir is not None:
        run = sha256(canonical_json({
            "model": model_digest(model), "recipe": asdict(recipe), "rows": rows.digest(),
            "seed": seed, "precision": precision, "torch": torch.__version__,
        }))  # fmt: skip
        store = Store(Path(checkpoint_dir), run, checkpoint_seconds)
        start = checkpoint.load(store.folder, run=run)
    loop = Loop(
        "fine-tuning", copy, PlainObjective(copy, TaskLoss(smoothing=_SMOOTHING)), rows, recipe,
        ScienceSeed(seed).child("cipherprune", "fine-tuning"),
        store_precision(store, start, precision), progress or _silent, store,
    )  # fmt: skip
    loop.run(start)
    return copy.eval()


def copied(model: Encoder) -> Encoder:
    """Return a model with weights of its own."""
    params = {name: np.array(array) for name, array in model.params().items()}
    return Encoder(model.config, params, tokenizer=model.tokenizer).eval()


def _normal(
    seed: ScienceSeed, rows: int, columns: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    draws = seed.generator().standard_normal((rows, columns), dtype=np.float32)
    return np.multiply(draws, np.float32(_STD))


def _silent(_: str, __: float) -> None:
    """Tell nobody."""
