"""``privml evaluate``: accuracy of a model on labelled texts under the protocol, and its price."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privml._cli import pruning, scoring
from privml._cli.main import EXIT_INTERRUPTED, Terminated
from privml._cli.output import Output, UsageError
from privml._cli.rows import read_rows
from privml._cli.scoring import Scores
from privml._cli.tables import count
from privml.backbones.batch import Encoded
from privml.errors import ParameterError
from privml.protocols.mpc.spec import Spec
from privml.rng import ScienceSeed

if TYPE_CHECKING:
    from privml._cli.ways import Mode, Way
    from privml.backbones.encoder import Encoder
    from privml.protocols.cipherprune.learning import Rows

#: Padded lengths are multiples of this.
STEP = 8
_NOTE_S = 30.0
_STAGES: Mapping[Mode, str] = {
    "clear": "evaluating in the clear",
    "simulate": "simulating the protocol",
    "execute": "executing the protocol",
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says; ``n`` and ``limit`` may be left open."""

    data: Path
    model: str
    prune: pruning.Options
    mode: Mode
    n: int | None
    limit: int | None
    seed: int
    header: bool | None


@dataclass(frozen=True, eq=False)
class Job:
    """The texts in the order in which they are measured, and how."""

    way: Way
    rows: Rows
    order: tuple[int, ...]
    cut: int

    def batch(self, row: int) -> Encoded:
        """Return one text without padding."""
        return Encoded.of(self.rows.ids[row][None])


def run(out: Output, asked: Options) -> None:
    """Measure, print, and end with the code of an interrupt if only a part was measured.

    Raises
    ------
    SystemExit
        The user stopped it after the first text; the partial result has been printed.
    """
    job = _read(out, asked)
    scores, partial = Scores(), False
    try:
        _measure(out, asked, job, scores)
    except (KeyboardInterrupt, Terminated):
        if not scores.measured:
            raise
        partial = True
    found = scores.document(job.way.plan, mode=asked.mode, asked=len(job.order), partial=partial)
    found |= {"rows_in_file": len(job.rows), "texts_cut": job.cut, "seed": asked.seed}
    out.document({"ok": True, **found})
    scoring.show(out, found)
    if partial:
        out.note(
            f"stopped: this is a part, {count(len(scores.measured), 'text')} of {len(job.order)}; "
            "they are a random sample of the file"
        )
        raise SystemExit(EXIT_INTERRUPTED)  # the document above is the only one


def _measure(out: Output, asked: Options, job: Job, scores: Scores) -> None:
    """Put every text through the model, and through the plain model for comparison."""
    encoder, stage, last = job.way.model.encoder, _STAGES[asked.mode], time.monotonic()
    batches = [job.batch(row) for row in job.order]
    out.progress(stage, 0.0)
    with closing(job.way.results(asked.mode, batches)) as results:
        for done, (row, batch, result) in enumerate(zip(job.order, batches, results, strict=True)):
            plain = int(encoder(batch)[0].argmax())
            scores.add(result, plain, label=int(job.rows.labels[row]), tokens=batch.length)
            out.progress(stage, (done + 1) / len(batches))
            if time.monotonic() - last > _NOTE_S:
                last = time.monotonic()
                out.note(f"{done + 1} of {len(batches)} texts, {scores.so_far()}")


def _read(out: Output, asked: Options) -> Job:
    """Load and check everything; every mistake in options and files shows here."""
    prune = asked.prune.spec()
    out.progress(f"loading {asked.model}", 0.0)
    from privml._cli.ways import Way
    from privml.backbones.loader import load_encoder
    from privml.protocols.cipherprune.learning import tokenise
    from privml.protocols.mpc.model import PrivateModel

    encoder = load_encoder(asked.model)
    if len(encoder.config.labels) < 2:
        raise UsageError(
            f"{asked.model} has no classifier, so there is no accuracy to measure; pass a "
            "classifier, or train one with learn-thresholds --labels"
        )
    if prune is not None:
        if prune.thresholds is not None:
            prune.thresholds.require(encoder)
        elif prune.reveal != "schedule":
            raise UsageError("pruning needs the model's --thresholds FILE, or a --schedule")
    data = read_rows(asked.data, encoder.config.labels, asked.header)
    rows = tokenise(encoder, data)
    order = _order(len(rows), asked.limit, asked.seed)
    n = _length(encoder, asked.n, int(rows.lengths[list(order)].max()))
    out.progress("calibrating ranges", 0.0)
    private = PrivateModel(encoder, Spec(prune=prune))
    plan = private.plan(n=n)
    cut = replace(rows, ids=tuple(ids[:n] for ids in rows.ids))
    long = sum(len(rows.ids[row]) > n for row in order)
    return Job(Way(out, asked.model, private, plan), cut, order, long)


def _order(rows: int, limit: int | None, seed: int) -> tuple[int, ...]:
    """Draw the rows to measure in random order, so that a part of them is a fair sample."""
    order = ScienceSeed(seed).child("evaluate").generator().permutation(rows)
    return tuple(int(row) for row in np.asarray(order)[: rows if limit is None else limit])


def _length(encoder: Encoder, n: int | None, longest: int) -> int:
    """Return the padded length: as asked for, or what holds the longest text."""
    top = encoder.config.max_length
    if n is not None and not 1 <= n <= top:
        raise ParameterError(f"n = {n} must lie in [1, {top}], the limit of {encoder.config.name}")
    return n or min(-(-longest // STEP) * STEP, top)
