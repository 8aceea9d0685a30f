"""The act of the demo that classifies long texts twice: without and with token pruning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from privml._cli.bill import mean_tokens
from privml._cli.infer import work
from privml._cli.inputs import Question
from privml._cli.output import Output
from privml._cli.pruning import Local, tokens
from privml._cli.tables import answers, both_ways, facts

_TEXT = """
The visitors led at half-time through a penalty, but the second half belonged to the hosts: the
captain headed the equaliser from a corner, the substitute striker scored twice within four
minutes, and the goalkeeper, who had not played since the injury that cost him the whole of last
season, saved the free kick that would have given the league leaders a point and kept the
championship open until the last match of the spring in two weeks.

The central bank left its key interest rate unchanged, as most analysts had expected, and said
that inflation would return to its target by the end of next year. Shares of the large lenders
fell at first and recovered in the afternoon, bond yields hardly moved, and the currency gained
against the dollar after the governor told reporters that the economy had grown faster in the last
quarter than the forecast of the summer had said it would.
"""
TEXTS = tuple(" ".join(part.split()) for part in _TEXT.split("\n\n"))
LABELS = ("sports", "business", "technology")


def prune_long_texts(out: Output) -> dict[str, Any]:
    """Classify the texts without and with pruning, one text a run, and compare.

    Returns
    -------
    dict
        ``unpruned`` and ``pruned``, the documents of the two jobs, and ``comparison``.
    """
    asked = Question(texts=TEXTS, labels=LABELS)
    whole = work(out, asked, model="minilm-l6", plan_shown=False, rows=1)
    pruned = work(out, asked, model="minilm-l6", prune=Local())
    found = compare(whole, pruned)
    out.show(answers(pruned["results"], compare=True))
    out.show(facts("without and with pruning", _rows(whole, pruned, found)))
    return {"unpruned": whole, "pruned": pruned, "comparison": found}


def compare(whole: Mapping[str, Any], pruned: Mapping[str, Any]) -> dict[str, Any]:
    """Return how much less a pruned job took than the same job without, and if answers agree."""
    old, new = whole["bill"]["client"], pruned["bill"]["client"]
    same = [a["label"] == b["label"] for a, b in _both(whole, pruned)]
    return {
        "same_answers": sum(same), "texts": len(same),
        "times_faster": old["online_s"] / new["online_s"],
        "times_fewer_bytes": _bytes(old) / _bytes(new),
    }  # fmt: skip


def _both(
    whole: Mapping[str, Any], pruned: Mapping[str, Any]
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return list(zip(whole["results"], pruned["results"], strict=True))


def _bytes(bill: Mapping[str, Any]) -> float:
    return float(bill["online_sent_mb"] + bill["online_received_mb"])


def _rows(
    whole: Mapping[str, Any], pruned: Mapping[str, Any], found: Mapping[str, Any]
) -> list[tuple[str, str]]:
    rows = [
        (name, _cost(document["bill"]["client"]) + ", one text a run")
        for name, document in (("unpruned", whole), ("pruned", pruned))
    ]
    less = f"{found['times_faster']:.1f} times as fast, "
    less += f"{found['times_fewer_bytes']:.1f} times fewer bytes"
    return [
        *rows,
        ("kept", tokens(*mean_tokens(pruned["bill"]["client"]["tokens"]))),
        ("saved", f"{less}, without any training"),
        ("answers", f"{found['same_answers']} of {found['texts']} the same"),
        ("claim", pruned["claim"]),
        *[("learns" if k == 0 else "", line) for k, line in enumerate(pruned["leakage"][:1])],
    ]


def _cost(bill: Mapping[str, Any]) -> str:
    moved = both_ways(bill["online_sent_mb"], bill["online_received_mb"])
    return f"{bill['online_s']:.2f} s on line in {bill['runs']} runs, {moved}"
