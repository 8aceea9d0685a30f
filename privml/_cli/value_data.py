"""Tables of ``privml value``: CSV files to a problem, every choice stated, nothing guessed."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privml._cli.value_spec import Spec
from privml.backbones.digests import sha256
from privml.errors import SchemaError
from privml.rng import ScienceSeed
from privml.storage.files import read_file
from privml.valuation.problem import Floats, Problem

_LIMIT: Final = 8 << 30
_MISSING: Final = frozenset({"", "na", "n/a", "nan", "null", "none"})
_SHOWN: Final = 5


@dataclass(frozen=True, eq=False)
class Sheet:
    """A CSV file as texts.

    Attributes
    ----------
    name, digest
        File name and SHA-256 of its bytes.
    columns
        Texts of each column.
    lines
        Line of each row in the file.
    """

    name: str
    digest: str
    columns: dict[str, list[str]]
    lines: list[int]

    def rows(self) -> int:
        """Return the number of rows."""
        return len(self.lines)

    def keep(self, chosen: list[int]) -> Sheet:
        """Return some of the rows."""
        columns = {name: [texts[k] for k in chosen] for name, texts in self.columns.items()}
        return Sheet(self.name, self.digest, columns, [self.lines[k] for k in chosen])


@dataclass(frozen=True, eq=False)
class Table:
    """What a spec's data section stands for.

    Attributes
    ----------
    problem
        Training and validation rows.
    report
        The same training rows with the rows of ``data.report`` in place of the validation rows.
    labels
        Label or target of each player, as text; groups show the number of their rows.
    sources
        Source of each row, if there is such a column.
    features
        Names of the encoded columns.
    inputs
        Name, role, digest and rows of each file.
    notes
        What was done to the data, in words.
    """

    problem: Problem
    report: Problem | None
    labels: list[str]
    sources: list[str] | None
    features: list[str]
    inputs: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)


def load_table(
    spec: Spec, *, without: Collection[str] = (), needs_validation: bool = True
) -> Table:
    """Read, check and encode the tables of a spec.

    Parameters
    ----------
    spec
        Checked spec.
    without
        Names of players that are left out as if their rows had never been in the file: the scaler
        and the means of missing cells do not see them either.
    needs_validation
        Whether a spec without validation rows is refused; else the training rows stand in.

    Raises
    ------
    SchemaError
        A file or a column does not fit; the message names file, line, column and remedy.
    ProblemError
        Rows and labels do not make a problem.
    """
    return _Loader(spec, frozenset(without), needs_validation).table()


class _Loader:
    def __init__(self, spec: Spec, without: frozenset[str], needs_validation: bool) -> None:
        self._spec, self._data, self._without = spec, spec["data"], without
        self._needs_validation = needs_validation
        self._notes: list[str] = []

    def table(self) -> Table:
        data, inputs = self._data, []
        sheets = {"train": read_sheet(self._spec.file(data["train"]), data["delimiter"])}
        given = [name for name in ("validation", "validation_share") if data[name] is not None]
        stand_in = not given and not self._needs_validation
        if len(given) != 1 and not stand_in:
            raise SchemaError("[data]: give either validation (a file) or validation_share")
        for role in ("validation", "report"):
            if data[role] is not None:
                sheets[role] = read_sheet(self._spec.file(data[role]), data["delimiter"])
        for role, sheet in sheets.items():
            inputs.append(
                {"role": role, "name": sheet.name, "sha256": sheet.digest, "rows": sheet.rows()}
            )
        features = self._features(sheets["train"])
        if data["validation_share"] is not None:
            sheets = self._split(sheets)
        sheets = {role: self._present(sheet, features) for role, sheet in sheets.items()}
        sheets["train"] = self._staying(sheets["train"])
        if stand_in:
            sheets["validation"] = sheets["train"]
            self._notes.append("no validation rows: values need none; a report's curves do")
        return self._encoded(sheets, features, inputs)

    def _features(self, train: Sheet) -> list[str]:
        data = self._data
        special = [data[name] for name in ("target", "id", "group", "source") if data[name]]
        listed = [*special, *data["features"], *data["ignore"], *data["categories"]]
        for name in listed:
            if name not in train.columns:
                raise SchemaError(
                    f"{train.name} has no column {name!r}; it has {', '.join(train.columns)}"
                )
        wanted = list(data["features"]) or [
            name for name in train.columns if name not in {*special, *data["ignore"]}
        ]
        overlap = sorted(set(wanted) & {str(data["target"]), str(data["id"])})
        if overlap:
            raise SchemaError(f"[data]: {overlap[0]} is target or id and cannot be a feature")
        if not wanted:
            raise SchemaError(f"{train.name} has no column left as a feature")
        return wanted

    def _split(self, sheets: dict[str, Sheet]) -> dict[str, Sheet]:
        """Draw the validation rows from the training rows, by the run's seed."""
        train, share = sheets["train"], self._data["validation_share"]
        seed = ScienceSeed(self._spec["run"]["seed"]).child("split")
        count = round(share * train.rows())
        if not 0 < count < train.rows():
            raise SchemaError(
                f"validation_share of {share:g} leaves {count} of {train.rows()} rows"
            )
        order = seed.generator().permutation(train.rows())
        held = set(order[:count].tolist())
        stay = [k for k in range(train.rows()) if k not in held]
        self._notes.append(f"{count} rows drawn as validation rows, {len(stay)} left to be valued")
        return {**sheets, "train": train.keep(stay), "validation": train.keep(sorted(held))}

    def _present(self, sheet: Sheet, features: list[str]) -> Sheet:
        """Check that all columns are there, and refuse or drop rows with missing cells."""
        data = self._data
        needed = [*features, data["target"]]
        for name in needed:
            if name not in sheet.columns:
                raise SchemaError(f"{sheet.name} has no column {name!r}")
        must = [data["target"], *(data[r] for r in ("id", "group", "source") if data[r])]
        empty = {
            name: [k for k, text in enumerate(sheet.columns[name]) if missing(text)]
            for name in {*needed, *must} if name in sheet.columns
        }  # fmt: skip
        if data["missing"] == "drop":
            gone = {k for rows in empty.values() for k in rows}
            if gone:
                self._notes.append(f"{sheet.name}: {len(gone)} rows with missing cells left out")
                return sheet.keep([k for k in range(sheet.rows()) if k not in gone])
            return sheet
        strict = needed if data["missing"] == "refuse" else []
        for name in dict.fromkeys([*must, *strict]):
            if empty.get(name):
                row = empty[name][0]
                raise SchemaError(
                    f"{sheet.name}, line {sheet.lines[row]}: {name} is missing "
                    f"({len(empty[name])} such cells); fill it"
                    + ("" if name in must else ', or set missing to "drop" or "mean"')
                )
        return sheet

    def _staying(self, train: Sheet) -> Sheet:
        if not self._without:
            return train
        group = self._data["group"]
        owner = train.columns[group] if group else self._ids(train)
        return train.keep([k for k in range(train.rows()) if owner[k] not in self._without])

    def _encoded(
        self, sheets: dict[str, Sheet], features: list[str], inputs: list[dict[str, Any]]
    ) -> Table:
        data, train = self._data, sheets["train"]
        blocks: dict[str, list[Floats]] = {role: [] for role in sheets}
        names: list[str] = []
        for name in features:
            if name in data["categories"]:
                levels = sorted(set(train.columns[name]))
                names += [f"{name}={level}" for level in levels]
                for role, sheet in sheets.items():
                    blocks[role].append(self._one_hot(sheet, name, levels))
            else:
                names.append(name)
                middle = self._middle(train, name)
                for role, sheet in sheets.items():
                    column = numbers(sheet, name)
                    blocks[role].append(np.where(np.isnan(column), middle, column)[:, None])
        arrays = {role: np.hstack(parts) for role, parts in blocks.items()}
        if data["scale"] == "standard":
            arrays = self._scaled(arrays)
        y = {role: target(sheet, data["target"], data["task"]) for role, sheet in sheets.items()}
        who: dict[str, Any] = {
            "ids": self._ids(train),
            "groups": train.columns[data["group"]] if data["group"] else None,
            "task": data["task"],
        }
        problem = Problem.of(
            arrays["train"], y["train"], arrays["validation"], y["validation"], **who
        )
        who["task"] = problem.task
        report = None
        if "report" in sheets:
            report = Problem.of(arrays["train"], y["train"], arrays["report"], y["report"], **who)
        sources = train.columns[data["source"]] if data["source"] else None
        labels = train.columns[data["target"]]
        if problem.group_mode == "player":
            labels = [f"{count} rows" for count in problem.row_counts.tolist()]
        return Table(problem, report, list(labels), sources, names, inputs, self._notes)

    def _ids(self, train: Sheet) -> list[Any]:
        name = self._data["id"]
        if name is None:
            return [f"line {line}" for line in train.lines]
        seen: dict[str, int] = {}
        for text, line in zip(train.columns[name], train.lines, strict=True):
            if text in seen:
                raise SchemaError(
                    f"{train.name}, line {line}: {name} {text!r} stood in line {seen[text]} "
                    "already; ids must be distinct"
                )
            seen[text] = line
        return list(train.columns[name])

    def _one_hot(self, sheet: Sheet, name: str, levels: list[str]) -> Floats:
        texts = np.array(sheet.columns[name])
        unknown = sorted(set(sheet.columns[name]) - set(levels))
        if unknown:
            shown = ", ".join(repr(text) for text in unknown[:_SHOWN])
            self._notes.append(f"{sheet.name}: {name} has unknown categories {shown}: all zeros")
        return np.asarray(texts[:, None] == np.array(levels)[None, :], dtype=np.float64)

    def _middle(self, train: Sheet, name: str) -> float:
        """Return what takes the place of missing numbers."""
        column = numbers(train, name)
        known = column[~np.isnan(column)]
        if not len(known):
            raise SchemaError(f"{train.name}: column {name!r} has no number; list it under ignore")
        if len(known) < len(column):
            self._notes.append(
                f"{name}: {len(column) - len(known)} missing numbers set to the mean"
            )
        return float(known.mean())

    def _scaled(self, arrays: dict[str, Floats]) -> dict[str, Floats]:
        """Return columns of mean 0 and deviation 1 over the training rows."""
        middle = arrays["train"].mean(axis=0)
        spread = arrays["train"].std(axis=0)
        spread[spread == 0] = 1.0
        self._notes.append("columns scaled by mean and deviation of the training rows")
        return {role: (array - middle) / spread for role, array in arrays.items()}


