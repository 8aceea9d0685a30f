"""``privml fhe train``: from folders of JPEG files to a quantised network behind its front end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privml._cli.fhe_inputs import JPEG, prepared, read_photo
from privml._cli.output import Output, UsageError
from privml._cli.tables import facts
from privml.protocols.fhe.binding import describe
from privml.protocols.fhe.frequency import Frequency
from privml.rng import ScienceSeed
from privml.storage import fs
from privml.storage.publish import atomic_write

if TYPE_CHECKING:
    from privml.backbones.cnn import Cnn

MODEL, CHECKPOINTS, REPORT = "model", "checkpoint", "report.json"
_LIMIT = 6.0  # inputs of a network of squares are cut to this, in training as at the client


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line asks for."""

    data: Path
    out: Path
    net: str
    block: int
    channels: str
    control: str
    size: int | None
    widths: tuple[int, ...]
    skip_downsample: int
    weight_bits: int
    act_bits: int
    round_to: int
    epochs: int
    tuning_epochs: int
    batch: int
    held: float
    seed: int
    resume: bool


def run(out: Output, asked: Options) -> None:
    """Fit the front end, train, and write model and report."""
    if fs.exists(asked.out / MODEL):
        raise UsageError(f"{asked.out} holds a model already; choose another folder")
    if fs.exists(asked.out / CHECKPOINTS) and not asked.resume:
        raise UsageError(f"{asked.out} holds an unfinished run; pass --resume to go on with it")
    if asked.net == "square" and asked.resume:
        raise UsageError("networks of squares train in seconds and keep no checkpoint; run again")
    classes, files, labels = _files(asked.data)
    out.note(f"{len(files)} images of {len(classes)} classes")
    photos = [read_photo(file) for file in files]
    order = ScienceSeed(asked.seed).child("held").generator().permutation(len(files))
    held = max(int(asked.held * len(files)), 0)
    test, train = order[:held], order[held:]
    out.progress("front end", 0.0)
    bare = Frequency(
        block=asked.block, channels=asked.channels, control=asked.control, size=asked.size
    )
    front = prepared([str(files[i]) for i in train], [photos[i] for i in train], bare.fit)
    inputs = prepared([str(file) for file in files], photos, front.batch)
    if asked.net == "square":
        _train_square(out, asked, front, inputs=inputs, labels=labels, split=(train, test),
                      names=classes)  # fmt: skip
        return
    report, model = _train(out, asked, front, inputs=inputs, labels=labels, split=(train, test))
    model.front = describe(front, names=classes)
    from privml.backbones.cnn_saving import save_model

    save_model(model, asked.out / MODEL)
    atomic_write(asked.out / REPORT, json.dumps(report, indent=1).encode() + b"\n")
    fs.remove_tree(asked.out / CHECKPOINTS)
    _show(out, asked, report)


def _train(
    out: Output, asked: Options, front: Frequency, *, inputs: np.ndarray[Any, np.dtype[np.float32]],
    labels: np.ndarray[Any, np.dtype[np.int64]],
    split: tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]],
) -> tuple[dict[str, Any], Any]:  # fmt: skip
    from privml.backbones.cnn import Bits
    from privml.backbones.cnn_data import Arrays
    from privml.backbones.cnn_training import Store, Training, accuracy, fit
    from privml.backbones.quant_model import QuantModel

    train, test = split
    bits = Bits(weight=asked.weight_bits, act=asked.act_bits, round_to=asked.round_to)
    classes = int(labels.max()) + 1
    model = QuantModel(_network(asked, front.shape, classes), bits=bits)
    base = Training()
    training = replace(
        base, first=replace(base.first, epochs=asked.epochs, batch=asked.batch),
        second=replace(base.second, epochs=asked.tuning_epochs, batch=asked.batch),
    )  # fmt: skip
    data = Arrays(inputs[train], labels[train])
    valid = Arrays(inputs[test], labels[test]) if len(test) else None
    fs.ensure_dir(asked.out / CHECKPOINTS)
    history = fit(
        model, data, valid, training=training, seed=ScienceSeed(asked.seed), progress=out.progress,
        store=Store(asked.out / CHECKPOINTS),
    )  # fmt: skip
    report = {
        "images": len(train), "held": len(test), "classes": classes,
        "shape": list(front.shape), "front": front.digest(),
        "accuracy": None if valid is None else accuracy(model, valid),
        "accuracy_float": None if valid is None else accuracy(model, valid, stage="float"),
        "epochs": [{"stage": e.stage, "loss": e.loss, "accuracy": e.accuracy} for e in history],
    }  # fmt: skip
    return report, model


