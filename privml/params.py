"""Checked parameters: one error that lists every problem of a literal."""

from __future__ import annotations

from collections.abc import Iterable

from privml.errors import ParameterError


def check(what: str, problems: Iterable[str]) -> None:
    """Raise one ``ParameterError`` that lists all ``problems`` of ``what``, if there are any."""
    found = list(problems)
    if found:
        raise ParameterError(f"{what}: {'; '.join(found)}")


def outside(name: str, value: float, low: float, high: float) -> list[str]:
    """Return the problem of a number outside ``[low, high]``, or nothing."""
    return [] if low <= value <= high else [f"{name} = {value:g} must lie in [{low:g}, {high:g}]"]
