"""Transformer in torch: the model both halves of an encrypted run are compared with.

Architectures: Devlin, Chang, Lee, Toutanova, "BERT", NAACL 2019 (post-norm encoder), and Radford,
Wu, Child, Luan, Amodei, Sutskever, "Language Models are Unsupervised Multitask Learners", 2019
(GPT-2, a pre-norm causal decoder, whose hidden states are the output; it generates no text here).
Parameters carry the program's names, so ``state_dict()`` and ``params()`` have the same keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from privml.backbones.base import BackboneSpec, Interval, Manifest, Op, OpNode, Route, SliceSpec
from privml.backbones.batch import Encoded
from privml.backbones.blocks import (
    EmbeddingBlock,
    LayerBlock,
    LinearBlock,
    NormBlock,
    Observer,
)
from privml.backbones.certificate import CertificateRecord, build_record, encoder_slices
from privml.backbones.config import EncoderConfig
from privml.backbones.digests import build_manifest, program_digest
from privml.backbones.known_ranges import known_ranges
from privml.backbones.program import NORM_FLOOR, SUPPORTED_OPS, encoder_ops, parameter_shapes
from privml.backbones.ranges import default_ranges
from privml.backbones.tokenizer import Tokenizer
from privml.errors import ParameterError, UnsupportedError, internal

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class Captured:
    """An output and the activations asked for, by value name."""

    output: Tensor
    activations: Mapping[str, Tensor]


class Encoder(nn.Module):
    """A BERT-type encoder or GPT-2-type decoder; the output is a pooled embedding or logits.

    Parameters
    ----------
    config
        Shape and options.
    params
        One array for each name in :func:`privml.backbones.program.parameter_shapes`; float32
        arrays are shared, not copied.
    tokenizer
        Needed only by :meth:`encode` and for default ranges from text.

    Raises
    ------
    ParameterError
        Listing parameters that are missing, unexpected, of wrong shape or not finite.

    Notes
    -----
    ``deterministic`` is false: the order of sums inside the BLAS depends on thread count and
    machine. There is no dropout, so training and evaluation modes agree.
    """

    supported_ops: ClassVar[frozenset[Op]] = SUPPORTED_OPS
    deterministic: ClassVar[bool] = False

    def __init__(
        self,
        config: EncoderConfig,
        params: Mapping[str, NDArray[np.float32]],
        *,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        super().__init__()
        _check_params(config, params)
        self.config = config
        self.tokenizer = tokenizer
        self._cache: dict[str, tuple[tuple[int, ...], object]] = {}
        self.embed = EmbeddingBlock(config, params)
        self._layers = tuple(f"layer{index}" for index in range(config.layers))
        for name in self._layers:
            self.add_module(name, LayerBlock(config, params, name=name))
        self.final_norm = (
            NormBlock(params, "final_norm", eps=config.eps) if config.pre_norm else None
        )
        self.pooler = LinearBlock(params, "pooler") if config.pooling == "pooler" else None
        self.classifier = LinearBlock(params, "classifier") if config.labels else None

    def forward(self, batch: Encoded, observe: Observer | None = None) -> Tensor:
        """Run the model.

        Parameters
        ----------
        batch
            Token batch of shape ``(B, n)``.
        observe
            Called with the name and the value of each intermediate value of the program as it is
            computed, and with ``layer{i}.scores`` of shape ``(B, heads, n, n)`` (before the mask).
            It must not change the tensors; results are the same bits with and without it.

        Returns
        -------
        Tensor
            Shape ``(B, output_dim)``: embeddings, normalised if the configuration says so, or
            logits. Differentiable; wrap in ``torch.no_grad()`` for plain inference.

        Raises
        ------
        ParameterError
            If the batch has ids or lengths outside the embedding tables.
        """
        see = observe or _ignore
        x = self._embed(batch, see)  # (B, n, d)
        mask = torch.from_numpy(batch.mask).to(x.device)  # (B, n)
        for name in self._layers:
            x = self._layer(name).run(x, mask, see)  # (B, n, d)
        return self._head(x, mask, see)  # (B, output_dim)

    def capture(self, batch: Encoded, names: Collection[str]) -> Captured:
        """Run the model without gradients and keep the named activations.

        Raises
        ------
        ParameterError
            If a name is not a value of the model.
        """
        kept: dict[str, Tensor] = {}

        def keep(name: str, value: Tensor) -> None:
            if name in names:
                kept[name] = value.clone()

        with torch.no_grad():
            output = self.forward(batch, keep)
        unknown = sorted(set(names) - set(kept))
        if unknown:
            raise ParameterError(f"the model has no values {unknown}; see encoder.ops()")
        return Captured(output, kept)

    def encode(self, texts: Sequence[str], *, truncate: bool = False) -> NDArray[np.float32]:
        """Tokenise texts and return the outputs in the clear, shape ``(len(texts), output_dim)``.

        Raises
        ------
        ParameterError
            If the encoder has no tokenizer, or a text is empty or too long and not ``truncate``.
        """
        if self.tokenizer is None:
            raise ParameterError("this encoder has no tokenizer; pass an Encoded batch to forward")
        with torch.no_grad():
            parts = [
                self.forward(self.tokenizer.encode(texts[at : at + 16], truncate=truncate))
                for at in range(0, len(texts), 16)
            ]
        if not parts:
            raise ParameterError("no texts were given; pass at least one")
        result: NDArray[np.float32] = torch.cat(parts).float().cpu().numpy()
        return result

    def features(self, batch: Encoded, layer: int) -> Tensor:
        """Return hidden states, shape ``(B, n, d)``: 0 is after the embedding, i after layer i.

        Those of a pre-norm model are its residual stream, without the final LayerNorm.

        Raises
        ------
        ParameterError
            If ``layer`` is not in 0..layers.
        """
        if not 0 <= layer <= self.config.layers:
            raise ParameterError(f"layer {layer} must lie in [0, {self.config.layers}]")
        x = self._embed(batch, _ignore)
        mask = torch.from_numpy(batch.mask).to(x.device)
        for name in self._layers[:layer]:
            x = self._layer(name).run(x, mask, _ignore)
        return x

    def per_sample_loss(self, batch: Encoded, labels: NDArray[np.int64]) -> Tensor:
        """Return the cross entropy of each row in nats, shape ``(B,)``.

        Raises
        ------
        UnsupportedError
            If the model has no classifier.
        ParameterError
            If ``labels`` is not an int64 vector of class numbers, one per row.
        """
        classes = len(self.config.labels)
        if classes < 2:
            raise UnsupportedError("a loss needs a classifier with two classes or more")
        fits = labels.shape == (batch.batch_size,) and labels.dtype == np.int64
        if not fits or int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise ParameterError(f"labels must be int64 in [0, {classes}), one for each row")
        logits = self.forward(batch)  # (B, classes)
        return F.cross_entropy(logits, torch.from_numpy(labels).to(logits.device), reduction="none")

    def ops(self) -> tuple[OpNode, ...]:
        """Return the program; it follows from the configuration alone."""
        return encoder_ops(self.config)

    def params(self) -> Mapping[str, NDArray[np.float32]]:
        """Return every parameter as a read-only float32 array, by program name."""
        arrays: dict[str, NDArray[np.float32]] = {}
        for name, tensor in self.named_parameters():
            array = tensor.detach().float().cpu().numpy()
            array.flags.writeable = False
            arrays[name] = array
        return arrays

    def spec(self) -> BackboneSpec:
        """Return the public facts."""
        config = self.config
        shapes = parameter_shapes(config).values()
        return BackboneSpec(
            name=config.name,
            architecture=config.architecture,
            task=config.task,
            output_dim=config.output_dim,
            max_length=config.max_length,
            parameter_count=sum(math.prod(shape) for shape in shapes),
            config_digest=config.digest(),
            program_digest=program_digest(self.ops()),
        )

    def manifest(self) -> Manifest:
        """Return the digests of all parameters; computed again after the weights change."""
        return self._remember(
            "manifest", lambda: build_manifest(self.params(), config=self.config.digest())
        )

    def ranges(self) -> Mapping[str, Interval]:
        """Return calibrated ranges, see :func:`privml.backbones.ranges.default_ranges`.

        Cost on the first call and after a change of the weights: seconds of computing for a
        6-layer model of width 384; 0.1 s for the unchanged ``minilm-l6``, whose ranges come with
        the package. Nothing later. Values seen on your own data:
        :func:`privml.backbones.ranges.calibrate`.
        """
        return self._remember("ranges", lambda: known_ranges(self) or default_ranges(self))

    def slices(self) -> tuple[SliceSpec, ...]:
        """Return the embedding, one slice per layer and the head; each needs those before it."""
        return encoder_slices(self.config)

    def route(self, batch: Encoded) -> Route:
        """Return the route: one shard for all rows, public, no leak."""
        shards = np.zeros(batch.batch_size, np.int64)
        return Route(shards=shards, depends_on="public", leaked_bits=0.0)

    def certificate_record(self) -> CertificateRecord:
        """Return facts about the model for an audit log, see :class:`CertificateRecord`."""
        kernel = f"torch {torch.__version__}; {torch.backends.cpu.get_cpu_capability()}"
        return build_record(self, kernel_plan=kernel)

    def _embed(self, batch: Encoded, see: Observer) -> Tensor:
        _check_batch(self.config, batch)
        return self.embed.run(batch, see)

    def _layer(self, name: str) -> LayerBlock:
        layer = self.get_submodule(name)
        internal(isinstance(layer, LayerBlock), f"{name} is no layer")
        return layer  # type: ignore[return-value]

    def _head(self, x: Tensor, mask: Tensor, see: Observer) -> Tensor:
        x = self._pool(x, mask, see)  # (B, d)
        if self.pooler is not None:
            x = self.pooler.run(x, see)  # (B, d)
            x = torch.tanh(x)
            see("pooler.tanh", x)
        if self.classifier is not None:
            x = self.classifier.run(x, see)  # (B, labels)
        return F.normalize(x, dim=-1, eps=NORM_FLOOR) if self.config.normalize else x

    def _pool(self, x: Tensor, mask: Tensor, see: Observer) -> Tensor:
        """Reduce ``(B, n, d)`` to ``(B, d)``; the final norm sees rows only if all are pooled."""
        norm, pooling = self.final_norm, self.config.pooling
        if pooling == "mean":
            x = x if norm is None else norm.run(x, see)  # (B, n, d)
            weights = mask.to(x.dtype)[:, :, None]  # (B, n, 1)
            x = (x * weights).sum(dim=1) / weights.sum(dim=1)  # (B, d)
            see("pool", x)
            return x
        if pooling == "last":
            places = torch.arange(mask.shape[1], device=mask.device)
            last = (mask * (places + 1)).argmax(dim=1)  # (B,)
            x = x[torch.arange(len(x), device=x.device), last]  # (B, d)
        else:
            x = x[:, 0]  # (B, d)
        see("pool", x)
        return x if norm is None else norm.run(x, see)

    def _remember(self, what: str, compute: Callable[[], _T]) -> _T:
        """Return a cached value unless a parameter was written to since."""
        state = tuple(n for p in self.parameters() for n in (p._version, p.data_ptr()))
        cached = self._cache.get(what)
        if cached is None or cached[0] != state:
            cached = self._cache[what] = (state, compute())
        return cached[1]  # type: ignore[return-value]


def _ignore(_: str, __: Tensor) -> None:
    """Observe nothing."""


def _check_params(config: EncoderConfig, params: Mapping[str, NDArray[np.float32]]) -> None:
    """Refuse parameters that are not exactly what the configuration asks for."""
    shapes = parameter_shapes(config)
    problems = [f"{name} is missing" for name in shapes if name not in params]
    problems += [f"{name} is not expected" for name in params if name not in shapes]
    for name, array in params.items():
        expected = shapes.get(name, array.shape)
        if array.shape != expected:
            problems.append(f"{name} has shape {array.shape}, expected {expected}")
        elif array.dtype != np.float32:
            problems.append(f"{name} has dtype {array.dtype}, expected float32")
        elif not np.isfinite(array).all():
            problems.append(f"{name} has values that are not finite")
    if problems:
        raise ParameterError("encoder parameters: " + "; ".join(problems))


def _check_batch(config: EncoderConfig, batch: Encoded) -> None:
    """Refuse batches that reach outside the embedding tables."""
    problems = []
    if batch.length > config.max_positions:
        problems.append(f"{batch.length} positions exceed the model's {config.max_positions}")
    if int(batch.ids.max()) >= config.vocab:
        problems.append(f"token ids must be below {config.vocab}")
    if int(batch.type_ids.max()) >= config.type_vocab:
        problems.append(f"segment ids must be below {config.type_vocab}")
    if problems:
        raise ParameterError("batch does not fit the model: " + "; ".join(problems))
