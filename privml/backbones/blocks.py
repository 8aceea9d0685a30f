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
    """Sum of token, position and segment tables, then LayerNorm."""

    def __init__(self, params: Params, *, eps: float) -> None:
        super().__init__()
        self.word = _parameter(params["embed.word"])
        self.position = _parameter(params["embed.position"])
        self.segment = _parameter(params["embed.segment"])
        self.norm = NormBlock(params, "embed.norm", eps=eps)

    def run(self, batch: Encoded, see: Observer) -> Tensor:
        """Return hidden states, shape ``(B, n, d)``."""
        device = self.word.device
        words = F.embedding(torch.from_numpy(batch.ids).to(device), self.word)  # (B, n, d)
        types = F.embedding(torch.from_numpy(batch.type_ids).to(device), self.segment)  # (B, n, d)
        x = words + self.position[: batch.length] + types  # (B, n, d)
        see("embed", x)
        return self.norm.run(x, see)


class LayerBlock(nn.Module):
    """One post-norm Transformer layer with fused query, key and value weights."""

    def __init__(self, config: EncoderConfig, params: Params, *, name: str) -> None:
        super().__init__()
        self.name, self.heads, self.head_dim = name, config.heads, config.head_dim
        self.approximate = "tanh" if config.activation == "gelu_tanh" else "none"
        self.qkv = LinearBlock(params, f"{name}.qkv")
        self.attn_out = LinearBlock(params, f"{name}.attn_out")
        self.attn_norm = NormBlock(params, f"{name}.attn_norm", eps=config.eps)
        self.ffn_in = LinearBlock(params, f"{name}.ffn_in")
        self.ffn_out = LinearBlock(params, f"{name}.ffn_out")
        self.ffn_norm = NormBlock(params, f"{name}.ffn_norm", eps=config.eps)

    def run(self, x: Tensor, mask: Tensor, see: Observer) -> Tensor:
        """Map hidden states ``(B, n, d)`` under a mask ``(B, n)`` to ``(B, n, d)``."""
        context = self._attend(self.qkv.run(x, see), mask, see)  # (B, n, d)
        summed = self.attn_out.run(context, see) + x  # (B, n, d)
        see(f"{self.name}.attn_sum", summed)
        x = self.attn_norm.run(summed, see)  # (B, n, d)
        hidden = F.gelu(self.ffn_in.run(x, see), approximate=self.approximate)  # (B, n, ffn)
        see(f"{self.name}.ffn_act", hidden)
        summed = self.ffn_out.run(hidden, see) + x  # (B, n, d)
        see(f"{self.name}.ffn_sum", summed)
        return self.ffn_norm.run(summed, see)  # (B, n, d)

    def _attend(self, qkv: Tensor, mask: Tensor, see: Observer) -> Tensor:
        rows, n, _ = qkv.shape
        heads = qkv.view(rows, n, 3, self.heads, self.head_dim)  # (B, n, 3, H, D)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # three of (B, H, n, D)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)  # (B, H, n, n)
        see(f"{self.name}.scores", scores)
        weights = scores.masked_fill(~mask[:, None, None, :], -math.inf).softmax(dim=-1)
        context: Tensor = (weights @ v).transpose(1, 2).reshape(rows, n, -1)  # (B, n, d)
        see(f"{self.name}.context", context)
        return context


def _parameter(array: NDArray[np.float32]) -> nn.Parameter:
    """Wrap an array without copying it, unless it is read-only or strided."""
    ready = np.require(array, requirements=("C", "W"))
    return nn.Parameter(torch.from_numpy(ready))
