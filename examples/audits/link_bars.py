"""Slower links: modelled time next to a run of two processes through an emulated link."""

from __future__ import annotations

from statistics import median

from frame import Report, at_most, reported
from product import Product
from timing import paired

from privml.backbones import Encoded
from privml.protocols.mpc import Plan
from privml.protocols.mpc.arithmetic.affine import Affine
from privml.protocols.mpc.arithmetic.matmul import Linear
from privml.testing.netem import LAN, WAN, Link, modelled_seconds

LINKS = (LAN, WAN)


def link_names(subject: str) -> list[str]:
    """Return the bars that :func:`over_link` adds for each link."""
    kinds = ("modelled_s", "emulated_s", "model_error")
    return [f"{subject}.{link.name.lower()}.{kind}" for link in LINKS for kind in kinds]


def one_after_another(plan: Plan) -> int:
    """Return the bytes of a run that pass one after the other.

    A question with its answer counts both, a simultaneous exchange its larger direction.
    """
    asked = (Linear, Affine)
    return sum(
        sum(step.cost.sent) if isinstance(step.primitive, asked) else max(step.cost.sent)
        for step in plan.steps
    )


def described(link: Link) -> str:
    """Return name, bandwidth and round trip of a link."""
    return f"{link.name} {link.bits_per_s / 1e6:g} Mbit/s, {link.rtt_s * 1e3:g} ms round trip"


def modelled(plan: Plan, link: Link, compute_s: float) -> float:
    """Return ``compute + flights * RTT / 2 + bytes / bandwidth`` of a run, in seconds."""
    nbytes = one_after_another(plan)
    return modelled_seconds(compute_s, plan.cost.flights, nbytes=nbytes, link=link)


def over_link(
    report: Report, subject: str, product: Product, batch: Encoded, link: Link, *, repeats: int
) -> None:
    """Add ``<subject>.<link>.*``: runs without and with the link in turn, and the model."""
    both = paired(
        lambda: product.run(batch).online_s,
        lambda: product.run(batch, link=link).online_s,
        repeats=repeats,
        warmup=0,
    )
    expected = [modelled(product.plan, link, compute_s) for compute_s in both.ours.samples]
    errors = [abs(b / a - 1) for a, b in zip(expected, both.theirs.samples, strict=True)]
    name = f"{subject}.{link.name.lower()}"
    detail = {
        "flights": product.plan.cost.flights,
        "bytes": one_after_another(product.plan),
        "loopback": both.ours.as_dict(),
    }
    report.add(
        reported(f"{name}.modelled_s", median(expected), unit="s",
                 against=f"modelled, not measured: {described(link)}", detail=detail),
        reported(f"{name}.emulated_s", both.theirs.median, unit="s",
                 against=f"through an emulated link: {described(link)}",
                 detail=both.theirs.as_dict()),
    )  # fmt: skip
    # On a fast link the loopback time already holds the transfer, so only the slow one is judged.
    error, against = f"{name}.model_error", "emulated against modelled time, pair by pair"
    if link is WAN:
        report.add(at_most(error, median(errors), 0.15, against=against))
    else:
        report.add(reported(error, median(errors), against=against))
