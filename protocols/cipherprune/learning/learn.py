"""Threshold learning in two stages: soft masks, then hard masks with frozen thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privml.backbones.digests import Json, canonical_json, sha256
from privml.backbones.encoder import Encoder
from privml.errors import ParameterError, UnsupportedError
from privml.protocols.cipherprune.learning import checkpoint
from privml.protocols.cipherprune.learning.checkpoint import Saved
from privml.protocols.cipherprune.learning.data import Rows, TaskData, tokenise
from privml.protocols.cipherprune.learning.evaluate import Evaluation, evaluate
from privml.protocols.cipherprune.learning.finetune import copied
from privml.protocols.cipherprune.learning.loop import (
    Loop,
    Progress,
    Recipe,
    Store,
    load_weights,
    save_weights,
    store_precision,
)
from privml.protocols.cipherprune.learning.machine import Fixed, Precision, products
from privml.protocols.cipherprune.learning.masks import (
    Levels,
    SoftThresholds,
    meet,
    soft_profile,
    thresholds_of,
)
from privml.protocols.cipherprune.learning.objectives import (
    HardObjective,
    SoftObjective,
    TaskLoss,
    Teacher,
    seen_by_head,
)
from privml.protocols.cipherprune.learning.options import Options
from privml.protocols.cipherprune.learning.start import fitted, profile, spreads, towards
from privml.protocols.cipherprune.thresholds import Thresholds, model_digest
from privml.rng import ScienceSeed


@dataclass(frozen=True, eq=False, repr=False)
class Learned:
    """Result of learning.

    Attributes
    ----------
    model
        The tuned model that the thresholds belong to.
    thresholds
        Secret to the server; carry the model's digest.
    report
        Plain values: accuracy before and after, kept tokens per layer as distributions, whether
        the budget is met, options.
    """

    model: Encoder
    thresholds: Thresholds
    report: Mapping[str, Any] = field(default_factory=dict)


def learn_thresholds(
    model: Encoder,
    data: TaskData,
    *,
    validation: TaskData | None = None,
    budget: float = 0.55,
    reduce: bool = True,
    options: Options | None = None,
    checkpoint_dir: Path | str | None = None,
    checkpoint_seconds: float = 120.0,
    precision: Precision = "auto",
    progress: Progress | None = None,
) -> Learned:
    """Learn pruning and reduction thresholds of a classifier, and tune its weights to them.

    Stage 1 trains weights and thresholds with soft masks under a price on tokens that rises until
    the budget is met. Then hard thresholds on the ring's grid are fitted, layer by layer, to the
    share of tokens that the soft ones keep, stretched to the budget; frozen, they are what stage 2
    tunes the weights to, with hard masks. Both stages run the approximations that an encrypted run
    computes.

    Parameters
    ----------
    model
        A fine-tuned classifier with a tokenizer. It is not changed; its answers are the teacher.
    data
        Training rows.
    validation
        Rows for the report; if not given, 5 % of the training rows (at most 2,000) are held out.
    budget, reduce
        Short for the fields of ``options`` of the same name; not used if ``options`` is given.
    options
        All choices.
    checkpoint_dir
        Folder of the run's checkpoint. If it holds one of the same run, the run goes on from there
        and ends with the same result; the checkpoint stays until it is removed.
    checkpoint_seconds
        Time between two checkpoints.
    precision
        Format of matrix products in training; bfloat16 is taken where it is much faster. The
        report is always made in float32.
    progress
        Told the stage and how far it is.

    Returns
    -------
    Learned
        Model, thresholds and report.

    Raises
    ------
    UnsupportedError
        The model has no tokenizer, no classifier, or one layer only.
    ParameterError
        An option is out of range, a label is no class of the model, or the checkpoint belongs to
        another run.

    Notes
    -----
    Cost for 57,600 short phrases and 6 layers of width 384: about 22 minutes of processor time with
    bfloat16 instructions; as for :func:`fine_tune`, see to the threads on busy cores. Memory: five
    times the weights.

    Warns
    -----
    UserWarning
        The rows make so few steps that the weights hardly move.
    """
    chosen = options or Options(budget=budget, reduce=reduce)
    if model.config.layers < 2:
        raise UnsupportedError("pruning needs a model of two layers or more")
    train, held = _split(data, validation, chosen.seed)
    rows = tokenise(model, train)
    run = _Run(model, rows, tokenise(model, held), chosen, precision, progress or _silent)
    store = None
    if checkpoint_dir is not None:
        store = Store(Path(checkpoint_dir), run.digest(), checkpoint_seconds)
    return run.learn(store)


@dataclass
class _Run:
    """One run of :func:`learn_thresholds`."""

    teacher: Encoder
    rows: Rows
    held: Rows
    options: Options
    asked: Precision
    progress: Progress
    precision: Fixed = "float32"

    def __post_init__(self) -> None:
        self.seed = ScienceSeed(self.options.seed).child("cipherprune", "learn")
        order = self.seed.child("sample").generator().permutation(len(self.rows))
        order = order[self.rows.lengths[order] > self.options.shortest]
        if not len(order):
            raise ParameterError(
                f"no training text has more than shortest = {self.options.shortest} tokens, so "
                "there is nothing to prune; lower shortest"
            )
        which = np.sort(order[: self.options.sample])
        self.sample = Rows(
            tuple(self.rows.ids[int(i)] for i in which), self.rows.labels[which], self.rows.pad_id
        )

    @cached_property
    def spread(self) -> list[float]:
        """Spread of the logarithm of the scores of each layer, of the model given."""
        with products(self.precision):
            return spreads(self.teacher, self.sample, reference=self.options.reference)

    def digest(self) -> str:
        """Digest of everything the result depends on."""
        return sha256(
            canonical_json({
                "model": model_digest(self.teacher), "options": self.options.as_dict(),
                "rows": self.rows.digest(), "held": self.held.digest(),
                "precision": self.asked, "torch": torch.__version__,
            })
        )  # fmt: skip

    def learn(self, store: Store | None) -> Learned:
        """Run what is left to do."""
        start = None if store is None else checkpoint.load(store.folder, run=store.run)
        self.precision = store_precision(store, start, self.asked)
        student = copied(self.teacher)
        o = self.options
        task = TaskLoss(teacher=self._answers(), weight=o.distil, likeness=o.likeness)
        if start is None or start.state["stage"] == "soft masks":
            thresholds = self._soft(student, task, store, start)
            start = None
        else:
            thresholds = _stored(start, self.teacher.config.heads, self.options)
        if store is not None:
            store.fixed |= _fixed(thresholds)
            if start is None:
                save_weights(store, student, stage="hard masks")
        self._hard(student, task, thresholds, store, start)
        thresholds = self._met(student, thresholds, stage="meeting the budget")
        thresholds = thresholds.bound_to(student)
        return Learned(student.eval(), thresholds, self._report(student, thresholds))

    def _soft(
        self, student: Encoder, task: TaskLoss, store: Store | None, start: Saved | None
    ) -> Thresholds:
        o = self.options
        self.progress("scores", 0.0)
        layers, lengths = student.config.layers, self.sample.lengths
        ways = [1 - o.first_drop] * (layers - 1), profile(lengths, layers, o.budget)
        with products(self.precision):
            first, last = (
                Levels(*self._fitted(student, kept, [o.high] * (layers - 1))) for kept in ways
            )
        self.progress("scores", 1.0)
        masks = SoftThresholds(
            first, last, spread=self.spread, reference=o.reference, reduce=o.reduce
        )
        objective = SoftObjective(
            student, task, masks, o.budget, o.high * o.budget, o.widths, o.threshold_rate, o.ramp,
            o.shortest,
        )  # fmt: skip
        self._loop("soft masks", student, objective, o.soft, store).run(start)
        self.progress("freezing thresholds", 0.0)
        with products(self.precision):
            found = self._frozen(student, masks)
        self.progress("freezing thresholds", 1.0)
        return found

    def _frozen(self, student: Encoder, masks: SoftThresholds) -> Thresholds:
        """Return hard thresholds that keep, layer by layer, what soft ones keep, in the budget."""
        o = self.options
        masks.way = 1.0  # also if no step was left to do
        kept, high = soft_profile(student, self.sample, masks, width=o.widths[1])
        kept = towards(kept, o.budget, weights=[1.0] * len(kept))
        high = towards(high, o.high, weights=kept) if o.reduce else [1.0] * len(kept)
        levels = self._fitted(student, kept, high)
        theta, beta = ([level / o.reference for level in one] for one in levels)
        found = thresholds_of(theta, beta, heads=student.config.heads, reference=o.reference)
        return replace(found, shortest=o.shortest)

    def _fitted(
        self, student: Encoder, kept: Sequence[float], high: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        return fitted(student, self.sample, kept, high, reference=self.options.reference)

    def _hard(
        self, student: Encoder, task: TaskLoss, thresholds: Thresholds, store: Store | None,
        start: Saved | None,
    ) -> None:  # fmt: skip
        o = self.options
        widths = [o.widths[1] * spread for spread in self.spread]
        objective = HardObjective(student, task, thresholds, o.budget, widths, o.reduce)
        loop = self._loop("hard masks", student, objective, o.hard, store)
        if start is not None and not int(str(start.state["step"])):
            load_weights(loop.parameters, start)
            start = None
        loop.run(start)

    def _loop(
        self, stage: str, student: Encoder, objective: SoftObjective | HardObjective,
        recipe: Recipe, store: Store | None,
    ) -> Loop:  # fmt: skip
        return Loop(
            stage, student, objective, self.rows, recipe, self.seed.child(stage), self.precision,
            self.progress, store,
        )  # fmt: skip

    def _met(self, student: Encoder, found: Thresholds, *, stage: str) -> Thresholds:
        """Scale thresholds so that the budget is met on the sample."""
        self.progress(stage, 0.0)
        o = self.options
        met = meet(
            student, self.sample, found, budget=o.budget, high=o.high if o.reduce else None
        )  # fmt: skip
        self.progress(stage, 1.0)
        return met

    def _answers(self) -> Teacher:
        """Ask the unpruned model about every training row."""
        self.progress("teacher", 0.0)
        config, count = self.teacher.config, len(self.rows)
        logits = torch.zeros(count, len(config.labels))
        pooled = torch.zeros(count, config.hidden, dtype=torch.bfloat16)
        done = 0
        with torch.no_grad(), products(self.precision):
            for which in self.rows.in_order(64):
                observe, seen = seen_by_head()
                at = torch.from_numpy(which)
                logits[at] = self.teacher(self.rows.batch(which), observe).float()
                pooled[at] = seen[0].to(pooled.dtype)
                done += len(which)
                self.progress("teacher", done / count)
        sample = pooled[: self.options.sample].float()
        return Teacher(logits, pooled, float(sample.var(dim=0, correction=0).mean()) or 1.0)

    def _report(self, student: Encoder, thresholds: Thresholds) -> dict[str, Any]:
        self.progress("report", 0.0)
        before = evaluate(self.teacher, self.held)
        after = evaluate(student, self.held, thresholds, reduce=self.options.reduce)
        self.progress("report", 1.0)
        return {
            "options": self.options.as_dict(), "precision": self.precision,
            "rows": len(self.rows), "unpruned": {"accuracy": before.accuracy},
            "pruned": after.as_dict(), "drop": before.accuracy - after.accuracy,
            "agreement": float((before.predictions == after.predictions).mean()),
            "share_of_pruned_texts": after.share_above(self.options.shortest),
            "budget_met": _is_met(after, self.options),
        }  # fmt: skip


def _is_met(found: Evaluation, options: Options) -> bool:
    """Whether the share is the budget at most, 5 % more allowed for rows not seen before."""
    return found.share_above(options.shortest) <= 1.05 * options.budget


def _split(data: TaskData, validation: TaskData | None, seed: int) -> tuple[TaskData, TaskData]:
    if validation is not None:
        return data, validation
    return data.split(max(1, min(2000, len(data) // 20)), seed=seed)


def _fixed(found: Thresholds) -> dict[str, Json]:
    return {"theta": list(found.raw_theta), "beta": list(found.raw_beta)}


def _stored(start: Saved, heads: int, options: Options) -> Thresholds:
    theta, beta = (
        [int(str(k)) for k in values] if isinstance(values := start.state[name], list) else []
        for name in ("theta", "beta")
    )
    return Thresholds.of_raw(
        theta, beta, heads=heads, reference=options.reference, shortest=options.shortest
    )


def _silent(_: str, __: float) -> None:
    """Tell nobody."""
