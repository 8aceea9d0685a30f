"""Act of ``privml demo``: digits in JPEG files, classified by a server that cannot see them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from privml._cli.output import Output
from privml._cli.tables import facts

if TYPE_CHECKING:
    from privml._cli.infer import Clock
    from privml.protocols.fhe import EncryptedClassifier
    from privml.protocols.fhe.manifest import Manifest
    from privml.protocols.fhe.planned import Plan
    from privml.transport.identity import Identity

IMAGES: Final = 4
INSTALL: Final = "pip install 'privml[fhe,jpeg]' scikit-learn"
_TRAIN, _HELD, _SEED = 1347, 450, 5
_P_ERROR: Final = 1e-2
_START_S, _WORK_S = 120.0, 900.0


def missing() -> str | None:
    """Return why the act cannot be performed in this environment, or None. Imports nothing."""
    from privml.protocols.fhe import toolkit

    reason = toolkit.missing()
    if reason is not None:
        return reason.partition(";")[0]
    for name, module in (("jpeglib", "jpeglib"), ("scikit-learn", "sklearn")):
        if find_spec(module) is None:
            return f"{name} is not installed"
    return None


def classify_digits(out: Output) -> dict[str, Any]:
    """Train on digits in JPEG files, compile, classify some between two processes; show all.

    Returns
    -------
    dict
        ``skipped`` with ``reason`` and ``install`` where a package is missing.
    """
    reason = missing()
    if reason is not None:
        out.show(
            facts("skipped", [
                ("why", reason),
                ("install", INSTALL),
                ("in a clone", "make setup-fhe"),
            ])
        )  # fmt: skip
        return {"skipped": True, "reason": reason, "install": INSTALL}
    found = _measure(out)
    _show(out, found)
    return found


@dataclass(frozen=True)
class _Digits:
    """JPEG files and classes; the last ones are not trained on."""

    files: list[bytes]
    labels: np.ndarray[Any, np.dtype[np.int64]]


def _measure(out: Output) -> dict[str, Any]:
    from privml._cli.infer import Clock, private_directory
    from privml.protocols.fhe.building import build
    from privml.protocols.fhe.licence import NOTICE
    from privml.transport.identity import Identity

    out.note(NOTICE)
    clock = Clock()
    with private_directory() as folder:
        digits = _write_digits(folder)
        clock.lap("encode")
        out.progress("train a network", 0.0)
        classifier = _trained(out, digits)
        held = digits.files[_TRAIN:]
        clear = classifier.run(held, mode="clear").classes
        evidence = classifier.measure(held, p_error=_P_ERROR, seeds=range(2))
        clock.lap("train")
        out.progress("compile", 0.0)
        server, client = (
            Identity.generate(folder / f"{name}-identity", name) for name in ("server", "client")
        )
        manifest, plan = build(
            classifier.graph, folder / "bundles", identity=server, p_error=_P_ERROR,
            frontend=classifier.frontend, labels=classifier.names, evidence=evidence,
        )  # fmt: skip
        clock.lap("compile")
        asked = _asked(folder, digits)
        got = _two_processes(out, folder, manifest, asked, (server, client), clock)
    truth = [int(digits.labels[_TRAIN + i]) for i in range(IMAGES)]
    return {
        "skipped": False,
        "table": "handwritten digits (scikit-learn), 8 x 8 pixels, grey JPEG files",
        "trained_on": _TRAIN,
        "accuracy": float((clear == digits.labels[_TRAIN:]).mean()),
        "held_out": _HELD,
        "disagreement": evidence.to_dict(),
        **_cost(plan, manifest),
        "answers": _answers(got["results"], asked, truth, clear),
        "seconds": clock.laps,
        "query_s": got["seconds"],
        "mode": got["mode"],
        "share_results": manifest.share_results,
        "licence": manifest.licence,
    }


def _write_digits(folder: Path) -> _Digits:
    """Return scikit-learn's digits as JPEG files in a drawn order."""
    from sklearn.datasets import load_digits

    from privml.rng import ScienceSeed

    table = load_digits()
    pixels = np.rint(table.images * 15.9375).astype(np.uint8)
    order = ScienceSeed(_SEED).child("demo").generator().permutation(len(pixels))
    jpeglib: Any = import_module("jpeglib")
    path, files = folder / "digit.jpg", []
    for image in pixels[order]:
        grey = jpeglib.from_spatial(image[:, :, None])
        grey.write_spatial(str(path), qt=90)
        files.append(path.read_bytes())
    return _Digits(files, table.target[order].astype(np.int64))


