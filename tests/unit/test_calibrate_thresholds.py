"""Thresholds without training keep about the share that was asked for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from privml.backbones.encoder import Encoder
from privml.backbones.loader import load_encoder, random_encoder
from privml.backbones.pruned import pruned_forward
from privml.errors import ParameterError, UnsupportedError
from privml.protocols.cipherprune import calibrate_thresholds
from privml.testing.checkpoints import write_checkpoint

TEXTS = tuple(
    "the quick brown fox jumps over the lazy dog again"[:k] for k in (3, 9, 14, 20, 25, 31, 38)
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    return load_encoder(write_checkpoint(tmp_path_factory.mktemp("m") / "tiny", layers=4))


@pytest.mark.parametrize("keep", [0.4, 0.7, 0.9])
def test_each_layer_keeps_about_the_share(tiny: Encoder, keep: float) -> None:
    found = calibrate_thresholds(tiny, TEXTS, keep=keep, high=0.5)
    found.require(tiny)
    assert tiny.tokenizer is not None
    batch = tiny.tokenizer.encode(TEXTS, truncate=True)
    with torch.no_grad():
        out = pruned_forward(tiny, batch, found.theta, found.beta)
    free = out.kept.sum(dim=(1, 2)).float() - len(TEXTS)  # row 0 is kept anyhow
    left = free[1:] / free[:-1]
    assert torch.all((left - keep).abs() < 0.1), left
    high = out.high[1:].sum(dim=(1, 2)).float() - len(TEXTS)
    assert torch.all((high / free[1:] - 0.5).abs() < 0.15)


def test_the_ends_of_the_range(tiny: Encoder) -> None:
    batch = tiny.tokenizer.encode(TEXTS, truncate=True)  # type: ignore[union-attr]
    with torch.no_grad():
        for keep in (0.0, 1.0):
            found = calibrate_thresholds(tiny, TEXTS, keep=keep)
            kept = pruned_forward(tiny, batch, found.theta, found.beta).kept
            assert kept[:, :, 0].all()
            if keep:
                assert torch.equal(kept[-1], kept[0])
            else:
                assert int(kept[-1].sum()) <= 2 * len(TEXTS)


def test_it_is_reproducible(tiny: Encoder) -> None:
    assert calibrate_thresholds(tiny, TEXTS) == calibrate_thresholds(tiny, TEXTS[::-1])


def test_refusals(tiny: Encoder, tmp_path: Path) -> None:
    for options, words in (({"keep": 1.5}, "keep"), ({"high": -1.0}, "high"),
                           ({"reference": 0}, "reference")):  # fmt: skip
        with pytest.raises(ParameterError, match=words):
            calibrate_thresholds(tiny, TEXTS, **options)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="no texts"):
        calibrate_thresholds(tiny, ())
    nameless = random_encoder(layers=2, hidden=32, heads=2, ffn=64, vocab=64, max_positions=16)
    flat = load_encoder(write_checkpoint(tmp_path / "flat", layers=1))
    for model in (nameless, flat):
        with pytest.raises(UnsupportedError, match="tokenizer and two layers"):
            calibrate_thresholds(model, TEXTS)


def test_names_are_loaded_late() -> None:
    import subprocess

    code = (
        "import sys, privml.protocols.cipherprune as c, privml.protocols.mpc.spec; c.PruneSpec; "
        "sys.exit('torch was loaded' if 'torch' in sys.modules else 0)"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
    assert done.returncode == 0
