"""Ties a front end to what is trained behind it: model description, data, augmentation, manifest.

The description that a model stores is the JSON of the front end, statistics included, and its
digest goes into the training run, the model, the manifest and the log. A model and a front end of
other statistics are refused wherever they meet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from numpy.typing import ArrayLike

from privml.backbones.digests import Json, canonical_json
from privml.errors import MalformedMessage, ParameterError
from privml.protocols.fhe.frequency import Frequency, Photo
from privml.protocols.fhe.front.controls import Control

if TYPE_CHECKING:
    from privml.backbones.cnn import Bits, Cnn
    from privml.backbones.cnn_data import Arrays, Augment, FlipRule
    from privml.backbones.quant_model import QuantModel

_LABELS = "labels"


def describe(front: Frequency, *, names: Sequence[str] = ()) -> dict[str, Json]:
    """Return what a model stores of its front end and of the names of its classes.

    Raises
    ------
    ParameterError
        The front end is not fitted.
    """
    if front.statistics is None:
        raise ParameterError("fit the front end on the training images first")
    tree: dict[str, Json] = json.loads(front.to_json())
    return {**tree, _LABELS: list(names)} if names else tree


def described(tree: Mapping[str, Json]) -> tuple[Frequency | None, tuple[str, ...]]:
    """Return front end and names of classes of a model's description.

    Raises
    ------
    MalformedMessage
        It describes no front end.
    """
    rest = {name: value for name, value in tree.items() if name != _LABELS}
    names = tree.get(_LABELS, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise MalformedMessage("the names of the classes are no list of texts")
    front = Frequency.from_json(canonical_json(rest)) if rest else None
    return front, tuple(map(str, names))


def bind(
    net: Cnn, front: Frequency, *, bits: Bits | None = None, names: Sequence[str] = ()
) -> QuantModel:
    """Return a model that belongs to a fitted front end; training refuses data of another.

    Raises
    ------
    ParameterError
        The front end is not fitted, or gives another shape than the network takes.
    """
    from privml.backbones.quant_model import QuantModel  # loads torch

    if tuple(net.spec.shape) != front.shape:
        raise ParameterError(
            f"the front end gives shape {front.shape}, the network takes {net.spec.shape}"
        )
    if names and len(names) != net.spec.classes:
        raise ParameterError(f"{len(names)} names for {net.spec.classes} classes")
    return QuantModel(net, bits=bits, front=describe(front, names=names))


def training_data(
    front: Frequency, photos: Sequence[Photo], labels: ArrayLike, *, augment: Augment | None = None
) -> Arrays:
    """Return images behind a fitted front end as data for training, marked with its digest."""
    from privml.backbones.cnn_data import Arrays  # loads torch

    return Arrays(front.batch(photos), labels, augment=augment, front=front.digest())


def mirror(front: Frequency) -> FlipRule:
    """Return how mirroring an image changes the channels of a fitted front end.

    Raises
    ------
    ParameterError
        The front end is not fitted, or its channels are no coefficients.
    """
    from privml.backbones.cnn_data import flip_rule  # loads torch

    if front.control is not Control.DCT or front.statistics is None:
        raise ParameterError("mirroring needs a fitted front end with control='dct'")
    horizontal = [v for _, plane in front.coefficients.planes() for _, v in plane]
    moments = front.statistics
    return flip_rule(horizontal, mean=moments.mean, std=moments.std)