def _trained(out: Output, digits: _Digits) -> EncryptedClassifier:
    from privml.backbones.cnn import Bits, Cnn, CnnSpec, Plain
    from privml.backbones.cnn_training import Recipe, Training, fit
    from privml.protocols.fhe import EncryptedClassifier, Frequency
    from privml.protocols.fhe.binding import bind, training_data
    from privml.rng import ScienceSeed

    first = digits.files[:_TRAIN]
    front = Frequency(2, channels="y3").fit(first)
    spec = CnnSpec("digits", front.shape, 10, (Plain(16), Plain(24, kernel=4, pad=0)))
    bits = Bits(weight=3, act=3, round_to=5, accumulator=12)
    model = bind(
        Cnn(spec, bits=bits, seed=ScienceSeed(_SEED)), front, names=[str(i) for i in range(10)]
    )
    training = Training(
        first=Recipe(epochs=30, rate=0.1, batch=64, decay=2e-3, smoothing=0.1),
        second=Recipe(epochs=20, rate=0.02, batch=64, warm_up=0.1, frozen=1 / 3),
    )
    data = training_data(front, first, digits.labels[:_TRAIN])
    fit(model, data, training=training, seed=ScienceSeed(_SEED), progress=out.progress)
    return EncryptedClassifier(model, front=front)


def _asked(folder: Path, digits: _Digits) -> list[Path]:
    from privml.storage.publish import atomic_write

    paths = [folder / f"digit-{i}.jpg" for i in range(IMAGES)]
    for path, data in zip(paths, digits.files[_TRAIN:], strict=False):
        atomic_write(path, data, replace=False)
    return paths


def _two_processes(
    out: Output, folder: Path, manifest: Manifest, asked: Sequence[Path],
    parties: tuple[Identity, Identity], clock: Clock,
) -> Mapping[str, Any]:  # fmt: skip
    """Serve the bundle in one process, query it from another; return the client's document."""
    from privml._cli.children import Children
    from privml._cli.infer import Listener
    from privml.protocols.fhe.calibration import usable_cores

    server, client = parties
    with Children(Listener(out).hear, private=folder) as children:
        served = children.start("server", [
            "fhe", "serve", "--bundle", folder / "bundles" / "server", "--accept-licence",
            "--identity", folder / "server-identity" / "server", "--pin", client.fingerprint,
            "--state", folder / "keys", "--port", "0", "--threads", str(usable_cores()),
            "--images", str(len(asked)),
        ])  # fmt: skip
        children.until(
            lambda: served.port is not None, limit_s=_START_S, what="the start of the server"
        )
        clock.lap("server_ready")
        queried = children.start("client", [
            "fhe", "query", *asked, "--peer", f"127.0.0.1:{served.port}",
            "--pin", server.fingerprint, "--program", manifest.id,
            "--identity", folder / "client-identity" / "client",
        ])  # fmt: skip
        got = children.result(queried, limit_s=_WORK_S)
        children.result(served, limit_s=_START_S)
        clock.lap("query")
    return got


def _cost(plan: Plan, manifest: Manifest) -> dict[str, Any]:
    return {
        "tables": plan.tables, "p_error": plan.p_error, "core_s_planned": plan.core_s.expected,
        "key_bytes": manifest.sizes.keys, "query_bytes": manifest.sizes.query,
        "answer_bytes": manifest.sizes.answer, "program": manifest.id,
    }  # fmt: skip


def _answers(
    results: Sequence[Mapping[str, Any]], asked: Sequence[Path], truth: Sequence[int],
    clear: Sequence[int] | np.ndarray[Any, np.dtype[np.int64]],
) -> list[dict[str, Any]]:  # fmt: skip
    return [
        {
            "image": path.name, "truth": right, "encrypted": int(result["class"]),
            "clear": int(plain),
        }
        for path, right, result, plain in zip(asked, truth, results, clear, strict=False)
    ]  # fmt: skip


def _show(out: Output, found: Mapping[str, Any]) -> None:
    seconds, answers = found["seconds"], found["answers"]
    right = sum(answer["encrypted"] == answer["truth"] for answer in answers)
    same = sum(answer["encrypted"] == answer["clear"] for answer in answers)
    most, keys_mb = found["disagreement"]["high"], found["key_bytes"] / 1e6
    out.detail(
        facts("network", [
            ("digits", f"{found['trained_on']} JPEG files, frequency coefficients of their own"),
            ("accuracy", f"{found['accuracy']:.1%} of {found['held_out']} others, with integers"),
            ("tables", f"{found['tables']} an image, about {found['core_s_planned']:.0f} core-s"),
            ("faults", f"change at most {most:.1%} of the classes, measured"),
        ])
    )  # fmt: skip
    out.show(
        facts("encrypted", [
            *((a["image"], f"class {a['encrypted']}, written as a {a['truth']}") for a in answers),
            ("right", f"{right} of {len(answers)}; {same} as in the clear"),
            ("time", f"{seconds['query']:.1f} s with keys, {seconds['all']:.1f} s for everything"),
            ("sent", f"{keys_mb:.0f} MB of keys once, {found['query_bytes']:,} bytes an image"),
            ("server", "another process: saw ciphertexts, and holds no key that opens them"),
            ("results", f"sharing them is {found['share_results']}"),
        ])
    )  # fmt: skip
    out.note(f"processes: this one {os.getpid()}, a server, a client", kind="act")
