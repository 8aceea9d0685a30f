"""The verbs and their options; everything heavy is imported by the verb that needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from privml._cli import app_models
from privml._cli.fhe import fhe
from privml._cli.options import (
    Deadline,
    Debug,
    Embedding,
    Files,
    Grid,
    IdentityName,
    Insecure,
    Json,
    Labels,
    Model,
    NoReduce,
    PlanFile,
    Quiet,
    RevealMode,
    Schedule,
    Template,
    Texts,
    Thresholds,
    Truncate,
    Used,
)
from privml._cli.output import Output
from privml._cli.value import value

if TYPE_CHECKING:
    from privml._cli.inputs import Question

_ABOUT = "Encrypted inference, data valuation, and forests that forget (from Python, see demo)."

app = typer.Typer(
    name="privml",
    help=_ABOUT,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        import privml

        sys.stdout.write(f"privml {privml.__version__}\n")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    """Encrypted inference between two parties; forests that forget (from Python, see demo)."""


@app.command()
def demo(
    only: Annotated[
        Literal["inference", "forest", "values", "digits"] | None,
        typer.Option(help="One act [default: all]."),
    ] = None,
    cipherprune: Annotated[
        bool, typer.Option("--cipherprune", help="Long texts, without and with token pruning.")
    ] = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """See a private answer, and a forest that forgets a patient."""
    from privml._cli import demo as verb

    with Output() as out:
        verb.run(out, only, cipherprune=cipherprune)


@app.command()
def infer(
    text: Texts = None, file: Files = None, labels: Labels = "", model: Model = "minilm-l6",
    template: Template = None, embedding: Embedding = "released", truncate: Truncate = False,
    n: Annotated[
        int | None, typer.Option(help="Padded tokens [default: fits the longest text].")
    ] = None,
    cipherprune: Annotated[
        bool, typer.Option("--cipherprune", help="Prune tokens; one text a run.")
    ] = False,
    thresholds: Thresholds = None, reveal: RevealMode = None,
    keep: Annotated[
        float | None,
        typer.Option(help="Without --thresholds: share of tokens each layer keeps [0.75]."),
    ] = None,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Classify your own text, both parties on this machine, in one command."""
    from privml._cli import infer as verb

    asked = _question(text, file, labels, template, truncate)
    prune = verb.pruning(cipherprune, thresholds=thresholds, reveal=reveal, keep=keep)
    with Output() as out:
        verb.run(out, asked, model=model, n=n, embedding=embedding, prune=prune)


