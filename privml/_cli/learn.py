"""``privml learn-thresholds``: from labelled texts to a pruned model and its secret thresholds."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privml._cli.output import Output, UsageError
from privml._cli.rows import read_rows
from privml._cli.tables import facts
from privml.errors import ParameterError
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write

if TYPE_CHECKING:
    from privml.backbones.encoder import Encoder
    from privml.protocols.cipherprune import Learned, TaskData
    from privml.protocols.cipherprune.learning import Options as Learning

CHECKPOINT, TUNED, MODEL = "checkpoint", "fine-tuned", "model"
ORIGIN = "made-from.json"  # in the folder of the fine-tuned model
_MAX_ORIGIN = 1 << 20
THRESHOLDS, REPORT = "thresholds.json", "report.json"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asks for; ``None`` means the default of the library."""

    data: Path
    held: Path | None
    model: str
    labels: tuple[str, ...]
    out: Path
    budget: float
    shortest: int
    reduce: bool
    epochs: int | None
    tuning_epochs: int | None
    first_epochs: int | None
    seed: int
    header: bool | None
    resume: bool
    force: bool


def run(out: Output, asked: Options) -> None:
    """Learn, write model, thresholds and report, and show what they do."""
    _check_folder(asked)
    out.progress(f"loading {asked.model}", 0.0)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: no spinning on busy cores
    from privml.backbones.saving import save_encoder
    from privml.protocols.cipherprune.learning import learn_thresholds, tokenise

    model = _classifier(asked)
    classes = model.config.labels
    data = read_rows(asked.data, classes, asked.header)
    held = None if asked.held is None else read_rows(asked.held, classes, asked.header)
    rows = tokenise(model, data)
    if not (rows.lengths > asked.shortest).any():  # else said after hours of fine-tuning
        raise UsageError(
            f"no text of {asked.data} has more than {asked.shortest} tokens, so there is nothing "
            "to prune; lower --shortest, or give longer texts"
        )
    with _noted(out):
        model = _tuned(out, asked, model, data, rows.digest())
        learned = learn_thresholds(
            model, data, validation=held, options=_learning(asked),
            checkpoint_dir=asked.out / CHECKPOINT, progress=out.progress,
        )  # fmt: skip
    save_encoder(learned.model, asked.out / MODEL, replace=asked.force)
    learned.thresholds.save(asked.out / THRESHOLDS, replace=asked.force)
    text = json.dumps(learned.report, indent=1).encode()
    atomic_write(asked.out / REPORT, text + b"\n", replace=True)
    fs.remove_tree(asked.out / CHECKPOINT)
    _show(out, asked, learned)


