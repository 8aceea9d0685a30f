"""What claims say: unchanged without pruning, exact for each reveal mode, and safe to load."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rfc8785

from privml.backbones import random_decoder, random_encoder
from privml.backbones.encoder import Encoder
from privml.backbones.pruned import pruned_forward
from privml.backbones.synthetic import random_batch
from privml.errors import MalformedMessage, ParameterError
from privml.protocols import mpc
from privml.protocols.cipherprune import PruneSpec, Thresholds
from privml.protocols.mpc.inputs import client_inputs, fit

OLD = Path(__file__).parents[1] / "vectors" / "plan-unpruned.json"
SHAPE = {"layers": 3, "hidden": 32, "heads": 2, "ffn": 64, "vocab": 64, "max_positions": 48}
PLAIN = (
    "2pc semi-honest, static, security with abort | dealer(third party, off line, no collusion) | "
    "embedding=released | lambda=128"
)
SCHEDULE = ((8, 8), (4, 4))
THRESHOLDS = Thresholds((0.006, 0.007), (0.008, 0.009), heads=2)


@pytest.fixture(scope="module")
def model() -> Encoder:
    return random_encoder(**SHAPE)


@pytest.fixture(scope="module")
def classifier() -> Encoder:
    return random_encoder(**SHAPE, labels=("a", "b"))


def plan_of(model: Encoder, prune: PruneSpec | None, n: int = 16) -> mpc.Plan:
    return mpc.PrivateModel(model, mpc.Spec(prune=prune)).plan(n=n)


def test_a_plan_of_an_earlier_release_still_loads() -> None:
    plan = mpc.Plan.load(OLD)
    assert plan.spec.prune is None
    assert str(plan.claim) == PLAIN
    assert "\n".join(plan.leakage) == (
        "server: batch size and padded length; nothing of the text, its length or the result\n"
        "client: architecture, calibrated ranges, its own result\n"
        "client: token, position and type embedding tables and the embedding LayerNorm\n"
        "dealer: the plan (architecture, sizes, ranges) and no message; together with either party "
        "it learns everything\n"
        "network: sizes and times, fixed by the plan"
    )
    assert "prune" not in plan.summary()
    assert plan.cost.flights == 94


@pytest.mark.parametrize(
    "prune",
    [PruneSpec(), PruneSpec(reveal="count"), PruneSpec(reveal="schedule", schedule=SCHEDULE)],
    ids=lambda p: p.reveal,
)
def test_the_claim_names_the_reveal_mode_and_survives_the_file(
    model: Encoder, prune: PruneSpec
) -> None:
    plan = plan_of(model, prune)
    assert str(plan.claim) == f"{PLAIN} | reveal={prune.reveal}"
    again = mpc.Plan.from_json(plan.to_json())
    assert (again, again.digest, again.leakage) == (plan, plan.digest, plan.leakage)


def test_bucket_mode_says_what_is_opened(model: Encoder, classifier: Encoder) -> None:
    server, client, _, _, network = plan_of(model, PruneSpec(grid=(4, 8))).leakage
    assert server == (
        "server: bucket of the length of the text in tokens, and after each layer but the last of "
        "the number of tokens kept and of those of high importance; buckets end at 4, 8 and the "
        "padded length; nothing else of the text, nothing of the result"
    )
    assert "the same numbers and how many tokens are left at the end" in client
    assert "left at the end" not in plan_of(classifier, PruneSpec()).leakage[1]
    assert "opened numbers" in network
    assert "high importance" not in plan_of(model, PruneSpec(reduce=False)).leakage[0]


def test_count_mode_admits_the_length(model: Encoder) -> None:
    server, client, _, _, network = plan_of(model, PruneSpec(reveal="count")).leakage
    assert server.startswith("server: length of the text in tokens, and after each layer but")
    assert "bucket" not in server
    assert "the same numbers" in client
    assert "opened numbers" in network


def test_schedule_mode_opens_nothing(model: Encoder) -> None:
    found = plan_of(model, PruneSpec(reveal="schedule", schedule=SCHEDULE)).leakage
    assert "nothing of the text, its length or the result" in found[0]
    assert found[1] == "client: architecture, calibrated ranges, its own result"
    assert found[4] == "network: sizes and times, fixed by the plan"


def test_a_causal_model_opens_the_same() -> None:
    causal = plan_of(random_decoder(**SHAPE), PruneSpec())
    assert causal.leakage[0] == plan_of(random_encoder(**SHAPE), PruneSpec()).leakage[0]


@pytest.mark.parametrize("reveal", ["bucket", "count", "schedule"])
def test_the_claim_opens_what_the_program_opens(model: Encoder, reveal: Any) -> None:
    """Two texts of other lengths: what the run found differs only where the claim says so."""
    schedule = SCHEDULE if reveal == "schedule" else ()
    spec = PruneSpec(THRESHOLDS, reveal=reveal, schedule=schedule, grid=(4, 8, 12))
    private = mpc.PrivateModel(model, mpc.Spec(prune=spec))
    plan = private.plan(n=16)
    lengths = set()
    for size in (9, 10, 12):
        batch = random_batch(model.config, rows=1, length=size, seed=size)
        lengths.add(client_inputs(plan, fit(plan, batch), private.public).length)
    assert lengths == {"bucket": {12}, "count": {9, 10, 12}, "schedule": {16}}[reveal]


def hostile(model: Encoder, change: Any) -> bytes:
    raw = json.loads(plan_of(model, PruneSpec()).to_json())
    change(raw)
    return rfc8785.dumps(raw)


def put(**values: object) -> Any:
    return lambda raw: raw["spec"]["prune"].update(values)


HOSTILE = {
    "thresholds inside": put(thresholds={"theta": [0.1], "beta": [0.1], "heads": 2}),
    "thresholds null": put(thresholds=None),
    "unknown mode": put(reveal="all"),
    "unknown key": put(more=1),
    "no grid": put(grid=[]),
    "falling grid": put(grid=[8, 4]),
    "negative grid": put(grid=[-1, 4]),
    "huge grid": put(grid=list(range(1, 50_000))),
    "float grid": put(grid=[1.5, 4]),
    "schedule in bucket mode": put(schedule=[[4, 4], [2, 2]]),
    "mode without its schedule": put(reveal="schedule"),
    "short schedule": put(reveal="schedule", schedule=[[4, 4]]),
    "long schedule": put(reveal="schedule", schedule=[[4, 4]] * 3),
    "growing schedule": put(reveal="schedule", schedule=[[4, 4], [8, 8]]),
    "high above kept": put(reveal="schedule", schedule=[[4, 5], [2, 2]]),
    "triples": put(reveal="schedule", schedule=[[4, 4, 4], [2, 2, 2]]),
    "no reference": put(reference=0),
    "two rows": lambda raw: raw.update(rows=2),
    "prune is a list": lambda raw: raw["spec"].update(prune=[]),
    "explicit none": lambda raw: raw["spec"].update(prune=None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_plans_are_refused(model: Encoder, name: str) -> None:
    with pytest.raises(MalformedMessage):
        mpc.Plan.from_json(hostile(model, HOSTILE[name]))


def test_a_plan_whose_pairs_would_fill_the_memory_is_refused() -> None:
    wide = random_encoder(**{**SHAPE, "max_positions": 60_000})
    spec = PruneSpec(reveal="schedule", schedule=SCHEDULE)
    with pytest.raises(ParameterError, match="n of a pruned plan = 60000 must lie in"):
        plan_of(wide, spec, n=60_000)


def test_other_reveal_modes_are_other_plans(model: Encoder) -> None:
    plans = [plan_of(model, PruneSpec(reveal=mode)) for mode in ("bucket", "count")]
    plans += [plan_of(model, None), plan_of(model, PruneSpec(reduce=False))]
    assert len({plan.digest for plan in plans}) == 4


def test_mode_clear_runs_the_pruned_twin(model: Encoder) -> None:
    batch = random_batch(model.config, rows=3, length=16, seed=0)
    exact = mpc.PrivateModel(model)(batch)
    for spec, limits in (
        (PruneSpec(THRESHOLDS), {"theta": THRESHOLDS.theta, "beta": THRESHOLDS.beta}),
        (PruneSpec(reveal="schedule", schedule=SCHEDULE), {"schedule": SCHEDULE}),
    ):
        private = mpc.PrivateModel(model, mpc.Spec(prune=spec))
        clear = private(batch)
        twin = pruned_forward(model, batch, **limits).output.detach().numpy()  # type: ignore[arg-type]
        assert np.array_equal(clear, twin.astype(np.float64))
        assert not np.allclose(clear, exact, atol=1e-4)
        assert np.allclose(private(batch, mode="simulate"), clear, atol=0.02)


def test_modes_that_compare_need_thresholds(model: Encoder) -> None:
    batch = random_batch(model.config, rows=1, length=8, seed=0)
    with pytest.raises(ParameterError, match="needs thresholds"):
        mpc.PrivateModel(model, mpc.Spec(prune=PruneSpec()))(batch)
    other = replace(THRESHOLDS, heads=4)
    with pytest.raises(ParameterError, match="of 4 heads"):
        mpc.PrivateModel(model, mpc.Spec(prune=PruneSpec(other)))(batch)
