"""What an evaluation has measured so far: accuracy, tokens, price; as a document and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

from privml._cli.output import Output
from privml._cli.pruning import tokens
from privml._cli.tables import KEEPS_ALL, at_most, both_ways, count, facts, megabytes

if TYPE_CHECKING:
    from privml._cli.ways import Mode, Result
    from privml.protocols.mpc.plan import Plan

_Z = 1.96  # two-sided 95 %
_HOW: Mapping[Mode, str] = {
    "clear": "float model in the clear; token counts are those of its exact scores",
    "simulate": "the protocol's integer program on clear words, under fresh masks",
    "execute": "the protocol between two processes on this machine, over TLS",
}


@dataclass(frozen=True, eq=False)
class Measured:
    """One text: what came out and what is right."""

    result: Result
    answer: int
    plain: int
    label: int
    tokens: int


@dataclass
class Scores:
    """Collects texts; everything can be asked after the first one."""

    measured: list[Measured] = field(default_factory=list)

    def add(self, result: Result, plain: int, *, label: int, tokens: int) -> None:
        """Take one text; ``plain`` is the answer of the unpruned model in the clear."""
        answer = int(result.output.argmax())
        self.measured.append(Measured(result, answer, plain, label, tokens))

    def so_far(self) -> str:
        """Return the accuracy in words."""
        right = sum(m.answer == m.label for m in self.measured)
        return f"accuracy so far {100 * right / len(self.measured):.1f} %"

    def document(self, plan: Plan, *, mode: Mode, asked: int, partial: bool) -> dict[str, Any]:
        """Return everything as plain values; means are over the texts measured."""
        some, total = self.measured, len(self.measured)
        right = sum(m.answer == m.label for m in some)
        plain = sum(m.plain == m.label for m in some)
        same = sum(m.answer == m.plain for m in some)
        seconds = [m.result.seconds for m in some if m.result.seconds is not None]
        return {
            "partial": partial, "mode": mode, "how": _HOW[mode], "rows": total, "rows_asked": asked,
            "accuracy": right / total, "accuracy_95": interval(right, total),
            "unpruned_clear": {"accuracy": plain / total, "same_answers": same / total},
            "tokens": self._tokens(plan),
            "per_text": {
                "source": "measured" if mode == "execute" else "by the plan, exact for the counts",
                "flights": fmean(m.result.flights for m in some),
                "online_mb_client_to_server": fmean(m.result.sent for m in some) / 1e6,
                "online_mb_server_to_client": fmean(m.result.received for m in some) / 1e6,
                **({"online_s": fmean(seconds)} if seconds else {}),
            },
            "plan": plan.summary(), "claim": str(plan.claim), "leakage": list(plan.leakage),
        }  # fmt: skip

    def _tokens(self, plan: Plan) -> dict[str, Any]:
        """Return mean length of the texts, and means of what their runs open."""
        found: dict[str, Any] = {
            "text": fmean(m.tokens for m in self.measured),
            "opened": fmean(m.result.length for m in self.measured),
        }
        if plan.spec.prune is not None:
            layers = zip(*(m.result.counts for m in self.measured), strict=True)
            found["kept"] = [[fmean(pair[k] for pair in layer) for k in (0, 1)] for layer in layers]
        return found


def interval(right: int, total: int) -> list[float]:
    """Return the 95 % interval of a share, by Wilson.

    >>> [round(end, 3) for end in interval(90, 100)]
    [0.826, 0.945]
    """
    share, extra = right / total, _Z**2 / total
    middle = (share + extra / 2) / (1 + extra)
    half = _Z / (1 + extra) * math.sqrt(share * (1 - share) / total + extra / 4 / total)
    return [max(0.0, middle - half), min(1.0, middle + half)]


def show(out: Output, found: Mapping[str, Any]) -> None:
    """Print the result; with ``--quiet`` the accuracy alone."""
    if out.mode.quiet:
        out.show(f"{found['accuracy']:.4f}")
        return
    out.show(facts("PARTIAL result" if found["partial"] else "evaluated", _rows(found)))


def _rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    plan, per, plain = found["plan"], found["per_text"], found["unpruned_clear"]
    low, high = (100 * end for end in found["accuracy_95"])
    of = "" if found["rows"] == found["rows_in_file"] else f" of {found['rows_in_file']}, at random"
    cut = f"; {found['texts_cut']} cut at {plan['length']} tokens" if found["texts_cut"] else ""
    moved = both_ways(per["online_mb_client_to_server"], per["online_mb_server_to_client"])
    largest = both_ways(plan["online_mb_client_to_server"], plan["online_mb_server_to_client"])
    timed = f"{per['online_s']:.2f} s, " if "online_s" in per else ""
    pruned = "prune" in plan
    clear = f"{100 * plain['accuracy']:.2f} %{' unpruned' if pruned else ''}, same texts; "
    rows = [
        ("texts", count(found["rows"], "row") + of + cut),
        ("mode", f"{found['mode']}: {found['how']}"),
        ("accuracy", f"{100 * found['accuracy']:.2f} % (95 % interval {low:.1f} to {high:.1f})"),
        (
            "in the clear",
            clear + f"{100 * plain['same_answers']:.2f} % of the answers are the same",
        ),
        *_token_rows(found["tokens"]),
        ("each text", f"{timed}{per['flights']:.0f} flights, {moved}; mean, {per['source']}"),
    ]
    dealt = f"{megabytes(plan['offline_mb_per_run'])} for each text"
    if at_most(plan):
        rows.append(("at most", f"{plan['flights']} flights, {largest}: {KEEPS_ALL}"))
        dealt += ", whatever it drops"
    return [*rows, ("dealt", dealt), ("a run claims", found["claim"])]


def _token_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    text = f"{found['text']:.1f} in a text, mean"
    if "kept" not in found:
        return [("tokens", f"{text}; padded to {found['opened']:.0f}")]
    return [("tokens", text), ("opened", tokens(found["opened"], found["kept"]) + "; mean")]