def _train_square(
    out: Output, asked: Options, front: Frequency, *, inputs: np.ndarray[Any, np.dtype[np.float32]],
    labels: np.ndarray[Any, np.dtype[np.int64]],
    split: tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]],
    names: Sequence[str],
) -> None:  # fmt: skip
    """Train a network of squares, which takes seconds, and write it for CKKS."""
    from privml.backbones.cnn_data import Arrays
    from privml.backbones.cnn_training import Recipe
    from privml.backbones.polynomial import affine_maps, square_mlp
    from privml.backbones.polynomial_training import fit_polynomial
    from privml.protocols.he.classifier import PolynomialClassifier
    from privml.protocols.he.lower import lower

    train, test = split
    seed = ScienceSeed(asked.seed)
    net = square_mlp(front.shape, asked.widths or (64,), classes=len(names), seed=seed)
    data = Arrays(inputs[train], labels[train])
    valid = Arrays(inputs[test], labels[test]) if len(test) else None
    recipe = Recipe(
        epochs=asked.epochs, rate=5e-3, batch=min(asked.batch, len(train)), optimiser="adamw",
        decay=1e-2, smoothing=0.1,
    )  # fmt: skip
    accuracy = fit_polynomial(
        net, data, valid, recipe=recipe, limit=_LIMIT, seed=seed, progress=out.progress
    )
    network = lower(affine_maps(net, front.shape), front.shape, limit=_LIMIT, front=front)
    PolynomialClassifier(network, front=front, names=names).save(asked.out / MODEL)
    report = {
        "images": len(train), "held": len(test), "classes": len(names),
        "shape": list(front.shape), "front": front.digest(), "accuracy": accuracy,
        "scheme": "ckks", "levels": network.depth,
    }  # fmt: skip
    atomic_write(asked.out / REPORT, json.dumps(report, indent=1).encode() + b"\n")
    _show(out, asked, report)


def _network(asked: Options, shape: tuple[int, int, int], classes: int) -> Cnn:
    from privml.backbones.cnn import resnet18, resnet20, small_cnn

    seed = ScienceSeed(asked.seed).child("network")
    if asked.net in ("small", "small-residual"):
        return small_cnn(
            shape, asked.widths or (16, 16, 16), classes=classes,
            residual=asked.net == "small-residual", seed=seed,
        )  # fmt: skip
    if asked.net == "resnet20":
        return resnet20(
            shape, widths=asked.widths or (48, 56, 64), skip_downsample=asked.skip_downsample,
            classes=classes, seed=seed,
        )  # fmt: skip
    return resnet18(
        shape, widths=asked.widths or (64, 128, 256, 512), skip_downsample=asked.skip_downsample,
        classes=classes, seed=seed,
    )  # fmt: skip


def _files(data: Path) -> tuple[list[str], list[Path], np.ndarray[Any, np.dtype[np.int64]]]:
    if not data.is_dir():
        raise UsageError(f"{data} is no folder; give one with a sub-folder of JPEG files per class")
    folders = sorted(p for p in data.iterdir() if p.is_dir())
    found = [(i, f) for i, folder in enumerate(folders) for f in sorted(folder.iterdir())
             if f.suffix.lower() in JPEG]  # fmt: skip
    if len(folders) < 2 or {i for i, _ in found} != set(range(len(folders))):
        raise UsageError(
            f"{data} must hold one sub-folder per class, two or more, each with .jpg files"
        )
    labels = np.array([i for i, _ in found], np.int64)
    return [folder.name for folder in folders], [f for _, f in found], labels


def widths_of(text: str) -> tuple[int, ...]:
    """Return the numbers of a list with commas; none if it is empty."""
    try:
        return tuple(int(word) for word in text.split(",")) if text.strip() else ()
    except ValueError as error:
        raise UsageError(f"widths are numbers with commas, like 16,16, not {text!r}") from error


def _show(out: Output, asked: Options, report: dict[str, Any]) -> None:
    out.document({"ok": True, "model": str(asked.out / MODEL), "report": report})
    if not out.mode.quiet:
        accuracy = report["accuracy"]
        out.show(facts("trained", [
            ("images", f"{report['images']} for training, {report['held']} held out"),
            ("input", " x ".join(map(str, report["shape"]))),
            ("accuracy", "not measured" if accuracy is None else
             f"{accuracy:.1%} in floating point, {report['levels']} levels under CKKS"
             if "levels" in report else
             f"{accuracy:.1%} with integers, {report['accuracy_float']:.1%} in floating point"),
        ]))  # fmt: skip
    out.show(str(asked.out / MODEL))
