"""Models and the contract they keep; parts without weights load without torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privml.backbones.base import Backbone, Interval, Manifest, Op, OpNode
    from privml.backbones.batch import Encoded
    from privml.backbones.config import EncoderConfig
    from privml.backbones.encoder import Encoder
    from privml.backbones.interpreter import interpret, run_program
    from privml.backbones.loader import load_encoder, random_decoder, random_encoder
    from privml.backbones.program import encoder_ops, finish_output, parameter_shapes
    from privml.backbones.public import PublicPart, public_part
    from privml.backbones.ranges import calibrate
    from privml.backbones.synthetic import random_batch
    from privml.backbones.tokenizer import Tokenizer
    from privml.backbones.zero_shot import label_prompts, similarity, zero_shot

_WHERE = {
    "Backbone": "base",
    "Encoded": "batch",
    "Encoder": "encoder",
    "EncoderConfig": "config",
    "Interval": "base",
    "Manifest": "base",
    "Op": "base",
    "OpNode": "base",
    "PublicPart": "public",
    "Tokenizer": "tokenizer",
    "calibrate": "ranges",
    "encoder_ops": "program",
    "finish_output": "program",
    "interpret": "interpreter",
    "label_prompts": "zero_shot",
    "load_encoder": "loader",
    "parameter_shapes": "program",
    "public_part": "public",
    "random_batch": "synthetic",
    "random_decoder": "loader",
    "random_encoder": "loader",
    "run_program": "interpreter",
    "similarity": "zero_shot",
    "zero_shot": "zero_shot",
}

__all__ = [
    "Backbone",
    "Encoded",
    "Encoder",
    "EncoderConfig",
    "Interval",
    "Manifest",
    "Op",
    "OpNode",
    "PublicPart",
    "Tokenizer",
    "calibrate",
    "encoder_ops",
    "finish_output",
    "interpret",
    "label_prompts",
    "load_encoder",
    "parameter_shapes",
    "public_part",
    "random_batch",
    "random_decoder",
    "random_encoder",
    "run_program",
    "similarity",
    "zero_shot",
]


def __getattr__(name: str) -> object:
    """Load a name on first use, so that clients never load torch."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_WHERE[name]}")
    value: object = getattr(module, name)
    return value
