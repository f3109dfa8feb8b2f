"""CPU kernels for tests, each compiled once; problems with inputs; comparison with float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from codegen.targets.cpu import HostKernel
from coordgraph import Gemm
from coordgraph.interpreter.arguments import numpy_dtype
from passes import Pipeline
from tests.passes.schedules import ORDERS, SCHEDULES, schedule
from tests.support.sampling import cover, kinds

TILE = (12, 40, 24)
"""A macro tile that neither register blocks nor vectors divide."""
# Error bounds by type. SUMS bounds the error of a sum of products, relative to the sum of the
# products' magnitudes; OUTPUTS the error of rounding the sum to the type of D, relative to the sum.
SUMS = {"f64": 1e-14, "f32": 2e-6, "bf16": 2e-6, "f16": 2e-6}
OUTPUTS = {"f64": 2**-53, "f32": 2**-24, "bf16": 2**-8, "f16": 2**-11}
GUARD = 64

EVERY_SCHEDULE = cover(0, SCHEDULES, kinds)
"""Schedules for quick tests, chosen so that every schedule option occurs at least once."""


@cache
def kernel(
    name: str = "data-parallel",
    order: str = "plain",
    dtype: str = "f32",
    out_dtype: str | None = None,
    *,
    tile: tuple[int, int, int] = TILE,
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> HostKernel:
    """A compiled CPU kernel for all sizes; calls with equal arguments return the same kernel."""
    gemm = Gemm(dtype, out_dtype, transpose_a=transpose_a, transpose_b=transpose_b)
    return HostKernel(Pipeline([*ORDERS[order], schedule(name)])(gemm.graph(tile)))


def guarded(value: np.ndarray, fill: float = np.nan) -> np.ndarray:
    """A copy of an array, with elements `fill` before and after it in memory (poison values)."""
    memory = np.full(value.size + 2 * GUARD, fill, value.dtype)
    inside = memory[GUARD : GUARD + value.size].reshape(value.shape)
    inside[...] = value
    return inside


def untouched(value: np.ndarray) -> bool:
    """Whether the poison values around `value`, an array that `guarded` returned, are unchanged."""
    memory = value.base
    assert memory is not None
    ends = np.concatenate([memory[:GUARD], memory[-GUARD:]]).astype(np.float64)
    return len(memory) == value.size + 2 * GUARD and bool(np.isnan(ends).all())


@dataclass
class Problem:
    """A kernel with random inputs for one size, and D filled with NaN before a run.

    A, B, C and D have poison values around them (see `guarded`). If `whole` is set, the elements of
    A, B and C are small whole numbers.
    """

    kernel: HostKernel
    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    whole: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        gemm = self.kernel.graph.gemm
        random = np.random.default_rng((self.m, self.n, self.k))

        def draw(rows: int, columns: int, kind: str | None, transposed: bool) -> np.ndarray:
            shape = (columns, rows) if transposed else (rows, columns)
            values = random.integers(-4, 5, shape) if self.whole else random.standard_normal(shape)
            return guarded(values.astype(numpy_dtype(kind or "f32")))

        self.a = draw(self.m, self.k, gemm.dtype, gemm.transpose_a)
        self.b = draw(self.k, self.n, gemm.dtype, gemm.transpose_b)
        self.c = draw(self.m, self.n, gemm.out_dtype, False)
        self.out = guarded(np.full((self.m, self.n), np.nan, numpy_dtype(gemm.out_dtype or "f32")))

    def run(self, **options: Any) -> np.ndarray:
        """Fill D with NaN, run the kernel, and return D."""
        self.out[...] = np.nan
        c = self.c if self.beta else None
        if any(p.name == "workgroups" for p in self.kernel.graph.parameters.given):
            options.setdefault("workgroups", 3)
        else:
            options.pop("workgroups", None)
        options = {"threads": 2, **options}
        made = self.kernel(
            self.a, self.b, c, out=self.out, alpha=self.alpha, beta=self.beta, **options
        )
        assert made is self.out
        return self.out

    def check(self, **options: Any) -> np.ndarray:
        """Run the kernel, compare every element of D with the float64 result, and return D."""
        d = self.run(**options)
        assert untouched(self.out)
        gemm = self.kernel.graph.gemm
        a, b, c = (x.astype(np.float64) for x in (self.a, self.b, self.c))
        a = a.T if gemm.transpose_a else a
        b = b.T if gemm.transpose_b else b
        wanted = self.alpha * (a @ b) + self.beta * c
        size = abs(self.alpha) * (abs(a) @ abs(b)) + abs(self.beta * c)
        rounding = 1.01 * OUTPUTS[gemm.out_dtype or gemm.dtype]
        allowed = SUMS[gemm.dtype] * size + rounding * abs(wanted)
        error = abs(d.astype(np.float64) - wanted)
        excess = np.nan_to_num(error - allowed, nan=np.inf)
        worst = np.unravel_index(np.argmax(excess), error.shape)
        assert (error <= allowed).all(), f"{worst}: {d[worst]} is not {wanted[worst]}"
        assert np.linalg.norm(error) <= (SUMS[gemm.dtype] + rounding) * np.linalg.norm(size)
        return d.copy()
