"""The clear twin of pruning against an oracle that really removes rows, and its soft relative."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from privml.backbones.batch import Encoded
from privml.backbones.blocks import Observer
from privml.backbones.encoder import Encoder
from privml.backbones.loader import random_decoder, random_encoder
from privml.backbones.pruned import pruned_forward
from privml.backbones.pruned_ranges import pruned_ranges
from privml.backbones.ranges import measure
from privml.backbones.substitutes import (
    LOW2,
    RING4,
    blended_exp,
    blended_gelu,
    gelu_exact_class,
    gelu_low_class,
)
from privml.backbones.synthetic import random_batch
from privml.errors import ParameterError
from privml.protocols.cipherprune import gelu_low
from privml.protocols.mpc.nonlinear.gelu import QUARTICS

Array = NDArray[np.float64]
REFERENCE = 128
SIZES = {"layers": 4, "hidden": 16, "heads": 4, "ffn": 24, "vocab": 40, "max_positions": 20}


def tiny(*, scale: float = 25.0, **changes: object) -> Encoder:
    """Random weights, larger than usual so that attention is far from uniform."""
    made = {"labels": ("no", "yes"), "seed": 9, **SIZES, **changes}
    build = random_decoder if made.pop("decoder", False) else random_encoder
    encoder = build(**made).double()
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if "norm" not in name:
                parameter *= scale
    return encoder


# ---- the oracle: one text, rows are really cut -------------------------------------------------


def erf_free_gelu(x: Array, high: bool) -> Array:
    a = np.abs(x)
    if high:
        cut, c4, c3, c2, c1, c0 = RING4
        inner = c4 * a**4 + c3 * a**3 + c2 * a**2 + c1 * a + c0 + x / 2
    else:
        cut, square = LOW2
        inner = square * x**2 + x / 2
    return np.where(a < cut, inner, np.where(x > 0, x, 0.0))


def exponential(x: Array, high: bool) -> Array:
    if high:
        return np.where(x < -15.5, 0.0, np.exp(x))
    return np.where(x < -8, 0.0, np.exp(np.round(x * 512) / 512))


@dataclass
class Oracle:
    """Runs one text and keeps what happened: (kept, high) as sets of positions per layer."""

    encoder: Encoder
    reduce: bool = True

    def linear(self, name: str, x: Array) -> Array:
        p = self.params
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def norm(self, name: str, x: Array) -> Array:
        p, centred = self.params, x - x.mean(-1, keepdims=True)
        var = (centred**2).mean(-1, keepdims=True)
        scaled = centred / np.sqrt(var + self.encoder.config.eps)
        return scaled * p[f"{name}.gamma"] + p[f"{name}.beta"]

    def run(self, ids: list[int], theta: list[float], beta: list[float]) -> Array:
        c = self.encoder.config
        self.params = {k: v.detach().numpy() for k, v in self.encoder.named_parameters()}
        p = self.params
        where = list(range(len(ids)))  # positions of the rows that are there
        x = p["embed.word"][ids] + p["embed.position"][where] + p["embed.segment"][0]
        x = x if c.pre_norm else self.norm("embed.norm", x)
        home = len(ids) - 1 if c.causal else 0
        high = [True] * len(ids)
        self.kept, self.high, self.scores = [list(where)], [list(where)], []
        for layer in range(c.layers):
            name = f"layer{layer}"
            qkv = self.linear(f"{name}.qkv", self.norm(f"{name}.attn_norm", x) if c.pre_norm else x)
            context = np.zeros_like(x)
            raw = np.zeros(len(where))
            for h in range(c.heads):
                d = c.head_dim
                q, k, v = (qkv[:, i * c.hidden + h * d :][:, :d] for i in range(3))
                for j in range(len(where)):
                    keys = [i for i in range(len(where)) if not c.causal or where[i] <= where[j]]
                    s = np.array([q[j] @ k[i] for i in keys]) / np.sqrt(d)
                    e = exponential(s - s.max(), high[j])
                    for i, weight in zip(keys, e / e.sum(), strict=True):
                        context[j, h * d : (h + 1) * d] += weight * v[i]
                        raw[i] += weight
            if layer < c.layers - 1:
                unit = c.heads * REFERENCE
                stay = [
                    i for i, at in enumerate(where) if at == home or raw[i] >= theta[layer] * unit
                ]
                tall = [i for i in stay if where[i] == home or raw[i] >= beta[layer] * unit]
                high = [i in tall or not self.reduce for i in stay]
                self.scores.append({at: raw[i] for i, at in enumerate(where)})
                x, context, where = x[stay], context[stay], [where[i] for i in stay]
                self.kept.append(where)
                self.high.append([at for at, big in zip(where, high, strict=True) if big])
            x = self.feed_forward(name, x, context, high)
        return self.head(x, where.index(home))

    def feed_forward(self, name: str, x: Array, context: Array, high: list[bool]) -> Array:
        pre = self.encoder.config.pre_norm
        x = x + self.linear(f"{name}.attn_out", context)
        inner = self.norm(f"{name}.{'ffn' if pre else 'attn'}_norm", x)
        x = x if pre else inner
        hidden = self.linear(f"{name}.ffn_in", inner)
        hidden = np.stack([erf_free_gelu(r, b) for r, b in zip(hidden, high, strict=True)])
        x = x + self.linear(f"{name}.ffn_out", hidden)
        return x if pre else self.norm(f"{name}.ffn_norm", x)

    def head(self, x: Array, home: int) -> Array:
        config = self.encoder.config
        if config.pooling == "mean":
            return x.mean(axis=0)
        pooled = x[home]
        if config.pre_norm:
            pooled = self.norm("final_norm", pooled)
        if config.pooling == "pooler":
            pooled = np.tanh(self.linear("pooler", pooled))
        return self.linear("classifier", pooled) if config.labels else pooled


def middle_thresholds(encoder: Encoder, batch: Encoded) -> tuple[list[float], list[float]]:
    """Thresholds that drop about a third of the rows of each layer, half of the rest is low."""
    n = encoder.config.layers - 1
    with torch.no_grad():
        seen = pruned_forward(encoder, batch, [0.0] * n, [0.0] * n)
    unit = encoder.config.heads * REFERENCE
    real = torch.from_numpy(batch.mask)
    low, high = (
        [1.0001 * float(s[real].quantile(q)) / unit for s in seen.scores] for q in (0.35, 0.6)
    )
    return low, high


MODELS = [
    pytest.param({}, id="bert"),
    pytest.param({"labels": (), "pooling": "mean"}, id="mean"),
    pytest.param({"decoder": True}, id="gpt2"),
]


@pytest.mark.parametrize("changes", MODELS)
@pytest.mark.parametrize("reduce", [True, False])
def test_twin_is_the_oracle_that_removes_rows(changes: dict[str, object], reduce: bool) -> None:
    encoder = tiny(**changes)
    batch = random_batch(encoder.config, rows=5, length=11, seed=2)
    theta, beta = middle_thresholds(encoder, batch)
    with torch.no_grad():
        found = pruned_forward(encoder, batch, theta, beta, reduce=reduce)
    for row, count in enumerate(batch.lengths):
        oracle = Oracle(encoder, reduce)
        expected = oracle.run(batch.ids[row, :count].tolist(), theta, beta)
        for layer, (kept, high) in enumerate(zip(oracle.kept, oracle.high, strict=True)):
            assert torch.nonzero(found.kept[layer, row]).flatten().tolist() == kept
            both = found.kept[layer, row] & found.high[layer, row]
            assert torch.nonzero(both).flatten().tolist() == high
        for layer, scores in enumerate(oracle.scores):
            for at, score in scores.items():
                assert float(found.scores[layer, row, at]) == pytest.approx(score, abs=1e-9)
        assert found.output[row].numpy() == pytest.approx(expected, abs=1e-8)
    counts = found.kept.sum(dim=(1, 2))
    assert counts[0] > counts[1] > counts[-1] >= len(batch.lengths)


@pytest.mark.parametrize("changes", MODELS)
def test_soft_masks_tend_to_hard_ones(changes: dict[str, object]) -> None:
    encoder = tiny(**changes)
    batch = random_batch(encoder.config, rows=5, length=11, seed=2)
    theta, beta = middle_thresholds(encoder, batch)
    with torch.no_grad():
        hard = pruned_forward(encoder, batch, theta, beta)
        gaps = []
        for width in (1e-2, 1e-4, 1e-7):
            soft = pruned_forward(
                encoder,
                batch,
                theta,
                beta,
                masks="soft",
                temperature=[width, 1.5 * width, 2 * width],
            )
            gaps.append(float((soft.output - hard.output).abs().max()))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-6
    assert torch.allclose(soft.kept, hard.kept.float(), atol=1e-6)


def test_without_thresholds_only_the_polynomials_differ_from_the_plain_model() -> None:
    encoder = tiny(scale=1.0)
    batch = random_batch(encoder.config, rows=4, length=9, seed=1)
    with torch.no_grad():
        found = pruned_forward(encoder, batch, [0.0] * 3, [0.0] * 3)
        plain = encoder(batch)
    assert torch.equal(found.kept[-1], torch.from_numpy(batch.mask))
    assert torch.equal(found.high[-1], found.kept[-1])
    assert float((found.output - plain).abs().max()) < 1e-4


def test_a_score_on_the_threshold_is_kept_and_is_high() -> None:
    encoder = tiny()
    batch = random_batch(encoder.config, rows=1, length=8, seed=3)
    theta, beta = middle_thresholds(encoder, batch)
    unit = encoder.config.heads * REFERENCE
    with torch.no_grad():
        first = pruned_forward(encoder, batch, theta, beta)
        order = first.scores[0, 0, 1:].argsort() + 1
        chosen = int(order[4])
        exact = float(first.scores[0, 0, chosen]) / unit
        if exact * unit > float(first.scores[0, 0, chosen]):  # the product was rounded up
            exact = np.nextafter(exact, 0.0)
        at = pruned_forward(encoder, batch, [exact, *theta[1:]], [exact, *beta[1:]])
        above = [np.nextafter(exact, 1.0), *theta[1:]], [np.nextafter(exact, 1.0), *beta[1:]]
        over = pruned_forward(encoder, batch, *above)
    assert bool(at.kept[1, 0, chosen])
    assert bool(at.high[1, 0, chosen])
    assert not bool(over.kept[1, 0, chosen])
    assert int(at.kept[1].sum()) == int(over.kept[1].sum()) + 1


def uniform() -> Encoder:
    """A model whose attention is uniform: every score of a layer is equal."""
    encoder = tiny()
    with torch.no_grad():
        for layer in range(encoder.config.layers):
            block = encoder.get_submodule(f"layer{layer}")
            for parameter in block.qkv.parameters():
                parameter[: 2 * encoder.config.hidden] = 0.0  # queries and keys
    return encoder


def test_equal_scores_are_kept_or_dropped_together() -> None:
    encoder = uniform()
    batch = random_batch(encoder.config, rows=3, length=7, seed=4)
    one = 1 / REFERENCE  # score of every row
    with torch.no_grad():
        below = pruned_forward(encoder, batch, [0.99 * one] * 3, [1.01 * one] * 3)
        above = pruned_forward(encoder, batch, [1.01 * one] * 3, [1.01 * one] * 3)
    assert torch.equal(below.kept[-1], torch.from_numpy(batch.mask))
    assert below.high[1:].sum(dim=2).tolist() == [[1, 1, 1]] * 3  # row 0 only
    assert above.kept[1:].sum(dim=2).tolist() == [[1, 1, 1]] * 3


def test_only_the_protected_row_is_left_by_the_largest_thresholds() -> None:
    for encoder, place in ((tiny(), lambda b: [0] * 4), (tiny(decoder=True), lambda b: b.last)):
        batch = random_batch(encoder.config, rows=4, length=9, seed=5)
        with torch.no_grad():
            found = pruned_forward(encoder, batch, [1.0] * 3, [1.0] * 3)
        assert found.kept[1:].sum(dim=2).eq(1).all()
        assert all(bool(found.kept[-1, row, at]) for row, at in enumerate(place(batch)))
        assert bool(found.output.isfinite().all())


@pytest.mark.parametrize("changes", MODELS)
@pytest.mark.parametrize("masks", ["hard", "soft", "straight"])
def test_padding_counts_as_nothing(changes: dict[str, object], masks: str) -> None:
    encoder = tiny(**changes)
    batch = random_batch(encoder.config, rows=3, length=8, seed=6)
    theta, beta = middle_thresholds(encoder, batch)
    with torch.no_grad():
        short = pruned_forward(encoder, batch, theta, beta, masks=masks)
        long = pruned_forward(encoder, batch.padded(15), theta, beta, masks=masks)
    assert torch.allclose(short.output, long.output, atol=1e-9)
    assert torch.allclose(short.kept.double(), long.kept[:, :, :8].double(), atol=1e-6)
    assert not bool(long.kept[:, :, 8:].any())
    assert torch.allclose(short.scores, long.scores[:, :, :8], atol=1e-9)


def test_a_schedule_keeps_the_rows_of_highest_score_and_ties_go_to_the_earlier_row() -> None:
    batch = random_batch(tiny().config, rows=3, length=7, seed=4)
    pairs = [(5, 3), (3, 2), (1, 1)]
    with torch.no_grad():
        equal = pruned_forward(uniform(), batch, schedule=pairs)
        found = pruned_forward(tiny(), batch, schedule=pairs)
    for layer, (kept, high) in enumerate(pairs, 1):
        for row, count in enumerate(batch.lengths):
            expected = list(range(min(kept, int(count))))
            assert torch.nonzero(equal.kept[layer, row]).flatten().tolist() == expected
            assert torch.nonzero(equal.high[layer, row]).flatten().tolist() == expected[:high]
    first = found.scores[0, 0].clone()
    first[0] = np.inf
    best = sorted(first.argsort(descending=True)[:5].tolist())
    assert torch.nonzero(found.kept[1, 0]).flatten().tolist() == best


@pytest.mark.parametrize("changes", MODELS)
def test_straight_masks_have_the_values_of_hard_ones(changes: dict[str, object]) -> None:
    encoder = tiny(**changes)
    batch = random_batch(encoder.config, rows=5, length=11, seed=2)
    limits = middle_thresholds(encoder, batch)
    hard = pruned_forward(encoder, batch, *limits)
    straight = pruned_forward(encoder, batch, *limits, masks="straight")
    assert torch.allclose(hard.output, straight.output, atol=1e-9)
    assert torch.allclose(hard.kept.float(), straight.kept, atol=1e-6)
    assert torch.allclose(hard.scores, straight.scores * hard.kept[:-1], atol=1e-6)


@pytest.mark.parametrize("masks", ["soft", "straight"])
def test_gradients_reach_thresholds_and_weights_and_are_finite(masks: str) -> None:
    encoder = tiny(scale=10.0).float()
    batch = random_batch(encoder.config, rows=4, length=9, seed=7)
    low, high = middle_thresholds(encoder, batch)
    theta, beta = (torch.tensor(t, requires_grad=True) for t in (low, high))
    out = pruned_forward(encoder, batch, theta, beta, masks=masks, temperature=0.1)
    (out.output.square().sum() + out.kept.sum()).backward()
    assert theta.grad is not None
    assert beta.grad is not None
    assert bool(theta.grad.isfinite().all())
    assert bool((theta.grad != 0).all())
    assert bool((beta.grad != 0).all())
    assert all(bool(p.grad.isfinite().all()) for p in encoder.parameters() if p.grad is not None)


def test_observing_is_bit_neutral_and_names_the_values_of_the_program() -> None:
    encoder = tiny()
    batch = random_batch(encoder.config, rows=2, length=6, seed=8)
    theta, beta = middle_thresholds(encoder, batch)
    seen: dict[str, int] = {}
    with torch.no_grad():
        plain = pruned_forward(encoder, batch, theta, beta)
        watched = pruned_forward(
            encoder, batch, theta, beta, observe=lambda name, _: seen.update({name: 1})
        )
    assert torch.equal(plain.output, watched.output)
    assert {node.name for node in encoder.ops()} <= set(seen)
    assert "layer2.scores" in seen


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"theta": [0.0], "beta": [0.0]}, "3 thresholds"),
        ({"schedule": [(2, 1)]}, "3 thresholds or pairs"),
        ({"schedule": [(2, 1)] * 3, "masks": "soft"}, "hard"),
        ({"theta": [0.0] * 3, "beta": [0.0] * 3, "temperature": 0.0}, "positive"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], words: str) -> None:
    encoder = tiny()
    batch = random_batch(encoder.config, rows=1, length=4, seed=0)
    with pytest.raises(ParameterError, match=words):
        pruned_forward(encoder, batch, **options)


def test_padding_on_the_left_is_refused() -> None:
    encoder = tiny()
    mask = np.array([[False, True, True]])
    batch = Encoded.of(np.ones((1, 3), np.int64), mask)
    with pytest.raises(ParameterError, match="row 0"):
        pruned_forward(encoder, batch, [0.0] * 3, [0.0] * 3)


# ---- the approximations ------------------------------------------------------------------------


def test_coefficients_are_those_of_the_protocol() -> None:
    q = QUARTICS["ring4"]
    assert (q.cut, q.c4, q.c3, q.c2, q.c1, q.c0) == RING4
    assert LOW2 == (gelu_low.CUT / 2**gelu_low.IN_SCALE, gelu_low.SQUARE / 256)


def test_both_gelus_stay_within_their_errors() -> None:
    x = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    exact = torch.nn.functional.gelu(x)
    assert float((gelu_exact_class(x) - exact).abs().max()) < 0.0022
    assert 0.05 < float((gelu_low_class(x) - exact).abs().max()) < 0.07


def test_blended_gelu_is_the_blend_and_has_its_gradient() -> None:
    generator = torch.Generator().manual_seed(1)
    x = 3 * torch.empty(2, 3, 5, dtype=torch.float64).normal_(generator=generator)
    high = torch.empty(2, 3, dtype=torch.float64).uniform_(generator=generator)
    w = high[..., None]
    expected = w * gelu_exact_class(x) + (1 - w) * gelu_low_class(x)
    assert torch.allclose(blended_gelu(x, high), expected, atol=1e-12)
    x.requires_grad_(), high.requires_grad_()
    assert torch.autograd.gradcheck(blended_gelu, (x, high), atol=1e-6)


def test_blended_exp_has_both_classes_and_exact_zeros() -> None:
    x = torch.tensor([0.0, -0.3, -7.99, -8.01, -15.4, -15.6, -torch.inf], dtype=torch.float64)
    rows = x.expand(1, 1, 2, 7)
    high, low = blended_exp(rows, torch.tensor([[1.0, 0.0]]))[0, 0]
    assert high.numpy() == pytest.approx(exponential(x.numpy(), True), abs=1e-15)
    assert low.numpy() == pytest.approx(exponential(x.numpy(), False), abs=1e-15)
    assert high[-2:].tolist() == [0.0, 0.0]
    assert low[3:].tolist() == [0.0] * 4


# ---- ranges ------------------------------------------------------------------------------------


def test_ranges_of_a_pruned_model_hold_for_any_thresholds_and_depend_on_none() -> None:
    encoder = tiny(scale=4.0).float()
    plain, found = encoder.ranges(), pruned_ranges(encoder)
    assert set(plain) == set(found)
    assert all(found[name].contains(plain[name]) for name in plain)
    batch = random_batch(encoder.config, rows=6, length=12, seed=3)

    class View:
        config, tokenizer = encoder.config, None

        def __init__(self, share: float) -> None:
            self.limits = [share / REFERENCE] * 3

        def forward(self, batch: Encoded, observe: Observer | None = None) -> torch.Tensor:
            return pruned_forward(encoder, batch, *[self.limits] * 2, observe=observe).output

    for share in (0.3, 0.8, 1.0, 1.5):
        for name, seen in measure(View(share), [batch]).items():
            assert seen.bound <= found[name].bound, name
