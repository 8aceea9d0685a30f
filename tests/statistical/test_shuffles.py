"""Two secrets with equal counts look alike through ten thousand sorts and moves of rows.

Alarm budget: each search is wrong on an honest protocol with probability 1e-8 per secret and rank.
"""

from __future__ import annotations

import pytest

from privml.testing.checks import HONEST
from privml.testing.shuffles import SHUFFLES, shuffle

RUNS = 10_048


@pytest.mark.parametrize("name", SHUFFLES)
def test_ten_thousand_shuffles_of_two_secrets_look_alike(name: str) -> None:
    assert shuffle(HONEST, name, runs=RUNS) == []
