"""``privml value``: the verbs of data valuation and their options; each loads what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from privml._cli.options import Debug, Json, Quiet
from privml._cli.output import Output

_ABOUT = "What each record, or source, is worth to a model: which to check, take, pay, or miss."

value = typer.Typer(
    name="value",
    help=_ABOUT,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="TOML file; see the guide.")]
OutFolder = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="New folder for the results.")
]
PlanOnly = Annotated[
    bool, typer.Option("--plan", help="Predict evaluations, seconds and memory; compute nothing.")
]
Results = Annotated[Path, typer.Argument(metavar="DIR", help="Folder that a run wrote.")]
Kind = Literal["run", "topm", "knn", "oob"]


def _start(kind: Kind, spec: Path, out_folder: Path | None, plan_only: bool) -> None:
    from privml._cli import value_plan, value_run
    from privml._cli.output import UsageError

    with Output() as out:
        if plan_only:
            value_plan.run(out, kind, spec_file=spec)
            return
        if out_folder is None:
            raise UsageError("say where results go: --out DIR (or --plan to predict the cost)")
        value_run.run(out, kind, spec_file=spec, folder=out_folder)


@value.command()
def run(
    spec: SpecFile, out: OutFolder = None, plan: PlanOnly = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Value every player: Shapley, Beta, Banzhaf, leave-one-out or exact ([values])."""
    _start("run", spec, out, plan)


@value.command()
def topm(
    spec: SpecFile, out: OutFolder = None, plan: PlanOnly = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Find the m players of largest or smallest value, with a certificate ([topm])."""
    _start("topm", spec, out, plan)


@value.command()
def knn(
    spec: SpecFile, out: OutFolder = None, plan: PlanOnly = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Value every player exactly under a nearest-neighbour model, in seconds ([knn])."""
    _start("knn", spec, out, plan)


@value.command()
def oob(
    spec: SpecFile, out: OutFolder = None, plan: PlanOnly = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Value rows by bags of models that did not see them ([oob])."""
    _start("oob", spec, out, plan)


@value.command()
def plan(
    spec: SpecFile,
    verb: Annotated[Kind, typer.Option("--verb", help="Of which verb.")] = "run",
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Predict evaluations, seconds and memory of a run; computes next to nothing."""
    _start(verb, spec, None, True)


@value.command()
def resume(folder: Results, json: Json = False, quiet: Quiet = False, debug: Debug = False) -> None:
    """Go on with a run that was interrupted or killed, bit for bit."""
    from privml._cli import value_run as verb

    with Output() as out:
        verb.resume(out, folder=folder)


@value.command()
def verify(
    folder: Results,
    units: Annotated[
        int, typer.Option(min=1, help="Rounds, or units of a top-m run, to recompute.")
    ] = 3,
    everything: Annotated[bool, typer.Option("--all", help="Recompute the whole run.")] = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Check files and data, recompute chosen units and compare."""
    from privml._cli import value_verify as verb

    with Output() as out:
        verb.run(out, folder=folder, units=units, everything=everything)


@value.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR DIR...", help="Two or more runs.")],
    m: Annotated[
        int | None, typer.Option(min=1, help="Size of top and bottom [a fifth of the players].")
    ] = None,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Compare runs over the same players: ranks, ends, differences in standard errors."""
    from privml._cli import value_compare as verb

    with Output() as out:
        verb.run(out, folders=folders, m=m)


@value.command("after-delete")
def after_delete(
    folder: Results,
    ids: Annotated[
        list[str], typer.Option("--id", metavar="ID", help="A player that leaves; repeatable.")
    ],
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
    out_folder: OutFolder = None,
) -> None:  # fmt: skip
    """Show what is lost if players leave, and the values of those that stay."""
    from privml._cli import value_after as verb

    with Output() as out:
        verb.run(out, folder=folder, ids=ids, target=out_folder)


@value.command()
def report(
    folder: Results,
    file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="[default: DIR/report.html]")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Amount to be paid: adds a price list.")
    ] = None,
    floor: Annotated[
        float | None, typer.Option(min=0.0, help="Part of it for every player.")
    ] = None,
    other: Annotated[
        list[Path] | None,
        typer.Option("--other", metavar="DIR", help="Run to compare with; repeatable."),
    ] = None,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Write one self-contained HTML page: plots, tables, sources, prices, reproducibility."""
    from privml._cli import value_report as verb

    options = verb.Options(file=file, budget=budget, floor=floor, others=tuple(other or ()))
    with Output() as out:
        verb.run(out, folder=folder, options=options)


@value.command()
def coreset(
    spec: SpecFile,
    size: Annotated[int, typer.Option(min=1, help="Rows to choose.")],
    file: Annotated[Path, typer.Option("--out", metavar="FILE", help="New CSV file of ids.")],
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Choose a few rows that stand for the pool (CSReL)."""
    from privml._cli import value_coreset as verb

    with Output() as out:
        verb.run(out, spec_file=spec, size=size, file=file)


@value.command()
def weights(
    spec: SpecFile,
    file: Annotated[Path, typer.Option("--out", metavar="FILE", help="New CSV file of weights.")],
    mode: Annotated[str, typer.Option(help="quality or imp.")] = "quality",
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Weigh doubtful rows by a model of the validation rows, which must be clean."""
    from privml._cli import value_weights as verb

    with Output() as out:
        verb.run(out, spec_file=spec, mode=mode, file=file)


@value.command()
def scaling(
    file: Annotated[Path, typer.Argument(metavar="CSV", help="Measured scores.")],
    x: Annotated[str, typer.Option(help="Column of the sizes.")],
    score: Annotated[str, typer.Option(help="Column of the scores.")],
    max_score: Annotated[float, typer.Option("--max", help="Score of a perfect model.")],
    method: Annotated[str, typer.Option(help="ols or nls.")] = "ols",
    predict: Annotated[
        list[float] | None, typer.Option(metavar="SIZE", help="Size to predict; repeatable.")
    ] = None,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Fit how a score grows with sites, objects or samples, and predict."""
    from privml._cli import value_scaling as verb

    options = verb.Options(x, score, max_score, method, tuple(predict or ()))
    with Output() as out:
        verb.run(out, file=file, options=options)
