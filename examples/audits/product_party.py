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
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from privml.backbones import Encoded
from privml.protocols import mpc
from privml.testing.netem import EmulatedChannel, Link
from privml.transport import tls
from privml.transport.channel import Channel
from privml.transport.identity import Identity

if TYPE_CHECKING:
    from privml.backbones import Encoder

DEADLINE_S = 120.0


def encoder_of(model: dict[str, int] | str) -> Encoder:
    """Return a named encoder, or one with random weights and the given sizes; loads torch."""
    from privml.backbones import load_encoder, random_encoder

    if isinstance(model, str):
        return load_encoder(model)
    return random_encoder(**model)


def answer(**fields: object) -> None:
    """Write one answer."""
    print(json.dumps(fields), flush=True)


def commands() -> Iterator[dict[str, object]]:
    """Yield the commands until the end of input."""
    for line in sys.stdin:
        yield json.loads(line)


def bill_of(bill: mpc.Bill) -> dict[str, object]:
    """Return the bill with its figures per scope."""
    return asdict(bill)


def through(channel: Channel, command: dict[str, object]) -> Channel:
    """Wrap the channel in the emulated link that the command names, if it names one."""
    link = command.get("link")
    return EmulatedChannel(channel, Link(*link)) if isinstance(link, list) else channel


def deal(folder: Path, plan: mpc.Plan) -> None:
    """Deal the number of runs that each command asks for; a dealer of its own process."""
    for command in commands():
        dealt = mpc.deal(
            plan, runs=int(str(command["runs"])),
            server=folder / "server.pool", client=folder / "client.pool",
        )  # fmt: skip
        answer(seconds=dealt.seconds, bytes=dealt.correction_bytes, runs=dealt.runs)


def server(folder: Path, plan: mpc.Plan, model: dict[str, int] | str) -> None:
    """Hold the weights; one run per command."""
    private = mpc.PrivateModel(encoder_of(model), plan.spec)
    params = private.weights(plan)
    mine = Identity.load(folder / "server", "server")
    pin = (folder / "client.pin").read_text(encoding="ascii")
    with ExitStack() as stack:
        listener = stack.enter_context(tls.listen("127.0.0.1", 0, identity=mine, pins=[pin]))
        pool = pool_of(folder / "server.pool", plan)
        stack.callback(pool.close)
        answer(port=listener.port)
        for command in commands():
            channel = through(listener.accept(DEADLINE_S), command)
            with mpc.ServerRun(
                channel, plan, pool, params=params, public=private.public_bytes,
                deadline_s=DEADLINE_S,
            ) as run:  # fmt: skip
                answer(bill=bill_of(run.serve()))
            channel.close()


def client(folder: Path, plan: mpc.Plan) -> None:
    """Hold the tokens; one run per command, with the output in the answer."""
    mine = Identity.load(folder / "client", "client")
    pin = (folder / "server.pin").read_text(encoding="ascii")
    pool = pool_of(folder / "client.pool", plan)
    cache = mpc.ClientCache(folder / "cache")
    answer(ready=True)
    for command in commands():
        batch = Encoded.of(np.array(command["ids"], np.int64), np.array(command["mask"], np.bool_))
        port = int(str(command["port"]))
        channel = through(
            tls.dial("127.0.0.1", port, identity=mine, pin=pin, deadline_s=DEADLINE_S), command
        )
        with mpc.ClientRun(channel, plan, pool, cache=cache, deadline_s=DEADLINE_S) as run:
            output = run.execute(batch)
            answer(bill=bill_of(run.bill), output=output.tolist())
        channel.close()
    pool.close()


def pool_of(path: Path, plan: mpc.Plan) -> mpc.Pool:
    """Open a pool under a log of used pools beside it."""
    return mpc.Pool.open(path, plan_digest=plan.digest, used=mpc.UsedLog(path.with_suffix(".used")))


def main() -> int:
    """Run one role."""
    role, folder = sys.argv[1], Path(sys.argv[2])
    plan = mpc.Plan.load(folder / "plan.json")
    if role == "deal":
        deal(folder, plan)
    elif role == "client":
        client(folder, plan)
    else:
        server(folder, plan, json.loads((folder / "model.json").read_text(encoding="utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
