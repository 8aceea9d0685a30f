"""A pruned transformer as a program over the engine: token counts shrink from layer to layer.

The number of rows of a layer is a public number that the run itself determines (or the schedule
fixes), so the program is ordinary Python over sizes that both parties know. Correlations are dealt
for the largest sizes; a run uses prefixes of them. See :mod:`privml.protocols.cipherprune.prune`
for one pruning step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from privml.backbones.base import OpNode
from privml.backbones.config import EncoderConfig
from privml.errors import UnsupportedError
from privml.protocols.cipherprune.attention import (
    Shape,
    classes,
    context,
    only_value,
    probabilities,
    raw_scores,
    stacked,
    together,
)
from privml.protocols.cipherprune.blocks import BlockMatMul
from privml.protocols.cipherprune.gelu_low import OUT_SCALE as LOW_SCALE
from privml.protocols.cipherprune.gelu_low import GeluLow
from privml.protocols.cipherprune.prune import Decision, Rows, decide, move
from privml.protocols.cipherprune.spec import PruneSpec
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.engine import Engine, Known, Part, Val
from privml.protocols.mpc.program import Inputs, Program, Reveal, Running, handle
from privml.protocols.mpc.quantise import THRESHOLDS

_BLOCK = 8


@dataclass
class PrunedProgram(Program):
    """The program of one sentence under pruning; see :class:`Program` for the other attributes.

    Attributes
    ----------
    config
        Shape of the model.

    Notes
    -----
    The engine's ``found`` gets one pair (rows, high rows) after each attention but the last.
    """

    config: EncoderConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        self._nodes: Mapping[str, OpNode] = {node.name: node for node in self.ops}
        if self.rows != 1:
            raise UnsupportedError(
                f"pruning takes one sentence a run, not {self.rows}: the kept tokens differ from "
                "sentence to sentence; make a plan with rows=1"
            )

    @property
    def prune(self) -> PruneSpec:
        """The pruning options."""
        if self.spec.prune is None:
            raise AssertionError("internal error in privml: a pruned program without options")
        return self.spec.prune

    @property
    def single(self) -> bool:
        """Whether the head reads row 0 only, so that the last layer has one query."""
        return self.config.pooling != "mean"

    @property
    def reduces(self) -> bool:
        """Whether rows may have cheap polynomials; both GELUs then have one scale."""
        return self.prune.reduce

    def run(self, e: Engine, params: Mapping[str, Known], inputs: Inputs) -> Val:
        """Interpret the program; the result is open to the client only."""
        n = inputs.length or self.length
        r = Running(self, e, params, inputs)
        rows = Rows(self._embedded(r, n), n, self._mask(r, n))
        for layer in range(self.config.layers):
            rows = self._layer(r, layer, rows)
        last = self._head(r, rows)
        e.checkpoint()
        with e.scope("reveal"):
            return e.result(
                e.apply(Reveal(last.shape), last), last.shape, scale=last.scale, bound=last.bound
            )

    def _embedded(self, r: Running, n: int) -> Val:
        """Hidden states before layer 0."""
        e, nodes = r.engine, list(self.ops)
        d = self.config.hidden
        if self.spec.embedding == "released":
            last = nodes[0] if self.config.pre_norm else nodes[1]
            return Val((n, d), fn.F, self.bound(last.name), r.inputs.tokens)
        shapes = self.shapes
        width = shapes[nodes[0].param("word")][0] + shapes[nodes[0].param("type")][0]
        known = r.params["embed"]
        if known.bias is not None:
            known = Known(known.weight, np.ascontiguousarray(known.bias[:n]))
        with e.scope("embed"):
            x = fn.linear(
                e, Val((n, width), 0, 1.0, r.inputs.tokens), known, name="embed", m=d,
                weight_scale=fn.F, out_scale=fn.F, bound=self.bound("embed"),
            )  # fmt: skip
        return x if self.config.pre_norm else self._norm(r, "embed.norm", "embed", x)

    def _mask(self, r: Running, n: int) -> Val | None:
        if self.prune.reveal == "count":
            return None
        keep = r.inputs.keep
        return Val((n,), 0, 1.0, None if keep is None else keep.reshape(-1))

    def _layer(self, r: Running, layer: int, rows: Rows) -> Rows:
        e, c, name = r.engine, self.config, f"layer{layer}"
        last = layer == c.layers - 1
        queries = 1 if last and self.single else rows.n
        x = rows.x
        if c.pre_norm:
            x = self._norm(r, f"{name}.attn_norm", self._source(f"{name}.attn_norm"), x)
        qkv = self._linear(r, f"{name}.qkv", x, 3 * c.hidden)
        kinds = rows.classes if queries > 1 else classes(1, 1)
        in_order = c.causal and rows.order is None
        sizes = Shape(c.heads, c.head_dim, queries, rows.n, self.length, kinds, in_order)
        bound = self.bound(f"{name}.context")
        if rows.n == 1:
            ctx = only_value(e, qkv, sizes, bound=bound)
            rows = replace(rows, high=1, widest=False)
        else:
            with e.scope(f"{name}.context"):
                probs = probabilities(
                    e, qkv, rows.mask, rows.order, sizes, limit=self.bound(f"{name}.scores")
                )
            job = partial(context, probs=probs, qkv=qkv, s=sizes, bound=bound)
            with e.scope(f"{name}.prune"):
                rows, ctx = self._pruned(r, layer, rows, probs, job)
        if not last:
            e.found.append((rows.n, rows.high))
        return self._feed_forward(r, name, rows, ctx)

    def _pruned(
        self, r: Running, layer: int, rows: Rows, probs: Val, job: Callable[[Engine], Val]
    ) -> tuple[Rows, Val]:
        """Rows that go on and their contexts; the product with the values runs beside."""
        e = r.engine
        if layer == self.config.layers - 1 or not self.prune.prunes(r.inputs.length or self.length):
            (ctx,) = e.side_by_side([("product", job)])
            if ctx.shape[0] < rows.n:
                rows = Rows(e.map(rows.x, lambda w: w[:1], (1, self.config.hidden)), 1, None)
            return rows, ctx
        secret = r.params.get(THRESHOLDS, Known()).bias
        deciding = partial(
            decide, spec=self.prune, rows=rows,
            scores=raw_scores(probs, rows=max(self.length, self.prune.reference)),
            secret=None if secret is None else secret[layer],
            layer=layer, capacity=self.length, causal=self.config.causal,
        )  # fmt: skip
        parts: list[Part[Val | Decision]] = [("product", job), ("decision", deciding)]
        product, decision = e.side_by_side(parts)
        if not (isinstance(product, Val) and isinstance(decision, Decision)):
            raise AssertionError("internal error in privml: parts come back in order")
        return move(e, decision, product, self.length)

    def _feed_forward(self, r: Running, name: str, rows: Rows, ctx: Val) -> Rows:
        e, c = r.engine, self.config
        out = self._linear(r, f"{name}.attn_out", ctx, c.hidden)
        total = e.add(out, rows.x).like_bound(self.bound(f"{name}.attn_sum"))
        if c.pre_norm:
            inner = self._norm(r, f"{name}.ffn_norm", f"{name}.attn_sum", total)
        else:
            inner = total = self._norm(r, f"{name}.attn_norm", f"{name}.attn_sum", total)
        hidden = self._linear(r, f"{name}.ffn_in", inner, c.ffn, fn.GELU_SCALE)
        with e.scope(f"{name}.ffn_act"):
            parts = e.side_by_side([self._gelu(hidden, *kind) for kind in rows.classes])
        out = self._linear(r, f"{name}.ffn_out", together(parts, rows.n), c.hidden)
        y = e.add(out, total).like_bound(self.bound(f"{name}.ffn_sum"))
        if not c.pre_norm:
            y = self._norm(r, f"{name}.ffn_norm", f"{name}.ffn_sum", y)
        return replace(rows, x=y)

    def _gelu(self, hidden: Val, kind: str, start: int, stop: int) -> Part[Val]:
        """GELU of one class of rows, as a part that runs beside the other class's."""

        def body(e: Engine) -> Val:
            x = e.map(hidden, lambda w: w[start:stop], (stop - start, hidden.shape[1]))
            if not kind:
                return fn.gelu(e, x, self.spec.gelu, out_scale=LOW_SCALE if self.reduces else fn.F)
            words = e.apply(GeluLow(x.shape, fn.gelu_bits(x)), x)
            return e.result(words, x.shape, scale=LOW_SCALE, bound=x.bound + 0.1)

        return kind or "exact", body

    def _head(self, r: Running, rows: Rows) -> Val:
        """Pool, then what stands behind the pooling."""
        e, nodes = r.engine, list(self.ops)
        at = next(i for i, node in enumerate(nodes) if node.name == "pool")
        x = rows.x
        if not self.single:
            if self.config.pre_norm:
                x = self._norm(r, "final_norm", self._source("final_norm"), x)
            with e.scope("pool"):
                return self._summed(e, x, rows.mask)
        r.values["pool"] = x
        for node in nodes[at + 1 :]:
            with e.scope(node.name):
                out = handle(r, node)
            if out is not None:
                r.values[node.name] = x = out
        return x

    def _summed(self, e: Engine, x: Val, mask: Val | None) -> Val:
        """Sum of the real rows, and behind it their number, ``(1, d + 1)``."""
        n, d = x.shape
        if mask is None:
            total = e.map(x, lambda w: w.sum(axis=0, keepdims=True), (1, d))
            blank = e.map(x, lambda w: np.zeros((1, 1), np.uint64), (1, 1))
            count = e.add_public(blank, np.uint64(n << fn.F))
        else:
            wide = -(-n // _BLOCK) * _BLOCK
            a = e.map(mask, lambda m: np.pad(m, (0, wide - n)).reshape(1, 1, wide), (1, 1, wide))
            b = e.map(x, lambda w: np.pad(w, ((0, wide - n), (0, 0)))[None], (1, wide, d))
            words = e.apply(BlockMatMul(1, 1, wide, d, _BLOCK), a, b)
            total = e.reshape(e.result(words, (1, 1, d), scale=fn.F, bound=1.0), 1, d)
            count = e.map(mask, lambda m: m.sum(keepdims=True)[None] << np.uint64(fn.F), (1, 1))
        parts = [v.like(v.words, scale=fn.F, bound=x.bound * n) for v in (total, count)]
        return stacked(parts, axis=1)

    def _source(self, norm: str) -> str:
        return self._nodes[norm].inputs[0].name

    def _norm(self, r: Running, name: str, source: str, x: Val) -> Val:
        r.values[source] = x
        with r.engine.scope(name):
            out = handle(r, self._nodes[name])
        if out is None:
            raise AssertionError("internal error in privml: a norm without a value")
        return out

    def _linear(self, r: Running, name: str, x: Val, m: int, out_scale: int = fn.F) -> Val:
        known = r.params[name]
        if known.bias is not None and x.scale > fn.F:  # the bias has the product's scale
            known = Known(known.weight, known.bias << np.uint64(x.scale - fn.F))
        with r.engine.scope(name):
            return fn.linear(
                r.engine, x, known, name=name, m=m, weight_scale=self.spec.weight_bits,
                out_scale=out_scale, bound=self.bound(name),
            )  # fmt: skip


def schedule_of(tokens: Sequence[int], high: float = 1.0) -> tuple[tuple[int, int], ...]:
    """Turn token counts per layer into pairs (kept, high) with a fixed share of high tokens."""
    return tuple((k, max(1, round(high * k))) for k in tokens)
