"""A residual network for encrypted CIFAR-10 images, on the JPEG files' own frequency coefficients.

    python examples/cifar10_dct.py train --data cifar10-jpeg.zip --out RUN
    python examples/cifar10_dct.py test --data cifar10-jpeg.zip --out RUN
    python examples/cifar10_dct.py execute --data cifar10-jpeg.zip --out RUN --images 3

The zip holds ``train/CLASS/*.jpg`` and ``test/CLASS/*.jpg``. ``train`` goes on where it stopped;
``test`` counts right answers of the exact integers and with simulated faults; ``execute`` runs
ciphertexts image by image. All write into RUN/figures.json, which examples/audits/fhe_inference.py
reads. 2 x 2 cells of a 32-pixel file keep all that 4:2:0 holds in 6 channels of 16 x 16.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from privml.backbones.cnn import Basic, Bits, Cnn, CnnSpec, Plain, resnet20
from privml.backbones.cnn_data import Arrays, Augment
from privml.backbones.cnn_saving import save_model
from privml.backbones.cnn_training import Recipe, Store, Training, accuracy, fit
from privml.backbones.quant_model import QuantModel
from privml.protocols.fhe import EncryptedClassifier, Frequency
from privml.protocols.fhe.binding import bind, mirror
from privml.protocols.fhe.calibration import usable_cores
from privml.rng import ScienceSeed

VALID, FIT = 2000, 5000
BUDGET_H = 3.0
SIMULATED, EXECUTED = 1000, 3
SAID_S = 30.0


@dataclass(frozen=True)
class Files:
    """JPEG files of one half of the zip, and their classes."""

    files: list[bytes]
    labels: np.ndarray[Any, np.dtype[np.int64]]
    names: tuple[str, ...]


def read(path: Path, half: str, *, most: int | None = None) -> Files:
    """Return the files of ``train`` or ``test`` in a fixed random order."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(n for n in archive.namelist() if n.startswith(f"{half}/"))
        names = [n for n in names if n.lower().endswith((".jpg", ".jpeg"))]
        if not names:
            raise SystemExit(f"{path} holds no {half}/CLASS/*.jpg")
        classes = tuple(sorted({n.split("/")[1] for n in names}))
        order = ScienceSeed(10).child(half).generator().permutation(len(names))[:most]
        chosen = [names[i] for i in order]
        files = [archive.read(name) for name in chosen]
    labels = [classes.index(name.split("/")[1]) for name in chosen]
    return Files(files, np.array(labels, np.int64), classes)


