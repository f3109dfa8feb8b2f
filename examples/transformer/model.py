"""`Transformer`: a decoder as in Qwen3; the caller chooses the classes of its layers.

The model has RMSNorm before each part, rotary position embedding, grouped-query attention with
normalized queries and keys, SwiGLU feed-forward layers, and an output layer that shares the weight
of the embedding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Cache", "Config", "Layers", "StockSwiGLU", "Transformer"]


@dataclass(frozen=True)
class Config:
    """Sizes of a model: by default those of Qwen3-0.6B, with fewer layers and a smaller vocabulary.

    Args:
        dim: extent of the vector of a token.
        layers: number of layers (Qwen3-0.6B: 28).
        heads: number of heads of the queries.
        kv_heads: number of heads of the keys and values.
        head_dim: extent of a head.
        hidden: extent inside of the feed-forward layer.
        vocab: number of different tokens (Qwen3-0.6B: 151,936).
        rope_theta: base of the wavelengths of the rotary embedding.
    """

    dim: int = 1024
    layers: int = 8
    heads: int = 16
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 3072
    vocab: int = 8192
    rope_theta: float = 1e6


class StockSwiGLU(nn.Module):
    """A SwiGLU layer that uses `nn.Linear`; its parameters are those of `codegen.torch.SwiGLU`."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The layer's result (…, dim), for an input (…, dim)."""
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


@dataclass(frozen=True)
class Layers:
    """The classes of the layers that multiply matrices.

    Args:
        linear: makes a linear layer from the arguments of `torch.nn.Linear`.
        feed_forward: makes a feed-forward layer from `dim` and `hidden`.
    """

    linear: Callable[..., Any] = nn.Linear
    feed_forward: Callable[[int, int], Any] = StockSwiGLU


@dataclass
class Cache:
    """Keys and values of earlier tokens, in tensors whose addresses do not change.

    Args:
        keys, values: one tensor for each layer, (batch, kv_heads, length, head_dim).
        positions: i64 (tokens), the positions of the tokens of the next call.
    """

    keys: list[Tensor]
    values: list[Tensor]
    positions: Tensor

    @classmethod
    def empty(cls, config: Config, batch: int, length: int, like: Tensor) -> Cache:
        """A cache for `length` tokens, on the device and of the element type of `like`."""
        shape = batch, config.kv_heads, length, config.head_dim
        keys, values = ([like.new_zeros(shape) for _ in range(config.layers)] for _ in range(2))
        return cls(keys, values, torch.zeros(1, dtype=torch.int64, device=like.device))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to `x`, (…, length, head_dim): rotate elements by their position.

    Elements i and i + head_dim / 2 of a head form a pair, which is rotated like a point in the
    plane. `cos` and `sin`, (length, head_dim), are the cosine and sine of each element's angle.
    """
    one, other = x.chunk(2, -1)
    return (x * cos + torch.cat((-other, one), -1) * sin).to(x.dtype)


class Norm(nn.RMSNorm):
    """`torch.nn.RMSNorm` of the last axis, with the weight converted to the type of the input.

    PyTorch's fused kernel requires that the weight and the input have the same type.

    Args:
        extent: the extent of the last axis.
    """

    def __init__(self, extent: int) -> None:
        super().__init__(extent, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """The normalized tensor, of the type of `x`."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    """Grouped-query attention; one product computes queries, keys and values."""

    def __init__(self, config: Config, linear: Callable[..., Any]) -> None:
        super().__init__()
        self.counts = config.heads, config.kv_heads, config.kv_heads
        self.head_dim = config.head_dim
        self.qkv = linear(config.dim, sum(self.counts) * config.head_dim, bias=False)
        self.out = linear(config.heads * config.head_dim, config.dim, bias=False)
        self.norm_q = Norm(config.head_dim)
        self.norm_k = Norm(config.head_dim)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, cache: Any
    ) -> Tensor:
        """Attention of each token to itself and earlier tokens; the result has the shape of `x`.

        Args:
            x: the vectors of the tokens, (batch, length, dim).
            cos, sin: (length, head_dim), cosine and sine of the angle by which `rotated` rotates
                each element of a query or key.
            mask: the positions in the cache to which each token attends; None without a cache.
            cache: (keys, values, positions) of this layer, see `Cache`. The keys and values of `x`
                are written to the cache, and tokens of earlier calls are attended to, too. None if
                there is no cache.
        """
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = heads.split(self.counts, 1)
        q, k = rotated(self.norm_q(q), cos, sin), rotated(self.norm_k(k), cos, sin)
        if cache is not None:
            keys, values, positions = cache
            k = keys.index_copy_(2, positions, k.to(keys.dtype))
            v = values.index_copy_(2, positions, v.to(values.dtype))
        causal = mask is None
        d = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=True)
        return self.out(d.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """One layer of the model: attention, then a feed-forward layer, each after RMSNorm."""

    def __init__(self, config: Config, layers: Layers) -> None:
        super().__init__()
        self.norm_attention = Norm(config.dim)
        self.attention = Attention(config, layers.linear)
        self.norm_feed_forward = Norm(config.dim)
        self.feed_forward = layers.feed_forward(config.dim, config.hidden)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        """Add the result of attention to `x`, then that of the feed-forward layer."""
        x = x + self.attention(self.norm_attention(x), *context)
        return x + self.feed_forward(self.norm_feed_forward(x))


class Transformer(nn.Module):
    """A decoder with random weights.

    Args:
        config: the sizes of the model.
        layers: the classes of the layers that multiply matrices. The choice does not change the
            names and shapes of parameters, so any model of this config can load the `state_dict`.
    """

    def __init__(self, config: Config, layers: Layers | None = None) -> None:
        super().__init__()
        layers = layers or Layers()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.blocks = nn.ModuleList(Block(config, layers) for _ in range(config.layers))
        self.norm = Norm(config.dim)
        self.head = layers.linear(config.dim, config.vocab, bias=False)
        self.head.weight = self.embedding.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, cache: Cache | None = None) -> Tensor:
        """The logits of the next token at each position, (batch, length, vocab).

        `tokens` is (batch, length).
        """
        if cache is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
        else:
            positions = cache.positions
        half = torch.arange(0, self.config.head_dim, 2, device=tokens.device)
        waves = self.config.rope_theta ** (-half / self.config.head_dim)
        angles = (positions[:, None] * waves).repeat(1, 2)
        context: list[Any] = [angles.cos(), angles.sin(), None, None]
        if cache is not None:
            slots = torch.arange(cache.keys[0].shape[2], device=tokens.device)
            context[2] = slots <= positions[:, None]
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            if cache is not None:
                context[3] = cache.keys[number], cache.values[number], positions
            x = block(x, *context)
        return self.head(self.norm(x))
