"""Digits under CKKS: train a polynomial network on frequency coefficients, classify encrypted.

    python examples/polynomial_digits.py [--out digits-ckks] [--epochs 60]

Takes below a minute on one core. Without the extra `he` (tenseal) it trains, plans and simulates.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from privml.backbones.cnn_data import Augment, Images
from privml.backbones.cnn_training import Recipe
from privml.backbones.polynomial import affine_maps, square_mlp
from privml.backbones.polynomial_training import fit_polynomial
from privml.protocols.fhe import Frequency
from privml.protocols.he import PolynomialClassifier, tenseal_backend
from privml.protocols.he.lower import lower
from privml.rng import ScienceSeed

TRAIN, LIMIT = 1347, 6.0


def train(
    channels: str, hidden: int, epochs: int, seed: int
) -> tuple[PolynomialClassifier, np.ndarray, np.ndarray]:
    """Return a classifier, and images and labels that it was not trained on."""
    digits = load_digits()
    images = np.rint(digits.images * 15.9375).astype(np.uint8)
    order = ScienceSeed(11).generator().permutation(len(images))
    first, rest = order[:TRAIN], order[TRAIN:]
    front = Frequency(8, channels=channels, source="array").fit(list(images[first]))
    data = Images(
        images[first, None], digits.target[first], augment=Augment(shift=1),
        front=lambda batch: front.batch(list(batch[:, 0])), version=front.digest(),
    )  # fmt: skip
    net = square_mlp(front.shape, (hidden,), seed=ScienceSeed(seed))
    recipe = Recipe(
        epochs=epochs, rate=5e-3, batch=64, optimiser="adamw", decay=1e-2, smoothing=0.1
    )
    fit_polynomial(net, data, recipe=recipe, limit=LIMIT, seed=ScienceSeed(seed))
    network = lower(affine_maps(net, front.shape), front.shape, limit=LIMIT, front=front)
    return PolynomialClassifier(network, front=front), images[rest], digits.target[rest]


def main() -> None:
    """Train, plan, run in all modes, print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for the network")
    parser.add_argument("--channels", default="y36")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    classifier, images, labels = train(
        options.channels, options.hidden, options.epochs, options.seed
    )
    if options.out is not None:
        classifier.save(options.out, replace=True)
    here = tenseal_backend.missing()
    plan = classifier.plan(calibrate=here is None)
    print(plan)
    report: dict[str, object] = {"test_images": len(labels), "plan": plan.to_dict()}
    modes = ["clear", "simulate"]
    if here is None:
        classifier.compile(plan)
        modes.append("execute")
    else:
        report["execute"] = here
    for mode in modes:
        found = classifier.run(list(images), mode=mode)
        report[mode] = {
            "note": found.note, "accuracy": float((found.classes == labels).mean()),
            "core_s_per_image": found.core_s / len(labels),
        }  # fmt: skip
    if here is None:
        one = classifier.run(list(images[:1]), mode="execute")
        cost = one.predicted_core_s
        report["one_image"] = {
            "core_s": one.core_s, "predicted_core_s": cost.expected if cost else None,
        }  # fmt: skip
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
