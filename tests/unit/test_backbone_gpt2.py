"""GPT-2 checkpoints, checked against a GPT-2 written here from the checkpoint's names."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from privml.backbones.batch import Encoded
from privml.backbones.encoder import Encoder
from privml.backbones.interpreter import interpret
from privml.backbones.loader import load_encoder
from privml.errors import ParameterError, UnsupportedError

D, H, L, F, V, P = 12, 3, 2, 48, 30, 16
CONFIG = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "n_embd": D,
    "n_head": H,
    "n_layer": L,
    "n_inner": None,
    "n_positions": P,
    "n_ctx": P,
    "layer_norm_epsilon": 1e-5,
    "vocab_size": V,
    "bos_token_id": V - 1,
    "eos_token_id": V - 1,
}
Weights = dict[str, np.ndarray]


def hf_weights(*, inner: int = F, classes: int = 0) -> Weights:
    """Draw weights under the names and shapes of a Hugging Face GPT2Model; matrices (in, out)."""
    g = np.random.default_rng(11)
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (V, D), "wpe.weight": (P, D)}
    for i in range(L):
        for stem, inp, out in (
            ("attn.c_attn", D, 3 * D),
            ("attn.c_proj", D, D),
            ("mlp.c_fc", D, inner),
            ("mlp.c_proj", inner, D),
        ):
            shapes |= {f"h.{i}.{stem}.weight": (inp, out), f"h.{i}.{stem}.bias": (out,)}
        for stem in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{stem}.weight": (D,), f"h.{i}.{stem}.bias": (D,)}
    shapes |= {"ln_f.weight": (D,), "ln_f.bias": (D,)}
    if classes:
        shapes["score.weight"] = (classes, D)
    return {name: g.normal(0, 0.6, shape).astype(np.float32) for name, shape in shapes.items()}


def hidden_states(w: Weights, batch: Encoded) -> list[dict[int, np.ndarray]]:
    """Compute GPT-2 in float64, one row and one token after the other, as when text is generated.

    Padding is skipped altogether: it has no keys and no states, only its place in the row counts.
    """
    w = {name: a.astype(np.float64) for name, a in w.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean()
        scaled = centred / math.sqrt(float(centred @ centred) / D + 1e-5)
        return scaled * w[name + ".weight"] + w[name + ".bias"]

    def conv(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[name + ".weight"] + w[name + ".bias"]

    def gelu_new(v: float) -> float:
        return 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))

    results = []
    for ids, mask in zip(batch.ids, batch.mask, strict=True):
        past: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(L)]
        states = {}
        for t in np.flatnonzero(mask).tolist():
            x = w["wte.weight"][ids[t]] + w["wpe.weight"][t]
            for i in range(L):
                q, k, v = np.split(conv(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3)
                past[i].append((k, v))
                heads = []
                for h in range(H):
                    cols = slice(h * D // H, (h + 1) * D // H)
                    e = [math.exp(q[cols] @ kk[cols] / math.sqrt(D // H)) for kk, _ in past[i]]
                    mix = [a / sum(e) * vv[cols] for a, (_, vv) in zip(e, past[i], strict=True)]
                    heads.append(np.sum(mix, axis=0))
                x = x + conv(np.concatenate(heads), f"h.{i}.attn.c_proj")
                inner = conv(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
                x = x + conv(np.vectorize(gelu_new)(inner), f"h.{i}.mlp.c_proj")
            states[t] = norm(x, "ln_f")
        results.append(states)
    return results


def oracle(w: Weights, batch: Encoded, *, pooling: str = "last") -> np.ndarray:
    states = hidden_states(w, batch)
    if pooling == "mean":
        return np.array([np.mean(list(s.values()), axis=0) for s in states])
    last = np.array([s[max(s)] for s in states])
    return last @ w["score.weight"].T.astype(np.float64) if "score.weight" in w else last


def ragged() -> Encoded:
    """Rows that are full, padded on the right, on the left, on both sides, and of one token."""
    g = np.random.default_rng(5)
    spans = [(0, 9), (0, 4), (3, 9), (2, 6), (8, 9), (0, 1)]
    mask = np.array([[a <= t < b for t in range(9)] for a, b in spans])
    return Encoded.of(g.integers(0, V, mask.shape), mask)


def write(
    directory: Path, weights: Weights, *, config: dict[str, object] | None = None, prefix: str = ""
) -> Path:
    directory.mkdir(exist_ok=True)
    whole = {n if n.startswith(("score", "lm_head")) else prefix + n: a for n, a in weights.items()}
    save_file(whole, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    return directory


def forward(model: Encoder, batch: Encoded) -> np.ndarray:
    with torch.no_grad():
        return model.double()(batch).numpy()


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_checkpoint_matches_hand_written_gpt2(tmp_path: Path, prefix: str, pooling: str) -> None:
    weights = hf_weights()
    model = load_encoder(write(tmp_path, weights, prefix=prefix), pooling=pooling)
    expected = oracle(weights, ragged(), pooling=pooling)
    with torch.no_grad():
        assert model(ragged()).numpy() == pytest.approx(expected, abs=5e-5)
    assert interpret(model.config, model.params(), ragged()) == pytest.approx(expected, abs=1e-9)
    assert forward(model, ragged()) == pytest.approx(expected, abs=1e-9)


def test_configuration_of_a_checkpoint(tmp_path: Path) -> None:
    config = load_encoder(write(tmp_path / "gpt", hf_weights(), prefix="transformer.")).config
    assert (config.causal, config.pre_norm, config.pooling) == (True, True, "last")
    assert (config.layers, config.hidden, config.heads, config.ffn) == (L, D, H, 4 * D)
    assert (config.vocab, config.max_positions, config.type_vocab) == (V, P, 1)
    assert (config.activation, config.eps, config.pad_id) == ("gelu_tanh", 1e-5, V - 1)
    assert config.architecture == "gpt2-decoder"
    wide = {"n_inner": 20, "pad_token_id": 3}
    config = load_encoder(write(tmp_path / "gpt", hf_weights(inner=20), config=wide)).config
    assert (config.ffn, config.pad_id) == (20, 3)


def test_buffers_and_the_language_head_are_left_out(tmp_path: Path) -> None:
    extras: Weights = {"lm_head.weight": np.ones((V, D), np.float32)}
    for i in range(L):
        extras[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, P, P), np.uint8))
        extras[f"h.{i}.attn.masked_bias"] = np.array(-1e4, np.float32)
    weights = hf_weights()
    model = load_encoder(write(tmp_path, weights | extras, prefix="transformer."))
    assert forward(model, ragged()) == pytest.approx(oracle(weights, ragged()), abs=1e-9)


def test_sequence_classifier(tmp_path: Path) -> None:
    weights = hf_weights(classes=3)
    config = {"id2label": {"0": "no", "1": "maybe", "2": "yes"}}
    model = load_encoder(write(tmp_path, weights, config=config, prefix="transformer."))
    expected = oracle(weights, ragged())
    assert model.config.labels == ("no", "maybe", "yes")
    assert interpret(model.config, model.params(), ragged()) == pytest.approx(expected, abs=1e-9)
    assert forward(model, ragged()) == pytest.approx(expected, abs=1e-9)
    model.per_sample_loss(ragged(), np.array([0, 1, 2, 0, 1, 2])).mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"activation_function": "relu"}, "activation_function 'relu'"),
        ({"scale_attn_weights": False}, "scale_attn_weights = False"),
        ({"scale_attn_weights": None}, "scale_attn_weights = None"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"model_type": "gptj"}, "model_type 'gptj'"),
        ({"model_type": "bert"}, "holds 0 BERT encoders"),
    ],
)
def test_other_decoders_are_refused_by_name(
    tmp_path: Path, config: dict[str, object], match: str
) -> None:
    with pytest.raises(UnsupportedError, match=match):
        load_encoder(write(tmp_path, hf_weights(), config=config))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"h.0.ln_cross_attn.weight": np.ones(D, np.float32)}, UnsupportedError, "ln_cross_attn"),
        ({"h.1.attn.c_attn.weight": np.ones((3 * D, D), np.float32)}, ParameterError, "qkv"),
        ({"h.2.ln_1.bias": np.ones(D, np.float32)}, ParameterError, r"layer2\.attn_norm\.beta"),
        ({"ln_f.weight": None}, ParameterError, r"final_norm\.gamma is missing"),
        ({"wte.weight": None}, UnsupportedError, "holds 0 GPT-2 decoders"),
    ],
)
def test_wrong_tensors_are_named(
    tmp_path: Path, change: dict[str, np.ndarray | None], error: type[Exception], match: str
) -> None:
    weights = {n: a for n, a in {**hf_weights(), **change}.items() if a is not None}
    with pytest.raises(error, match=match):
        load_encoder(write(tmp_path, weights))


def test_byte_level_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, hf_weights())
    text = {"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(text))
    with pytest.raises(UnsupportedError, match=r"byte-level BPE.*pass token ids"):
        load_encoder(tmp_path)
