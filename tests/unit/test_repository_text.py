"""Rules about the text of every file: length, machine places, marks of unfinished work."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

MAX_LINES = 600
CODE_SUFFIXES = (".py", ".cpp", ".hpp", ".h", ".cu")

# Written with character classes so that this file does not match itself.
_PLACES = re.compile(
    r"(?<![\w.])/(?:hom[e]|roo[t]|User[s]|wor[k]|worksp[a]ce)/\w"
    r"|https?://[\w.-]*(?:py[p]i|pythonhoste[d]|npmj[s]|deb[i]an|crate[s])\b",
    re.IGNORECASE,
)
_UNFINISHED = re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X]|HAC[K])\b")

Rule = Callable[[str, str], list[int]]


def lines_with(pattern: re.Pattern[str], text: str) -> list[int]:
    return [n for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


def too_long(path: str, text: str) -> list[int]:
    """A code file is a page or a few, not a book."""
    lines = text.count("\n")
    return [lines] if path.endswith(CODE_SUFFIXES) and lines > MAX_LINES else []


def machine_places(path: str, text: str) -> list[int]:
    """No path of somebody's machine and no registry host; installers are configured outside."""
    del path
    return lines_with(_PLACES, text)


def unfinished(path: str, text: str) -> list[int]:
    """What is missing is said in the README's status table, not in the code."""
    del path
    return lines_with(_UNFINISHED, text)


RULES: tuple[Rule, ...] = (too_long, machine_places, unfinished)

# Words are joined where the sample itself would break the rule.
BAD: tuple[tuple[Rule, str, str], ...] = (
    (too_long, "privml/a.py", "x = 1\n" * 601),
    (too_long, "protocols/mpc/native/a.cpp", "\n" * 601),
    (machine_places, "README.md", "see /" + "home/me/models"),
    (machine_places, "privml/a.py", "PATH = '/" + "root/x'"),
    (machine_places, "docs/a.md", "pip install -i https://index." + "py" + "pi.example/x"),
    (unfinished, "privml/a.py", "# " + "TO" + "DO later"),
    (unfinished, "docs/a.md", "FIX" + "ME: say more"),
)
GOOD: tuple[tuple[Rule, str, str], ...] = (
    (too_long, "privml/a.py", "x = 1\n" * 600),
    (too_long, "docs/a.md", "\n" * 900),
    (machine_places, "docs/a.md", "cp model.safetensors /srv/models/ && cd ../models/x"),
    (unfinished, "privml/a.py", "# the mastodon"),
)


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_rule_catches_a_bad_sample(rule: Rule, path: str, text: str) -> None:
    assert rule(path, text)


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_rule_leaves_a_good_sample_alone(rule: Rule, path: str, text: str) -> None:
    assert rule(path, text) == []


def test_every_rule_has_samples_of_both_kinds() -> None:
    for samples in (BAD, GOOD):
        assert {rule for rule, _, _ in samples} == set(RULES)


def test_the_walk_sees_every_folder_once(repository: dict[str, str]) -> None:
    assert {"pyproject.toml", "privml/errors.py", "protocols/__init__.py"} <= repository.keys()
    assert ".ci/run" in repository
    assert not any(path.startswith("privml/protocols/") for path in repository)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_repository_keeps_the_rule(rule: Rule, repository: dict[str, str]) -> None:
    broken = [f"{path}:{n}" for path, text in repository.items() for n in rule(path, text)]
    assert not broken, f"{rule.__doc__} Broken at: {', '.join(broken)}"
