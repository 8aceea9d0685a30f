"""Measured runs of several products in turn, held to what their plans declare."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from frame import Bar, Report, reported
from numpy.typing import NDArray
from product import POOL_BYTES, Measured, Product
from product_party import Model
from timing import Timing

from privml.backbones import Encoded
from privml.protocols import mpc
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.mpc.claim import SOURCES
from privml.protocols.mpc.primitive import Cost

OURS = "ours: semi-honest, static, with abort, and a dealer off line"
PUBLISHED = "CipherPrune as published: 2 parties, no dealer, LAN 3 Gbit/s 0.8 ms, layers added up"
Runs = Mapping[str, Sequence[Measured]]


@dataclass(frozen=True)
class Variant:
    """One way to run a model.

    Attributes
    ----------
    name
        First part of the names of its bars.
    model
        What to run.
    n
        Positions of the plan.
    about
        What it is, in words.
    prune
        Pruning options without thresholds; ``None`` for none.
    """

    name: str
    model: Model
    n: int
    about: str
    prune: PruneSpec | None = None

    @property
    def spec(self) -> mpc.Spec:
        """Options of the plan."""
        return mpc.Spec(prune=self.prune)


class NoRoom(Exception):
    """The machine has too little memory or disk for the runs."""


def batch_of(variant: Variant, *, tokens: int, vocab: int) -> Encoded:
    """Return one sentence of so many tokens, padded to the variant's positions."""
    ids = np.arange(variant.n, dtype=np.int64)[None] * 7 % vocab
    return Encoded.of(ids, np.arange(variant.n)[None] < min(tokens, variant.n))


@contextmanager
def running(variants: Sequence[Variant], *, turns: int) -> Iterator[dict[str, Product]]:
    """Start the processes of all variants; they idle until they are asked.

    Raises
    ------
    NoRoom
        Memory or disk would not hold them all.
    """
    with ExitStack() as stack:
        products = {}
        for v in variants:
            product = Product(v.model, n=v.n, per_pool=turns + 1, spec=v.spec)
            products[v.name] = stack.enter_context(product)
        require_room([p.plan for p in products.values()], turns=turns)
        yield products


def require_room(plans: Sequence[mpc.Plan], *, turns: int) -> None:
    """Refuse plans if the largest one cannot run while the processes of all of them idle."""
    idle = [3 * (p.setup_bytes() + p.public_bytes()) for p in plans]  # weights, at both parties
    active = [sum(p.memory_bytes()) - p.cost.corrections for p in plans]  # pools are mapped files
    peak = sum(idle) + max(a - i for a, i in zip(active, idle, strict=True))
    free = _available_memory()
    if peak > free:
        raise NoRoom(f"needs {peak / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free")
    disk = sum(
        min((turns + 1) * c, max(c, POOL_BYTES)) for c in (p.cost.corrections for p in plans)
    )
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if 1.1 * disk > free:
        raise NoRoom(f"needs {disk / 1e9:.0f} GB of disk for pools, {free / 1e9:.0f} GB are free")


def _available_memory() -> float:
    path = Path("/proc/meminfo")
    if not path.is_file():
        return float("inf")
    lines = dict(line.split(":", 1) for line in path.read_text(encoding="ascii").splitlines())
    return 1024 * float(lines["MemAvailable"].split()[0])


def in_turn(
    products: Mapping[str, Product], batches: Mapping[str, Encoded], turns: int, *,
    warm: bool = True, progress: Callable[[str], None] = lambda _: None,
) -> dict[str, list[Measured]]:  # fmt: skip
    """Run every product once per turn; who begins changes from turn to turn.

    Parameters
    ----------
    warm
        Run each one before, uncounted; that also pays for the set-up.

    Raises
    ------
    ValueError
        A run cost other flights or bytes than its plan declares.
    """
    names = list(products)
    taken: dict[str, list[Measured]] = {name: [] for name in names}
    for name in names if warm else ():
        products[name].run(batches[name])
    for turn in range(turns):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            run = products[name].run(batches[name])
            require_declared(products[name].plan, run)
            taken[name].append(run)
            progress(f"  turn {turn + 1}, {name}: {run.online_s:.2f} s")
    return taken


def require_declared(plan: mpc.Plan, run: Measured) -> None:
    """Hold flights and bytes of a run to its plan."""
    cost = declared(plan, run)
    found, expected = (run.flights, run.received, run.sent), (cost.flights, *cost.sent)
    if found != expected:
        raise ValueError(f"flights and bytes {found}, the plan declares {expected}")


def declared(plan: mpc.Plan, run: Measured) -> Cost:
    """Return what the plan declares for the token counts of a run."""
    return plan.cost if plan.index is None else plan.cost_of(run.length, run.counts)


def both_ways(run: Measured) -> int:
    """Return the payload bytes of a run, both directions."""
    return run.sent + run.received


def times(runs: Sequence[Measured]) -> Timing:
    """Return the on-line seconds."""
    return Timing(tuple(run.online_s for run in runs))


def ratios(slow: Sequence[Measured], fast: Sequence[Measured]) -> NDArray[np.float64]:
    """Return how many times longer one product took than another, turn by turn."""
    pairs = zip(slow, fast, strict=True)
    return np.array([a.online_s / b.online_s for a, b in pairs])


def speedup_detail(slow: Sequence[Measured], fast: Sequence[Measured]) -> dict[str, object]:
    """Return both timings and the spread of their ratio."""
    found = ratios(slow, fast)
    return {
        "fast": times(fast).as_dict(), "slow": times(slow).as_dict(),
        "ratio_min": float(found.min()), "ratio_max": float(found.max()),
        "bytes_ratio": both_ways(slow[-1]) / both_ways(fast[-1]),
    }  # fmt: skip


def bill_bars(name: str, product: Product, runs: Sequence[Measured], about: str) -> list[Bar]:
    """Return flights and the off-line part of a variant, which have no target."""
    prepare_s = median(run.prepare_s for run in runs)
    dealer = f"{about}; {SOURCES[product.plan.source]}"
    return [
        reported(f"{name}.flights", runs[-1].flights, against=f"{about}; as declared"),
        reported(f"{name}.offline_GB", product.deal_bytes / 1e9, unit="GB", against=dealer),
        reported(f"{name}.offline_s", product.deal_s + prepare_s, unit="s",
                 against="dealer's seconds per run plus expansion at the slower party",
                 detail={"deal_s": product.deal_s, "prepare_s": prepare_s}),
    ]  # fmt: skip


def claim_of(report: Report, name: str, product: Product) -> None:
    """Add the failure probability of one inference, with the claim and leakage printed beside."""
    claim = product.plan.claim
    report.add(reported(
        f"{name}.failure_probability", claim.failure_prob, against="computed from the plan",
        reason=f"claim: {claim}", detail={"leakage": list(product.plan.leakage)},
    ))  # fmt: skip
