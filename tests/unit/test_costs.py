"""Declared costs: against what is measured, and against a golden table that a run never rewrites.

The table is ``tests/vectors/costs.json``. When a change of cost is meant, print ``table()`` as JSON
(``json.dumps(table(), indent=1)``), review the difference and commit it with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privml.backbones.config import EncoderConfig
from privml.backbones.program import encoder_ops
from privml.backbones.synthetic import random_batch, random_params
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.engine import Engine, Known, Planner, Step, Val
from privml.protocols.mpc.plan import Plan
from privml.protocols.mpc.primitive import Cost
from privml.protocols.mpc.spec import Spec
from privml.rng import ScienceSeed
from privml.testing.cases import PAIRS
from privml.testing.checks import HONEST, cost
from privml.testing.programs import TinyModel, function, three_ways

GOLDEN = Path(__file__).parents[1] / "vectors" / "costs.json"
ELEMENTS = 1024
MINILM = EncoderConfig(
    name="minilm-shape", layers=6, hidden=384, heads=12, ffn=1536, vocab=30_522,
    max_positions=512, max_length=256,
)  # fmt: skip
BERT = replace(MINILM, name="bert-base-shape", layers=12, hidden=768, ffn=3072, max_length=512)


def linear(e: Engine, x: Val, known: Known, *, out_scale: int = 16) -> Val:
    return fn.linear(e, x, known, name="w", m=9, weight_scale=12, out_scale=out_scale, bound=8.0)


def layernorm(e: Engine, x: Val, known: Known) -> Val:
    return fn.layernorm(e, x, known, name="w", eps=1e-12, bound=16.0)


def affine(e: Engine, x: Val, known: Known) -> Val:
    return fn.affine_rows(e, x, known, name="w", bound=16.0)


#: Function, scale of its input, and shapes; a pair of shapes makes two operands.
FUNCTIONS: dict[str, tuple[Callable[..., Val], int, list[Any]]] = {
    "truncate": (partial(fn.truncate, f=12), 28, [(1,), (65,), (3, 7, 2)]),
    "mul": (fn.mul, 16, [((4, 5), (4, 5)), ((65,), (65,))]),
    "matmul": (partial(fn.matmul, bound=64.0), 16, [((2, 3, 4), (2, 4, 5)), ((1, 1, 1),) * 2]),
    "linear": (linear, 16, [(1, 1), (5, 40)]),
    "linear to GELU": (partial(linear, out_scale=12), 16, [(5, 40)]),
    "linear without truncation": (partial(linear, out_scale=28), 16, [(5, 40)]),
    "affine": (affine, 16, [(1, 1), (3, 65)]),
    "gelu": (partial(fn.gelu, variant="ring4"), 12, [(1,), (3, 70)]),
    "row maximum": (fn.row_max, 32, [(3, 1), (3, 2), (2, 7), (2, 128)]),
    "exp": (fn.exp_nonpositive, 32, [(1,), (3, 70)]),
    "reciprocal": (partial(fn.reciprocal, low=0.98, high=130.0), 16, [(1,), (70,), (3, 5)]),
    "square root inverse": (partial(fn.rsqrt, low=0.1, high=100.0), 16, [(1,), (70,)]),
    "softmax": (fn.softmax, 32, [(3, 1), (2, 5), (4, 128)]),
    "layernorm": (layernorm, 16, [(1, 8), (3, 384)]),
    "tanh": (fn.tanh, 16, [(1, 3), (2, 70)]),
}  # fmt: skip
NEGATIVE, POSITIVE = {"exp"}, {"reciprocal", "square root inverse"}


def operands(name: str, shapes: Any) -> list[Val]:
    """Values on which a function is right, with public bound 4."""
    f_scale = FUNCTIONS[name][1]
    several = shapes if isinstance(shapes[0], tuple) else (shapes,)
    draw = ScienceSeed(3).child("costs", name).generator()
    out = []
    for shape in several:
        real = draw.uniform(1, 4, shape) * (-1 if name in NEGATIVE else 1)
        if name not in NEGATIVE | POSITIVE:
            real *= draw.choice([-1, 1], shape)
        words = np.rint(real * 2.0**f_scale).astype(np.int64).view(np.uint64)
        out.append(Val(shape, f_scale, 4.0, words))
    return out


def secrets(name: str, shapes: Any) -> dict[str, Known]:
    """Operands of the server, where the function has them."""
    if name in ("layernorm", "affine"):
        ones = np.full(shapes[-1], 1 << 14, np.uint64)
        return {"w": Known(ones, ones)}
    if name.startswith("linear"):
        return {"w": Known(np.full((shapes[-1], 9), 100, np.uint64), np.full(9, 5, np.uint64))}
    return {}


def planned(name: str, shapes: Any) -> Cost:
    planner = Planner()
    body = function(FUNCTIONS[name][0], *operands(name, shapes))
    body(planner, dict.fromkeys(secrets(name, shapes), Known()), "plan")
    return planner.total()


def plain(price: Cost) -> dict[str, Any]:
    return {"flights": price.flights, "sent": list(price.sent), "corrections": price.corrections}


def total(steps: list[Step]) -> Cost:
    price = Cost()
    for step in steps:
        price = price.then(step.cost)
    return price


def plan_of(config: EncoderConfig, length: int) -> Plan:
    bounds = {node.name: 16.0 for node in encoder_ops(config)}
    bounds |= {f"layer{i}.scores": 16.0 for i in range(config.layers)}
    return Plan(config, Spec(), 1, length, "dealer", bounds, "0" * 64)


def per_element(name: str) -> dict[str, Any]:
    """Bits each way and off-line bytes for each of 1,024 elements."""
    price = PAIRS[name].of(ELEMENTS)[0].prim.cost()
    return {
        "flights": price.flights,
        "bits": [8 * sent / ELEMENTS for sent in price.sent],
        "corrections": price.corrections / ELEMENTS,
    }


def table() -> dict[str, Any]:
    """All declared costs."""
    layer = plan_of(MINILM, 128)
    first = [s for s in layer.steps if s.scope.startswith("layer0")]
    parts: dict[str, Any] = {}
    for step in first:
        parts.setdefault(step.scope.partition("/")[0], []).append(step)
    return {
        "per element": {name: per_element(name) for name in PAIRS},
        "functions": {
            f"{name} {shapes}": plain(planned(name, shapes))
            for name, (_, _, several) in FUNCTIONS.items() for shapes in several
        },
        "layer n=128 d=384": {
            "whole": plain(total(first)), **{k: plain(total(v)) for k, v in parts.items()},
        },
        "minilm n=128": plain(layer.cost),
        "bert-base n=128": plain(plan_of(BERT, 128).cost),
    }  # fmt: skip


def test_costs_are_as_recorded() -> None:
    recorded = json.loads(GOLDEN.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(table()))
    changed = [
        f"{section} / {key}: recorded {recorded.get(section, {}).get(key)}, now {now[section][key]}"
        for section in now for key in now[section]
        if now[section][key] != recorded.get(section, {}).get(key)
    ]  # fmt: skip
    assert not changed, "\n".join(["declared costs changed:", *changed])
    assert now == recorded


@pytest.mark.parametrize(
    ("name", "flights", "bits"),
    [
        ("truncate", 1, 64), ("mul", 1, 128), ("mul32", 1, 64), ("square", 1, 64),
        ("compare", 3, 64 + 33), ("compare3", 3, 64 + 3 * 33), ("compare32", 2, 32 + 2 * 14),
        ("compare16", 2, 32 + 2 * 6), ("select", 1, 65), ("bit_to_ring", 1, 1), ("and", 1, 2),
        ("maximum", 3, 256 + 66), ("exp", 3, 64 + 20), ("gelu", 5, 128 + 102),
        ("gelu24", 4, 128 + 33), ("exp_low", 3, 64 + 16), ("gelu_low", 4, 64 + 68),
        ("gelu_low24", 3, 64 + 22), ("block_matmul", 1, 256), ("scale_rows", 1, 128),
        ("moments", 1, 192), ("affine", 2, 128), ("row_power", 4, 64 * 5 + 34 * 3),
        ("row_power32", 3, 64 * 5 + 15 * 3),
    ],
)  # fmt: skip
def test_price_of_one_element(name: str, flights: int, bits: int) -> None:
    assert per_element(name)["flights"] == flights
    assert per_element(name)["bits"] == [bits, bits]


def test_price_of_a_weight_owner_product() -> None:
    assert per_element("linear") | {"corrections": 0} == {
        "flights": 2, "bits": [1, 64 * 3], "corrections": 0,
    }  # fmt: skip
    assert per_element("linear_exact") | {"corrections": 0} == {
        "flights": 1, "bits": [0, 128], "corrections": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_primitive_costs_what_it_declares(name: str) -> None:
    assert cost(HONEST, name) == []


@pytest.mark.parametrize("name", sorted(set(PAIRS) - {"reveal"}))
@pytest.mark.parametrize("samples", [1, 65, 130])
def test_every_word_that_leaves_a_party_has_a_mask_of_its_own(name: str, samples: int) -> None:
    """As many bytes of free masks as bytes that are opened or sent masked, padding included."""
    prim = PAIRS[name].of(samples)[0].prim
    masks = [f for f in prim.fields() if not f.derived and f.setup is None]
    assert sum(f.nbytes for f in masks) == prim.online().sent[1]
    if name not in ("linear", "linear_exact"):
        assert prim.online().sent[0] == prim.online().sent[1]


CELLS = [(name, shapes) for name, (_, _, several) in FUNCTIONS.items() for shapes in several]


@pytest.mark.parametrize(("name", "shapes"), CELLS, ids=str)
def test_function_costs_what_is_planned(name: str, shapes: Any) -> None:
    run = three_ways(function(FUNCTIONS[name][0], *operands(name, shapes)), secrets(name, shapes))
    assert run.problems() == []
    assert run.cost == planned(name, shapes)


def test_flights_of_the_documentation() -> None:
    """The figures in the docstrings of the functions."""
    assert planned("softmax", (4, 128)).flights == 3 * 4 + 9
    assert planned("exp", (1,)).flights == 4
    assert planned("reciprocal", (1,)).flights == 4
    assert planned("gelu", (1,)).flights == 4
    assert planned("layernorm", (3, 384)).flights in (8, 9)
    assert planned("tanh", (1, 3)).flights == 13


def shaped(length: int, *, layers: int) -> None:
    """Run a MiniLM-shaped encoder and hold it to its plan."""
    config = replace(MINILM, layers=layers, vocab=64, max_positions=length, max_length=length)
    tiny = TinyModel.make(config, random_params(config, seed=2), rows=1, length=length)
    run = tiny.run(random_batch(config, rows=1, length=length, seed=1))
    assert run.problems() == []
    assert run.cost == tiny.plan.cost


def test_a_wide_layer_costs_what_is_planned() -> None:
    shaped(9, layers=1)


@pytest.mark.nightly
def test_a_layer_of_full_size_costs_what_is_planned() -> None:
    shaped(128, layers=1)


def test_budgets_of_a_layer_and_a_model() -> None:
    """On line at most 0.25 GB each way for MiniLM at 128 tokens, and 60 flights a layer."""
    whole = table()["layer n=128 d=384"]["whole"]
    assert whole["flights"] <= 60
    assert max(plan_of(MINILM, 128).cost.sent) <= 0.25e9
    assert max(plan_of(BERT, 128).cost.sent) <= 0.65e9
