"""Results as CSV, as JSON, and as the canonical record of a run for an audit log."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from privml.backbones.digests import Json, canonical_json, tensor_digest
from privml.valuation import _files
from privml.valuation.result import ValuationResult

RECORD: Final = "privml valuation record 1"
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")
_COLUMNS: Final = ("values", "stderr", "ci_low", "ci_high", "counts")


def neutral(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula: ``'`` before = + - @ and controls.

    Examples
    --------
    >>> neutral("=1+1"), neutral("row-1")
    ("'=1+1", 'row-1')
    """
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


def csv_text(result: ValuationResult, *, columns: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the values as CSV, one line per player, in the players' order.

    Parameters
    ----------
    result
        Values of all players.
    columns
        Further texts of each player by column name, for example its label.

    Returns
    -------
    str
        Columns id, value, stderr, ci_low, ci_high, observations, best_rank, worst_rank, with
        ``member`` and ``membership_prob`` after a top-m run. Numbers have all digits; unknown ones
        are empty. Texts that look like formulas are neutralised.
    """
    given = dict(columns or {})
    best, worst = result.rank_ci()
    head = ["id", *map(neutral, given), "value", *_COLUMNS[1:4], "observations"]
    head += ["best_rank", "worst_rank"]
    members = None if result.members is None else set(result.members.tolist())
    if members is not None:
        head += ["member", "membership_prob"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for at, name in enumerate(result.ids):
        row = [neutral(str(name)) if isinstance(name, str) else str(name)]
        row += [neutral(str(texts[at])) for texts in given.values()]
        row += [_digits(getattr(result, column)[at]) for column in _COLUMNS]
        row += [str(best[at]), str(worst[at])]
        if members is not None:
            chance = result.membership_prob
            row += ["yes" if at in members else "no"]
            row += ["" if chance is None else _digits(chance[at])]
        writer.writerow(row)
    return out.getvalue()


def json_document(result: ValuationResult) -> dict[str, Any]:
    """Return everything a result holds as plain JSON values; unknown numbers are null."""
    out: dict[str, Any] = {name: _plain(v) for name, v in _files.head_of(result).items()}
    out["ids"] = list(result.ids)
    for name, array in _files.arrays_of(result).items():
        out[name] = [_plain(value) for value in array.tolist()]
    out["digest"] = outcome_digest(result)
    return out


def run_record(
    result: ValuationResult, *, kind: str, spec: Mapping[str, Json], inputs: Sequence[Json] = ()
) -> bytes:
    """Return the record of a run: canonical JSON, one leaf of an audit log.

    It names what was computed, from what, at what cost and with what outcome, by digests, and holds
    neither ids nor values nor times: an interrupted and resumed run has the record of one that was
    not, byte for byte.

    Parameters
    ----------
    result
        Outcome.
    kind
        What was run.
    spec
        Its settings.
    inputs
        What is known of the input files, for example name and SHA-256 of each.
    """
    record: dict[str, Json] = {
        "format": RECORD,
        "kind": kind,
        "spec": dict(spec),
        "inputs": list(inputs),
        "players": len(result.ids),
        "ids_digest": result_ids_digest(result),
        "values_digest": _digest("values", result.values),
        "result_digest": outcome_digest(result),
        **{name: getattr(result, name) for name in _RECORDED},
        "efficiency_residual": _finite(result.efficiency_residual),
        "eps_certificate": _finite(result.eps_certificate),
        "seeds": list(result.seeds),
        "versions": dict(result.versions),
    }
    return canonical_json(record)


_RECORDED: Final = (
    "target", "method", "group_mode", "status", "stop_reason", "evaluations", "rows_trained",
    "residual_reason", "certificate_kind", "spec_digest", "data_digest",
)  # fmt: skip


def outcome_digest(result: ValuationResult) -> str:
    """Return the digest of a result without its trace, which says when a run was looked at."""
    return replace(result, trace={}).digest()


def result_ids_digest(result: ValuationResult) -> str:
    """Return the digest of the players' names in order."""
    text = canonical_json([[str(name), isinstance(name, int)] for name in result.ids])
    return _digest("ids", np.frombuffer(text, np.uint8))


def _digest(name: str, array: NDArray[Any]) -> str:
    return str(tensor_digest(name, array).sha256)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _digits(value: Any) -> str:  # noqa: ANN401 - a numpy number
    if isinstance(value, np.integer):
        return str(int(value))
    return "" if value != value else repr(float(value))


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return None if value in ("nan", "inf", "-inf") else value