def read_sheet(path: Path, delimiter: str = ",") -> Sheet:
    """Return a CSV file with a line of column names; raises ``SchemaError``."""
    data = read_file(path, limit=_LIMIT)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path.name} is not UTF-8 text; convert it") from error
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    lines, rows = [], []
    try:
        names = [name.strip() for name in next(reader, [])]
        for row in reader:
            if not row:
                continue
            if len(row) != len(names):
                raise SchemaError(
                    f"{path.name}, line {reader.line_num}: {len(row)} cells, {len(names)} expected"
                )
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as error:
        raise SchemaError(f"{path.name}, line {reader.line_num}: {error}") from error
    if not rows or len(set(names)) != len(names) or "" in names:
        raise SchemaError(
            f"{path.name} needs a first line of distinct column names and at least one row"
        )
    cells = zip(names, zip(*rows, strict=True), strict=True)
    columns = {name: [text.strip() for text in column] for name, column in cells}
    return Sheet(path.name, sha256(data), columns, lines)


def missing(text: str) -> bool:
    """Return whether a cell stands for a missing value."""
    return text.lower() in _MISSING


def numbers(sheet: Sheet, name: str) -> Floats:
    """Return a column as numbers, NaN where missing; refuses texts."""
    out = np.empty(sheet.rows())
    for k, text in enumerate(sheet.columns[name]):
        try:
            out[k] = np.nan if missing(text) else float(text)
        except ValueError:
            raise SchemaError(
                f"{sheet.name}, line {sheet.lines[k]}: {name} holds {text[:40]!r}, not a number; "
                "list the column under categories or ignore"
            ) from None
    return out


def target(sheet: Sheet, name: str, task: str | None) -> NDArray[Any]:
    """Return labels: numbers where all are numbers (or must be), texts otherwise."""
    texts = sheet.columns[name]
    if task == "regression":
        return numbers(sheet, name)
    try:
        found = np.array([float(text) for text in texts])
    except ValueError:
        return np.array(texts)
    whole = np.isfinite(found).all() and (found == np.round(found)).all()
    return found.astype(np.int64) if whole else found
