"""Private against clear MiniLM-L6 on sentences of AG News, labels chosen by similarity."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from frame import Options, Report, absent, at_least, reported
from numpy.typing import NDArray
from product import MINILM, Product
from product_party import encoder_of

from privml.backbones import Encoded
from privml.backbones.zero_shot import label_prompts, similarity, zero_shot

LABELS = ("world", "sports", "business", "science and technology")
ROWS = 4  # sentences of one private run
NAMES = {
    "fidelity.min_cosine": ">= 0.9995",
    "fidelity.label_agreement": ">= 0.99",
    "fidelity.worst_margin_of_disagreement": "",
}
Matrix = NDArray[np.float64]


def news_file() -> Path | None:
    """Return the AG News file: in ``PRIVML_DATA``, or in ``shared/data`` beside the checkout."""
    folders = [os.environ.get("PRIVML_DATA"), Path(__file__).resolve().parents[3] / "shared/data"]
    for folder in folders:
        path = Path(folder) / "text" / "agnews-train.tsv" if folder else None
        if path is not None and path.is_file():
            return path
    return None


def sentences(path: Path, count: int, *, words: int | None = None) -> list[str]:
    """Return evenly spaced texts of the file, of those with at most `words` words if given."""
    lines = path.read_text(encoding="utf-8").splitlines()
    texts = [line.partition("\t")[0].strip() for line in lines]
    texts = [text for text in texts if words is None or len(text.split()) <= words]
    step = len(texts) // count
    return texts[:: max(step, 1)][:count]


def fidelity_section(report: Report, options: Options) -> None:
    """Add ``fidelity.*``: every sentence and every label goes through the two processes."""
    path, count = news_file(), 8 if options.quick else 200
    with report.section(f"fidelity on {count} sentences", *NAMES):
        if path is None:
            reason = "no text/agnews-train.tsv; put its folder into PRIVML_DATA"
            for name, target in NAMES.items():
                report.add(absent(name, target, against="clear MiniLM-L6", reason=reason))
            return
        words = 30 if options.quick else None  # short ones need one set of processes only
        texts = [*label_prompts(LABELS), *sentences(path, count, words=words)]
        private, clear, longest = embeddings(report, texts)
        _bars(report, private, clear, {"sentences": count, "most_tokens": longest})


def embeddings(report: Report, texts: list[str]) -> tuple[Matrix, Matrix, int]:
    """Return private and clear embeddings of `texts`, and the longest length in tokens.

    Texts are sorted by length, so that each run pads little; a run takes ``ROWS`` texts.
    """
    tokenizer = encoder_of(MINILM).tokenizer
    if tokenizer is None:
        raise ValueError("the encoder has no tokenizer")
    batch = tokenizer.encode(texts, truncate=True)
    order = np.argsort(batch.lengths, kind="stable")
    private, clear = np.zeros((len(texts), 0)), np.zeros((len(texts), 0))
    for n, group in grouped(batch.lengths[order]):
        rows = order[group]
        with Product(MINILM, n=n, rows=ROWS, per_pool=3) as product:
            for start in range(0, len(rows), ROWS):
                chosen = rows[start : start + ROWS]
                report.progress(f"  {n} tokens, rows {start + 1} to {start + len(chosen)}")
                part = Encoded.of(batch.ids[chosen, :n], batch.mask[chosen, :n])
                got, want = product.run(part).output, product.private(part)
                if not private.size:
                    private, clear = (np.zeros((len(texts), got.shape[1])) for _ in range(2))
                private[chosen], clear[chosen] = got, want
    return private, clear, int(batch.lengths.max())


def grouped(lengths: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Yield padded lengths, multiples of 64, and the slice of sorted rows that each takes."""
    padded = -(-lengths // 64) * 64
    for n in sorted(set(padded.tolist())):
        found = np.flatnonzero(padded == n)
        yield n, slice(int(found[0]), int(found[-1]) + 1)


def _bars(report: Report, private: Matrix, clear: Matrix, detail: dict[str, object]) -> None:
    many = len(LABELS)
    cosines = np.diag(similarity(private[many:], clear[many:]))
    mine = zero_shot(private[many:], private[:many], labels=LABELS)
    theirs = zero_shot(clear[many:], clear[:many], labels=LABELS)
    apart = [b.margin for a, b in zip(mine, theirs, strict=True) if a.label != b.label]
    against = "clear MiniLM-L6, float32"
    report.add(
        at_least("fidelity.min_cosine", float(cosines.min()), 0.9995, against=against,
                 detail=detail | {"median": float(np.median(cosines))}),
        at_least("fidelity.label_agreement", 1 - len(apart) / len(mine), 0.99, against=against,
                 detail=detail | {"disagreements": len(apart)}),
        reported("fidelity.worst_margin_of_disagreement", max(apart, default=0.0),
                 against="distance of the two best labels in the clear, where they differ"),
    )  # fmt: skip
