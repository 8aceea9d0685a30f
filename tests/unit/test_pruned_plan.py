"""A plan of a pruned run that was tampered with is refused, and so is the pool of another."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import rfc8785

from privml.errors import (
    MalformedMessage,
    UntrustedArtifact,
)
from privml.protocols import mpc
from privml.protocols.cipherprune.spec import PruneSpec
from privml.testing.pruned import ENCODER, pruned_model


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
