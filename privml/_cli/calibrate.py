"""``privml calibrate-thresholds``: thresholds from unlabelled texts, without training."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privml._cli.learn import REPORT, THRESHOLDS
from privml._cli.output import Output, UsageError
from privml._cli.rows import read_texts
from privml._cli.tables import count, facts
from privml.storage import fs
from privml.storage.publish import atomic_write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privml.backbones.encoder import Encoder
    from privml.protocols.cipherprune import Thresholds

_FEW = 20


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says."""

    files: tuple[Path, ...]
    out: Path
    model: str
    keep: float
    high: float
    shortest: int
    force: bool


def run(out: Output, asked: Options) -> None:
    """Calibrate, write thresholds and report, and show what they keep of these texts."""
    _check_folder(asked)
    texts = read_texts(asked.files)
    out.progress(f"loading {asked.model}", 0.0)
    from privml.backbones.loader import load_encoder
    from privml.protocols.cipherprune import calibrate_thresholds

    encoder = load_encoder(asked.model)
    out.progress("measuring scores", 0.0)
    made = calibrate_thresholds(
        encoder, texts, keep=asked.keep, high=asked.high, shortest=asked.shortest
    )
    report = _report(asked, encoder, made, texts)
    fs.ensure_dir(asked.out)
    path = made.save(asked.out / THRESHOLDS, replace=asked.force)
    atomic_write(asked.out / REPORT, json.dumps(report, indent=1).encode() + b"\n", replace=True)
    _show(out, asked, report, path)


def _check_folder(asked: Options) -> None:
    if fs.exists(asked.out / THRESHOLDS) and not asked.force:
        raise UsageError(
            f"{asked.out} holds {THRESHOLDS} already; choose another directory, or pass --force to "
            "replace it"
        )


def _report(
    asked: Options, encoder: Encoder, made: Thresholds, texts: Sequence[str]
) -> dict[str, Any]:
    """Return what the thresholds keep of the texts, in the layout of a report of learning."""
    from privml.protocols.cipherprune.learning.calibrate import kept_tokens

    layers = [
        {"tokens": {"mean": kept}, "high": {"mean": high}}
        for kept, high in kept_tokens(encoder, made, texts)
    ]
    return {
        "calibrated": {
            "texts": len(texts), "keep": asked.keep, "high": asked.high, "shortest": asked.shortest
        },
        "pruned": {"layers": layers},
    }  # fmt: skip


def _show(out: Output, asked: Options, report: dict[str, Any], path: Path) -> None:
    files = {"thresholds": str(path), "report": str(asked.out / REPORT)}
    out.document({"ok": True, "files": files, "report": report})
    layers = report["pruned"]["layers"]
    rows = [
        (key, " ".join(f"{layer[part]['mean']:.1f}" for layer in layers) + said)
        for key, part, said in (
            ("tokens", "tokens", " at the start of each layer, mean"),
            ("high", "high", " of them exactly"),
        )
    ]
    texts = report["calibrated"]["texts"]
    out.detail(facts("calibrated", [("texts", count(texts, "text")), *rows]))
    if texts < _FEW:
        out.note(f"warning: {count(texts, 'text')} say little; pass {_FEW} or more like your own")
    out.show(str(path))
    out.note("no accuracy was measured: run privml evaluate --thresholds on labelled texts")
    out.note("the thresholds are the server's secret; give them to nobody")