@contextmanager
def _noted(out: Output) -> Iterator[None]:
    """Say warnings of learning as notes, one line each."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", UserWarning)
        try:
            yield
        finally:
            for one in found:
                out.note(f"warning: {one.message}")


def _check_folder(asked: Options) -> None:
    """Refuse to overwrite results, or to start over where a run can go on."""
    done = [name for name in (MODEL, THRESHOLDS) if fs.exists(asked.out / name)]
    if done and not asked.force:
        raise UsageError(
            f"{asked.out} holds {' and '.join(done)} already; choose another directory, or pass "
            "--force to replace them"
        )
    if fs.exists(asked.out / CHECKPOINT) and not asked.resume:
        raise UsageError(
            f"{asked.out} holds an unfinished run; pass --resume to go on with it, or choose "
            "another directory"
        )


def _classifier(asked: Options) -> Encoder:
    """Load the model; a fresh classifier is put on it if labels are given."""
    from privml.backbones.loader import load_encoder
    from privml.protocols.cipherprune.learning import with_classifier

    model = load_encoder(asked.model)
    if asked.labels:
        if model.config.labels:
            raise UsageError(
                f"{asked.model} has the labels {', '.join(model.config.labels)} already; leave "
                "--labels out"
            )
        with suppress(ParameterError):  # a model without a pooler gets a fresh one
            model = load_encoder(asked.model, pooling="pooler")
        return with_classifier(model, asked.labels, seed=asked.seed)
    if not model.config.labels:
        raise UsageError(
            f"{asked.model} has no classifier; pass --labels to train one, in the order of the "
            "class numbers of the data"
        )
    return model


def _tuned(out: Output, asked: Options, model: Encoder, data: TaskData, rows: str) -> Encoder:
    """Fine-tune a fresh classifier, or load what an interrupted run has fine-tuned.

    Raises
    ------
    UsageError
        What is there was made from another model, other rows, labels or options.
    """
    from privml.backbones.digests import canonical_json
    from privml.backbones.loader import load_encoder
    from privml.backbones.saving import save_encoder
    from privml.protocols.cipherprune.learning import fine_tune
    from privml.protocols.cipherprune.learning.finetune import FINE_TUNING
    from privml.protocols.cipherprune.thresholds import model_digest

    if not asked.labels:
        return model
    folder = asked.out / TUNED
    origin = folder / ORIGIN
    recipe = FINE_TUNING
    if asked.first_epochs is not None:
        recipe = replace(recipe, epochs=asked.first_epochs)
    made = canonical_json({
        "model": model_digest(model), "labels": list(asked.labels), "rows": rows,
        "recipe": asdict(recipe), "seed": asked.seed,
    })  # fmt: skip
    if asked.resume and fs.exists(origin):
        if read_file(origin, limit=_MAX_ORIGIN) != made:
            raise UsageError(
                f"{folder} was fine-tuned from another model, other rows, labels or options, so "
                "--resume cannot go on with it; choose another directory, or repeat the first call"
            )
        return load_encoder(folder)
    tuned = fine_tune(
        model, data, recipe=recipe, seed=asked.seed, progress=out.progress,
        checkpoint_dir=asked.out / CHECKPOINT / TUNED,
    )  # fmt: skip
    if fs.exists(origin):
        fs.unlink(origin)
    save_encoder(tuned, folder, replace=True)
    atomic_write(origin, made, replace=True)
    return load_encoder(folder)


def _learning(asked: Options) -> Learning:
    from privml.protocols.cipherprune.learning import Options as Learning

    options = Learning(
        budget=asked.budget, shortest=asked.shortest, reduce=asked.reduce, seed=asked.seed
    )
    if asked.epochs is not None:
        options = replace(options, soft=replace(options.soft, epochs=asked.epochs))
    if asked.tuning_epochs is not None:
        options = replace(options, hard=replace(options.hard, epochs=asked.tuning_epochs))
    return options


def _show(out: Output, asked: Options, learned: Learned) -> None:
    report: Mapping[str, Any] = learned.report
    pruned = report["pruned"]
    files = {
        "model": str(asked.out / MODEL), "thresholds": str(asked.out / THRESHOLDS),
        "report": str(asked.out / REPORT),
    }  # fmt: skip
    out.document({"ok": True, "files": files, "report": dict(report)})
    tokens = [f"{layer['tokens']['mean']:.1f}" for layer in pruned["layers"]]
    high = [f"{layer['high']['mean']:.1f}" for layer in pruned["layers"]]
    kept = report["share_of_pruned_texts"]
    accuracy = round(100 * pruned["accuracy"], 1)
    unpruned = round(100 * report["unpruned"]["accuracy"], 1)
    out.detail(
        facts("learned", [
            ("held out", f"{pruned['rows']} rows"),
            ("accuracy", f"{accuracy} %, unpruned {unpruned} %"),
            ("tokens", f"{' '.join(tokens)} at the start of each layer, mean"),
            ("high", f"{' '.join(high)} of them exactly"),
            ("budget", f"{kept:.3f} kept, {asked.budget:g} asked for"),
        ])
    )  # fmt: skip
    if not report["budget_met"]:
        out.note("warning: the budget is not met on the held-out rows; ask for a smaller one")
    out.show(files["thresholds"])
    out.note("the thresholds are the server's secret; give them to nobody")


def labels_of(text: str) -> tuple[str, ...]:
    """Return the labels of a list with commas; none if it is empty."""
    names = tuple(name.strip() for name in text.split(",")) if text.strip() else ()
    if any(not name for name in names):
        raise UsageError("a label is empty; separate labels by single commas")
    if len(names) == 1 or len({name.lower() for name in names}) != len(names):
        raise UsageError("give at least two labels, all different")
    return names
