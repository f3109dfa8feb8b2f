"""Grouped problems on the GPU: operands in buffers that take turns, what is right, and libraries.

Groups part the rows of A and D, each with its own B; or they part k, each with its own D, as
gradients of weights need it: A is then given as its transpose, so that rows of both are k. Or they
share nothing: a list of products.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, cycle, pairwise
from math import prod
from typing import Any, ClassVar

from benchmarks.contenders import Unavailable
from benchmarks.problem import DTYPES, POISON, buffer_sets
from benchmarks.shapes import Shape
from coordgraph import Gemm
from coordgraph.gemm import ROW_STEP

__all__ = ["AXES", "Groups", "Launch", "Prepare", "cublas", "grouped_mm", "uneven"]

EMPTY_EVERY = 8
Launch = Callable[[int], Any]
"""Computes D of the buffer set of a number; returns it."""
Prepare = Callable[["Groups"], Launch]
"""Gets ready for a problem; raises Unavailable or CoordGraphError where it cannot."""


def uneven(rows: int, groups: int, skew: float, seed: int = 0) -> list[int]:
    """Rows (or k) of each group: falling by a power of the rank, shuffled, one in eight empty.

    >>> uneven(1000, 4, 1.0)
    [480, 240, 160, 120]
    >>> sizes = uneven(8192, 16, 1.2)
    >>> sum(sizes), sizes.count(0)
    (8192, 2)
    """
    ranks = list(range(1, groups + 1))
    empty = groups // EMPTY_EVERY
    weights = [rank**-skew for rank in ranks[: groups - empty]] + [0.0] * empty
    if groups >= EMPTY_EVERY:
        random.Random(seed).shuffle(weights)
    ends = [round(rows * sum_) for sum_ in accumulate(w / sum(weights) for w in weights)]
    return [end - begin for begin, end in pairwise([0, *ends])]


class Groups(ABC):
    """One problem: `sizes` are the groups' along their axis, or in m, n and k."""

    axis: ClassVar[str]

    def __init__(self, found: Shape, sizes: Sequence[Any], dtype: str) -> None:
        import torch

        name, self.half = DTYPES[dtype]
        self.torch, self.shape, self.sizes, self.dtype = torch, found, sizes, dtype
        self.offsets: list[Any] = self.borders(sizes)
        kind, count = getattr(torch, name), len(sizes)
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        torch.manual_seed(0)
        a, b, d = self.extents(found, count)
        bytes_of_set = 2 * sum(map(prod, (a, b, d)))

        def normal(*extents: int) -> Any:
            return torch.randn(*extents, device="cuda", dtype=kind)

        self.sets = [
            (normal(*a), normal(*b), torch.empty(*d, device="cuda", dtype=kind))
            for _ in range(buffer_sets(bytes_of_set, cache))
        ]
        self.on_device = torch.tensor(self.offsets, device="cuda", dtype=torch.int32)
        self.exact = torch.zeros(*d, device="cuda", dtype=torch.float32)
        self.size = torch.zeros_like(self.exact)
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        for group, part in self.each():
            left, right = (x.float() for x in self.operands(0, group, part))
            torch.matmul(left, right, out=self.product(self.exact, group, part))
            size = self.product(self.size, group, part)
            torch.sqrt(left.square() @ right.square(), out=size)
        torch.backends.cuda.matmul.allow_tf32 = before

    @classmethod
    def divided(cls, found: Shape, count: int, skew: float) -> list[Any]:
        """Sizes of so many groups."""
        return uneven(getattr(found, cls.axis), count, skew)

    @staticmethod
    def borders(sizes: Sequence[Any]) -> list[Any]:
        """Where groups begin, and the last one ends."""
        return [0, *accumulate(sizes)]

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.shape.m * self.shape.n * self.shape.k

    @classmethod
    @abstractmethod
    def gemm(cls, dtype: str) -> Gemm:
        """What kernels of ours are for."""

    @abstractmethod
    def extents(self, found: Shape, count: int) -> tuple[tuple[int, ...], ...]:
        """Those of A, B and D."""

    @abstractmethod
    def operands(self, number: int, group: int, part: slice) -> tuple[Any, Any]:
        """A and B of a group, of the buffer set of a number."""

    @abstractmethod
    def product(self, out: Any, group: int, part: slice) -> Any:
        """D of a group."""

    @abstractmethod
    def at_once(self, number: int, ends: Any) -> Any:
        """All products by PyTorch's own kernel, given where groups end."""

    def each(self) -> Iterator[tuple[int, slice]]:
        """Groups that are not empty, and what they have along their axis."""
        for group, (begin, end) in enumerate(pairwise(self.offsets)):
            if begin < end:
                yield group, slice(begin, end)

    @property
    def depth(self) -> int:
        """The largest number of products that are added up."""
        return self.shape.k

    def fault(self, compute: Callable[[], Any]) -> str | None:
        """What is wrong with what `compute` returns for the first buffer set, or None."""
        self.sets[0][2].fill_(POISON)
        self.torch.cuda.synchronize()
        out = compute()
        self.torch.cuda.synchronize()
        # As for single products: one rounding, sums cut off every 8 products, also in the
        # reference; libraries may round the parts of a sum.
        steps = (self.depth / 8 + 16) * 2.0**-22 * 4
        allowed = self.half * self.exact.abs() + (steps + 8 * self.half) * self.size + 2.0**-24
        wrong = int((~((out.float() - self.exact).abs() <= allowed)).sum())
        return f"WRONG: {wrong} of {out.numel()} elements" if wrong else None


