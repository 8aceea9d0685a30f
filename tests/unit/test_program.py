"""Whole programs on tiny random encoders: one model, three modes, real pools, declared cost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.backbones.encoder import Encoder
from privml.backbones.interpreter import interpret
from privml.backbones.synthetic import random_batch, random_params
from privml.errors import CorrelationExhausted, ParameterError, PrivmlError, UntrustedArtifact
from privml.protocols import mpc
from privml.protocols.mpc.correlations import layout
from privml.protocols.mpc.fields import Seeds
from privml.protocols.mpc.inputs import fit, outputs
from privml.protocols.mpc.nonlinear import gelu
from privml.rng import Csprng
from privml.testing.programs import TinyModel, clear
from privml.transport import memory

TINY = {
    "name": "tiny", "layers": 1, "hidden": 12, "heads": 2, "ffn": 20, "vocab": 30,
    "max_positions": 9, "max_length": 9,
}  # fmt: skip
FORMS: dict[str, tuple[dict[str, Any], mpc.Spec]] = {
    "mean": ({"normalize": True}, mpc.Spec()),
    "two layers": ({"layers": 2}, mpc.Spec()),
    "cls": ({"pooling": "cls"}, mpc.Spec()),
    "pooler": ({"pooling": "pooler"}, mpc.Spec()),
    "classifier": ({"pooling": "pooler", "labels": ("a", "b", "c")}, mpc.Spec()),
    "private": ({}, mpc.Spec(embedding="private")),
    "private classifier": (
        {"pooling": "pooler", "labels": ("a", "b"), "type_vocab": 3},
        mpc.Spec(embedding="private"),
    ),
    "fine weights": ({"eps": 1e-5}, mpc.Spec(weight_bits=16)),
    "coarse weights": ({}, mpc.Spec(weight_bits=8, gelu="bolt4")),
}
ACCURACY = {"coarse weights": 0.15, "classifier": 0.02, "private classifier": 0.02, "pooler": 0.02}


def floats(config: EncoderConfig, seed: int = 1) -> dict[str, Any]:
    """Random weights that are large enough for every part to matter."""
    drawn = random_params(config, seed=seed)
    return {k: v if k.endswith("gamma") else 12 * v for k, v in drawn.items()}


def model(form: str, *, rows: int, length: int) -> TinyModel:
    changes, spec = FORMS[form]
    config = EncoderConfig(**{**TINY, **changes})
    return TinyModel.make(config, floats(config), rows=rows, length=length, spec=spec)


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 7), (3, 5), (2, 9)])
@pytest.mark.parametrize("form", FORMS)
def test_execute_is_simulate_at_the_planned_price(form: str, rows: int, length: int) -> None:
    tiny = model(form, rows=rows, length=length)
    batch = random_batch(tiny.plan.config, rows=rows, length=length, seed=rows * length)
    run = tiny.run(batch)
    assert run.problems() == []
    assert run.cost == tiny.plan.cost
    assert [s.primitive for s in run.steps] == [s.primitive for s in tiny.plan.steps]
    assert max(run.head.values()) < 1.0


@pytest.mark.parametrize("form", FORMS)
def test_simulation_is_close_to_the_float_program(form: str) -> None:
    tiny = model(form, rows=4, length=8)
    batch = random_batch(tiny.plan.config, rows=4, length=8, seed=3)
    run = tiny.run(batch)
    got = outputs(tiny.plan, clear(run.simulated), batch, rows=4)
    want = interpret(tiny.plan.config, tiny.floats, batch)
    assert got.shape == want.shape
    assert np.abs(got - want).max() < ACCURACY.get(form, 0.02) * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("form", ["mean", "classifier", "private"])
def test_padding_changes_nothing_but_rounding(form: str) -> None:
    """The same sentence in plans of two lengths."""
    short, long = model(form, rows=1, length=4), model(form, rows=1, length=9)
    ids = np.array([[5, 6, 7, 8]])
    results = []
    for tiny, n in ((short, 4), (long, 9)):
        batch = Encoded.of(ids).padded(n)
        run = tiny.run(batch)
        assert run.problems() == []
        results.append(outputs(tiny.plan, clear(run.simulated), batch, rows=1))
    assert np.abs(results[0] - results[1]).max() < 5e-3


def test_what_stands_in_padding_has_no_effect_at_all() -> None:
    tiny = model("mean", rows=1, length=6)
    mask = np.array([[True, True, True, False, False, False]])
    first = Encoded.of(np.array([[3, 4, 5, 0, 0, 0]]), mask)
    second = Encoded.of(np.array([[3, 4, 5, 9, 8, 7]]), mask)
    keys = None
    words = []
    for batch in (first, second):
        run = tiny.run(batch, keys=keys)
        words.append(outputs(tiny.plan, clear(run.simulated), batch, rows=1))
    assert np.abs(words[0] - words[1]).max() < 2e-3


def test_rows_of_a_batch_are_independent() -> None:
    tiny = model("mean", rows=2, length=6)
    alone = random_batch(tiny.plan.config, rows=1, length=6, seed=4)
    other = random_batch(tiny.plan.config, rows=1, length=6, seed=5)
    pairs = [(alone, other), (alone, alone)]
    results = []
    for first, second in pairs:
        batch = Encoded(*(np.concatenate([getattr(b, k) for b in (first, second)])
                          for k in ("ids", "mask", "type_ids")))  # fmt: skip
        results.append(outputs(tiny.plan, clear(tiny.run(batch).simulated), batch, rows=2)[0])
    assert np.abs(results[0] - results[1]).max() < 2e-3


class Pools:
    """A model with dealt pools, and runs of it between two threads."""

    def __init__(self, root: Path, encoder: Encoder, spec: mpc.Spec, *, rows: int, n: int) -> None:
        self.model = mpc.PrivateModel(encoder, spec)
        self.plan = self.model.plan(n=n, rows=rows)
        self.paths = [root / "server.pool", root / "client.pool"]
        mpc.deal(self.plan, runs=3, server=self.paths[0], client=self.paths[1])
        used = mpc.UsedLog(root / "used")
        self.pools = [mpc.Pool.open(p, plan_digest=self.plan.digest, used=used) for p in self.paths]

    def seeds(self, index: int) -> Seeds:
        """Keys of a run that is not spent yet, read from both files."""
        keys = []
        for path in self.paths:
            data = path.read_bytes()
            entry = data[layout.Layout.entry(index) :][: layout.ENTRY_BYTES]
            keys.append(Csprng(entry[: layout.SEED_BYTES]))
        return Seeds((keys[0], keys[1]), None)

    def run(
        self, batch: Encoded, cache: Path | None, *, server: mpc.PrivateModel | None = None
    ) -> tuple[list[Any], list[BaseException | None]]:
        """Serve and execute once; return bill and output, and errors."""
        ends = memory.pair()
        out: list[Any] = [None, None]
        errors: list[BaseException | None] = [None, None]
        host = server or self.model

        def serve() -> mpc.Bill:
            with mpc.ServerRun(ends[0], self.plan, self.pools[0], params=host.weights(self.plan),
                               public=host.public_bytes, deadline_s=20.0) as run:  # fmt: skip
                return run.serve()

        def query() -> tuple[mpc.Bill, Any]:
            with mpc.ClientRun(ends[1], self.plan, self.pools[1], cache=mpc.ClientCache(cache),
                               deadline_s=20.0) as run:  # fmt: skip
                return run.bill, run.execute(batch)

        def work(rank: int) -> None:
            try:
                out[rank] = (serve, query)[rank]()
            except PrivmlError as error:
                errors[rank] = error
                ends[rank].close()

        threads = [threading.Thread(target=work, args=(r,), daemon=True) for r in (0, 1)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(timeout=60)
        return out, errors

    def close(self) -> None:
        for pool in self.pools:
            pool.close()


def encoder(seed: int = 1, **changes: Any) -> Encoder:
    config = EncoderConfig(**{**TINY, **changes})
    return Encoder(config, floats(config, seed))


@pytest.fixture
def pools(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pools]:
    changes, spec = FORMS[getattr(request, "param", "mean")]
    made = Pools(tmp_path, encoder(**changes), spec, rows=3, n=7)
    yield made
    made.close()


@pytest.mark.parametrize("pools", ["mean", "classifier", "private"], indirect=True)
def test_runs_from_a_pool_equal_the_simulation_bit_for_bit(pools: Pools, tmp_path: Path) -> None:
    config = pools.plan.config
    for index in range(2):
        batch = random_batch(config, rows=2, length=5, seed=index)
        seeds = pools.seeds(index)
        (bill, answer), errors = pools.run(batch, tmp_path / "cache")
        assert errors == [None, None]
        client_bill, got = answer
        want, head = pools.model.simulate(pools.plan, batch, seeds)
        assert np.array_equal(got, want)
        assert max(head.values()) < 1.0
        cost = pools.plan.cost
        assert (bill.flights, client_bill.flights) == (cost.flights, cost.flights)
        assert (bill.sent, bill.received) == cost.sent
        assert (client_bill.sent, client_bill.received) == cost.sent[::-1]
        assert np.abs(got - pools.model(batch)).max() < 0.05


def test_wire_bytes_are_within_one_percent_of_payload(pools: Pools) -> None:
    batch = random_batch(pools.plan.config, rows=3, length=7, seed=0)
    (bill, _), errors = pools.run(batch, None)
    assert errors == [None, None]
    total = bill.by_op["total"]
    frames = bill.flights + total["checkpoints"]
    assert total["wire_sent"] - total["payload_sent"] <= 64 * frames + 1024


def test_a_spent_pool_is_refused(pools: Pools, tmp_path: Path) -> None:
    batch = random_batch(pools.plan.config, rows=1, length=3, seed=0)
    for _ in range(3):
        _, errors = pools.run(batch, tmp_path / "cache")
        assert errors == [None, None]
    out, errors = pools.run(batch, tmp_path / "cache")
    assert out[1] is None
    assert any(isinstance(e, CorrelationExhausted) for e in errors)


def test_a_batch_that_does_not_fit_spends_nothing(pools: Pools, tmp_path: Path) -> None:
    batch = random_batch(pools.plan.config, rows=3, length=8, seed=0)
    out, errors = pools.run(batch, tmp_path / "cache")
    assert out[1] is None
    assert isinstance(errors[1], ParameterError)
    assert pools.pools[1].cursor == 0
    with pytest.raises(ParameterError, match="larger plan"):
        fit(pools.plan, batch)


@pytest.mark.parametrize("second_cache", ["first", "second"])
@pytest.mark.parametrize("pools", ["mean", "classifier"], indirect=True)
def test_other_weights_are_refused_for_a_pool_in_use(
    pools: Pools, tmp_path: Path, second_cache: str
) -> None:
    """Without its cache the client would learn W' - W, with it the result would be garbage."""
    config = pools.plan.config
    batch = random_batch(config, rows=1, length=3, seed=0)
    _, errors = pools.run(batch, tmp_path / "first")
    assert errors == [None, None]
    changed = floats(config)
    name = "layer0.ffn_out.weight"
    changed[name] = changed[name] + np.float32(0.125)
    other = mpc.PrivateModel(Encoder(config, changed), pools.model.spec)
    try:
        out, errors = pools.run(batch, tmp_path / second_cache, server=other)
    except UntrustedArtifact:
        return
    assert out[1] is None
    assert isinstance(errors[0], PrivmlError)


def test_the_digest_binds_the_numbers_of_an_approximation(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = model("mean", rows=1, length=3)
    before = tiny.plan.digest
    quartic = gelu.QUARTICS["ring4"]
    moved = gelu.Quartic(quartic.cut, quartic.c4, quartic.c3, quartic.c2, quartic.c1 + 1e-3,
                         quartic.c0, quartic.max_err)  # fmt: skip
    monkeypatch.setattr(gelu, "QUARTICS", {**gelu.QUARTICS, "ring4": moved})
    again = model("mean", rows=1, length=3)
    assert again.plan.to_json() == tiny.plan.to_json()
    assert again.plan.digest != before


def test_modes_of_one_object(pools: Pools) -> None:
    batch = random_batch(pools.plan.config, rows=2, length=7, seed=8)
    exact = pools.model(batch)
    for seed in (0, 1):
        private = pools.model(batch, mode="simulate", seed=seed)
        assert np.abs(private - exact).max() < 0.02
    assert not np.array_equal(private, pools.model(batch, mode="simulate", seed=2))
    assert np.array_equal(private, pools.model(batch, mode="simulate", seed=1))
