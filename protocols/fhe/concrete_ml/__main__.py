"""Command line of the concrete-ml environment: ``install``, ``status``, ``remove``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from privml.errors import PrivmlError
from privml.protocols.fhe.concrete_ml import environment
from privml.protocols.fhe.licence import NOTICE


def main(words: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m privml.protocols.fhe.concrete_ml", description=__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("install", help="build the environment (3 GB on disk)")
    build.add_argument("--python", type=Path, help="a Python 3.11, if not the one on the path")
    commands.add_parser("status", help="say whether it is there and whole")
    commands.add_parser("remove", help="remove it")
    options = parser.parse_args(words)
    try:
        return _run(options.command, getattr(options, "python", None))
    except PrivmlError as error:
        _say(error.diagnostics(), error=True)
        return error.exit_code


def _run(command: str, python: Path | None) -> int:
    if command == "install":
        _say(NOTICE)
        found = environment.install(python=python, say=_say)
        _say(f"{found.folder}")
        return 0
    if command == "remove":
        _say("removed" if environment.remove() else "there was none")
        return 0
    reason = environment.missing()
    _say(reason or f"whole: {environment.place()}")
    return 0 if reason is None else 3


def _say(text: str, *, error: bool = False) -> None:
    stream = sys.stderr if error else sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
