"""Accuracy of a pruned classifier, from outputs of the protocol: all simulated, some executed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cipherprune_artefact import Artefact, Sentences, clear_accuracy, clear_pruned, read_sentences
from cipherprune_runs import OURS, Variant, claim_of, require_declared, running
from cipherprune_worker import Simulated, simulate_all, simulated
from frame import Options, Report, absent, at_least, at_most, reported
from product import Product

EXECUTED = 100
TARGETS = {
    "accuracy": "", "accuracy_loss_points": "<= 0.5 points", "executed.sentences": ">= 100",
    "executed.differing_bits": "<= 0", "executed.accuracy": "", "failure_probability": "",
}  # fmt: skip
Histogram = dict[str, dict[str, int]]


def inputs(report: Report, options: Options, targets: dict[str, str]) -> tuple[Artefact, Sentences]:
    """Return the model and the sentences that the user named.

    Raises
    ------
    NotNamed
        One of the flags is missing; the bars are already in the report, as absent.
    """
    missing = [f"--{flag}" for flag in ("sst2", "data") if flag not in options.paths]
    if missing:
        reason = f"not measured: name it with {' and '.join(missing)}"
        report.add(*(absent(f"sst2.{name}", target, against="unpruned model", reason=reason)
                     for name, target in targets.items()))  # fmt: skip
        raise NotNamed(reason)
    artefact = Artefact.at(options.paths["sst2"])
    return artefact, read_sentences(artefact.pruned, options.paths["data"])


class NotNamed(Exception):
    """The command line names no model or no data."""


def accuracy_section(report: Report, options: Options) -> None:
    """Add ``sst2.accuracy*`` and ``sst2.executed.*``."""
    with report.section("accuracy of the pruned model", *(f"sst2.{name}" for name in TARGETS)):
        try:
            artefact, data = inputs(report, options, TARGETS)
        except NotNamed:
            return
        chosen = data.take(data.spread(60)) if options.quick else data
        report.progress(f"  simulating {len(chosen)} sentences")
        found = simulate_all(
            artefact.pruned, artefact.prune, chosen.ids, n=data.n, progress=report.progress
        )
        _accuracy_bars(report, artefact, chosen, found, cut=data.cut)
        _executed(report, artefact, data, quick=options.quick)


def right(found: Sequence[Simulated], data: Sentences) -> float:
    """Return the share of sentences whose largest logit is the label."""
    labels = np.array([int(one.output.argmax()) for one in found])
    return float((labels == data.labels).mean())


def histogram(found: Sequence[Simulated]) -> dict[str, Histogram]:
    """Count sentences by what was opened after each layer: rows kept, rows of high importance."""
    out: dict[str, Histogram] = {"kept": {}, "high": {}}
    for which, kind in enumerate(out):
        for layer in range(len(found[0].counts)):
            values, times = np.unique([o.counts[layer][which] for o in found], return_counts=True)
            pairs = zip(values.tolist(), times.tolist(), strict=True)
            out[kind][f"layer{layer}"] = {str(value): count for value, count in pairs}
    return out


def _accuracy_bars(
    report: Report, artefact: Artefact, data: Sentences, found: Sequence[Simulated], *, cut: int
) -> None:
    mine = right(found, data)
    clear = {"same weights without thresholds": clear_accuracy(artefact.unpruned, data)}
    if artefact.before is not None:
        clear["before thresholds were learned"] = clear_accuracy(artefact.before, data)
    best = max(clear.values())
    detail = {
        "sentences": len(data), "cut_to_n": cut, "n": data.n, "prune": artefact.prune.as_dict(),
        "revealed_counts": histogram(found),
        "clear_twin_pruned": clear_pruned(artefact, data),
    }  # fmt: skip
    against = f"outputs of the simulated protocol, {artefact.prune.reveal} mode; {OURS}"
    report.add(
        reported("sst2.accuracy", mine, against=against, detail=detail),
        at_most("sst2.accuracy_loss_points", 100 * (best - mine), 0.5, unit="points",
                against=f"the better of: {', '.join(clear)}; clear float32; {OURS}",
                detail=clear),
    )  # fmt: skip


def _executed(report: Report, artefact: Artefact, data: Sentences, *, quick: bool) -> None:
    """Run sentences between two processes and simulate them under the keys of those very runs."""
    rows = data.spread(3 if quick else EXECUTED)
    variant = Variant("pruned", artefact.pruned, data.n, "pruned", artefact.prune)
    private, shadow = [], []
    with running([variant], turns=7) as products:
        product = products["pruned"]
        for at, row in enumerate(rows):
            mine, theirs = one_execution(product, data, int(row))
            private.append(mine)
            shadow.append(theirs)
            if at % 10 == 0:
                report.progress(f"  executed {at + 1} of {len(rows)} sentences")
        claim_of(report, "sst2", product)
    differ = sum(
        a.counts != b.counts or not np.array_equal(a.output, b.output)
        for a, b in zip(private, shadow, strict=True)
    )
    against = "the simulator under the keys of the same runs, every bit of logits and counts"
    chosen = data.take(rows)
    rule = f"sentences at evenly spaced length quantiles, {len(rows)} of {len(data)}"
    report.add(
        reported("sst2.executed.sentences", len(rows), against=rule, reason="fewer by --quick")
        if quick else at_least("sst2.executed.sentences", len(rows), EXECUTED, against=rule),
        at_most("sst2.executed.differing_bits", differ, 0, against=against, unit="sentences"),
        reported("sst2.executed.accuracy", right(private, chosen),
                 against=f"two processes, mutual TLS; {OURS}", detail={"rule": rule}),
    )  # fmt: skip


def one_execution(product: Product, data: Sentences, row: int) -> tuple[Simulated, Simulated]:
    """Execute one sentence and simulate it under the same keys."""
    keys = product.keys()
    run = product.run(data.padded(row))
    require_declared(product.plan, run)
    counts = tuple(tuple(pair) for pair in run.counts)
    shadow = simulated(product.private, product.plan, data.batch(row), keys)
    return Simulated(run.output[0], counts), shadow
