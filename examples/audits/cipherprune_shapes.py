"""BERT-Base and GPT-2 shape with random weights: the paper's token schedule against no pruning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from cipherprune_runs import (
    OURS,
    PUBLISHED,
    NoRoom,
    Runs,
    Variant,
    batch_of,
    bill_bars,
    both_ways,
    claim_of,
    in_turn,
    ratios,
    running,
    speedup_detail,
    times,
)
from frame import Bar, Options, Report, absent, at_least, at_most, reported
from product import BERT_BASE, Product
from product_party import encoder_of

from privml.protocols import mpc
from privml.protocols.cipherprune.program import schedule_of
from privml.protocols.cipherprune.spec import PruneSpec

TOKENS, SENTENCE = 128, 55
PAPER = (55, 54, 52, 49, 45, 24, 14, 5, 2, 1, 1)
"""Tokens kept after each layer but the last; layer 0 takes 128."""
HIGH = 0.5
"""Share of the kept tokens that stay with the exact polynomials, where reduction is on."""
PART = f"{HIGH:.0%} of the kept tokens exact"
GPT2 = replace(BERT_BASE, decoder=True)
BERT_LIMIT, GPT2_LIMITS = 6.1, {128: 6.1, 512: 10.6}
SCALED = "schedule_scaled"
KINDS = ("speedup", "online_s", "GB", "flights", "offline_GB", "offline_s")
AGAINST = "our own run without pruning"
SKIPPED = "left out by --quick: minutes, several GB of disk; only what the plan declares"


def paper_schedule(*, high: float | None = None, factor: int = 1) -> PruneSpec:
    """Return the paper's schedule, counts times `factor`; without `high` nothing is reduced."""
    kept = [k * factor for k in PAPER]
    return PruneSpec(
        reveal="schedule", reduce=high is not None, schedule=schedule_of(kept, high or 1.0)
    )


def bert_variants() -> list[Variant]:
    """Return all ways to run one sentence of 55 tokens, padded to 128 or not."""
    exact, reduced = paper_schedule(), paper_schedule(high=HIGH)
    dropped = "padding dropped before layer 0 (the input bucket 55 is revealed)"
    return [
        Variant("bert.unpruned", BERT_BASE, TOKENS, "no pruning, 128 positions"),
        Variant("bert.unpadded", BERT_BASE, SENTENCE, "no pruning, the sentence's 55 tokens"),
        Variant("bert.schedule", BERT_BASE, TOKENS, "paper's schedule, no reduction", exact),
        Variant("bert.reduced", BERT_BASE, TOKENS, f"paper's schedule, {PART}", reduced),
        Variant("bert.padding_dropped_first", BERT_BASE, SENTENCE,
                f"paper's schedule, no reduction, {dropped}", exact),
        Variant("bert.padding_dropped_first_reduced", BERT_BASE, SENTENCE,
                f"paper's schedule, {PART}, {dropped}", reduced),
    ]  # fmt: skip


def gpt2_variants(n: int) -> list[Variant]:
    """Return a causal model of one length with and without the paper's counts after layer 0."""
    name = f"gpt2.n{n}"
    model = replace(GPT2, positions=max(GPT2.positions, n))
    about = f"paper's counts after layer 0, which takes {n}"
    out = [
        Variant(f"{name}.unpruned", model, n, f"no pruning, {n} tokens"),
        Variant(f"{name}.schedule", model, n, f"{about}, no reduction", paper_schedule()),
        Variant(f"{name}.reduced", model, n, f"{about}, {PART}", paper_schedule(high=HIGH)),
    ]
    if n > TOKENS:
        factor = n // TOKENS
        scaled = paper_schedule(factor=factor)
        out.append(Variant(f"{name}.{SCALED}", model, n, f"paper's counts times {factor}", scaled))
    return out


def bert_section(report: Report, options: Options) -> None:
    """Add ``bert.*``."""
    variants = bert_variants()
    names = [f"{v.name}.{kind}" for v in variants for kind in _kinds(v)]
    names += [f"{v.name}.speedup_unpadded" for v in variants if v.prune]
    with report.section("BERT-Base shape, the paper's schedule", *names):
        if options.quick:
            planned(report, variants, names)
            return
        try:
            found = _measure(report, options, variants, tokens=SENTENCE, claim="bert")
        except NoRoom as error:
            report.add(*_left_out(variants, names, str(error)))
            return
        for v in variants:
            if v.prune:
                runs, against = found[v.name], f"no pruning, 55 tokens unpadded; {v.about}"
                slow = found["bert.unpadded"]
                report.add(reported(
                    f"{v.name}.speedup_unpadded", median(ratios(slow, runs)), unit="x",
                    against=against, detail=speedup_detail(slow, runs),
                ))  # fmt: skip


def gpt2_section(report: Report, options: Options) -> None:
    """Add ``gpt2.n128.*`` and ``gpt2.n512.*``."""
    for n in GPT2_LIMITS:
        variants = gpt2_variants(n)
        names = [f"{v.name}.{kind}" for v in variants for kind in _kinds(v)]
        with report.section(f"GPT-2 shape, {n} tokens", *names):
            if options.quick:
                planned(report, variants, names)
                continue
            try:
                _measure(report, options, variants, tokens=n, claim=f"gpt2.n{n}")
            except NoRoom as error:
                report.add(*_left_out(variants, names, str(error)))