class OfRows(Groups):
    """Groups part the rows of A (m x k) and D; B is a matrix (n x k, its transpose) for each."""

    axis = "m"

    @classmethod
    def gemm(cls, dtype: str) -> Gemm:
        return Gemm(dtype, transpose_b=True, grouped=True)

    def extents(self, found: Shape, count: int) -> tuple[tuple[int, ...], ...]:
        return (found.m, found.k), (count, found.n, found.k), (found.m, found.n)

    def operands(self, number: int, group: int, part: slice) -> tuple[Any, Any]:
        a, b, _ = self.sets[number]
        return a[part], b[group].T

    def product(self, out: Any, group: int, part: slice) -> Any:
        return out[part]

    def at_once(self, number: int, ends: Any) -> Any:
        a, b, _ = self.sets[number]
        return self.torch._grouped_mm(a, b.transpose(-2, -1), offs=ends)


class OfDepth(Groups):
    """Groups part k of A (k x m, its transpose) and B (k x n); D is a matrix for each."""

    axis = "k"

    @classmethod
    def gemm(cls, dtype: str) -> Gemm:
        return Gemm(dtype, transpose_a=True, grouped=True, group_axis="k")

    def extents(self, found: Shape, count: int) -> tuple[tuple[int, ...], ...]:
        return (found.k, found.m), (found.k, found.n), (count, found.m, found.n)

    def operands(self, number: int, group: int, part: slice) -> tuple[Any, Any]:
        a, b, _ = self.sets[number]
        return a[part].T, b[part]

    def product(self, out: Any, group: int, part: slice) -> Any:
        return out[group]

    def at_once(self, number: int, ends: Any) -> Any:
        a, b, _ = self.sets[number]
        return self.torch._grouped_mm(a.T, b, offs=ends)

    @property
    def depth(self) -> int:
        return max(self.sizes)


class OfAll(Groups):
    """Groups with rows, columns and depths of their own: A (m x k), B (n x k, its transpose) and D.

    The shape's rows are parted among them; groups have all, half or three quarters of its columns,
    and all, half or a quarter of its depth.
    """

    axis = "mnk"

    @classmethod
    def gemm(cls, dtype: str) -> Gemm:
        return Gemm(dtype, transpose_b=True, grouped=True, group_axis="mnk")

    @classmethod
    def divided(cls, found: Shape, count: int, skew: float) -> list[Any]:
        rows = uneven(found.m, count, skew)
        columns = cycle((found.n, found.n // 2, 3 * found.n // 4))
        depths = cycle((found.k, found.k // 4, found.k // 2, found.k, found.k // 2))
        return [
            (m, n // ROW_STEP * ROW_STEP, k // ROW_STEP * ROW_STEP)
            for m, n, k in zip(rows, columns, depths, strict=False)
        ]

    @staticmethod
    def borders(sizes: Sequence[Any]) -> list[Any]:
        return [[0, *accumulate(along)] for along in zip(*sizes, strict=True)]

    @property
    def flops(self) -> float:
        return 2.0 * sum(map(prod, self.sizes))

    def extents(self, found: Shape, count: int) -> tuple[tuple[int, ...], ...]:
        pairs = ([(m, k), (n, k), (m, n)] for m, n, k in self.sizes)
        return tuple((max(sum(map(prod, every)), 1),) for every in zip(*pairs, strict=True))

    def each(self) -> Iterator[tuple[int, slice]]:
        for group, (m, _, _) in enumerate(self.sizes):
            if m:
                yield group, slice(group, group + 1)

    def _of(self, vector: Any, group: int, axes: tuple[int, int]) -> Any:
        """The matrix of a group, whose extents are those in `axes` of m, n and k."""
        before = sum(size[axes[0]] * size[axes[1]] for size in self.sizes[:group])
        rows, columns = (self.sizes[group][axis] for axis in axes)
        return vector[before : before + rows * columns].view(rows, columns)

    def operands(self, number: int, group: int, part: slice) -> tuple[Any, Any]:
        a, b, _ = self.sets[number]
        return self._of(a, group, (0, 2)), self._of(b, group, (1, 2)).T

    def product(self, out: Any, group: int, part: slice) -> Any:
        return self._of(out, group, (0, 1))

    def at_once(self, number: int, ends: Any) -> Any:
        raise Unavailable("torch._grouped_mm multiplies groups that share two of their extents")

    @property
    def depth(self) -> int:
        return max(k for _, _, k in self.sizes)


AXES: dict[str, type[Groups]] = {kind.axis: kind for kind in (OfRows, OfDepth, OfAll)}
"""Problems by the axis that groups part."""


def cublas(problem: Groups) -> Launch:
    """A call for every group that is not empty; D of empty ones along k is set to zeros."""
    matmul, filled = problem.torch.matmul, {group for group, _ in problem.each()}
    empty = [g for g in range(len(problem.sizes)) if problem.axis == "k" and g not in filled]

    def launch(number: int) -> Any:
        out = problem.sets[number][2]
        for group, part in problem.each():
            matmul(*problem.operands(number, group, part), out=problem.product(out, group, part))
        for group in empty:
            out[group].zero_()
        return out

    return launch


def grouped_mm(problem: Groups) -> Launch:
    """PyTorch's own, which takes the groups' ends."""
    if problem.dtype != "bf16":
        raise Unavailable("torch._grouped_mm multiplies bf16 only")
    ends = problem.on_device[1:].contiguous()
    return lambda number: problem.at_once(number, ends)
