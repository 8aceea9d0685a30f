"""Spec files of ``privml value``: TOML, checked key by key.

One file serves every verb: ``[data]``, ``[utility]``, ``[stop]`` and ``[run]`` are shared, and each
verb reads the section of its name.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from privml._cli.value_keys import REQUIRED, SECTIONS, Key
from privml.errors import SchemaError
from privml.storage.files import read_file

_LIMIT: Final = 1 << 20
Section: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Spec:
    """A checked spec.

    Attributes
    ----------
    path
        Where it was read; data files are relative to its folder.
    sections
        Every section with every key: given values, defaults for the others.
    given
        Keys that stand in the file, by section.
    """

    path: Path
    sections: dict[str, Section]
    given: dict[str, tuple[str, ...]]

    def __getitem__(self, section: str) -> Section:
        return self.sections[section]

    def file(self, name: str) -> Path:
        """Return the path of a data file named in the spec."""
        return (self.path.parent / name).resolve()


def read_spec(path: Path) -> Spec:
    """Read and check a spec file.

    Raises
    ------
    SchemaError
        It is no TOML, or a section, key or value is wrong; the message names line, key and what is
        allowed.
    StorageError
        It cannot be read.
    """
    text = _text(read_file(path, limit=_LIMIT), path)
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SchemaError(f"{path} is no TOML: {error}") from error
    return check(tree, path=path, text=text)


def check(tree: Mapping[str, Any], *, path: Path, text: str = "") -> Spec:
    """Return the checked spec of a tree; see :func:`read_spec`."""
    where = _Where(path, text)
    for name, section in tree.items():
        if not isinstance(section, dict):
            raise SchemaError(
                f"{where('', name)}: {name} stands outside of a section; put it in one of "
                f"{_listed(SECTIONS)}"
            )
        if name not in SECTIONS:
            raise SchemaError(f"{where(name)}: unknown section [{name}]; use {_listed(SECTIONS)}")
    sections = {
        name: _section(name, tree.get(name, {}), keys, where) for name, keys in SECTIONS.items()
    }
    given = {name: tuple(tree.get(name, {})) for name in SECTIONS}
    return Spec(path, sections, given)


def _section(
    name: str, found: Mapping[str, Any], keys: Mapping[str, Key], where: _Where
) -> Section:
    for key in found:
        if key not in keys:
            raise SchemaError(
                f"{where(name, key)}: unknown key {key}; [{name}] takes {_listed(keys)}"
            )
    out: Section = {}
    for key, rule in keys.items():
        if key in found:
            out[key] = _value(found[key], rule, f"{where(name, key)}: {key}")
        elif rule.default is REQUIRED and name == "data":
            raise SchemaError(f"{where(name)}: {key} is missing; give {rule.words}")
        else:
            out[key] = rule.default
    return out


def _value(value: Any, rule: Key, where: str) -> Any:  # noqa: ANN401 - any TOML value
    wrong = SchemaError(f"{where} = {_shown(value)}; give {rule.words}")
    for kind in rule.kinds:
        if _CHECKS[kind](value, rule):
            return float(value) if kind == "number" else value
    raise wrong


def _whole(value: Any, rule: Key) -> bool:  # noqa: ANN401
    return isinstance(value, int) and not isinstance(value, bool) and rule.inside(value)


def _number(value: Any, rule: Key) -> bool:  # noqa: ANN401
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and math.isfinite(value) and rule.inside(value)


def _amount(value: Any, rule: Key) -> bool:  # noqa: ANN401
    del rule
    return isinstance(value, str) and bool(re.fullmatch(r"\d+(\.\d+)?n", value)) and value != "0n"


_CHECKS: Final[dict[str, Callable[[Any, Key], bool]]] = {
    "whole": _whole,
    "number": _number,
    "amount": _amount,
    "flag": lambda value, _: isinstance(value, bool),
    "text": lambda value, _: isinstance(value, str) and value != "",
    "choice": lambda value, rule: isinstance(value, str) and value in rule.choices,
    "texts": lambda value, _: isinstance(value, list) and all(isinstance(v, str) for v in value),
    "numbers": lambda value, rule: isinstance(value, list) and all(_number(v, rule) for v in value),
}


@dataclass(frozen=True)
class _Where:
    """Where a key stands: the file, its section and, as far as the text shows it, its line."""

    path: Path
    text: str

    def __call__(self, section: str, key: str = "") -> str:
        line, inside = 0, section == ""
        pattern = re.compile(rf"\s*(\"{re.escape(key)}\"|{re.escape(key)})\s*=") if key else None
        for number, content in enumerate(self.text.splitlines(), start=1):
            head = re.match(r"\s*\[\s*\"?([^\]\"]+?)\"?\s*\]", content)
            if head:
                inside = head[1] == section
                if inside and pattern is None:
                    line = number
                    break
            elif inside and pattern is not None and pattern.match(content):
                line = number
                break
        place = f"{self.path.name}, line {line}" if line else self.path.name
        return f"{place}, [{section}]" if section else place


def _listed(names: Any) -> str:  # noqa: ANN401 - any iterable of texts
    return ", ".join(names)


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 60 else text[:57] + "..."


def _text(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SchemaError(f"{path} is not UTF-8 text: {error.reason}") from error
