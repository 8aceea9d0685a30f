"""Whole models on two processes: MiniLM-L6 and BERT-Base forward passes, and slower links."""

from __future__ import annotations

import numpy as np
from frame import Options, Report, absent, at_most, reported
from layer_bars import BUDGET
from link_bars import LINKS, described, link_names, modelled, over_link
from product import BERT_BASE, MINILM, Measured, Product
from timing import Timing

from privml.backbones import Encoded, random_batch

TOKENS = 128


def minilm_section(report: Report, options: Options) -> None:
    """Add ``minilm.*``: one forward pass of MiniLM-L6, 128 tokens, and the links."""
    kinds = ("online_s", "GB_per_direction", "flights", "offline_GB", "offline_s", "setup_MB")
    names = [f"minilm.{kind}" for kind in kinds]
    repeats = options.repeats(5, 2)
    with (
        report.section("MiniLM-L6, 128 tokens", *names, *link_names("minilm")),
        Product(MINILM, n=TOKENS, per_pool=repeats + 1) as product,
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
        _links(report, options, product, batch, online.median)


def _runs(product: Product, batch: Encoded, repeats: int) -> list[Measured]:
    product.run(batch)  # also pays the set-up
    return [product.run(batch) for _ in range(repeats)]


def _links(
    report: Report, options: Options, product: Product, batch: Encoded, online_s: float
) -> None:
    for link in LINKS:
        if not options.quick:
            over_link(report, "minilm", product, batch, link, repeats=1)
            continue
        name = f"minilm.{link.name.lower()}"
        reason = "left out by --quick; see the same link under layer.minilm"
        report.add(
            reported(f"{name}.modelled_s", modelled(product.plan, link, online_s), unit="s",
                     against=f"modelled, not measured: {described(link)}"),
            absent(f"{name}.emulated_s", "", against=described(link), reason=reason),
            absent(f"{name}.model_error", "", against=described(link), reason=reason),
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
    with Product(BERT_BASE, n=n, per_pool=4) as product:
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
