"""The verbs of a model's owner: learn or calibrate thresholds, measure accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from privml._cli.options import (
    Debug,
    Grid,
    Header,
    Json,
    Model,
    NoReduce,
    Quiet,
    RevealMode,
    Schedule,
    Thresholds,
)
from privml._cli.output import Output


def learn_thresholds(
    data: Annotated[Path, typer.Option(help="Labelled texts: text, tab, class; one per line.")],
    out_dir: Annotated[
        Path, typer.Option("--out", help="Directory for model, thresholds and report.")
    ],
    model: Model = "minilm-l6",
    labels: Annotated[
        str, typer.Option(help="Classes to train a classifier for, separated by commas.")
    ] = "",
    dev: Annotated[
        Path | None, typer.Option(help="Rows for the report [default: some of --data].")
    ] = None,
    budget: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Mean share of tokens to keep.")
    ] = 0.55,
    shortest: Annotated[
        int, typer.Option(min=0, help="Texts of at most so many tokens are not pruned.")
    ] = 16,
    reduce: Annotated[
        bool, typer.Option(help="Cheaper polynomials for tokens of low importance?")
    ] = True,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes with soft masks [default: 1].")
    ] = None,
    tuning_epochs: Annotated[
        int | None, typer.Option(min=0, help="Passes with hard masks [default: 2].")
    ] = None,
    first_epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes for a new classifier [default: 3].")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 0,
    header: Header = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace earlier results.")] = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Train a model to prune tokens, within a budget, and write its secret thresholds."""
    from privml._cli import learn as verb

    options = verb.Options(
        data=data, held=dev, model=model, labels=verb.labels_of(labels), out=out_dir,
        budget=budget, shortest=shortest, reduce=reduce, epochs=epochs, tuning_epochs=tuning_epochs,
        first_epochs=first_epochs, seed=seed, header=header, resume=resume,
        force=force,
    )  # fmt: skip
    with Output() as out:
        verb.run(out, options)


def calibrate_thresholds(
    text_file: Annotated[
        list[Path], typer.Option("--file", metavar="FILE", help="Unlabelled texts, one per line.")
    ],
    out_dir: Annotated[Path, typer.Option("--out", help="Directory for thresholds and report.")],
    model: Model = "minilm-l6",
    keep: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of its tokens that each layer keeps.")
    ] = 0.75,
    high: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of these that is computed exactly.")
    ] = 0.5,
    shortest: Annotated[
        int, typer.Option(min=0, help="Texts of at most so many tokens are not pruned.")
    ] = 16,
    force: Annotated[bool, typer.Option("--force", help="Replace earlier results.")] = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Write secret thresholds from unlabelled texts, without training the model."""
    from privml._cli import calibrate as verb

    options = verb.Options(
        files=tuple(text_file), out=out_dir, model=model, keep=keep, high=high, shortest=shortest,
        force=force,
    )  # fmt: skip
    with Output() as out:
        verb.run(out, options)


def evaluate(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Labelled texts: text, tab, class; one per line.")
    ],
    model: Model = "minilm-l6", thresholds: Thresholds = None, reveal: RevealMode = None,
    grid: Grid = "", no_reduce: NoReduce = False, schedule: Schedule = "",
    mode: Annotated[
        Literal["clear", "simulate", "execute"],
        typer.Option(help="Float model, the protocol's integers, or two parties on this machine."),
    ] = "simulate",
    n: Annotated[
        int | None, typer.Option(help="Padded tokens [default: fits the longest text].")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Texts, drawn at random [default: all].")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of their order.")] = 0,
    header: Header = None,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Measure the accuracy of a classifier under the protocol, its tokens and its cost."""
    from privml._cli import evaluate as verb
    from privml._cli import pruning

    prune = pruning.Options(
        thresholds=thresholds, reveal=reveal, grid=grid, reduce=not no_reduce, schedule=schedule
    )
    options = verb.Options(
        data=data, model=model, prune=prune, mode=mode, n=n, limit=limit, seed=seed, header=header
    )
    with Output() as out:
        verb.run(out, options)
