"""Fine-tune MiniLM-L6 on SST-2 and learn thresholds that prune tokens within a budget.

    python examples/sst2_cipherprune.py --train sst2-train.tsv --dev sst2-dev.tsv --out sst2

Text, tab, class (0 negative, 1 positive) on each line. Takes at most an hour on two cores for
60,000 phrases; a run that was stopped, in any stage, goes on with ``--resume``. ``--quick`` shows
every step in less than a minute, on a few rows or, without files, on sentences made up here.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: no spinning on busy cores

from privml.backbones import Encoder, load_encoder
from privml.backbones.saving import save_encoder
from privml.protocols.cipherprune import Options, TaskData, Thresholds, fine_tune, learn_thresholds
from privml.protocols.cipherprune.learning import Recipe, evaluate, tokenise, with_classifier
from privml.protocols.cipherprune.learning.finetune import FINE_TUNING
from privml.storage import fs

LABELS = ("negative", "positive")
HELD = 3000
CHECKPOINT = "checkpoint"
LONG = 17  # tokens: whole sentences rather than phrases


def main(arguments: list[str] | None = None) -> int:
    """Run the recipe and write model, thresholds and figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, help="training rows")
    parser.add_argument("--dev", type=Path, help="rows for the figures only")
    parser.add_argument("--out", type=Path, default=Path("sst2"), help="directory for the results")
    parser.add_argument("--budget", type=float, default=0.55, help="mean share of tokens to keep")
    parser.add_argument("--shortest", type=int, default=16, help="longest text left unpruned")
    parser.add_argument("--no-reduce", action="store_true", help="no cheap polynomials")
    parser.add_argument("--tuned", type=Path, help="a model fine-tuned before, not to do it again")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="go on with a stopped run")
    parser.add_argument("--quick", action="store_true", help="few rows, less than a minute")
    asked = parser.parse_args(arguments)
    if asked.train is None and not asked.quick:
        parser.error("--train is missing; --quick needs no data")
    if not asked.resume and fs.exists(asked.out / CHECKPOINT):
        if not asked.quick:
            parser.error(f"{asked.out} holds a stopped run; pass --resume, or choose another --out")
        fs.remove_tree(asked.out / CHECKPOINT)
    began = spent()
    train, dev = data_of(asked)
    rest, held = train.split(min(HELD, len(train) // 10), seed=asked.seed)
    tuned = tuned_model(asked, rest)
    after = spent()
    learned = learn_thresholds(
        tuned, rest, validation=held, options=options_of(asked),
        checkpoint_dir=asked.out / CHECKPOINT, progress=Shown(),
    )  # fmt: skip
    done = spent()
    save_encoder(learned.model, asked.out / "model", replace=True)
    learned.thresholds.save(asked.out / "thresholds.json", replace=True)
    figures = {
        "seconds": {"fine_tuning": after[0] - began[0], "learning": done[0] - after[0]},
        "processor_seconds": {"fine_tuning": after[1] - began[1], "learning": done[1] - after[1]},
        "held_out": dict(learned.report),
        "dev": None if dev is None else compared(tuned, learned.model, learned.thresholds, dev),
    }
    (asked.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    fs.remove_tree(asked.out / CHECKPOINT)
    print(json.dumps(summary(figures), indent=1))
    return 0


def data_of(asked: argparse.Namespace) -> tuple[TaskData, TaskData | None]:
    """Read the files, or make sentences up."""
    if asked.train is None:
        return made_up(), None
    train = TaskData.from_tsv(asked.train)
    dev = None if asked.dev is None else TaskData.from_tsv(asked.dev)
    if asked.quick:
        train = train.take(np.arange(min(600, len(train))))
        dev = None if dev is None else dev.take(np.arange(min(200, len(dev))))
    return train, dev


def made_up() -> TaskData:
    """Opinions on films, from a few words."""
    things = ("the plot", "this film", "the cast", "every scene", "the ending", "its music")
    verbs = ("is", "feels", "seems", "remains")
    words = {0: ("dull", "awful", "a mess", "lifeless"), 1: ("moving", "superb", "a joy", "witty")}
    rows = [
        (f"{a} {b} {word}", label)
        for label, those in words.items()
        for a, b, word in product(things, verbs, those)
    ]
    return TaskData(tuple(text for text, _ in rows), np.array([label for _, label in rows]))


def tuned_model(asked: argparse.Namespace, rows: TaskData) -> Encoder:
    """Fine-tune a fresh classifier, or take the one of an earlier run."""
    folder = asked.tuned or asked.out / "fine-tuned"
    if asked.tuned is not None or (asked.resume and (folder / "config.json").is_file()):
        return load_encoder(folder)
    fresh = with_classifier(
        load_encoder("minilm-l6", pooling="pooler"), LABELS, max_length=128, seed=asked.seed
    )
    recipe = replace(FINE_TUNING, epochs=2, batch=16) if asked.quick else FINE_TUNING
    save_encoder(
        fine_tune(
            fresh, rows, recipe=recipe, seed=asked.seed, progress=Shown(),
            checkpoint_dir=asked.out / CHECKPOINT / "fine-tuning",
        ),
        folder, replace=True,
    )  # fmt: skip
    return load_encoder(folder)


def options_of(asked: argparse.Namespace) -> Options:
    """Return the options of learning."""
    options = Options(
        budget=asked.budget, shortest=0 if asked.quick else asked.shortest,
        reduce=not asked.no_reduce, seed=asked.seed,
    )  # fmt: skip
    if not asked.quick:
        return options
    short = Recipe(epochs=1, rate=options.soft.rate, batch=16)
    return replace(options, soft=short, hard=short, sample=64)


def compared(
    tuned: Encoder, pruned: Encoder, thresholds: Thresholds, data: TaskData
) -> dict[str, Any]:
    """Compare the unpruned and the pruned model on rows that took no part."""
    rows = tokenise(tuned, data)
    before, after = evaluate(tuned, rows), evaluate(pruned, rows, thresholds)
    found: dict[str, Any] = {}
    for name, which in (("all", rows.lengths > 0), ("long", rows.lengths >= LONG)):
        if which.any():
            right = [e.predictions[which] == rows.labels[which] for e in (before, after)]
            found[name] = {
                "rows": int(which.sum()), "unpruned": float(right[0].mean()),
                "pruned": float(right[1].mean()),
                "tokens_per_layer": after.kept[:, which].mean(axis=1).round(3).tolist(),
                "high_per_layer": after.high[:, which].mean(axis=1).round(3).tolist(),
            }  # fmt: skip
    return found | {"distribution": after.as_dict()}


def summary(figures: dict[str, Any]) -> dict[str, Any]:
    """Return what is worth printing."""
    held = figures["held_out"]
    short = {k: v for k, v in (figures["dev"] or {}).items() if k != "distribution"}
    return {
        **{kind: {k: round(v, 1) for k, v in figures[kind].items()}
           for kind in ("seconds", "processor_seconds")},
        "held_out": {
            "unpruned": held["unpruned"]["accuracy"], "pruned": held["pruned"]["accuracy"],
            "share": held["share_of_pruned_texts"], "budget_met": held["budget_met"],
        },
        "dev": short or None,
    }  # fmt: skip


def spent() -> tuple[float, float]:
    """Return seconds on the clock, and of the processor."""
    return time.perf_counter(), time.process_time()


class Shown:
    """Shows progress: on one line of a terminal, or in a log a line per tenth of a stage."""

    def __init__(self) -> None:
        self.last: tuple[str, int] = ("", 0)

    def __call__(self, stage: str, done: float) -> None:
        """Show that a stage has come so far, 0 to 1."""
        if sys.stderr.isatty():
            print(f"\r{stage}: {100 * done:5.1f} %   ", end="", file=sys.stderr, flush=True)
        elif (stage, int(10 * done)) != self.last:
            self.last = stage, int(10 * done)
            print(f"{time.strftime('%H:%M:%S')} {stage} {done:.0%}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
