"""A backbone's typed program on an engine: one handler per kind of operation.

Values of shape ``(B, n, d)`` are carried as matrices ``(B * n, d)``. The only secret inputs are the
client's: the embedded tokens (or one-hot rows) and the padding mask. Padding never leaves the
client: it adds a large negative constant to *its share* of the scores of padded keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from privml.backbones.base import Op, OpNode
from privml.errors import ParameterError, UnsupportedError
from privml.protocols.mpc import functions as fn
from privml.protocols.mpc.engine import Engine, Known, Val
from privml.protocols.mpc.fields import Array, Field, Shares
from privml.protocols.mpc.primitive import Context, Cost, Primitive, Words
from privml.protocols.mpc.spec import Spec

#: Score that a padded key gets relative to the smallest real one; exp clips at -15.5.
_PAD_MARGIN = 16.5
#: Smallest variance that LayerNorm can resolve: a standard deviation of 64 units of 2^-16.
_VARIANCE_FLOOR = 2.0**-20


@dataclass(frozen=True)
class Reveal(Primitive):
    """Open a value to the client: the server sends its share. 1 flight, 8 B per element down."""

    shape: tuple[int, ...]
    name: ClassVar[str] = "reveal"

    def fields(self) -> tuple[Field, ...]:
        """Need nothing."""
        return ()

    def derive(self, free: Shares) -> Mapping[str, Array]:
        """Derive nothing."""
        return {}

    def online(self) -> Cost:
        """Return the declared cost."""
        return Cost(1, (8 * int(np.prod(self.shape)), 0))

    def run(self, ctx: Context, corr: Shares, x: Words) -> Words:
        """Return the clear value at rank 1 and zeros at rank 0."""
        if ctx.rank == 0:
            ctx.send(x)
            return np.zeros_like(x)
        (other,) = ctx.recv((self.shape, "u8"))
        out: Words = x + other
        return out

    def simulate(self, masks: Shares, x: Words) -> Words:
        """Return the value."""
        return x


@dataclass(frozen=True)
class Inputs:
    """The client's secret inputs as one holder sees them; ``None`` where it has no words.

    Attributes
    ----------
    tokens
        Ring words: embedded tokens ``(B * n, d)`` at scale 16, or one-hot rows
        ``(B * n, vocab + types)`` at scale 0. Zeros at the server.
    padding, keep
        1 where a position is padding, and 1 where it is a token, ``(B, n)``, else 0. Both are
        zeros at the server.
    """

    tokens: Words | None = None
    padding: Words | None = None
    keep: Words | None = None
    length: int | None = None


@dataclass
class Program:
    """Everything public that the interpreter of operations needs.

    Attributes
    ----------
    ops
        The backbone's program.
    spec
        Options of the run.
    rows, length
        Batch size B and padded length n.
    bounds
        Calibrated absolute bound of each named value.
    widths
        Shape of each parameter.
    """

    ops: Sequence[OpNode]
    spec: Spec
    rows: int
    length: int
    bounds: Mapping[str, float]
    shapes: Mapping[str, tuple[int, ...]]
    feeds: Mapping[str, tuple[str, ...]] = field(init=False)

    def __post_init__(self) -> None:
        feeds: dict[str, list[str]] = {}
        for node in self.ops:
            for value in node.inputs:
                feeds.setdefault(value.name, []).append(node.kind)
        self.feeds = {k: tuple(v) for k, v in feeds.items()}
        unknown = [n.name for n in self.ops if n.kind not in _HANDLERS]
        if unknown:
            raise UnsupportedError(f"no two-party form of: {', '.join(unknown)}")

    def bound(self, name: str) -> float:
        """Calibrated bound of a value."""
        if name not in self.bounds:
            raise ParameterError(f"no calibrated range for {name}; calibrate the model first")
        return self.bounds[name]

    def run(self, e: Engine, params: Mapping[str, Known], inputs: Inputs) -> Val:
        """Interpret the program; the result is open to the client only."""
        running = Running(self, e, params, inputs)
        for node in self.ops:
            with e.scope(node.name):
                out = handle(running, node)
            if out is not None:
                running.values[node.name] = out
        last = running.values[self.ops[-1].name]
        e.checkpoint()
        with e.scope("reveal"):
            return e.result(
                e.apply(Reveal(last.shape), last), last.shape, scale=last.scale, bound=last.bound
            )


@dataclass(frozen=True)
class Running:
    """A program in the middle of one interpretation."""

    program: Program
    engine: Engine
    params: Mapping[str, Known]
    inputs: Inputs
    values: dict[str, Val] = field(default_factory=dict)

    def arg(self, node: OpNode, index: int = 0) -> Val:
        """Return the value of a node's input."""
        return self.values[node.inputs[index].name]


