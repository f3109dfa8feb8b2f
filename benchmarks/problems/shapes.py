"""GEMM shapes to measure: six groups of layers of real models, and shapes from the command line.

A linear layer multiplies tokens (m) by weights (n outputs, k inputs). The layers here are those of
Llama 3 8B, 70B and 405B (L3), DeepSeek-V3 (DSv3), Qwen2.5 7B and 72B, Qwen3 32B, BERT, ViT (a batch
of 8 images of 197 patches), Stable Diffusion (SD) and Whisper, by their published configurations;
TP8 and TP4 are one GPU's part under tensor parallelism of 8 and 4. Weight gradients (wgrad) sum
over tokens or pixels, so their k is long. Convolutions are those of ResNet-50 by im2col: m pixels
of a batch of 32 (256 in the weight gradient), k = channels x kernel. Shapes named by a count of
tiles have a little more than one or two waves of 128 x 256 tiles on 132 SMs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "GROUPS",
    "QUICK",
    "UNGROUPED",
    "Group",
    "Shape",
    "group_title",
    "parse_shape",
    "parse_triple",
    "read_shapes",
    "select_shapes",
]

UNGROUPED = "given"
"""The name in records for the group of shapes that were given on the command line."""


@dataclass(frozen=True)
class Shape:
    """The extents of D (m x n) = A (m x k) · B (k x n), and a name for tables."""

    name: str
    m: int
    n: int
    k: int

    @property
    def size(self) -> str:
        """The extents as text: `4096x4096x64`."""
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True)
class Group:
    """A group of shapes that are difficult for the same reason, such as few rows."""

    title: str
    shapes: tuple[Shape, ...]


GROUPS = {
    "A": Group(
        "small-m decode",
        (
            Shape("L3-8B qkv", 16, 6144, 4096),
            Shape("L3-8B gate_up", 16, 28672, 4096),
            Shape("L3-8B down", 16, 4096, 14336),
            Shape("L3-8B o", 64, 4096, 4096),
            Shape("L3-70B qkv TP8", 32, 1280, 8192),
            Shape("L3-70B gate_up TP8", 32, 7168, 8192),
            Shape("L3-70B down TP8", 64, 8192, 3584),
            Shape("L3-70B o TP8", 128, 8192, 1024),
            Shape("L3-405B gate_up TP8", 16, 13312, 16384),
            Shape("L3-405B down TP8", 64, 16384, 6656),
            Shape("DSv3 qkv_a", 64, 2112, 7168),
            Shape("DSv3 q_b", 128, 24576, 1536),
            Shape("DSv3 kv_b", 128, 32768, 512),
            Shape("DSv3 o", 128, 7168, 16384),
            Shape("DSv3 dense down", 256, 7168, 18432),
            Shape("Qwen3-32B qkv", 32, 10240, 5120),
            Shape("Qwen3-32B gate_up", 64, 51200, 5120),
            Shape("lm_head 8B", 8, 128256, 4096),
            Shape("GEMV-like", 1, 8192, 8192),
        ),
    ),
    "B": Group(
        "wave-adverse",
        (
            Shape("133 tiles", 896, 4864, 4096),
            Shape("136 t", 1024, 4352, 8192),
            Shape("136 t tall", 2176, 2048, 16384),
            Shape("144 t", 2048, 2304, 8192),
            Shape("L3-70B qkv TP8", 2048, 1280, 8192),
            Shape("DSv3 q_a", 4096, 1536, 7168),
            Shape("DSv3 qkv_a", 4096, 2112, 7168),
            Shape("DSv3 kv_a", 4096, 576, 7168),
            Shape("Qwen2.5-7B qkv", 2048, 4608, 3584),
            Shape("Qwen3-32B o", 2048, 5120, 8192),
            Shape("L3-70B qkv TP4", 4096, 2560, 8192),
            Shape("DSv3 o 512", 512, 7168, 16384),
            Shape("272 t", 2176, 4096, 7168),
            Shape("Qwen2.5-72B o", 1152, 8192, 8192),
            Shape("L3-8B o 2.5k", 2560, 4096, 4096),
        ),
    ),
    "C": Group(
        "large",
        (
            Shape("4k^3", 4096, 4096, 4096),
            Shape("6k^3", 6144, 6144, 6144),
            Shape("8k^3", 8192, 8192, 8192),
            Shape("16k^3", 16384, 16384, 16384),
            Shape("L3-8B gate_up", 8192, 28672, 4096),
            Shape("L3-8B down", 8192, 4096, 14336),
            Shape("L3-70B gate_up", 4096, 57344, 8192),
            Shape("L3-70B down", 4096, 8192, 28672),
            Shape("L3-405B down TP8", 8192, 16384, 6656),
            Shape("DSv3 expert up", 4096, 4096, 7168),
            Shape("DSv3 expert down", 4096, 7168, 2048),
            Shape("Qwen3-32B down", 8192, 5120, 25600),
        ),
    ),
    "D": Group(
        "tall-K",
        (
            Shape("wgrad", 512, 512, 65536),
            Shape("gram", 1024, 1024, 32768),
            Shape("L3-8B wgrad kv", 1024, 4096, 16384),
            Shape("L3-8B wgrad o", 4096, 4096, 16384),
            Shape("LoRA wgrad", 64, 4096, 32768),
            Shape("router wgrad", 256, 7168, 16384),
            Shape("conv3x3 wgrad", 256, 2304, 50176),
            Shape("2k2k16k", 2048, 2048, 16384),
        ),
    ),
    "E": Group(
        "tiny",
        (
            Shape("256^3", 256, 256, 256),
            Shape("512^3", 512, 512, 512),
            Shape("1k^3", 1024, 1024, 1024),
            Shape("BERT ffn", 512, 3072, 768),
            Shape("SD attn", 1024, 1280, 1280),
        ),
    ),
    "F": Group(
        "unaligned/conv",
        (
            Shape("ViT 8x197", 1576, 3072, 768),
            Shape("K%64", 1000, 4096, 4104),
            Shape("conv4 im2col", 6272, 256, 2304),
            Shape("conv2 im2col", 100352, 64, 576),
            Shape("M-1", 8191, 8192, 4096),
            Shape("Whisper", 1500, 5120, 1280),
        ),
    ),
}
QUICK = {
    "A": ("L3-8B o",),
    "B": ("144 t",),
    "C": ("4k^3",),
    "D": ("gram",),
    "E": ("1k^3",),
    "F": ("ViT 8x197",),
}
"""By group, the name of one typical shape, for `python -m benchmarks gemm --quick`."""


def parse_triple(text: str) -> tuple[int, int, int]:
    """Parse three positive integers written as `4096x4096x64`.

    Raises:
        argparse.ArgumentTypeError: the text is malformed.
    """
    try:
        m, n, k = (int(word) for word in text.lower().split("x"))
        if min(m, n, k) < 1:
            raise ValueError(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' should be three positive integers, as in 4096x4096x64"
        ) from None
    return m, n, k


def parse_shape(text: str) -> Shape:
    """Parse a shape such as `4096x4096x64`; the text becomes the shape's name."""
    return Shape(text, *parse_triple(text))


