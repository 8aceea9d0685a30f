"""Number, order and size of messages do not depend on what is computed on."""

from __future__ import annotations

import pytest

from privml.backbones.synthetic import random_batch
from privml.testing.cases import PAIRS
from privml.testing.checks import CONFIG, HONEST, sizes, tiny


@pytest.mark.parametrize("name", PAIRS)
def test_messages_of_a_primitive_are_fixed(name: str) -> None:
    assert sizes(HONEST, name, pairs=12) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", PAIRS)
def test_messages_of_a_primitive_are_fixed_over_a_thousand_pairs(name: str) -> None:
    assert sizes(HONEST, name, pairs=500) == []


def patterns(batches: int) -> set[tuple[tuple[int, ...], ...]]:
    """Message patterns of an encoder over batches of many lengths."""
    model = tiny()
    return {
        tuple(tuple(map(len, end.view)) for end in model.run(batch).wires)
        for batch in (random_batch(CONFIG, rows=2, length=8, seed=s) for s in range(batches))
    }


def test_messages_of_an_encoder_are_fixed() -> None:
    assert len(patterns(24)) == 1


@pytest.mark.nightly
def test_messages_of_an_encoder_are_fixed_over_a_thousand_batches() -> None:
    assert len(patterns(1000)) == 1
