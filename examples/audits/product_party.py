"""One process of a measured run: ``product_party.py deal|server|client FOLDER``.

The folder holds the plan, the identities and the pools. Commands come on stdin and answers leave on
stdout, one JSON line each, so that the audit decides when a run starts. Server and client talk over
mutual TLS on loopback, if asked through an emulated link.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from privml.backbones import Encoded
from privml.protocols import mpc
from privml.protocols.cipherprune.thresholds import Thresholds
from privml.testing.netem import EmulatedChannel, Link
from privml.transport import tls
from privml.transport.channel import Channel
from privml.transport.identity import Identity

if TYPE_CHECKING:
    from privml.backbones import Encoder

DEADLINE_S = 120.0


@dataclass(frozen=True)
class Model:
    """A model by name, or the sizes of one with random weights.

    Attributes
    ----------
    name
        Name or directory of a real model; empty for random weights.
    thresholds
        File of learned thresholds, for a pruned plan; empty for none.
    decoder
        Whether random weights form a GPT-2-shaped model.
    """

    name: str = ""
    thresholds: str = ""
    decoder: bool = False
    layers: int = 1
    hidden: int = 384
    heads: int = 12
    ffn: int = 1536
    vocab: int = 64
    positions: int = 512


def encoder_of(model: Model) -> Encoder:
    """Return the model's encoder; loads torch."""
    from privml.backbones import load_encoder, random_decoder, random_encoder

    if model.name:
        return load_encoder(model.name)
    build = random_decoder if model.decoder else random_encoder
    return build(
        layers=model.layers, hidden=model.hidden, heads=model.heads, ffn=model.ffn,
        vocab=model.vocab, max_positions=model.positions,
    )  # fmt: skip


def secret_spec(spec: mpc.Spec, model: Model) -> mpc.Spec:
    """Add the server's thresholds to the options of a plan."""
    if spec.prune is None or not model.thresholds:
        return spec
    learned = Thresholds.load(Path(model.thresholds))
    return replace(spec, prune=replace(spec.prune, thresholds=learned))


def answer(**fields: object) -> None:
    """Write one answer."""
    print(json.dumps(fields), flush=True)


def commands() -> Iterator[dict[str, object]]:
    """Yield the commands until the end of input."""
    for line in sys.stdin:
        yield json.loads(line)


def through(channel: Channel, command: dict[str, object]) -> Channel:
    """Wrap the channel in the emulated link that the command names, if it names one."""
    link = command.get("link")
    return EmulatedChannel(channel, Link(*link)) if isinstance(link, list) else channel


def pool_path(folder: Path, role: str, index: int) -> Path:
    """Return where the pool of a party is."""
    return folder / f"{role}-{index}.pool"


def deal(folder: Path, plan: mpc.Plan) -> None:
    """Deal a pair of pools per command, as a dealer of its own process."""
    for command in commands():
        index, runs = int(str(command["pool"])), int(str(command["runs"]))
        dealt = mpc.deal(
            plan, runs=runs,
            server=pool_path(folder, "server", index), client=pool_path(folder, "client", index),
        )  # fmt: skip
        answer(seconds=dealt.seconds, bytes=dealt.correction_bytes)


class Pools:
    """The pool of one party that is in use, closed and removed before the next one is dealt."""

    def __init__(self, folder: Path, role: str, plan: mpc.Plan) -> None:
        self._folder, self._role, self._plan = folder, role, plan
        self._used = mpc.UsedLog(folder / f"{role}.used")
        self._open: list[tuple[Path, mpc.Pool]] = []

    @property
    def current(self) -> mpc.Pool:
        """The pool opened last."""
        return self._open[-1][1]

    def obey(self, command: dict[str, object]) -> bool:
        """Open the pool that the command names, or remove a spent one; false for a run."""
        if "pool" not in command and "spent" not in command:
            return False
        self.close()
        if "pool" in command:
            self._switch(int(str(command["pool"])))
        answer(ready=True)
        return True

    def _switch(self, index: int) -> None:
        path = pool_path(self._folder, self._role, index)
        pool = mpc.Pool.open(path, plan_digest=self._plan.digest, used=self._used)
        self._open.append((path, pool))

    def close(self) -> None:
        """Close and remove the pool in use."""
        while self._open:
            path, pool = self._open.pop()
            pool.close()
            path.unlink()


def server(folder: Path, plan: mpc.Plan, model: Model) -> None:
    """Hold the weights; a command opens a pool or runs once."""
    private = mpc.PrivateModel(encoder_of(model), secret_spec(plan.spec, model))
    params = private.weights(plan)
    mine = Identity.load(folder / "server", "server")
    pin = (folder / "client.pin").read_text(encoding="ascii")
    pools = Pools(folder, "server", plan)
    with ExitStack() as stack:
        listener = stack.enter_context(tls.listen("127.0.0.1", 0, identity=mine, pins=[pin]))
        stack.callback(pools.close)
        answer(port=listener.port)
        for command in commands():
            if pools.obey(command):
                continue
            channel = through(listener.accept(DEADLINE_S), command)
            with mpc.ServerRun(
                channel, plan, pools.current, params=params, public=private.public_bytes,
                deadline_s=DEADLINE_S,
            ) as run:  # fmt: skip
                answer(bill=asdict(run.serve()))
            channel.close()


def client(folder: Path, plan: mpc.Plan) -> None:
    """Hold the tokens; a command opens a pool, or runs once and answers with the output."""
    mine = Identity.load(folder / "client", "client")
    pin = (folder / "server.pin").read_text(encoding="ascii")
    pools, cache = Pools(folder, "client", plan), mpc.ClientCache(folder / "cache")
    with ExitStack() as stack:
        stack.callback(pools.close)
        answer(ready=True)
        for command in commands():
            if pools.obey(command):
                continue
            batch = Encoded.of(
                np.array(command["ids"], np.int64), np.array(command["mask"], np.bool_)
            )
            port = int(str(command["port"]))
            dialled = tls.dial("127.0.0.1", port, identity=mine, pin=pin, deadline_s=DEADLINE_S)
            channel = through(dialled, command)
            with mpc.ClientRun(
                channel, plan, pools.current, cache=cache, deadline_s=DEADLINE_S
            ) as run:
                output = run.execute(batch)
                answer(bill=asdict(run.bill), output=output.tolist())
            channel.close()


def main() -> int:
    """Run one role."""
    role, folder = sys.argv[1], Path(sys.argv[2])
    plan = mpc.Plan.load(folder / "plan.json")
    if role == "deal":
        deal(folder, plan)
    elif role == "client":
        client(folder, plan)
    else:
        server(folder, plan, Model(**json.loads((folder / "model.json").read_text("utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