def read_shapes(path: Path) -> list[Shape]:
    """Read a file with one shape per line, as `4096 4096 64` or `4096x4096x64`; # is a comment."""
    lines = (line.partition("#")[0].split() for line in path.read_text().splitlines())
    return [parse_shape("x".join(words)) for words in lines if words]


def group_title(letter: str) -> str:
    """The heading of the group of shapes with the given letter.

    >>> group_title("A")
    'A: small-m decode'
    """
    return f"{letter}: {GROUPS[letter].title}" if letter in GROUPS else letter


def select_shapes(
    groups: Iterable[str] | None, shapes: Iterable[Shape] | None, *, quick: bool = False
) -> list[tuple[str, Shape]]:
    """The shapes to measure, each with its group; all groups if both arguments are empty.

    Args:
        groups: letters of groups in `GROUPS`.
        shapes: shapes that belong to no group; they come first in the result.
        quick: True to take only the shapes in `QUICK` of each group.
    """
    ungrouped = [(UNGROUPED, found) for found in shapes or ()]
    letters = list(dict.fromkeys(groups)) if groups else ([] if ungrouped else list(GROUPS))
    return ungrouped + [
        (letter, found)
        for letter in letters
        for found in GROUPS[letter].shapes
        if not quick or found.name in QUICK[letter]
    ]
