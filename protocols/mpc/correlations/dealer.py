"""The dealer: reads a plan, writes one pool for each party, and is gone before the query.

It holds all masks of all runs while it works, and no data, no weights and no transcript. Together
with either party it could break every run dealt from it; hence its own process, on a machine that
neither party controls, and nothing that outlives :func:`deal`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from privml.errors import ParameterError
from privml.protocols.mpc.correlations.pool import PoolHeader, PoolWriter
from privml.protocols.mpc.correlations.tags import Tagger, tagged
from privml.protocols.mpc.fields import Seeds, corrections
from privml.protocols.mpc.plan import Plan
from privml.rng import Csprng

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Dealt:
    """What a dealer wrote: the pool id, runs, bytes of corrections and seconds."""

    pool_id: str
    runs: int
    correction_bytes: int
    seconds: float


def deal(
    plan: Plan,
    *,
    runs: int,
    server: Path | str,
    client: Path | str,
    progress: Progress | None = None,
) -> Dealt:
    """Write the two pool files of ``runs`` inferences; either both appear or neither is usable.

    Parameters
    ----------
    progress
        Called with (steps done, steps in all).

    Raises
    ------
    ParameterError
        ``runs`` is not positive, or both paths are the same.
    StorageError, Full
        A path exists or cannot be written.

    Notes
    -----
    Cost: ``plan.cost.corrections`` bytes to the client's file per run, and about as much keystream
    three times.
    """
    if runs < 1:
        raise ParameterError(f"runs = {runs} must be at least 1")
    if Path(server).resolve() == Path(client).resolve():
        raise ParameterError("the server's and the client's pool need different paths")
    began = time.perf_counter()
    root = Csprng.fresh()
    pool_id, setup = root.child("pool").token(16).hex(), root.child("setup").token(32)
    size = plan.pool_bytes()
    headers = [
        PoolHeader(pool_id=pool_id, plan_digest=plan.digest, rank=rank, runs=runs,
                   correction_bytes=rank * size, setup=setup.hex() if rank == 0 else "",
                   claim=str(plan.claim))
        for rank in (0, 1)
    ]  # fmt: skip
    with PoolWriter(server, headers[0]) as first, PoolWriter(client, headers[1]) as second:
        for run in range(runs):
            keys = [root.child("run", run, rank).token(32) for rank in (0, 1)]
            first.add_run(keys[0])
            second.add_run(keys[1])
            seeds = Seeds((Csprng(keys[0]), Csprng(keys[1])), Csprng(setup))
            _deal_run(plan, seeds, second, progress, run, runs)
        first.commit()
        second.commit()
    return Dealt(pool_id, runs, runs * size, time.perf_counter() - began)


def _deal_run(
    plan: Plan, seeds: Seeds, out: PoolWriter, progress: Progress | None, run: int, runs: int
) -> None:
    count = len(plan.steps)
    tags = Tagger(seeds.runs[1])
    for item, step in enumerate(plan.steps):
        prim = step.primitive
        for piece in tagged(corrections(prim.fields(), prim.derive, item, seeds), tags):
            out.append(piece)
        if progress is not None:
            progress(run * count + item + 1, runs * count)
