"""A pruned model between two processes over mutual TLS: equal to simulation, exact price, cuts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.backbones.encoder import Encoder
from privml.errors import (
    ProtocolError,
)
from privml.protocols import mpc
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.cipherprune.thresholds import Thresholds
from privml.protocols.mpc import endpoints
from privml.protocols.mpc.correlations import layout
from privml.protocols.mpc.endpoints import connect
from privml.protocols.mpc.fields import Seeds
from privml.rng import Csprng
from privml.testing.openings import patched
from privml.testing.pruned import DECODER, ENCODER, LENGTH, pruned_model, sentence, thresholds
from privml.transport.channel import Channel
from privml.transport.faulty import Fault, FaultyChannel

ROOT = Path(__file__).resolve().parents[2]
GRID = (1, 4, 6)


def learned() -> Thresholds:
    raw = [[int(x) for x in column] for column in thresholds(ENCODER).T]
    return Thresholds.of_raw(raw[0], raw[1], heads=ENCODER.heads)


SERVER = """
import json, sys
from dataclasses import replace
from pathlib import Path
from privml.backbones.encoder import Encoder
from privml.protocols import mpc
from privml.protocols.cipherprune.thresholds import Thresholds
from privml.protocols.mpc.endpoints import Server
from privml.testing.pruned import pruned_model

folder, runs = Path(sys.argv[1]), int(sys.argv[2])
plan = mpc.Plan.load(folder / "plan.json")
encoder = Encoder(plan.config, dict(pruned_model(plan.config, plan.spec.prune).floats))
secret = folder / "secret.json"
prune = replace(plan.spec.prune, thresholds=Thresholds.load(secret) if secret.exists() else None)
model = mpc.PrivateModel(encoder, replace(plan.spec, prune=prune))

def say(event):
    bill = event.bill
    numbers = None if bill is None else [bill.length, bill.counts, bill.flights, bill.sent]
    print(json.dumps([event.kind, event.code, numbers]), flush=True)

with Server(model, plan, folder / "s.pool", identity=mpc.Identity.load(folder, "server"),
            pins=[(folder / "client.pin").read_text()], used=folder / "used",
            deadline_s=5.0) as server:
    print(json.dumps(["port", server.port, None]), flush=True)
    server.serve(runs, on_event=say)
"""


class Far:
    """A server in a process of its own, and this process as its client, over mutual TLS."""

    def __init__(self, folder: Path, config: EncoderConfig, prune: PruneSpec, *, runs: int) -> None:
        floats = dict(pruned_model(config, replace(prune, thresholds=None)).floats)
        self.folder = folder
        self.model = mpc.PrivateModel(Encoder(config, floats), mpc.Spec(prune=prune))
        self.plan = self.model.plan(n=LENGTH)
        self.plan.save(folder / "plan.json")
        if prune.thresholds is not None:
            prune.thresholds.save(folder / "secret")
        pools = {"server": folder / "s.pool", "client": folder / "c.pool"}
        mpc.deal(self.plan, runs=runs, **pools)
        self.mine = mpc.Identity.generate(folder, "client")
        self.pin = mpc.Identity.generate(folder, "server").fingerprint
        (folder / "client.pin").write_text(self.mine.fingerprint)
        self.runs = runs
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(folder), str(runs)], stdout=subprocess.PIPE,
            text=True, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.port = self.heard()[1]

    def heard(self) -> list[Any]:
        """Next line of the server."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.poll()
        said: list[Any] = json.loads(line)
        return said

    def keys(self, index: int) -> Seeds:
        """Keys of a run, which only a dealer has, read from the pools of both parties."""
        seeds = []
        for name in ("s.pool", "c.pool"):
            data = (self.folder / name).read_bytes()
            _, digest = layout.decode_header(data[: layout.HEADER_BYTES])
            at = layout.Layout.entry(index)
            entry = data[at : at + layout.ENTRY_BYTES]
            seeds.append(Csprng(bytes(layout.decode_entry(entry, digest, index) or b"")))
        return Seeds((seeds[0], seeds[1]), None)

    def run(self, batch: Encoded) -> tuple[np.ndarray, mpc.Bill]:
        """One run as the client."""
        with connect(
            plan=self.plan, pool=self.folder / "c.pool", peer=f"127.0.0.1:{self.port}",
            identity=self.mine, pin=self.pin, used=self.folder / "used", connect_s=20.0,
            cache=self.folder / "cache", deadline_s=5.0,
        ) as run:  # fmt: skip
            return run.execute(batch), run.bill

    def cursor(self) -> int:
        """Run that the client's pool would take next."""
        with mpc.Pool.open(self.folder / "c.pool", plan_digest=None,
                           used=mpc.UsedLog(self.folder / "used")) as pool:  # fmt: skip
            return pool.cursor

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


KINDS = {
    "encoder": (ENCODER, PruneSpec(learned(), reveal="bucket", grid=GRID)),
    "decoder": (DECODER, PruneSpec(reveal="schedule", schedule=((6, 3), (3, 2)))),
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def far(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    config, prune = KINDS[request.param]
    far = Far(tmp_path_factory.mktemp(request.param), config, prune, runs=12)
    yield far
    far.close()


def test_two_processes_agree_with_the_simulation_at_the_declared_price(far: Far) -> None:
    for tokens in (LENGTH, 5, 1):
        batch = sentence(tokens, 2)
        seeds = far.keys(far.cursor())
        out, bill = far.run(batch)
        want, _ = far.model.simulate(far.plan, batch, seeds)
        assert np.array_equal(out, want)
        assert far.heard()[0] == "accepted"
        kind, _, (length, counts, flights, sent) = far.heard()
        cost = far.plan.cost_of(bill.length, bill.counts)
        assert kind == "finished"
        assert [length, counts] == [bill.length, [list(c) for c in bill.counts]]
        assert flights == bill.flights == cost.flights
        assert (sent, bill.sent) == cost.sent


def test_a_cut_between_two_processes_spends_the_run_and_the_next_one_works(
    far: Far, rng: np.random.Generator
) -> None:
    dial = endpoints.tls.dial
    counters: list[FaultyChannel] = []

    def cutting(at: int) -> Callable[..., Channel]:
        def dialled(*where: object, **how: object) -> Channel:
            counters.append(FaultyChannel(dial(*where, **how), Fault.CUT, at=at))  # type: ignore[arg-type]
            return counters[-1]

        return dialled

    with patched(endpoints.tls, "dial", cutting(10**9)):
        far.run(sentence(6, 3))
    assert [far.heard()[0] for _ in range(2)] == ["accepted", "finished"]
    for at in rng.integers(10, counters[0]._count - 2, 3).tolist():
        before = far.cursor()
        with patched(endpoints.tls, "dial", cutting(at)), pytest.raises(ProtocolError):
            far.run(sentence(6, 3))
        assert far.heard()[0] == "accepted"
        kind, code, numbers = far.heard()
        assert (kind, numbers) == ("failed", None)
        assert code
        assert far.cursor() == before + 1
    out, _ = far.run(sentence(6, 3))
    assert np.isfinite(out).all()
    assert [far.heard()[0] for _ in range(2)] == ["accepted", "finished"]
