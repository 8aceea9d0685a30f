"""The audit's three processes: what they report is what the plan declares and the model says."""

from __future__ import annotations

import numpy as np
import pytest

from privml.backbones import random_batch


@pytest.fixture
def product(load):
    return load("product")


def test_runs_cost_what_the_plan_declares(product) -> None:
    small = product.Model(hidden=24, heads=2, ffn=48, vocab=16, positions=16)
    with product.Product(small, n=8, per_pool=2) as running:
        batch = random_batch(running.encoder.config, rows=1, length=8, seed=1)
        clear, cost = running.private(batch), running.plan.cost
        for _ in range(3):  # the third needs a second pool
            run = running.run(batch)
            assert run.flights == cost.flights
            assert (run.received, run.sent) == cost.sent
            assert np.abs(run.output - clear).max() < 0.02
            assert run.online_s > 0
            assert sum(float(s["payload_sent"]) for s in run.scopes.values()) == run.sent
        assert running.deal_s > 0
        assert running.deal_bytes == cost.corrections


def test_a_party_that_dies_is_an_error_not_a_hang(product) -> None:
    small = product.Model(hidden=24, heads=2, ffn=48, vocab=16, positions=16)
    with product.Product(small, n=8, per_pool=2) as running:
        batch = random_batch(running.encoder.config, rows=1, length=8, seed=1)
        running._server._popen.kill()
        running._server._popen.wait()
        with pytest.raises(product.PartyEnded):
            running.run(batch)
