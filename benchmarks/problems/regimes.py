"""Random GEMM sizes of five regimes, from square matrices to the layers of language models."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp, log

from benchmarks.problems.shapes import Shape

__all__ = ["REGIMES", "regime_shapes"]

TILE_M, TILE_N, PROCESSORS = 128, 256, 132
"""Extents of the tile, and the number of SMs (H100 and H200), by which waves are counted."""
LAYERS = (
    *((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336)),
    *((8192, 8192), (10240, 8192), (7168, 8192), (3584, 3584)),
    *((18944, 3584), (3584, 18944), (5120, 5120), (25600, 5120)),
    *((7168, 2048), (2112, 7168), (7168, 16384), (1536, 7168)),
)
"""(outputs n, inputs k) of linear layers of Llama 3, Qwen2.5, Qwen3 and DeepSeek-V3, by their
published configurations; some are one GPU's part under tensor parallelism."""
Size = tuple[int, int, int]


def _extent(generator: random.Random, low: int, high: int) -> int:
    """A multiple of 8 between `low` and `high`, log-uniform."""
    return max(8, 8 * round(exp(generator.uniform(log(low), log(high))) / 8))


def _square(generator: random.Random) -> Size:
    """A random size with m = n = k."""
    side = _extent(generator, 512, 8192)
    return side, side, side


def _waves(generator: random.Random) -> Size:
    """A random size whose tiles fill one to four waves, and up to a quarter of the next wave."""
    while True:
        tiles = generator.randint(1, 4) * PROCESSORS + generator.randint(1, PROCESSORS // 4)
        across = [count for count in range(2, 65) if tiles % count == 0 and tiles // count <= 64]
        if across:
            count = generator.choice(across)
            m, n = TILE_M * count, TILE_N * (tiles // count)
            return m, n, _extent(generator, 1024, 8192)


def _deep(generator: random.Random) -> Size:
    """A random size with fewer tiles than SMs, and k between 10,000 and 65,536."""
    m, n = (_extent(generator, 128, 1200) for _ in range(2))
    return m, n, _extent(generator, 10_000, 65_536)


def _decoding(generator: random.Random) -> Size:
    """A random size of a language model's layer: n and k of `LAYERS`, and m of 1 to 64 tokens."""
    n, k = generator.choice(LAYERS)
    return generator.choice((1, 2, 4, 8, 16, 24, 32, 48, 64)), n, k


def _layer(generator: random.Random) -> Size:
    """A random size of a language model's layer: n and k of `LAYERS`, m of 512 to 8192 tokens."""
    n, k = generator.choice(LAYERS)
    return _extent(generator, 512, 8192), n, k


REGIMES: dict[str, tuple[int, Callable[[random.Random], Size]]] = {
    "square": (6, _square),
    "waves and a little more": (8, _waves),
    "deep k, few tiles": (6, _deep),
    "decoding": (7, _decoding),
    "layers": (8, _layer),
}
"""For each regime: the number of sizes that are drawn, and the function that draws one."""


def regime_shapes(seed: int) -> list[Shape]:
    """Draw the sizes of all regimes; a shape's name is that of its regime.

    The regimes take turns in the list, so that a run that ends early has sizes of each.

    Args:
        seed: the seed of the random generator; one seed gives the same sizes on every machine.

    >>> [(shape.name, shape.size) for shape in regime_shapes(0)[:2]]
    [('square', '5320x5320x5320'), ('waves and a little more', '7808x1792x3448')]
    """
    generator = random.Random(seed)
    drawn = {
        name: [Shape(name, *draw(generator)) for _ in range(count)]
        for name, (count, draw) in REGIMES.items()
    }
    most = max(count for count, _ in REGIMES.values())
    return [shapes[turn] for turn in range(most) for shapes in drawn.values() if turn < len(shapes)]