@app.command()
def plan(
    model: Model = "minilm-l6",
    n: Annotated[int, typer.Option(help="Padded length in tokens.")] = 128,
    rows: Annotated[int, typer.Option(help="Texts per run, labels included.")] = 1,
    embedding: Embedding = "released",
    source: Annotated[str, typer.Option(help="Source of correlated randomness.")] = "dealer",
    out_file: Annotated[
        Path | None, typer.Option("--out", help="Where the plan file is written.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace another plan there.")] = False,
    prune: Annotated[
        Path | None,
        typer.Option("--prune", metavar="THRESHOLDS", help="Prune tokens by these thresholds."),
    ] = None,
    reveal: RevealMode = None,
    grid: Grid = "", no_reduce: NoReduce = False, schedule: Schedule = "",
    expect: Annotated[
        str, typer.Option(help="Tokens per layer to price, like 55,54; the text's length first.")
    ] = "",
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Print bill, claim and leakage of a run before anything is computed or sent."""
    from privml._cli import plan as verb
    from privml._cli.pruning import Options

    options = Options(
        thresholds=prune, reveal=reveal, grid=grid, reduce=not no_reduce, schedule=schedule,
        expect=expect,
    )  # fmt: skip
    with Output() as out:
        verb.run(
            out, model=model, n=n, rows=rows, embedding=embedding, source=source, path=out_file,
            force=force, prune=options,
        )  # fmt: skip


@app.command()
def deal(
    plan: PlanFile,
    server: Annotated[Path, typer.Option(help="The server's pool, a new file.")],
    client: Annotated[Path, typer.Option(help="The client's pool, a new file.")],
    runs: Annotated[int, typer.Option(min=1, help="How many runs to deal.")] = 1,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Write the correlated randomness of a plan: one pool for each party."""
    from privml._cli import deal as verb

    with Output() as out:
        verb.run(out, plan_file=plan, runs=runs, server=server, client=client)


@app.command()
def pool(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pool of either party.")],
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Show how many runs a pool has left; changes nothing."""
    from privml._cli import pool as verb

    with Output() as out:
        verb.run(out, path=file)


@app.command()
def serve(
    plan: Annotated[str, typer.Option("--plan", help="Plan file, or - for stdin.")],
    pool: Annotated[Path, typer.Option(help="The server's pool.")],
    model: Model = "minilm-l6", thresholds: Thresholds = None,
    identity: IdentityName = None,
    pin: Annotated[
        list[str] | None,
        typer.Option("--pin", metavar="SHA256", help="A client's fingerprint; repeatable."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 7711,
    runs: Annotated[
        int | None, typer.Option(min=1, help="End after so many runs [default: all].")
    ] = None,
    used: Used = None, insecure_loopback: Insecure = False, deadline: Deadline = 60.0,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Hold the model and answer pinned clients without seeing their text."""
    from privml._cli import serve as verb

    options = verb.Options(
        plan=plan, model=model, thresholds=thresholds, pool=pool, identity=identity,
        pins=tuple(pin or ()), host=host, port=port, runs=runs, used=used,
        insecure_loopback=insecure_loopback, deadline_s=deadline,
    )  # fmt: skip
    with Output() as out:
        verb.run(out, options)


@app.command()
def query(
    plan: PlanFile,
    pool: Annotated[Path, typer.Option(help="The client's pool.")],
    peer: Annotated[str, typer.Option(help="Address of the server, host:port.")],
    text: Texts = None, file: Files = None, labels: Labels = "", template: Template = None,
    truncate: Truncate = False,
    identity: IdentityName = None,
    pin: Annotated[
        str | None, typer.Option("--pin", metavar="SHA256", help="The server's fingerprint.")
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="Keeps the server's set-up [default: the user's cache]."),
    ] = None,
    used: Used = None, insecure_loopback: Insecure = False,
    connect: Annotated[
        float,
        typer.Option(min=0.1, metavar="SECONDS", help="To wait for the server."),
    ] = 30.0,
    deadline: Deadline = 60.0,
    question: Annotated[Path | None, typer.Option(hidden=True)] = None,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Classify texts with a remote model; only you learn text and answer."""
    from privml._cli import query as verb
    from privml._cli.inputs import Question

    if question is not None:
        asked = Question.from_file(question)
    else:
        asked = _question(text, file, labels, template, truncate)
    options = verb.Options(
        plan=plan, pool=pool, peer=peer, identity=identity, pin=pin,
        cache=cache or verb.default_cache(), used=used, insecure_loopback=insecure_loopback,
        connect_s=connect, deadline_s=deadline,
    )  # fmt: skip
    with Output() as out:
        verb.run(out, asked, options)


@app.command()
def cert(
    identity: Annotated[str, typer.Argument(help="DIR/NAME, for instance certs/server.")],
    days: Annotated[int, typer.Option(min=1, help="Validity.")] = 365,
    show: Annotated[bool, typer.Option("--show", help="Show an identity that exists.")] = False,
    json: Json = False, quiet: Quiet = False, debug: Debug = False,
) -> None:  # fmt: skip
    """Make a key and certificate, and print the fingerprint for the other party."""
    from privml._cli import cert as verb

    with Output() as out:
        verb.run(out, identity=identity, days=days, show=show)


app.command("learn-thresholds")(app_models.learn_thresholds)
app.command("calibrate-thresholds")(app_models.calibrate_thresholds)
app.command()(app_models.evaluate)
app.add_typer(fhe)
app.add_typer(value)


@app.command()
def doctor(
    model: Model = "minilm-l6", json: Json = False, quiet: Quiet = False, debug: Debug = False
) -> int:
    """Check backend, versions, model and room on this machine."""
    from privml._cli import doctor as verb

    with Output() as out:
        return verb.run(out, model=model)


def _question(
    texts: list[str] | None, files: list[Path] | None, labels: str, template: str | None,
    truncate: bool,
) -> Question:  # fmt: skip
    from privml._cli.inputs import question
    from privml.backbones.zero_shot import DEFAULT_TEMPLATE

    return question(
        texts=texts or (), files=files or (), labels=labels,
        template=DEFAULT_TEMPLATE if template is None else template, truncate=truncate,
    )  # fmt: skip


def usage_message(error: BaseException) -> str:
    """Return the message of an error of the option parser, or an empty text."""
    describe = getattr(error, "format_message", None)
    return str(describe()) if callable(describe) else ""
