"""Every broken protocol stack of the corpus is caught by its check, which the honest one passes."""

from __future__ import annotations

import pytest

from privml.testing.checks import CHECKS, HONEST
from privml.testing.mutants import MUTANTS, Mutant

GROUNDS = sorted({(m.check, m.on) for m in MUTANTS})


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    found = CHECKS[mutant.check](mutant.build, mutant.on)
    assert found, f"{mutant.check} on {mutant.on} does not see that {mutant.breaks}"


@pytest.mark.parametrize(("check", "on"), GROUNDS, ids=lambda x: str(x))
def test_honest_stack_passes_the_same_check(check: str, on: str) -> None:
    assert CHECKS[check](HONEST, on) == []


def test_corpus_is_large_and_names_are_unique() -> None:
    names = [m.name for m in MUTANTS]
    assert len(names) == len(set(names)) >= 30
    assert {m.check for m in MUTANTS} <= set(CHECKS)
