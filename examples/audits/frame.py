"""Shared frame of the audit scripts: bars, report, command line, output.

An audit is a function that measures and adds bars to a report. A bar is one number with the target
it has to meet and what it is measured against. A bar that fails is printed with ``holds: false``, a
peer that is not installed with ``value: null`` and the reason; neither is ever left out::

    def audit(report: Report, options: Options) -> None:
        with report.section("ring product", "gemm.speedup"):
            report.add(at_least("gemm.speedup", measure(), 10, unit="x", against="torch int64"))

    if __name__ == "__main__":
        sys.exit(run(__doc__, audit))
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict, Unpack

from machine import environment
from peers.environments import default_root

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Bar:
    """One number and the target it has to meet.

    Attributes
    ----------
    name
        Dotted, unique in a report, e.g. ``"layer.minilm.online_s"``.
    value
        The measured number; ``None`` if it could not be measured.
    target
        The target in words, e.g. ``"<= 6 s"``; empty if the number is only reported.
    holds
        Whether the target is met; ``None`` without a target or without a peer to compare with.
    against
        What the number is measured against: a peer with its trust model, or a design budget.
    unit
        Unit of `value`.
    reason
        Why there is no value, or what a reader must know about it.
    detail
        Further figures: spread, samples, claims.
    """

    name: str
    value: float | None
    target: str
    holds: bool | None
    against: str
    unit: str = ""
    reason: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return the bar for JSON; a value that is not finite becomes null, with the reason."""
        finite = self.value is None or math.isfinite(self.value)
        return {
            "name": self.name,
            "value": self.value if finite else None,
            "target": self.target,
            "holds": self.holds,
            "against": self.against,
            "unit": self.unit,
            "reason": self.reason if finite else f"{self.reason} value is {self.value}".strip(),
            "detail": dict(self.detail),
        }


class Extras(TypedDict, total=False):
    """What a bar may say besides its number; `aim` is a further goal, shown only."""

    unit: str
    aim: float
    reason: str
    detail: Mapping[str, object]


def at_least(name: str, value: float, limit: float, *, against: str, **more: Unpack[Extras]) -> Bar:
    """Return a bar that holds if ``value >= limit``."""
    return _judged(name, value, value >= limit, f">= {limit:g}", against, more)


def at_most(name: str, value: float, limit: float, *, against: str, **more: Unpack[Extras]) -> Bar:
    """Return a bar that holds if ``value <= limit``."""
    return _judged(name, value, value <= limit, f"<= {limit:g}", against, more)


def _judged(name: str, value: float, holds: bool, target: str, against: str, more: Extras) -> Bar:
    unit, aim = more.get("unit", ""), more.get("aim")
    target = f"{target} {unit}".rstrip() + ("" if aim is None else f" (aim {aim:g})")
    reason, detail = more.get("reason", ""), more.get("detail", {})
    return Bar(name, value, target, bool(holds), against, unit, reason, detail)


def reported(name: str, value: float, *, against: str, **more: Unpack[Extras]) -> Bar:
    """Return a number without a target."""
    bar = _judged(name, value, True, "", against, more)
    return replace(bar, target="", holds=None)


def absent(name: str, target: str, *, against: str, reason: str) -> Bar:
    """Return a bar whose peer or input is not there: no value, no verdict, the reason."""
    return Bar(name, None, target, None, against, reason=reason)


@dataclass(frozen=True)
class Options:
    """What the command line asked for.

    Attributes
    ----------
    json
        One JSON document on stdout instead of a table.
    quick
        Fewer repeats and smaller sweeps: below 50 s.
    peers
        Set up missing peers, each in a virtual environment of its own under `peer_dir`.
    threads
        Threads of each party.
    programs
        Programs of peers that the user named, by flag.
    paths
        Files and folders of inputs that the user named, by flag.
    """

    json: bool = False
    quick: bool = False
    peers: bool = False
    peer_dir: Path = field(default_factory=default_root)
    threads: int = 1
    programs: Mapping[str, Path] = field(default_factory=dict)
    paths: Mapping[str, Path] = field(default_factory=dict)

    def repeats(self, full: int = 5, quick: int = 3) -> int:
        """Return the number of timed runs."""
        return quick if self.quick else full