Handler = Callable[[Running, OpNode], Val | None]


def handle(r: Running, node: OpNode) -> Val | None:
    """Interpret one operation on the values so far."""
    return _HANDLERS[node.kind](r, node)


def _embed(r: Running, node: OpNode) -> Val | None:
    p, e = r.program, r.engine
    d = p.shapes[node.param("word")][1]
    if p.spec.embedding == "released":
        if any(n.name == "embed.norm" for n in p.ops):
            return None  # the client has the normed rows
        return Val((p.rows * p.length, d), fn.F, p.bound("embed"), r.inputs.tokens)
    width = p.shapes[node.param("word")][0] + p.shapes[node.param("type")][0]
    x = Val((p.rows * p.length, width), 0, 1.0, r.inputs.tokens)
    known = r.params["embed"]
    bias = known.bias
    if bias is not None:
        known = Known(known.weight, np.tile(bias[: p.length], (p.rows, 1)))
    return fn.linear(
        e, x, known, name="embed", m=d, weight_scale=fn.F, out_scale=fn.F, bound=p.bound("embed")
    )


def _layernorm(r: Running, node: OpNode) -> Val:
    p, e = r.program, r.engine
    if node.inputs[0].name not in r.values:
        d = p.shapes[node.param("gamma")][0]
        return Val((p.rows * p.length, d), fn.F, p.bound(node.name), r.inputs.tokens)
    x = r.arg(node)
    low = p.bounds.get(f"{x_name(node)}.var.low")
    if low is not None and low < _VARIANCE_FLOOR:
        raise ParameterError(
            f"the rows of {x_name(node)} vary too little (variance {low:.3g}) for {fn.F} fraction "
            "bits: LayerNorm would amplify rounding errors; rescale the layer before it"
        )
    return fn.layernorm(
        e,
        x,
        r.params[node.name],
        name=node.name,
        eps=node.float_attr("eps"),
        variance=p.bounds.get(f"{x_name(node)}.var"),
        bound=p.bound(node.name),
    )


def x_name(node: OpNode) -> str:
    """Name of a node's first input."""
    return node.inputs[0].name


def _linear(r: Running, node: OpNode) -> Val:
    p, e = r.program, r.engine
    x = r.arg(node)
    out_scale = fn.GELU_SCALE if Op.GELU in p.feeds.get(node.name, ()) else fn.F
    return fn.linear(
        e,
        x,
        r.params[node.name],
        name=node.name,
        m=p.shapes[node.param("weight")][0],
        weight_scale=p.spec.weight_bits,
        out_scale=out_scale,
        bound=p.bound(node.name),
    )


