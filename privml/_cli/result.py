"""The document of a local private inference, and how it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from privml._cli import bill
from privml._cli.output import Output
from privml._cli.tables import KEEPS_ALL, answers, at_most, facts, megabytes
from privml.backbones.zero_shot import Verdict
from privml.protocols.mpc.plan import Plan

Document = Mapping[str, Any]
_HERE = (
    "both parties and the dealer ran on this machine, and the clear answers were computed beside "
    "them for comparison; between two hosts: privml plan, deal, serve, query"
)


def combine(
    plan: Plan, runs: int, client: Document, server: Document, dealer: Document,
    clear: Sequence[Verdict], seconds: Mapping[str, float],
) -> dict[str, Any]:  # fmt: skip
    """Put the documents of the three processes and the clear reference together."""
    results = [_compare(r, v) for r, v in zip(client["results"], clear, strict=True)]
    return {
        "plan": plan.summary(),
        "results": results,
        "agreement": sum(r["agree"] for r in results) / len(results),
        "max_score_difference": max(r["score_difference"] for r in results),
        "clear_reference": "computed by the calling process, which holds texts and weights",
        "bill": {
            "client": client["bill"],
            "server": bill.total(server["bills"], setup_bytes=plan.setup_bytes()),
            "dealer_s": dealer["dealt"]["seconds"],
            "dealer_mb": dealer["dealt"]["correction_bytes"] / 1e6,
        },
        "seconds": dict(seconds),
        "claim": str(plan.claim), "failure_probability": plan.claim.failure_prob,
        "failure_condition": plan.claim.failure, "leakage": list(plan.leakage),
        "transport": client["transport"],
    }  # fmt: skip


def _compare(record: Document, clear: Verdict) -> dict[str, Any]:
    private = list(record["scores"].values())
    gap = max(abs(a - b) for a, b in zip(private, clear.scores, strict=True))
    return {
        **record, "clear_label": clear.label, "clear_score": clear.score,
        "clear_scores": dict(zip(record["scores"], clear.scores, strict=True)),
        "agree": record["label"] == clear.label, "score_difference": gap,
    }  # fmt: skip


def show(out: Output, found: Document) -> None:
    """Print answers, bill, claim and leakage."""
    cost, results = found["bill"], found["results"]
    whole = "unpruned " if "prune" in found["plan"] else ""
    agreement = (
        f"{sum(r['agree'] for r in results)} of {len(results)} with the {whole}model in the clear, "
        f"largest difference of a score {found['max_score_difference']:.1e}"
    )
    plan, runs = found["plan"], cost["client"]["runs"]
    largest = at_most(plan)
    planned = f"{runs * plan['predicted_s']['loopback']:.1f} s, {runs * plan['flights']} flights"
    if largest:
        planned = f"{largest}{planned}; {KEEPS_ALL} costs that, and pools are dealt for it"
    dealt = f"{megabytes(cost['dealer_mb'])} in {cost['dealer_s']:.2f} s"
    out.show(answers(results, compare=True))
    out.detail(
        facts("measured", [
            ("agreement", agreement),
            *bill.client_rows(cost["client"]),
            ("planned", planned),
            ("dealer", f"{dealt} before the query; its process has ended"),
            ("in all", f"{found['seconds']['all']:.1f} s with loading the model twice"),
            ("transport", found["transport"] + ", fresh pinned certificates"),
        ]),
        facts("guaranteed", [
            ("claim", found["claim"]),
            ("here", _HERE),
        ]),
    )  # fmt: skip