def _measure(
    report: Report, options: Options, variants: Sequence[Variant], *, tokens: int, claim: str
) -> Runs:
    """Run the variants in turn and add their bars; the first one is the baseline."""
    turns = options.repeats(5, 1)
    vocab = variants[0].model.vocab
    batches = {v.name: batch_of(v, tokens=tokens, vocab=vocab) for v in variants}
    with running(variants, turns=turns) as products:
        found = in_turn(products, batches, turns, progress=report.progress)
        for v in variants:
            report.add(*shape_bars(v, products[v.name], found, variants[0].name))
        claim_of(report, claim, products[variants[-1].name])
    return found


def shape_bars(v: Variant, product: Product, found: Runs, base: str) -> list[Bar]:
    """Return the bars of one variant against the baseline."""
    runs = found[v.name]
    gigabytes, online = both_ways(runs[-1]) / 1e9, times(runs)
    published = v.model.layers == BERT_BASE.layers and not v.model.decoder and v.prune is not None
    size = {"sent": runs[-1].sent, "received": runs[-1].received, "counts": runs[-1].counts}
    bars = bill_bars(v.name, product, runs, v.about)
    if published:
        bars += [
            at_most(f"{v.name}.online_s", online.median, 8, unit="s", detail=online.as_dict(),
                    against=f"{v.about}; 79.1 s, {PUBLISHED}; {OURS}"),
            at_most(f"{v.name}.GB", gigabytes, 1, unit="GB", detail=size,
                    against=f"{v.about}, both directions; 9.7 GB, {PUBLISHED}; {OURS}"),
        ]  # fmt: skip
    else:
        bars += [
            reported(f"{v.name}.online_s", online.median, unit="s", against=f"{v.about}; {OURS}",
                     detail=online.as_dict(), reason=expanded_on_line(product.plan)),
            reported(f"{v.name}.GB", gigabytes, unit="GB", against="both directions", detail=size),
        ]  # fmt: skip
    if v.prune:
        ratio, slow = median(ratios(found[base], runs)), found[base]
        against = f"our own run without pruning; {v.about}; {OURS}"
        detail, name = speedup_detail(slow, runs), f"{v.name}.speedup"
        limit = limit_of(v)
        bars.append(
            reported(name, ratio, unit="x", against=against, detail=detail) if limit is None
            else at_least(name, ratio, limit, unit="x", against=against, detail=detail)
        )  # fmt: skip
    return bars


def limit_of(v: Variant) -> float | None:
    """Return the least speed-up of a variant; None if it is only reported."""
    if v.prune is None or v.name.endswith(SCALED):
        return None
    return GPT2_LIMITS[v.n] if v.model.decoder else BERT_LIMIT


def expanded_on_line(plan: mpc.Plan) -> str:
    """Say how much of a run's correlations cannot be expanded ahead of the query."""
    from privml.protocols.mpc.runtime import PREPARE_BYTES

    rest = plan.cost.corrections - PREPARE_BYTES
    if rest <= 0:
        return ""
    return (
        f"at least {rest / 1e9:.1f} GB of correlations exceed the {PREPARE_BYTES / 2**30:.0f} GiB "
        "that are expanded ahead, so part of the expansion counts as on-line time"
    )


def _kinds(v: Variant) -> list[str]:
    return [kind for kind in KINDS if v.prune or kind != "speedup"]


def _left_out(variants: Sequence[Variant], names: Sequence[str], reason: str) -> list[Bar]:
    targets = {f"{v.name}.{kind}": target for v in variants for kind, target in _targets(v).items()}
    return [absent(name, targets.get(name, ""), against=AGAINST, reason=reason) for name in names]


def _targets(v: Variant) -> dict[str, str]:
    """Return the targets of a variant in words."""
    limit = limit_of(v)
    out = {} if limit is None else {"speedup": f">= {limit:g} x"}
    return out if v.model.decoder or v.prune is None else out | {"online_s": "<= 8 s",
                                                                 "GB": "<= 1 GB"}  # fmt: skip


def planned(report: Report, variants: Sequence[Variant], names: Sequence[str]) -> None:
    """Add what the plans declare; all that only a run can tell is absent."""
    encoder = encoder_of(variants[0].model)
    for v in variants:
        cost = mpc.PrivateModel(encoder, v.spec).plan(n=v.n).cost
        gigabytes, against = sum(cost.sent) / 1e9, f"declared by the plan, not run; {v.about}"
        judged = v.prune is not None and not v.model.decoder
        report.add(
            at_most(f"{v.name}.GB", gigabytes, 1, unit="GB", against=f"{against}; {OURS}")
            if judged else reported(f"{v.name}.GB", gigabytes, unit="GB", against=against),
            reported(f"{v.name}.flights", cost.flights, against=against),
            reported(f"{v.name}.offline_GB", cost.corrections / 1e9, unit="GB", against=against),
        )  # fmt: skip
    report.add(*_left_out(variants, [name for name in names if not report.has(name)], SKIPPED))