def network(kind: str, front: Frequency, seed: int) -> Cnn:
    """Return the paper's ResNet-20 on a 16 x 16 grid, or a residual network cheaper to encrypt.

    Tables cost time, and there is one for each value: channels are cheap where the grid is small.
    """
    start = ScienceSeed(seed).child("network")
    if kind == "resnet20":
        return resnet20(front.shape, skip_downsample=1, final_grid=front.shape[1] // 2, seed=start)
    grown = {
        "wide": ((32, None), (64, 2), (64, 1), (64, 1), (128, 2), (128, 1), (128, 1)),
        "medium": ((48, None), (48, 1), (64, 2), (96, 2)),
        "small": ((32, None), (32, 1), (48, 2), (64, 2)),
    }[kind]
    blocks = [Basic(width, stride) for width, stride in grown if stride is not None]
    return Cnn(CnnSpec(f"{kind} dct", front.shape, 10, (Plain(grown[0][0]), *blocks)), seed=start)


def recipes(epochs: int, tuning: int) -> Training:
    """Return both stages."""
    return Training(
        first=Recipe(epochs=epochs, rate=0.2, batch=128, smoothing=0.1, warm_up=0.15),
        second=Recipe(
            epochs=tuning, rate=1e-3, batch=128, optimiser="adamw", decay=1e-4, warm_up=0.1,
            smoothing=0.05, frozen=1 / 3,
        ),
        calibration=1024,
    )  # fmt: skip


class Clock:
    """Says how fast training is, and when it ends; keeps core-seconds over interruptions."""

    def __init__(self, images: int, training: Training, before: float) -> None:
        self.total = {
            "float": images * training.first.epochs, "quantised": images * training.second.epochs
        }  # fmt: skip
        self.before, self.said = before, 0.0
        self.stage, self.at = "", 0.0
        self.start = time.process_time()
        self.rates: dict[str, float] = {}
        self._stage_start = (0.0, 0.0)

    @property
    def core_s(self) -> float:
        """Core-seconds of all sessions."""
        return self.before + time.process_time() - self.start

    def __call__(self, stage: str, done: float) -> None:
        """Note progress, and say it now and then."""
        now = time.process_time()
        if stage != self.stage:
            self.stage, self._stage_start = stage, (done, now)
        images = (done - self._stage_start[0]) * self.total[stage]
        if images > 0:
            self.rates[stage] = images / (now - self._stage_start[1])
        if time.monotonic() - self.said > SAID_S and stage in self.rates:
            self.said = time.monotonic()
            print(f"{stage} {done:.1%}, {self.rates[stage]:.0f} images a core-second", flush=True)


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Fit the front end, train, save; return figures."""
    torch.set_num_threads(options.threads)
    data = read(options.data, "train", most=options.images)
    held = min(VALID, len(data.files) // 10)
    front, inputs = prepared(options, data)
    model = bind(network(options.net, front, options.seed), front, bits=Bits(), names=data.names)
    changes = Augment(shift=options.shift, flip=mirror(front))
    first = Arrays(inputs[held:], data.labels[held:], augment=changes, front=front.digest())
    valid = Arrays(inputs[:held], data.labels[:held], front=front.digest())
    training = recipes(options.epochs, options.tuning_epochs)
    kept = figures(options.out).get("train", {})
    clock = Clock(len(first.labels), training, float(kept.get("core_s", 0.0)))
    try:
        history = fit(
            model, first, valid, training=training, seed=ScienceSeed(options.seed), progress=clock,
            store=Store(options.out / "checkpoints"),
        )  # fmt: skip
    finally:
        note(options.out, "train", {"core_s": round(clock.core_s), "finished": False})
    save_model(model, options.out / "model", replace=True)
    return {
        "finished": True, "core_s": round(clock.core_s),
        "hours_on_2_cores": round(clock.core_s / 2 / 3600, 3), "budget_h": BUDGET_H,
        "images": len(first.labels), "net": options.net, "block": options.block,
        "channels": options.channels, "shape": list(front.shape), "seed": options.seed,
        "epochs": [options.epochs, options.tuning_epochs],
        "images_per_core_s": {stage: round(rate, 1) for stage, rate in clock.rates.items()},
        "valid_images": held, "valid_accuracy": accuracy(model, valid),
        "history": [[e.stage, round(e.loss, 4), e.accuracy] for e in history],
        **cost(model, options.out),
    }  # fmt: skip


def prepared(
    options: argparse.Namespace, data: Files
) -> tuple[Frequency, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the fitted front end and all inputs, read once and kept beside the checkpoints."""
    kept, spec = options.out / f"inputs-{len(data.files)}.npy", options.out / "front.json"
    if kept.exists() and spec.exists():
        return Frequency.from_json(spec.read_bytes()), np.load(kept)
    start = time.process_time()
    front = Frequency(options.block, channels=options.channels, size=32)
    front = front.fit(data.files[VALID : VALID + FIT] or data.files)
    parts = [front.batch(data.files[i : i + FIT]) for i in range(0, len(data.files), FIT)]
    inputs = np.concatenate(parts)
    options.out.mkdir(parents=True, exist_ok=True)
    np.save(kept, inputs)
    spec.write_bytes(front.to_json())
    print(f"read {len(inputs)} files in {time.process_time() - start:.0f} core-seconds", flush=True)
    return front, inputs


def cost(model: QuantModel, folder: Path) -> dict[str, Any]:
    """Return the plan's figures of one encrypted image."""
    plan = EncryptedClassifier(model).plan()
    (folder / "plan.txt").write_text(f"{plan}\n", encoding="utf-8")
    return {"tables": plan.tables, "planned_core_s": round(plan.core_s.expected)}


def test(options: argparse.Namespace) -> dict[str, Any]:
    """Return accuracy of exact integers and with simulated faults, on the same images."""
    data = read(options.data, "test", most=options.images or SIMULATED)
    with EncryptedClassifier.load(options.out / "model") as classifier:
        return simulated(classifier, data, p_error=options.p_error)


def simulated(
    classifier: EncryptedClassifier, data: Files, *, p_error: float = 1e-2, step: int = 250
) -> dict[str, Any]:
    """Return the figures of :func:`test`."""
    from privml.protocols.fhe.faults import Fault
    from privml.protocols.fhe.reference import run
    from privml.protocols.fhe.reliability import classes, clopper_pearson

    graph, right, right_clear, changed = classifier.graph, 0, 0, 0
    for first in range(0, len(data.files), step):
        whole = classifier.prepare(data.files[first : first + step])
        labels = data.labels[first : first + step]
        clear = classes(graph, run(graph, whole))
        fault = Fault(p_error, ScienceSeed(0))
        faulty = classes(graph, run(graph, whole, fault=fault, first=first))
        right += int((faulty == labels).sum())
        right_clear += int((clear == labels).sum())
        changed += int((faulty != clear).sum())
        print(f"{first + len(labels)} images: {right / (first + len(labels)):.1%}", flush=True)
    count = len(data.files)
    return {
        "mode": "simulate", "simulator": "numpy fault model", "p_error": p_error, "images": count,
        "accuracy": right / count, "accuracy_95": list(clopper_pearson(right, count)),
        "clear_accuracy": right_clear / count, "disagreement": changed / count,
        "disagreement_95": list(clopper_pearson(changed, count)),
        "graph": classifier.graph.digest(),
    }  # fmt: skip


def execute(options: argparse.Namespace) -> dict[str, Any]:
    """Run test images as ciphertexts; each is noted at once, so that a stopped step goes on."""
    data = read(options.data, "test", most=options.images or EXECUTED)
    kept = figures(options.out).get("execute", {})
    rows: list[dict[str, Any]] = list(kept.get("rows", []))
    with EncryptedClassifier.load(options.out / "model") as classifier:
        evidence = classifier.measure(data.files[:300], p_error=options.p_error, seeds=(0,))
        plan = classifier.plan(p_error=options.p_error, evidence=evidence)
        print(plan, flush=True)
        if rows and kept.get("graph") != plan.graph:
            rows = []
        if len(rows) < len(data.files):
            classifier.compile(plan)
        for number in range(len(rows), len(data.files)):
            one = data.files[number : number + 1]
            found = classifier.run(one, mode="execute")
            clear = classifier.run(one, mode="clear")
            rows.append({
                "image": number, "class": int(found.classes[0]), "clear": int(clear.classes[0]),
                "truth": int(data.labels[number]), "core_s": found.core_s,
                "seconds": found.seconds, "load": os.getloadavg()[0],
            })  # fmt: skip
            print(rows[-1], flush=True)
            note(options.out, "execute", {"rows": rows, "graph": plan.graph})
    return {"rows": rows, "graph": plan.graph, "planned_core_s": round(plan.core_s.expected)}


def figures(folder: Path) -> dict[str, Any]:
    """Return what is known of a run."""
    path = folder / "figures.json"
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def note(folder: Path, part: str, found: Mapping[str, Any]) -> None:
    """Write one part of the figures."""
    folder.mkdir(parents=True, exist_ok=True)
    every = {**figures(folder), part: dict(found)}
    new = folder / "figures.json.new"
    new.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")
    new.replace(folder / "figures.json")


def main() -> None:
    """Do one step and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("step", choices=("train", "test", "execute"))
    parser.add_argument("--data", type=Path, required=True, help="zip of JPEG files")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--net", choices=("resnet20", "wide", "medium", "small"), default="wide")
    parser.add_argument("--block", type=int, default=2)
    parser.add_argument("--channels", default="y4c1")
    parser.add_argument("--shift", type=int, default=2, help="largest shift in cells")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--tuning-epochs", type=int, default=12)
    parser.add_argument("--images", type=int, help="use so many files only")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--p-error", type=float, default=1e-2)
    options = parser.parse_args()
    found = {"train": train, "test": test, "execute": execute}[options.step](options)
    note(options.out, options.step, found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
