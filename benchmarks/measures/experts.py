"""Measure a mixture-of-experts layer against PyTorch's grouped products and its eager operators.

    python -m benchmarks experts                              # 12 layers, about 3 minutes
    python -m benchmarks experts --layers 2048x768x128x8 --tokens 16 4096

A layer HxIxExK has E experts, K of which each token is sent to; an expert maps H inputs to I gated
inner values (SwiGLU) and these back to H outputs. The experts of each token are drawn at random.
Contenders, timed in turn:

  coordgraph   two grouped products: the first gathers the tokens' rows and applies SwiGLU, the
               second scales by the router's weights and scatters; then a sum over each token's K
  torch eager  indexing, grouped_mm, silu, multiplications, grouped_mm, index_add_

Both results are compared with a product in f32 for some tokens first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import codegen
from benchmarks.options import (
    add_results,
    add_sampling,
    add_time_limit,
    command_line,
    parse_for_gpu,
)
from benchmarks.problems.layers import CHECKED, fault_of, swiglu
from benchmarks.reports.layer_speeds import measure
from benchmarks.timing.ways import OURS
from coordgraph import epilogue as ep

__all__ = ["LAYERS", "Layer", "main", "parse_layer"]

LAYERS = ("4096x14336x8x2", "2048x768x128x8", "7168x2048x32x4")
"""Layers as HxIxExK: that of Mixtral 8x7B, of Qwen3-30B-A3B, and one with experts as large as
DeepSeek-V3's."""
TOKENS = (16, 256, 2048, 8192)
EAGER = "torch eager"


@dataclass(frozen=True)
class Layer:
    """A mixture-of-experts layer.

    Args:
        hidden: number of inputs, and of outputs, of an expert.
        inner: number of gated values between the two products of an expert.
        experts: number of experts.
        chosen: number of experts to which each token is sent.
    """

    hidden: int
    inner: int
    experts: int
    chosen: int

    def __str__(self) -> str:
        return f"{self.hidden}x{self.inner}x{self.experts}x{self.chosen}"


@ep.epilogue(weight="m")
def weighted(acc: Any, weight: Any) -> Any:
    """The output of an expert, scaled by the router's weight for each row."""
    return acc * weight


def parse_layer(text: str) -> Layer:
    """Parse a layer, `4096x14336x8x2`.

    Raises:
        argparse.ArgumentTypeError: the text has another form, or a token is sent to more experts
            than there are.
    """
    try:
        layer = Layer(*map(int, text.split("x")))
    except (TypeError, ValueError):
        layer = Layer(0, 0, 0, 0)
    if min(layer.hidden, layer.inner, layer.chosen) < 1 or layer.chosen > layer.experts:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no layer; write inputs, inner values, experts and experts of a token "
            "like 4096x14336x8x2"
        )
    return layer


class Problem:
    """The tensors of a layer and its tokens; computes the layer by coordgraph and by PyTorch."""

    peak_bytes: Mapping[str, int] = {}

    def __init__(self, layer: Layer, tokens: int) -> None:
        import torch

        def normal(*shape: int) -> Any:
            made = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            return made.mul_(shape[-1] ** -0.5) if len(shape) == 3 else made

        self.layer, self.x = layer, normal(tokens, layer.hidden)
        self.first = normal(layer.experts, 2 * layer.inner, layer.hidden)
        self.second = normal(layer.experts, layer.hidden, layer.inner)
        scores = torch.rand(tokens, layer.experts, device="cuda")
        picked, self.expert = scores.topk(layer.chosen, 1)
        self.router = (picked / picked.sum(1, keepdim=True)).to(torch.bfloat16)
        order = self.expert.flatten().argsort(stable=True)
        counts = self.expert.flatten().bincount(minlength=layer.experts)
        self.order, self.rows = order.to(torch.int32), (order // layer.chosen).to(torch.int32)
        self.offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32)
        self.weights = self.router.flatten()[order]
        self.scattered = torch.empty(tokens * layer.chosen, layer.hidden, device="cuda")
        self.scattered = self.scattered.to(torch.bfloat16)
        self.ways = {OURS: self.ours, EAGER: self.eager}

    def ours(self) -> Any:
        """The layer by two kernels of coordgraph and a sum."""
        inner = codegen.grouped_matmul(
            self.x, self.first, self.offsets, transpose_b=True, rows=self.rows, epilogue=swiglu
        )
        codegen.grouped_matmul(
            inner, self.second, self.offsets, transpose_b=True, targets=self.order,
            epilogue=weighted, weight=self.weights, out=self.scattered,
        )  # fmt: skip
        return self.scattered.view(-1, self.layer.chosen, self.layer.hidden).sum(1)

    def eager(self) -> Any:
        """The layer by PyTorch's grouped products and its eager operators."""
        import torch

        grouped = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        ends, rows = self.offsets[1:], self.rows
        both = grouped(self.x[rows], self.first.transpose(1, 2), offs=ends)
        gate, up = both.chunk(2, -1)
        inner = torch.nn.functional.silu(gate) * up
        out = grouped(inner, self.second.transpose(1, 2), offs=ends) * self.weights[:, None]
        return torch.zeros_like(self.x).index_add_(0, rows, out)

    def fault(self, compute: Callable[[], Any]) -> str | None:
        """What is wrong with a contender's result; None if it is right."""
        import torch

        self.scattered.fill_(float("nan"))
        found = compute()[:CHECKED].float()
        exact = torch.zeros_like(found)
        for token in range(len(found)):
            for number in range(self.layer.chosen):
                expert, x = self.expert[token, number], self.x[token].float()
                gate, up = (self.first[expert].float() @ x).chunk(2)
                inner = torch.nn.functional.silu(gate) * up
                exact[token] += self.router[token, number] * (self.second[expert].float() @ inner)
        return fault_of(found, exact)


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks experts`."""
    made = command_line("experts", __doc__)
    made.add_argument(
        "--layers", type=parse_layer, nargs="+", metavar="HxIxExK",
        default=[parse_layer(text) for text in LAYERS],
        help=f"the layers; default {' '.join(LAYERS)}",
    )  # fmt: skip
    made.add_argument(
        "--tokens", type=int, nargs="+", default=list(TOKENS), metavar="N",
        help=f"numbers of tokens; default {' '.join(map(str, TOKENS))}",
    )  # fmt: skip
    add_sampling(made, rounds=7, seconds=0.005, regime="sustained")
    add_time_limit(made, 3.0)
    add_results(made)
    return made


def main() -> None:
    """Run `python -m benchmarks experts`."""
    options = parse_for_gpu(parser())
    jobs = {
        f"{layer}, {tokens} tokens": partial(Problem, layer, tokens)
        for layer in options.layers
        for tokens in options.tokens
    }
    measure("experts", "mixture of experts", jobs, options)


if __name__ == "__main__":
    main()
