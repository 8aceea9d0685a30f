"""Polynomial networks on the command line: the verbs of ``privml fhe`` under CKKS."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privml._cli import fhe_inputs
from privml._cli.fhe_scores import documents, table
from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml.protocols.fhe.entry import Mode, Scores
from privml.protocols.he import tenseal_backend
from privml.protocols.he.classifier import PolynomialClassifier
from privml.storage import fs

LOCAL = "LOCAL: client and server in one process; nobody's image is protected by this run"


def refuse_options(**given: object) -> None:
    """Refuse options of TFHE, so that none is ignored in silence."""
    named = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if named:
        raise UsageError(
            f"{', '.join(named)}: only for TFHE; this is a polynomial network, which runs under "
            "CKKS and has no tables"
        )


def plan(out: Output, path: Path) -> None:
    """Print the plan of one ciphertext; costs are measured where tenseal is installed."""
    missing = tenseal_backend.missing()
    found = PolynomialClassifier.load(path).plan(calibrate=missing is None)
    out.document({"ok": True, "plan": found.to_dict(), "calibrated": missing is None})
    if out.mode.quiet:
        out.show(f"{found.core_s.expected:.4g}")
        return
    out.show(str(found))


def make_bundles(
    out: Output, path: Path, *, folder: Path, identity: str | None, labels: str
) -> None:
    """Plan and write both bundles; nothing has to be compiled."""
    from privml.protocols.he.bundle import build

    operator = fhe_inputs.identity_of(identity, why="it signs the bundles")
    if fs.exists(folder):
        raise UsageError(f"{folder} exists already; choose another folder or remove it first")
    classifier = PolynomialClassifier.load(path, names=fhe_inputs.labels_of(labels))
    manifest, predicted = build(classifier, folder, identity=operator)
    out.document({
        "ok": True, "scheme": "ckks", "program": manifest.id, "server": str(folder / "server"),
        "client": str(folder / "client"), "signer": str(operator.fingerprint),
        "key_bytes": manifest.keys, "query_bytes": manifest.query,
        "answer_bytes": manifest.answer, "images": manifest.images,
        "plan": predicted.to_dict(),
    })  # fmt: skip
    if out.mode.quiet:
        out.show(manifest.id)
        return
    out.show(facts("bundles of a CKKS program", [
        ("program", manifest.id),
        ("signed by", str(operator.fingerprint)),
        ("images", f"up to {manifest.images} in one query"),
        ("keys", f"{manifest.keys / 1e6:.1f} MB sent once"),
        ("messages", f"{manifest.query:,} bytes sent, {manifest.answer:,} returned"),
        ("error", f"scores are off by at most {manifest.error_bound:.2g}"),
        ("server", str(folder / "server")),
        ("client", f"{folder / 'client'} (no weights; clients may also ask the server for it)"),
    ]))  # fmt: skip
    out.note("tell clients the program's id over a way an attacker cannot change")


def predict(out: Output, path: Path, photos: Sequence[Path], *, mode: str, labels: str) -> None:
    """Print the scores of images in one of the three modes."""
    classifier = PolynomialClassifier.load(path, names=fhe_inputs.labels_of(labels))
    names, images = _images(classifier, photos)
    if mode == Mode.EXECUTE:
        out.progress("drawing keys", 0.0)
        classifier.compile(classifier.plan())
    start = time.monotonic()
    found = fhe_inputs.prepared(names, images, lambda some: classifier.run(some, mode=mode))
    answer = Scores(scores=found.scores, mode=found.mode)
    results = documents(names, answer, classifier.names)
    out.document({
        "ok": True, "local": True, "scheme": "ckks", "mode": mode, "label": found.note,
        "results": results, "seconds": round(time.monotonic() - start, 3),
        "error_bound": found.error_bound, "failure_probability": found.failure_probability,
        "share_results": found.to_dict()["share_results"],
        "licence": None if mode == Mode.CLEAR else found.licence,
    })  # fmt: skip
    out.show(table(results, quiet=out.mode.quiet))
    out.detail(facts("run", [("mode", found.note), ("where", LOCAL)]))


def bench(out: Output, path: Path, photos: Sequence[Path]) -> None:
    """Compare the modes with each other, and the encrypted run with the plan."""
    classifier = PolynomialClassifier.load(path)
    _, images = _images(classifier, photos)
    chosen = classifier.plan(calibrate=True)
    classifier.compile(chosen)
    classifier.run(images[:1], mode=Mode.EXECUTE)  # keys are made and loaded here
    clear = classifier.run(images, mode=Mode.CLEAR)
    simulated = classifier.run(images, mode=Mode.SIMULATE)
    executed = classifier.run(images, mode=Mode.EXECUTE)
    count, error = len(clear.scores), float(np.abs(executed.scores - clear.scores).max())
    planned = chosen.call_core_s(count).expected
    document: dict[str, Any] = {
        "ok": True, "local": True, "scheme": "ckks", "images": count,
        "queries": chosen.ciphertexts(count), "core_s": executed.core_s,
        "core_s_per_image": executed.core_s / count, "planned_core_s": planned,
        "ratio": executed.core_s / planned, "largest_error": error,
        "error_bound": chosen.error_bound,
        "executed_agree": int((executed.classes == clear.classes).sum()),
        "simulated_agree": int((simulated.classes == clear.classes).sum()),
    }  # fmt: skip
    out.document(document)
    agree = f"{document['executed_agree']} encrypted, {document['simulated_agree']} simulated"
    ran = f"{executed.core_s:.3g} core-seconds; images: {count}, queries: {document['queries']}"
    out.show(facts("bench, LOCAL", [
        ("encrypted", f"{ran}, planned {planned:.3g}"),
        ("agreement", f"{agree} of {count} with clear numbers"),
        ("error", f"{error:.2g} at most, bound {chosen.error_bound:.2g}"),
    ]))  # fmt: skip


def _images(classifier: PolynomialClassifier, photos: Sequence[Path]) -> tuple[list[str], Any]:
    names, contents = fhe_inputs.read_photos(photos)
    if classifier.front is not None:
        return names, contents
    shape = classifier.network.shape
    if not all(isinstance(one, np.ndarray) and one.shape == shape for one in contents):
        raise UsageError(
            f"this model has no front end: give real numbers of shape {shape} as .npy files"
        )
    return names, np.stack([np.asarray(one) for one in contents])
