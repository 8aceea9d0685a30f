"""Random small models under random options: three interpreters agree, prices are exact."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from privml.backbones.config import EncoderConfig
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.mpc.inputs import allowed_length, fit, revealed_length
from privml.testing.pruned import DECODER, ENCODER, MEAN, pruned_model, sentence

LIMIT = 12


@st.composite
def shapes(draw: st.DrawFn) -> EncoderConfig:
    base = draw(st.sampled_from([ENCODER, MEAN, DECODER]))
    length = draw(st.integers(1, LIMIT))
    heads = draw(st.sampled_from([1, 2]))
    return replace(
        base, layers=draw(st.integers(1, 3)), heads=heads, hidden=heads * draw(st.integers(1, 3)),
        ffn=draw(st.integers(1, 6)), max_positions=length, max_length=length,
    )  # fmt: skip


@st.composite
def options(draw: st.DrawFn, layers: int) -> PruneSpec:
    mode = draw(st.sampled_from(["count", "bucket", "schedule"]))
    reduce = draw(st.booleans())
    if mode == "schedule" and layers > 1:
        kept = sorted(draw(st.lists(st.integers(1, LIMIT + 3), min_size=layers - 1,
                                    max_size=layers - 1)), reverse=True)  # fmt: skip
        pairs = [(k, draw(st.integers(1, k)) if reduce else k) for k in kept]
        return PruneSpec(reveal="schedule", schedule=tuple(pairs), reduce=reduce)
    if mode == "bucket":
        grid = draw(st.sets(st.integers(1, LIMIT + 3), min_size=1, max_size=5))
        return PruneSpec(reveal="bucket", grid=tuple(sorted(grid)), reduce=reduce)
    return PruneSpec(reveal="count", reduce=reduce)


@settings(max_examples=25)
@given(st.data())
def test_execution_equals_simulation_at_the_declared_cost(data: st.DataObject) -> None:
    config = data.draw(shapes())
    spec = data.draw(options(config.layers))
    low = data.draw(st.integers(1, 3 * config.heads << 16))
    high = data.draw(st.integers(low, 4 * config.heads << 16))
    raw = np.array([[low, high]] * (config.layers - 1), np.uint64).reshape(-1, 2)
    model = pruned_model(config, spec, raw=raw, seed=data.draw(st.integers(0, 50)))
    one = sentence(data.draw(st.integers(1, config.max_length)), data.draw(st.integers(0, 50)))
    batch = fit(model.plan, one)
    run = model.run(batch)  # also holds what both parties and the simulator found together
    assert run.problems() == []
    length = revealed_length(model.plan, batch)
    assert allowed_length(model.plan, length)
    cost = model.plan.cost_of(length, run.found)
    assert (cost.flights, cost.sent) == (run.cost.flights, run.cost.sent)
    assert all(a <= b for a, b in zip(cost.sent, model.plan.cost.sent, strict=True))
    assert len(run.found) == config.layers - 1
    before = length
    for rows, high_rows in run.found:
        assert 1 <= high_rows <= rows <= before
        before = rows
        if spec.reveal == "bucket":
            assert rows == length or rows in spec.grid
    if spec.reveal == "schedule":
        assert [n for n, _ in run.found] == [min(k, length) for k, _ in spec.schedule]