class Report:
    """The bars of one run, in the order they were added."""

    def __init__(self) -> None:
        self.bars: list[Bar] = []
        self.broken: list[str] = []
        self._started_s = time.monotonic()

    def progress(self, text: str) -> None:
        """Say on stderr what is being measured, and when since the start."""
        elapsed_s = time.monotonic() - self._started_s
        print(f"[{elapsed_s:5.1f} s] {text}", file=sys.stderr, flush=True)

    def has(self, name: str) -> bool:
        """Return whether the bar was added."""
        return any(bar.name == name for bar in self.bars)

    def add(self, *bars: Bar) -> None:
        """Add bars; a repeated name is an error of the script."""
        for bar in bars:
            if self.has(bar.name):
                raise ValueError(f"bar {bar.name} was added twice")
            self.bars.append(bar)

    @contextmanager
    def section(self, title: str, *names: str) -> Iterator[None]:
        """Measure one topic; `names` are the bars it must deliver.

        If the block fails, the bars that it had not added yet are reported with ``holds: false``
        and the error, the other sections still run, and the exit status of the run becomes 1.
        """
        self.progress(title)
        reason = "the section ended without adding this bar"
        try:
            yield
        except Exception as error:  # noqa: BLE001 - one broken section must not hide the others
            reason = f"{type(error).__name__}: {error}"
            self.broken.append(f"{title}: {reason}")
        missing = [name for name in names if not self.has(name)]
        self.bars += [Bar(name, None, "measured", False, "", reason=reason) for name in missing]
        if missing and not reason.partition(": ")[1]:
            self.broken.append(f"{title}: no {', '.join(missing)}")

    @property
    def exit_status(self) -> int:
        """0, also if bars fail; 1 if a section broke."""
        return 1 if self.broken else 0


def parse(
    description: str,
    argv: Sequence[str] | None = None,
    *,
    programs: Mapping[str, str] | None = None,
    paths: Mapping[str, str] | None = None,
) -> Options:
    """Read the flags that all audits share, and a path for each of `programs` and `paths`."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, below 50 s")
    parser.add_argument(
        "--peers", action="store_true",
        help="set up missing peers, each in a virtual environment of its own",
    )  # fmt: skip
    parser.add_argument(
        "--peer-dir", type=Path, default=default_root(), metavar="DIR",
        help="folder for the peers' environments (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads per party")
    for name, about in {**(programs or {}), **(paths or {})}.items():
        parser.add_argument(f"--{name}", type=Path, metavar="PATH", help=about)
    given = parser.parse_args(argv)
    if given.threads < 1:
        parser.error("--threads must be at least 1")
    named = {name: getattr(given, name) for name in programs or {} if getattr(given, name)}
    for name, path in named.items():
        if not path.is_file():
            parser.error(f"--{name}: there is no file {path}")
    inputs = {name: getattr(given, name) for name in paths or {} if getattr(given, name)}
    for name, path in inputs.items():
        if not path.exists():
            parser.error(f"--{name}: there is no {path}")
    return Options(
        given.json, given.quick, given.peers, given.peer_dir, given.threads, named, inputs
    )


def run(
    description: str,
    audit: Callable[[Report, Options], None],
    argv: Sequence[str] | None = None,
    *,
    programs: Mapping[str, str] | None = None,
    paths: Mapping[str, str] | None = None,
) -> int:
    """Run an audit from the command line and print its report.

    Parameters
    ----------
    description
        Text of ``--help``; its first line counts.
    audit
        Measures and adds bars.
    argv
        Arguments; None for those of the process.
    programs
        Flags that name a peer's program by path, and their help.
    paths
        Flags that name a file or folder to read, and their help.

    Returns
    -------
    int
        Exit status: 0, also if bars fail; 1 if a section of the script broke.
    """
    options = parse(description, argv, programs=programs, paths=paths)
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, str(options.threads))
    before = environment(threads=options.threads)
    report = Report()
    with redirect_stdout(sys.stderr):  # whatever is printed while measuring is progress
        audit(report, options)
    after = environment(threads=options.threads)
    after["load_average_at_start"] = before["load_average"]
    bars = [bar.as_dict() for bar in report.bars]
    if options.json:
        print(json.dumps({"bars": bars, "environment": after}, indent=1, allow_nan=False))
    else:
        print_table(report.bars, after)
    for line in report.broken:
        report.progress(f"broken: {line}")
    return report.exit_status


def _number(value: float) -> str:
    return f"{value:.5g}" if abs(value) < 1e4 else f"{value:,.0f}"


def print_table(bars: Sequence[Bar], machine: Mapping[str, object]) -> None:
    """Print the bars as a table, then reasons and the machine."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Audit", title_justify="left")
    for column in ("bar", "value", "target", "holds", "against"):
        table.add_column(column, justify="right" if column == "value" else "left")
    words = {True: "[green]yes[/green]", False: "[bold red]NO[/bold red]", None: "-"}
    for bar in bars:
        value = "-" if bar.value is None else f"{_number(bar.value)} {bar.unit}".strip()
        table.add_row(bar.name, value, bar.target or "-", words[bar.holds], bar.against)
    console = Console()
    console.print(table)
    for bar in bars:
        if bar.reason:
            console.print(f"{bar.name}: {bar.reason}", highlight=False, markup=False)
    failing = sum(bar.holds is False for bar in bars)
    console.print(f"{len(bars)} bars, {failing} do not hold", highlight=False)
    console.print(", ".join(f"{k}: {v}" for k, v in machine.items()), highlight=False, markup=False)
