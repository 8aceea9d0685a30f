"""Simulates the protocol on many sentences: ``cipherprune_worker.py MODEL N PRUNE``.

MODEL and PRUNE are the JSON of the model and of the pruning options. Requests come on stdin and
answers leave on stdout, one JSON line each: the row's number and token ids; its number, outputs and
token counts. A row passes through the protocol's own integer program on clear words under fresh
masks, in one thread.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import msgspec
import numpy as np
from frame import THREAD_VARIABLES
from machine import usable_cores
from numpy.typing import NDArray
from product_party import Model, encoder_of, secret_spec

from privml.backbones import Encoded
from privml.protocols import mpc
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.mpc.engine import Simulator
from privml.protocols.mpc.fields import Seeds
from privml.protocols.mpc.inputs import client_inputs, fit, outputs
from privml.rng import Csprng

ROOT = Path(__file__).resolve().parents[2]
Counts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Simulated:
    """What the protocol gives for one sentence, and the token counts it opens on the way.

    Attributes
    ----------
    output
        What the client learns, ``(output_dim,)``.
    counts
        (rows kept, rows of high importance) after each layer but the last.
    """

    output: NDArray[np.float64]
    counts: Counts


def simulated(private: mpc.PrivateModel, plan: mpc.Plan, batch: Encoded, seeds: Seeds) -> Simulated:
    """Run the integer program of a plan on one sentence; with a run's keys, bit by bit that run."""
    batch = fit(plan, batch)
    engine = Simulator(seeds, index=plan.index)
    inputs = client_inputs(plan, batch, private.public)
    result = plan.program.run(engine, private.weights(plan), inputs)
    if result.words is None:
        raise AssertionError("a simulation without words")
    return Simulated(outputs(plan, result.words, batch, rows=1)[0], tuple(engine.found))


def fresh_seeds() -> Seeds:
    """Draw the keys of a run."""
    root = Csprng.fresh()
    return Seeds((root.child(0), root.child(1)), None)


def simulate_all(
    model: Model, prune: PruneSpec, rows: Sequence[NDArray[np.int64]], *, n: int,
    progress: Callable[[str], None],
) -> list[Simulated]:  # fmt: skip
    """Simulate every row in processes of one thread each, one process per core.

    Raises
    ------
    RuntimeError
        A process failed; its own message is on stderr.
    """
    order = np.argsort([len(row) for row in rows], kind="stable")
    workers = min(usable_cores(), len(rows))
    command = [sys.executable, __file__, json.dumps(asdict(model)), str(n),
               json.dumps(prune.as_dict())]  # fmt: skip
    environment = dict(os.environ, **dict.fromkeys(THREAD_VARIABLES, "1"))
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    found: dict[int, Simulated] = {}
    with ExitStack() as stack:
        jobs = []
        for k in range(workers):
            asked, told = (stack.enter_context(TemporaryFile("w+")) for _ in range(2))
            for i in order[k::workers]:
                asked.write(json.dumps({"row": int(i), "ids": rows[i].tolist()}) + "\n")
            asked.seek(0)
            process = subprocess.Popen(command, stdin=asked, stdout=told, env=environment)
            stack.callback(process.kill)
            jobs.append((process, told))
        for number, (process, told) in enumerate(jobs, 1):
            if process.wait() != 0:
                raise RuntimeError("a process of the simulation failed; its message is above")
            told.seek(0)
            found |= dict(_parsed(json.loads(line)) for line in told)
            progress(f"  simulated by {number} of {workers} processes")
    return [found[i] for i in range(len(rows))]


def _parsed(answer: Mapping[str, Any]) -> tuple[int, Simulated]:
    counts = tuple(tuple(pair) for pair in answer["counts"])
    return int(answer["row"]), Simulated(np.array(answer["output"]), counts)


def main() -> int:
    """Answer every request."""
    model, n = Model(**json.loads(sys.argv[1])), int(sys.argv[2])
    prune = msgspec.convert(json.loads(sys.argv[3]), PruneSpec)
    spec = secret_spec(mpc.Spec(prune=prune), model)
    private = mpc.PrivateModel(encoder_of(model), spec)
    plan = private.plan(n=n)
    for line in sys.stdin:
        request = json.loads(line)
        ids = np.array(request["ids"], np.int64)[None]
        one = simulated(private, plan, Encoded.of(ids), fresh_seeds())
        answer = {"row": request["row"], "output": one.output.tolist(), "counts": one.counts}
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
