"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Results only.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Model = Annotated[str, typer.Option(help="minilm-l6, or a BERT checkpoint's directory.")]
PlanFile = Annotated[Path, typer.Option("--plan", help="Plan file of `privml plan`.")]
Embedding = Annotated[
    Literal["released", "private"],
    typer.Option(help="Do clients get the embedding tables? private costs more."),
]
Texts = Annotated[
    list[str] | None, typer.Option("--text", metavar="TEXT", help="A text; repeatable.")
]
Files = Annotated[
    list[Path] | None, typer.Option("--file", metavar="FILE", help="Texts, one per line.")
]
Labels = Annotated[str, typer.Option(help="Candidate labels, separated by commas.")]
Template = Annotated[str | None, typer.Option(help='Default: "This text is about {label}."')]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long.")]
Used = Annotated[Path | None, typer.Option(help="Log of used pools [default: the user's].")]
Insecure = Annotated[
    bool, typer.Option("--insecure-loopback", help="Plaintext, on this machine only.")
]
Thresholds = Annotated[
    Path | None, typer.Option("--thresholds", help="The server's secret, NAME of its two files.")
]
RevealMode = Annotated[
    Literal["bucket", "count", "schedule"] | None,
    typer.Option(help="What both learn of the tokens kept [default: bucket]."),
]
IdentityName = Annotated[
    str | None, typer.Option("--identity", help="DIR/NAME of this side's certificate.")
]
Deadline = Annotated[
    float,
    typer.Option("--deadline", min=0.1, metavar="SECONDS", help="For one step of the peer."),
]
Grid = Annotated[str, typer.Option(help="Buckets of token counts, like 8,16,32,64.")]
NoReduce = Annotated[
    bool, typer.Option("--no-reduce", help="No cheaper polynomials for minor tokens.")
]
Schedule = Annotated[
    str, typer.Option(help="Fixed tokens per layer but the last, like 55,54 or 55/20,54/20.")
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Line 1 names the columns [default: if it is text or sentence, tab, label or class].",
    ),
]
