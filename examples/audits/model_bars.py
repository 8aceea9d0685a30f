"""Whole models on two processes: MiniLM-L6 and BERT-Base forward passes, and slower links."""

from __future__ import annotations

import numpy as np
from frame import Options, Report, absent, at_most, reported
from layer_bars import BUDGET
from privml.backbones import Encoded, random_batch
from privml.protocols.mpc import Plan
from privml.protocols.mpc.arithmetic.affine import Affine
from privml.protocols.mpc.arithmetic.matmul import Linear
from privml.testing.netem import LAN, WAN, Link, modelled_seconds
from product import BERT_BASE, MINILM, Measured, Product
from timing import Timing

TOKENS = 128
LINKS = {"lan": LAN, "wan": WAN}


def one_after_another(plan: Plan) -> int:
    """Return the bytes of a run that pass one after the other.

    A question with its answer counts both, a simultaneous exchange its larger direction.
    """
    asked = (Linear, Affine)
    return sum(
        sum(step.cost.sent) if isinstance(step.primitive, asked) else max(step.cost.sent)
        for step in plan.steps
    )


def minilm_section(report: Report, options: Options) -> None:
    """Add ``minilm.*``: one forward pass of MiniLM-L6, 128 tokens, and the links."""
    names = ["online_s", "GB_per_direction", "flights", "offline_GB", "offline_s", "setup_MB"]
    names += [f"{link}.{kind}" for link in LINKS for kind in ("modelled_s", "emulated_s", "error")]
    repeats = options.repeats(5, 3)
    with (
        report.section("MiniLM-L6, 128 tokens", *(f"minilm.{name}" for name in names)),
        Product(MINILM, n=TOKENS, runs=repeats + 3) as product,
    ):
        batch = random_batch(product.encoder.config, rows=1, length=TOKENS, seed=3)
        runs = _runs(product, batch, repeats)
        online = Timing(tuple(run.online_s for run in runs))
        last, plan = runs[-1], product.plan
        detail = online.as_dict() | {"claim": str(plan.claim)}
        prepare_s = Timing(tuple(run.prepare_s for run in runs)).median
        report.add(
            at_most("minilm.online_s", online.median, 6, unit="s", aim=3, against=BUDGET,
                    detail=detail),
            at_most("minilm.GB_per_direction", max(last.sent, last.received) / 1e9, 0.25,
                    unit="GB", aim=0.21, against=BUDGET,
                    detail={"sent": last.sent, "received": last.received}),
            reported("minilm.flights", last.flights, against=f"declared: {plan.cost.flights}"),
            at_most("minilm.offline_GB", product.deal_bytes / 1e9, 0.9, unit="GB",
                    against="design budget, dealer to client per run"),
            reported("minilm.offline_s", product.deal_s + prepare_s, unit="s",
                     against="dealer's seconds per run plus expansion at the slower party",
                     detail={"deal_s": product.deal_s, "prepare_s": prepare_s}),
            reported("minilm.setup_MB", plan.setup_bytes() / 1e6, unit="MB",
                     against="masked weights, once per pool"),
        )  # fmt: skip
        for name, link in LINKS.items():
            _over(report, f"minilm.{name}", product, batch, link, online.median)


def _runs(product: Product, batch: Encoded, repeats: int) -> list[Measured]:
    product.run(batch)  # also pays the set-up
    return [product.run(batch) for _ in range(repeats)]


def _over(
    report: Report, name: str, product: Product, batch: Encoded, link: Link, compute_s: float
) -> None:
    """Compare the modelled time of a link with a run through an emulated one."""
    run = product.run(batch, link=link)
    nbytes = one_after_another(product.plan)
    modelled = modelled_seconds(compute_s, run.flights, nbytes=nbytes, link=link)
    described = f"{link.name} {link.bits_per_s / 1e6:.0f} Mbit/s, {link.rtt_s * 1e3:g} ms"
    report.add(
        reported(f"{name}.modelled_s", modelled, unit="s",
                 against=f"modelled, not measured: {described}",
                 detail={"compute_s": compute_s, "flights": run.flights, "bytes": nbytes}),
        reported(f"{name}.emulated_s", run.online_s, unit="s",
                 against=f"two processes through an emulated link: {described}"),
        at_most(f"{name}.error", abs(run.online_s / modelled - 1), 0.15,
                against="emulated against modelled time"),
    )  # fmt: skip


def bert_section(report: Report, options: Options) -> None:
    """Add ``bert_base.*``: random weights of BERT-Base's shape, 128 and 55 tokens."""
    names = ["n128.online_s", "n128.GB_per_direction", "n128.offline_GB", "n55.online_s"]
    names += ["n55.GB_per_direction", "n512.planned_GB_per_direction"]
    with report.section("BERT-Base shape", *(f"bert_base.{name}" for name in names)):
        if options.quick:
            reason = "left out by --quick: needs minutes and several GB of disk"
            for name in names:
                report.add(absent(f"bert_base.{name}", "", against=BUDGET, reason=reason))
            return
        _bert(report, 128, seconds=25, aim=12, gigabytes=0.63, offline=2.5)
        _bert(report, 55, seconds=10, aim=None, gigabytes=0.21, offline=None)


def _bert(
    report: Report, n: int, *, seconds: float, aim: float | None, gigabytes: float,
    offline: float | None,
) -> None:  # fmt: skip
    name = f"bert_base.n{n}"
    with Product(BERT_BASE, n=n, runs=4) as product:
        ids = np.arange(n, dtype=np.int64)[None] % product.encoder.config.vocab
        runs = _runs(product, Encoded.of(ids), 3)
        online = Timing(tuple(run.online_s for run in runs))
        more = {} if aim is None else {"aim": aim}
        report.add(
            at_most(f"{name}.online_s", online.median, seconds, unit="s", against=BUDGET,
                    detail=online.as_dict() | {"flights": runs[-1].flights}, **more),
            at_most(f"{name}.GB_per_direction", max(runs[-1].sent, runs[-1].received) / 1e9,
                    gigabytes, unit="GB", against=BUDGET),
        )  # fmt: skip
        if offline is not None:
            report.add(at_most(f"{name}.offline_GB", product.deal_bytes / 1e9, offline, unit="GB",
                               against="design budget, dealer to client per run"))  # fmt: skip
            plan = product.private.plan(n=512)
            report.add(reported(
                "bert_base.n512.planned_GB_per_direction", max(plan.cost.sent) / 1e9, unit="GB",
                against="declared by the plan, not run; design figure 5.2 GB",
            ))  # fmt: skip
