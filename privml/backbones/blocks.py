"""Torch building blocks of the encoder: LayerNorm, linear, embedding, one layer.

Each block reports what it computes to an observer under the value names of
:mod:`privml.backbones.program`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from privml.backbones.batch import Encoded
from privml.backbones.config import EncoderConfig

Observer = Callable[[str, Tensor], None]
Params = Mapping[str, NDArray[np.float32]]


class LinearBlock(nn.Module):
    """``x @ weight.T + bias`` with weight of shape (out, in)."""

    def __init__(self, params: Params, name: str) -> None:
        super().__init__()
        self.name = name
        self.weight = _parameter(params[f"{name}.weight"])
        self.bias = _parameter(params[f"{name}.bias"])

    def run(self, x: Tensor, see: Observer) -> Tensor:
        """Map ``(..., in)`` to ``(..., out)``."""
        y = F.linear(x, self.weight, self.bias)
        see(self.name, y)
        return y


class NormBlock(nn.Module):
    """LayerNorm over the last axis."""

    def __init__(self, params: Params, name: str, *, eps: float) -> None:
        super().__init__()
        self.name, self.eps = name, eps
        self.gamma = _parameter(params[f"{name}.gamma"])
        self.beta = _parameter(params[f"{name}.beta"])

    def run(self, x: Tensor, see: Observer) -> Tensor:
        """Map ``(..., d)`` to ``(..., d)``."""
        y = F.layer_norm(x, (x.shape[-1],), self.gamma, self.beta, self.eps)
        see(self.name, y)
        return y


class EmbeddingBlock(nn.Module):
    """Sum of token, position and segment tables, then LayerNorm unless the model is pre-norm."""

    def __init__(self, config: EncoderConfig, params: Params) -> None:
        super().__init__()
        self.word = _parameter(params["embed.word"])
        self.position = _parameter(params["embed.position"])
        self.segment = _parameter(params["embed.segment"])
        self.norm = None if config.pre_norm else NormBlock(params, "embed.norm", eps=config.eps)

    def run(self, batch: Encoded, see: Observer) -> Tensor:
        """Return hidden states, shape ``(B, n, d)``."""
        device = self.word.device
        words = F.embedding(torch.from_numpy(batch.ids).to(device), self.word)  # (B, n, d)
        types = F.embedding(torch.from_numpy(batch.type_ids).to(device), self.segment)  # (B, n, d)
        x = words + self.position[: batch.length] + types  # (B, n, d)
        see("embed", x)
        return x if self.norm is None else self.norm.run(x, see)


class LayerBlock(nn.Module):
    """One Transformer layer with fused query, key and value weights, post-norm or pre-norm."""

    def __init__(self, config: EncoderConfig, params: Params, *, name: str) -> None:
        super().__init__()
        self.name, self.heads, self.head_dim = name, config.heads, config.head_dim
        self.causal, self.pre_norm = config.causal, config.pre_norm
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        self.qkv = LinearBlock(params, f"{name}.qkv")
        self.attn_out = LinearBlock(params, f"{name}.attn_out")
        self.attn_norm = NormBlock(params, f"{name}.attn_norm", eps=config.eps)
        self.ffn_in = LinearBlock(params, f"{name}.ffn_in")
        self.ffn_out = LinearBlock(params, f"{name}.ffn_out")
        self.ffn_norm = NormBlock(params, f"{name}.ffn_norm", eps=config.eps)

    def run(self, x: Tensor, mask: Tensor, see: Observer) -> Tensor:
        """Map hidden states ``(B, n, d)`` under a mask ``(B, n)`` to ``(B, n, d)``."""
        if self.pre_norm:
            normed = self.attn_norm.run(x, see)  # (B, n, d)
            x = self._attention(normed, x, mask, see)  # (B, n, d)
            return self._ffn(self.ffn_norm.run(x, see), x, see)  # (B, n, d)
        x = self.attn_norm.run(self._attention(x, x, mask, see), see)  # (B, n, d)
        return self.ffn_norm.run(self._ffn(x, x, see), see)  # (B, n, d)

    def _attention(self, x: Tensor, residual: Tensor, mask: Tensor, see: Observer) -> Tensor:
        context = self._attend(self.qkv.run(x, see), mask, see)  # (B, n, d)
        summed = self.attn_out.run(context, see) + residual  # (B, n, d)
        see(f"{self.name}.attn_sum", summed)
        return summed

    def _ffn(self, x: Tensor, residual: Tensor, see: Observer) -> Tensor:
        hidden = F.gelu(self.ffn_in.run(x, see), approximate=self.approximate)  # (B, n, ffn)
        see(f"{self.name}.ffn_act", hidden)
        summed = self.ffn_out.run(hidden, see) + residual  # (B, n, d)
        see(f"{self.name}.ffn_sum", summed)
        return summed

    def _attend(self, qkv: Tensor, mask: Tensor, see: Observer) -> Tensor:
        rows, n, _ = qkv.shape
        heads = qkv.view(rows, n, 3, self.heads, self.head_dim)  # (B, n, 3, H, D)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # three of (B, H, n, D)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)  # (B, H, n, n)
        see(f"{self.name}.scores", scores)
        visible = visible_keys(mask, causal=self.causal)  # (B, 1, 1 or n, n)
        weights = scores.masked_fill(~visible, -math.inf).softmax(dim=-1)
        context: Tensor = (weights @ v).transpose(1, 2).reshape(rows, n, -1)  # (B, n, d)
        see(f"{self.name}.context", context)
        return context


def visible_keys(mask: Tensor, *, causal: bool) -> Tensor:
    """Return which keys each query sees, shape ``(B, 1, 1, n)``, or ``(B, 1, n, n)`` if causal.

    A causal query sees itself even if it is padding, so that no row is empty; see the interpreter.
    """
    keys = mask[:, None, None, :]
    if not causal:
        return keys
    n = mask.shape[1]
    square = torch.ones(n, n, dtype=torch.bool, device=mask.device)
    return keys & square.tril() | torch.eye(n, dtype=torch.bool, device=mask.device)


def _parameter(array: NDArray[np.float32]) -> nn.Parameter:
    """Wrap an array without copying it, unless it is read-only or strided."""
    ready = np.require(array, requirements=("C", "W"))
    return nn.Parameter(torch.from_numpy(ready))