def _attention(r: Running, node: OpNode) -> Val:
    p, e = r.program, r.engine
    b, n, h, w = p.rows, p.length, node.int_attr("heads"), node.int_attr("head_dim")
    qkv = r.arg(node)
    prefix = node.name.rsplit(".", 1)[0]

    def part(i: int, order: tuple[int, ...], shape: tuple[int, ...]) -> Val:
        return e.map(
            qkv, lambda x: x.reshape(b, n, 3, h, w)[:, :, i].transpose(order).reshape(shape), shape
        )

    q = part(0, (0, 2, 1, 3), (b * h, n, w))
    k = part(1, (0, 2, 3, 1), (b * h, w, n))
    v = part(2, (0, 2, 1, 3), (b * h, n, w))
    limit = p.bound(f"{prefix}.scores")
    with e.scope("scores"):
        scores = fn.matmul(e, q, k, bound=limit)
        scores = _mask(e, scores, r.inputs.padding, limit, (b, h, n))
        if node.flag("causal"):
            scores = _causal(e, scores, limit)
    probs = fn.softmax(e, e.reshape(scores, b * h * n, n))
    with e.scope("context"):
        ctx = fn.matmul(e, e.reshape(probs, b * h, n, n), v, bound=p.bound(node.name))
        ctx = fn.truncate(e, ctx, ctx.scale - fn.F)
    return e.map(
        ctx,
        lambda x: x.reshape(b, h, n, w).transpose(0, 2, 1, 3).reshape(b * n, h * w),
        (b * n, h * w),
    )


def _mask(
    e: Engine, scores: Val, padding: Words | None, limit: float, dims: tuple[int, int, int]
) -> Val:
    """Push padded keys below the clip of exp, on the client's share."""
    b, h, n = dims
    drop = 8 * limit + _PAD_MARGIN  # scores may reach 4 limits either way
    words = scores.words
    if words is not None and padding is not None:
        amount = np.uint64(int(drop * 2.0**scores.scale))
        keys = np.broadcast_to((padding * amount)[:, None, None, :], (b, h, 1, n))
        words = words - keys.reshape(b * h, 1, n)
    return scores.like(words, shape=scores.shape, bound=limit + drop)


def _causal(e: Engine, scores: Val, limit: float) -> Val:
    """Push later keys below the clip of exp; which ones these are is public."""
    n, drop = scores.shape[-1], 8 * limit + _PAD_MARGIN
    words = scores.words
    if words is not None and e.rank == 0:
        amount = np.uint64(int(drop * 2.0**scores.scale))
        words = words - amount * np.triu(np.ones((n, n), np.uint64), 1)
    return scores.like(words, shape=scores.shape, bound=scores.bound + drop)


def _add(r: Running, node: OpNode) -> Val:
    p, e = r.program, r.engine
    out = e.add(r.arg(node), r.arg(node, 1))
    return out.like_bound(p.bound(node.name))


def _gelu(r: Running, node: OpNode) -> Val:
    p, e = r.program, r.engine
    return fn.gelu(e, r.arg(node), p.spec.gelu)


def _tanh(r: Running, node: OpNode) -> Val:
    e = r.engine
    return fn.tanh(e, r.arg(node))


def _pool_masked(r: Running, node: OpNode) -> Val:
    """Sum over the rows that the client's secret marks name: all real ones, or the last."""
    p, e = r.program, r.engine
    x, b, n = r.arg(node), p.rows, p.length
    keep = r.inputs.keep
    mask = Val((b, 1, n), 0, 1.0, None if keep is None else keep.reshape(b, 1, n))
    bound = x.bound * (n if node.kind is Op.POOL_MEAN else 1)
    out = fn.matmul(e, mask, e.reshape(x, b, n, x.shape[1]), bound=bound)
    return e.reshape(out, b, x.shape[1])


def _pool_cls(r: Running, node: OpNode) -> Val:
    p, e = r.program, r.engine
    x, b, n = r.arg(node), p.rows, p.length
    return e.map(x, lambda w: w.reshape(b, n, -1)[:, 0], (b, x.shape[1]))


_HANDLERS: Mapping[Op, Handler] = {
    Op.EMBED: _embed,
    Op.LAYERNORM: _layernorm,
    Op.LINEAR: _linear,
    Op.ATTENTION: _attention,
    Op.ADD: _add,
    Op.GELU: _gelu,
    Op.TANH: _tanh,
    Op.POOL_MEAN: _pool_masked,
    Op.POOL_LAST: _pool_masked,
    Op.POOL_CLS: _pool_cls,
}
