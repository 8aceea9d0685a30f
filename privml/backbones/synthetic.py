"""Random weights and random batches for cost studies and tests; reproducible, torch-free."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig
from privml.backbones.program import parameter_shapes
from privml.errors import ParameterError
from privml.rng import ScienceSeed

WEIGHT_STD = 0.02
"""Standard deviation of random weights, that of BERT's initialisation."""


def random_params(config: EncoderConfig, *, seed: int) -> dict[str, NDArray[np.float32]]:
    """Draw weights for a configuration.

    Matrices and tables are normal with standard deviation :data:`WEIGHT_STD`, biases and LayerNorm
    shifts likewise, LayerNorm scales are 1 plus such a value. Each parameter has a stream of its
    own, so equal seeds give equal weights whatever the order.
    """
    root = ScienceSeed(seed).child("backbones", "random_params")
    params = {}
    for name, shape in parameter_shapes(config).items():
        array = root.child(name).generator().standard_normal(shape, dtype=np.float32)
        array *= np.float32(WEIGHT_STD)
        if name.endswith(".gamma"):
            array += np.float32(1.0)
        params[name] = array
    return params


def random_batch(config: EncoderConfig, *, rows: int, length: int, seed: int) -> Encoded:
    """Draw a batch of random token ids with random amounts of padding.

    The first row is full; the others have between 1 and ``length`` tokens.

    Raises
    ------
    ParameterError
        If ``rows`` or ``length`` is below 1, or ``length`` exceeds the model's positions.
    """
    if rows < 1 or not 1 <= length <= config.max_positions:
        raise ParameterError(
            f"rows = {rows} must be positive, length = {length} in [1, {config.max_positions}]"
        )
    generator = ScienceSeed(seed).child("backbones", "random_batch").generator()
    ids = generator.integers(config.vocab, size=(rows, length), dtype=np.int64)
    sizes = generator.integers(1, length + 1, size=(rows, 1))
    sizes[0] = length
    mask = np.arange(length) < sizes
    return Encoded.of(np.where(mask, ids, config.pad_id), mask)
