"""Act of ``privml demo``: a forest forgets a patient and is the forest that never saw them."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

from privml._cli.output import Output
from privml._cli.tables import facts

TREES = 100
MORE = 50


def forget_a_patient(out: Output) -> dict[str, Any]:
    """Train on a real table, forget one patient, retrain without them, compare, show."""
    found = _measure(out)
    _show(out, found)
    return found


def _measure(out: Output) -> dict[str, Any]:
    import numpy as np
    from sklearn.base import clone
    from sklearn.datasets import load_breast_cancer

    from privml.unlearning import DynForestClassifier

    table = load_breast_cancer()
    X, y = table.data, table.target_names[table.target]
    names = [f"patient-{i:03d}" for i in range(1, len(y) + 1)]
    out.progress("train the forest", 0.0)
    began = time.perf_counter()
    model = DynForestClassifier(TREES).fit(X, y, ids=names)
    trained = time.perf_counter()
    before = model.predict_proba(X)
    who = int(np.abs(before[:, 0] - 0.5).argmin())  # the record that matters most to its answer
    model.contains(names[:1])
    asked = time.perf_counter()
    certificate = model.unlearn([names[who]])
    forgot = time.perf_counter()
    after = model.predict_proba(X)
    others = np.delete(np.arange(len(y)), who)
    kept = [names[i] for i in others]
    again = time.perf_counter()
    oracle = clone(model).set_params(key=model.key_).fit(X[others], y[others], ids=kept)
    retrained = time.perf_counter()
    fresh = oracle.predict_proba(X)
    digests = model.state_digest(), oracle.state_digest()
    more, seconds = others[:MORE], []
    for i in more:
        start = time.perf_counter()
        model.unlearn([names[i]])
        seconds.append(time.perf_counter() - start)
    rest = others[MORE:]
    oracle.fit(X[rest], y[rest], ids=[names[i] for i in rest])
    labels = [str(label) for label in model.classes_]
    return {
        "table": "breast cancer, Wisconsin (scikit-learn)",
        "rows": len(y),
        "columns": X.shape[1],
        "trees": TREES,
        "patient": names[who],
        "truth": str(y[who]),
        "train_s": trained - began,
        "forget_s": forgot - asked,
        "retrain_s": retrained - again,
        "before": dict(zip(labels, before[who].tolist(), strict=True)),
        "after": dict(zip(labels, after[who].tolist(), strict=True)),
        "retrained": dict(zip(labels, fresh[who].tolist(), strict=True)),
        "answers_equal": after.tobytes() == fresh.tobytes(),
        "state_digest": digests[0],
        "retrained_digest": digests[1],
        "equal": digests[0] == digests[1],
        "more": len(more),
        "more_median_s": statistics.median(seconds),
        "more_equal": model.state_digest() == oracle.state_digest(),
        "certificate": json.loads(certificate.to_json()),
    }


def _show(out: Output, found: Mapping[str, Any]) -> None:
    same = "equal, bit for bit" if found["equal"] else "DIFFERENT"
    later = "equal to retraining again" if found["more_equal"] else "DIFFERENT from retraining"
    more_us = found["more_median_s"] * 1e6
    faster = found["retrain_s"] / found["forget_s"]
    out.detail(
        facts("forest", [
            ("table", f"{found['table']}: {found['rows']} rows, {found['columns']} columns"),
            ("trained", f"{found['trees']} trees in {found['train_s'] * 1e3:.0f} ms"),
        ])
    )  # fmt: skip
    out.show(
        facts("forgotten", [
            (found["patient"], f"in {found['forget_s'] * 1e6:.0f} µs, checked and certified"),
            ("retraining", f"takes {found['retrain_s'] * 1e3:.0f} ms, {faster:.0f} times as long"),
            ("with the row", _answer(found["before"], found["truth"])),
            ("without it", _answer(found["after"], found["truth"])),
            ("retrained", _answer(found["retrained"], found["truth"])),
            ("digest", found["state_digest"]),
            ("retrained", f"{found['retrained_digest']}  {same}"),
            (f"{found['more']} more", f"in {more_us:.0f} µs each (median); {later}"),
        ])
    )  # fmt: skip
    certificate = found["certificate"]
    out.detail(
        facts("certificate", [
            ("id", f"{certificate['id_hashes'][0]} (keyed hash)"),
            ("rows", f"{certificate['rows_before']} before, {certificate['rows_after']} after"),
            ("trees", f"{certificate['trees_visited']} visited"),
            ("states", certificate["guarantee"]),
            ("holds if", certificate["condition"]),
        ])
    )  # fmt: skip


def _answer(frequencies: Mapping[str, float], truth: str) -> str:
    label = max(frequencies, key=lambda name: frequencies[name])
    return f"{label} {frequencies[label]:.4f} (diagnosed {truth})"
