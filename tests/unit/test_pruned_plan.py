"""A plan of a pruned run that was tampered with is refused, and so is the pool of another."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import rfc8785

from privml.backbones.config import EncoderConfig
from privml.errors import (
    MalformedMessage,
    UntrustedArtifact,
)
from privml.protocols import mpc
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.mpc.engine import places
from privml.protocols.mpc.inputs import fit
from privml.testing.pruned import DECODER, ENCODER, MEAN, pruned_model, sentence


@pytest.fixture(scope="module")
def plan() -> mpc.Plan:
    return pruned_model(ENCODER, PruneSpec(reveal="bucket", grid=(1, 4, 6))).plan


def tampered(plan: mpc.Plan, change: Callable[[dict[str, object]], None]) -> bytes:
    raw = json.loads(plan.to_json())
    change(raw)
    return rfc8785.dumps(raw)


TAMPERED: dict[str, Callable[[dict], object]] = {
    "thresholds": lambda p: p["spec"]["prune"].update(
        thresholds={"theta": [0.001, 0.001], "beta": [0.002, 0.002], "heads": 2}),
    "no thresholds": lambda p: p["spec"]["prune"].update(thresholds=None),
    "unknown option": lambda p: p["spec"]["prune"].update(beta=[1]),
    "grid out of order": lambda p: p["spec"]["prune"].update(grid=[4, 1]),
    "equal grid": lambda p: p["spec"]["prune"].update(grid=[4, 4]),
    "grid of zero": lambda p: p["spec"]["prune"].update(grid=[0, 4]),
    "grid below zero": lambda p: p["spec"]["prune"].update(grid=[-3, 4]),
    "empty grid": lambda p: p["spec"]["prune"].update(grid=[]),
    "long grid": lambda p: p["spec"]["prune"].update(grid=list(range(1, 100))),
    "huge grid": lambda p: p["spec"]["prune"].update(grid=[1, 2**53 - 1]),
    "fractions in the grid": lambda p: p["spec"]["prune"].update(grid=[1.5, 4]),
    "text in the grid": lambda p: p["spec"]["prune"].update(grid=["1"]),
    "reveal": lambda p: p["spec"]["prune"].update(reveal="all"),
    "schedule in another mode": lambda p: p["spec"]["prune"].update(schedule=[[2, 1], [1, 1]]),
    "schedule mode without one": lambda p: p["spec"]["prune"].update(reveal="schedule"),
    "short schedule": lambda p: p["spec"]["prune"].update(reveal="schedule", schedule=[[2, 1]]),
    "rising schedule": lambda p: p["spec"]["prune"].update(
        reveal="schedule", schedule=[[2, 1], [3, 1]]),
    "reference": lambda p: p["spec"]["prune"].update(reference=0),
    "reduce": lambda p: p["spec"]["prune"].update(reduce=2),
    "two sentences": lambda p: p.update(rows=2),
    "too long": lambda p: p.update(length=10**6),
}  # fmt: skip


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_plan_is_refused(plan: mpc.Plan, what: str) -> None:
    with pytest.raises(MalformedMessage):
        mpc.Plan.from_json(tampered(plan, TAMPERED[what]))


def test_an_honest_plan_passes_the_same_way(plan: mpc.Plan) -> None:
    assert mpc.Plan.from_json(tampered(plan, lambda p: None)) == plan


@pytest.mark.parametrize(
    "change",
    [lambda p: replace(p, reduce=False), lambda p: replace(p, grid=(2, 4)),
     lambda p: replace(p, reference=64, thresholds=None), lambda p: None,
     lambda p: PruneSpec(reveal="schedule", schedule=((4, 2), (2, 1)))],
    ids=["reduce", "grid", "reference", "unpruned", "schedule"],
)  # fmt: skip
def test_a_pool_of_another_plan_is_refused(
    plan: mpc.Plan, tmp_path: Path, change: Callable[[PruneSpec], PruneSpec | None]
) -> None:
    assert plan.spec.prune is not None
    other = replace(plan, spec=replace(plan.spec, prune=change(plan.spec.prune)))
    assert other.digest != plan.digest
    mpc.deal(other, runs=1, server=tmp_path / "s.pool", client=tmp_path / "c.pool")
    with pytest.raises(UntrustedArtifact):
        mpc.Pool.open(tmp_path / "s.pool", plan_digest=plan.digest,
                      used=mpc.UsedLog(tmp_path / "used"))  # fmt: skip


@pytest.mark.parametrize("reduce", [True, False])
@pytest.mark.parametrize("mode", ["count", "bucket"])
@pytest.mark.parametrize("config", [ENCODER, MEAN, DECODER], ids=lambda c: c.name)
def test_what_is_dealt_serves_every_length_and_every_count(
    config: EncoderConfig, mode: Literal["count", "bucket"], reduce: bool
) -> None:
    """Also texts that are too short to be pruned, whose rows never leave the order of the text."""
    shortest = 3
    prune = PruneSpec(reveal=mode, reduce=reduce, shortest=shortest, grid=(1, 2, 3, 4, 6))
    plan = pruned_model(config, prune, length=6).plan
    index = plan.index
    assert index is not None
    for length in range(1, 7):
        full = [(length, length)] * 2
        scripts = [full] if length <= shortest else [
            full, *([(a, (a + 1) // 2), (b, b)] for a in range(1, length + 1) for b in {1, a})
        ]  # fmt: skip
        for script in scripts:
            walked = plan._walk(length, script)
            for place, item in places(walked).items():
                dealt, used = plan.steps[index[place]].primitive, walked[item].primitive
                assert dealt.covers(used), f"{place} with {length} rows, {script}: {used}"


@pytest.mark.parametrize("mode", ["count", "bucket"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4])
def test_a_short_text_of_a_decoder_runs_on_what_was_dealt_for_long_ones(
    mode: Literal["count", "bucket"], tokens: int
) -> None:
    prune = PruneSpec(reveal=mode, shortest=3, grid=(1, 2, 3, 4, 6, 8))
    model = pruned_model(DECODER, prune)
    run = model.run(fit(model.plan, sentence(tokens, 1)))
    assert run.problems() == []
