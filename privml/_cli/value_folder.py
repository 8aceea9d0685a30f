"""Result folders of ``privml value``: what was asked, what came out, safe against kill and crash.

``job.json`` is written before anything is computed and says everything that a run depends on;
the checkpoint is replaced whole; results are written after it and name each other's digests. One
process at a time holds the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from privml._cli.output import UsageError
from privml._cli.value_build import KINDS, Kind
from privml._cli.value_spec import Spec, check
from privml.backbones.digests import Json, canonical_json, sha256
from privml.storage import fs
from privml.storage.files import read_file
from privml.storage.publish import atomic_write
from privml.valuation.errors import CorruptResult

FORMAT: Final = "privml value job 1"
_LIMIT: Final = 64 << 20


@dataclass(frozen=True)
class Job:
    """What a folder is for.

    Attributes
    ----------
    kind
        Verb that made it.
    tree
        The spec as written, without defaults.
    spec_path
        The spec file; data files are relative to its folder.
    data_digest
        Digest of the problem.
    inputs
        Role, name, digest and rows of each data file.
    """

    kind: Kind
    tree: Mapping[str, Any]
    spec_path: str
    data_digest: str
    inputs: tuple[Mapping[str, Any], ...]

    @property
    def spec(self) -> Spec:
        """The checked spec."""
        return check(self.tree, path=Path(self.spec_path))

    def canonical(self) -> bytes:
        """Return the job as canonical JSON."""
        return canonical_json(
            {
                "format": FORMAT,
                "kind": self.kind,
                "spec": cast("Json", self.tree),
                "spec_path": self.spec_path,
                "data_digest": self.data_digest,
                "inputs": cast("Json", list(self.inputs)),
            }
        )

    def digest(self) -> str:
        """Return the digest of the job, wherever its files lie."""
        return sha256(canonical_json([self.kind, cast("Json", self.tree), self.data_digest]))


class Folder:
    """Files of one run.

    Parameters
    ----------
    path
        The folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job_file = path / "job.json"
        self.checkpoint = path / "checkpoint.safetensors"
        self.trace = path / "trace.safetensors"
        self.csv = path / "values.csv"
        self.json = path / "values.json"
        self.record = path / "record.json"
        self.report = path / "report.html"

    def begin(self, job: Job) -> None:
        """Make the folder and put down the job; refuses a folder that holds anything."""
        if fs.exists(self.path):
            names = sorted(item.name for item in self.path.iterdir()) if self.path.is_dir() else []
            if self.job_file.name in names:
                raise UsageError(
                    f"{self.path} holds a run already: `privml value resume {self.path}` goes on "
                    "with it; give another folder for a new one"
                )
            if names or not self.path.is_dir():
                raise UsageError(f"{self.path} is in use; give a new folder")
        fs.ensure_dir(self.path)
        atomic_write(self.job_file, job.canonical(), replace=False)

    def job(self) -> Job:
        """Return the job of the folder; raises ``UsageError`` or ``CorruptResult``."""
        if not fs.exists(self.job_file):
            raise UsageError(f"{self.path} holds no run: there is no {self.job_file.name}")
        data = read_file(self.job_file, limit=_LIMIT)
        try:
            tree = json.loads(data)
            if tree.pop("format") != FORMAT:
                raise ValueError("unknown format")
            kind = tree["kind"]
            if kind not in KINDS or set(tree) != _FIELDS:
                raise ValueError("unknown fields")
            return Job(
                kind, _mapping(tree["spec"]), str(tree["spec_path"]), str(tree["data_digest"]),
                tuple(_mapping(one) for one in tree["inputs"]),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CorruptResult(f"{self.job_file} describes no run: {error}") from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out while a run writes here."""
        with fs.File.open(self.path / "lock", writable=True, create=True) as lock:
            lock.lock()
            yield

    def write(self, path: Path, text: str | bytes) -> None:
        """Replace one of the files."""
        atomic_write(path, text.encode("utf-8") if isinstance(text, str) else text)


_FIELDS: Final = {"kind", "spec", "spec_path", "data_digest", "inputs"}


def _mapping(value: Any) -> Mapping[str, Any]:  # noqa: ANN401 - untrusted JSON
    if not isinstance(value, dict):
        raise TypeError(f"{type(value).__name__} where an object belongs")
    return value
