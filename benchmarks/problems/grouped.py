"""Grouped GEMM problems on the GPU: operands in rotating buffers, and reference results.

There are three kinds of problem:

- `RowGroups`: groups divide the rows of A and D, and each group has its own B, as in a mixture of
  experts.
- `DepthGroups`: groups divide k, and each group has its own D, as in the weight gradients of such a
  layer. A is stored as its transpose, so that k is the row index of both operands.
- `ListGroups`: a list of products that share no extent.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, cycle, pairwise
from math import prod
from typing import Any, ClassVar

from benchmarks.problems.problem import DTYPES, buffer_sets, torch_dtype
from benchmarks.problems.shapes import Shape
from coordgraph import Gemm
from coordgraph.gemm import ROW_STEP

__all__ = ["AXES", "GroupedProblem", "Launch", "uneven"]

GROUPS_PER_EMPTY = 8
Launch = Callable[[int], Any]
"""A function that enqueues all products of the operand set with the given number; returns D."""


def uneven(rows: int, groups: int, skew: float, seed: int = 0) -> list[int]:
    """Divide an extent (rows, or k) unevenly among groups.

    The size of the group with rank 1, 2, … is proportional to rank^(-skew). If there are at least 8
    groups, ranks are shuffled by the seed, and one group in 8 is empty.

    >>> uneven(1000, 4, 1.0)
    [480, 240, 160, 120]
    >>> sizes = uneven(8192, 16, 1.2)
    >>> sum(sizes), sizes.count(0)
    (8192, 2)
    """
    ranks = list(range(1, groups + 1))
    empty = groups // GROUPS_PER_EMPTY
    weights = [rank**-skew for rank in ranks[: groups - empty]] + [0.0] * empty
    if empty:
        random.Random(seed).shuffle(weights)
    ends = [round(rows * sum_) for sum_ in accumulate(w / sum(weights) for w in weights)]
    return [end - begin for begin, end in pairwise([0, *ends])]


class GroupedProblem(ABC):
    """A grouped GEMM problem: several sets of operands on the GPU, and a reference result.

    Args:
        shape: the extents of all groups together.
        sizes: for each group its extent along `axis`; for `ListGroups` its m, n and k.
        dtype: the element type of A, B and D, one of `DTYPES`.
    """

    axis: ClassVar[str]
    """The extent that groups divide: `m` or `k`; `mnk` if each product has its own m, n and k."""

    def __init__(self, shape: Shape, sizes: Sequence[Any], dtype: str) -> None:
        import torch

        self.rounding = DTYPES[dtype][1]
        self.torch, self.shape, self.sizes, self.dtype = torch, shape, sizes, dtype
        self.offsets: list[Any] = self.offsets_of(sizes)
        kind, count = torch_dtype(dtype), len(sizes)
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        torch.manual_seed(0)
        a, b, d = self.extents(shape, count)
        bytes_of_set = 2 * sum(map(prod, (a, b, d)))

        def normal(*extents: int) -> Any:
            return torch.randn(*extents, device="cuda", dtype=kind)

        self.sets = [
            (normal(*a), normal(*b), torch.empty(*d, device="cuda", dtype=kind))
            for _ in range(buffer_sets(bytes_of_set, cache))
        ]
        self.device_offsets = torch.tensor(self.offsets, device="cuda", dtype=torch.int32)
        self.exact = torch.zeros(*d, device="cuda", dtype=torch.float32)
        self.magnitude = torch.zeros_like(self.exact)
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        for group, part in self.filled_groups():
            left, right = (x.float() for x in self.operands(0, group, part))
            torch.matmul(left, right, out=self.product(self.exact, group, part))
            magnitude = self.product(self.magnitude, group, part)
            torch.sqrt(left.square() @ right.square(), out=magnitude)
        torch.backends.cuda.matmul.allow_tf32 = before

    @classmethod
    def divide(cls, shape: Shape, count: int, skew: float) -> list[Any]:
        """The sizes of `count` groups that divide `shape`, by the function `uneven` with `skew`."""
        return uneven(getattr(shape, cls.axis), count, skew)

    @staticmethod
    def offsets_of(sizes: Sequence[Any]) -> list[Any]:
        """The offset at which each group begins, and after them the offset at which the last
        one ends.
        """
        return [0, *accumulate(sizes)]

    @property
    def flops(self) -> float:
        """The floating-point operations of all groups; a multiply-add is two operations."""
        return 2.0 * self.shape.m * self.shape.n * self.shape.k

    @classmethod
    @abstractmethod
    def gemm(cls, dtype: str) -> Gemm:
        """The `Gemm` from which coordgraph generates kernels for this kind of problem."""

    @abstractmethod
    def extents(self, shape: Shape, count: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of the arrays A, B and D for a problem with `count` groups."""

    @abstractmethod
    def operands(self, number: int, group: int, part: slice) -> tuple[Any, Any]:
        """A (m x k) and B (k x n) of one group, as views of operand set `number`.

        `part` is the range of indices of the group along `axis`.
        """

    @abstractmethod
    def product(self, out: Any, group: int, part: slice) -> Any:
        """D of one group, as a view of `out`.

        `part` is the range of indices of the group along `axis`.
        """

    @abstractmethod
    def grouped_mm_operands(self, number: int) -> tuple[Any, Any] | None:
        """A and B of an operand set for `torch._grouped_mm`; None if it cannot multiply them."""

    def filled_groups(self) -> Iterator[tuple[int, slice]]:
        """The number of each non-empty group, and the range of indices along `axis` that it
        covers.
        """
        for group, (begin, end) in enumerate(pairwise(self.offsets)):
            if begin < end:
                yield group, slice(begin, end)

    @property
    def depth(self) -> int:
        """The largest extent in k of any group."""
        return self.shape.k

    def fault(self, compute: Callable[[], Any]) -> str | None:
        """Check the D that `compute` returns for operand set 0; returns an error text or None."""
        self.sets[0][2].fill_(math.nan)
        self.torch.cuda.synchronize()
        out = compute()
        self.torch.cuda.synchronize()
        # Allowed errors: rounding of the result to D's type; truncation of sums after every 8
        # products, counted twice because the reference is summed in float32 too; and rounding of
        # partial sums.
        steps = (self.depth / 8 + 16) * 2.0**-22 * 4
        parts = 8 * self.rounding
        allowed = self.rounding * self.exact.abs() + (steps + parts) * self.magnitude + 2.0**-24
        wrong = int((~((out.float() - self.exact).abs() <= allowed)).sum())
        return f"WRONG: {wrong} of {out.numel()} elements" if wrong else None


class RowGroups(GroupedProblem):
    """Groups divide the rows of A (m x k) and D; each group has its own B, stored as n x k."""

    axis = "m"

    @classmethod
    def gemm(cls, dtype: str) -> Gemm:
        return Gemm(dtype, transpose_b=True, grouped=True)

    def extents(self, shape: Shape, count: int) -> tuple[tuple[int, ...], ...]:
        return (shape.m, shape.k), (count, shape.n, shape.k), (shape.m, shape.n)

    def operands(self, number: int, group: int, part: slice) -> tuple[Any, Any]:
        a, b, _ = self.sets[number]
        return a[part], b[group].T

    def product(self, out: Any, group: int, part: slice) -> Any:
        return out[part]

    def grouped_mm_operands(self, number: int) -> tuple[Any, Any] | None:
        a, b, _ = self.sets[number]
        return a, b.transpose(-2, -1)


class DepthGroups(GroupedProblem):
    """Groups divide k of A (stored as k x m) and B (k x n); each group has its own D."""

    axis = "k"

    @classmethod
    def gemm(cls, dtype: str) -> Gemm:
        return Gemm(dtype, transpose_a=True, grouped=True, group_axis="k")

    def extents(self, shape: Shape, count: int) -> tuple[tuple[int, ...], ...]:
        return (shape.k, shape.m), (shape.k, shape.n), (count, shape.m, shape.n)

    def operands(self, number: int, group: int, part: slice) -> tuple[Any, Any]:
        a, b, _ = self.sets[number]
        return a[part].T, b[part]

    def product(self, out: Any, group: int, part: slice) -> Any:
        return out[group]

    def grouped_mm_operands(self, number: int) -> tuple[Any, Any] | None:
        a, b, _ = self.sets[number]
        return a.T, b

    @property
    def depth(self) -> int:
        return max(self.sizes)


class ListGroups(GroupedProblem):
    """Products that share no extent: each has its own A (m x k), B (stored as n x k) and D.

    The rows of the shape are divided among the products. Each product has all, half or three
    quarters of the shape's n, and all, half or a quarter of its k. The matrices of all products are
    consecutive in memory.
    """

    axis = "mnk"

    @classmethod
    def gemm(cls, dtype: str) -> Gemm:
        return Gemm(dtype, transpose_b=True, grouped=True, group_axis="mnk")

    @classmethod
    def divide(cls, shape: Shape, count: int, skew: float) -> list[Any]:
        rows = uneven(shape.m, count, skew)
        columns = cycle((shape.n, shape.n // 2, 3 * shape.n // 4))
        depths = cycle((shape.k, shape.k // 4, shape.k // 2, shape.k, shape.k // 2))
        return [
            (m, n // ROW_STEP * ROW_STEP, k // ROW_STEP * ROW_STEP)
            for m, n, k in zip(rows, columns, depths, strict=False)
        ]

    @staticmethod
    def offsets_of(sizes: Sequence[Any]) -> list[Any]:
        return [[0, *accumulate(along)] for along in zip(*sizes, strict=True)]

    @property
    def flops(self) -> float:
        return 2.0 * sum(map(prod, self.sizes))

    def extents(self, shape: Shape, count: int) -> tuple[tuple[int, ...], ...]:
        matrices = ([(m, k), (n, k), (m, n)] for m, n, k in self.sizes)
        return tuple((max(sum(map(prod, every)), 1),) for every in zip(*matrices, strict=True))

    def filled_groups(self) -> Iterator[tuple[int, slice]]:
        for group, (m, _, _) in enumerate(self.sizes):
            if m:
                yield group, slice(group, group + 1)

    def _matrix(self, vector: Any, group: int, axes: tuple[int, int]) -> Any:
        """A group's matrix, as a view of `vector`.

        `axes` says which of m, n, k (0, 1, 2) are the numbers of rows and of columns.
        """
        before = sum(size[axes[0]] * size[axes[1]] for size in self.sizes[:group])
        rows, columns = (self.sizes[group][axis] for axis in axes)
        return vector[before : before + rows * columns].view(rows, columns)

    def operands(self, number: int, group: int, part: slice) -> tuple[Any, Any]:
        a, b, _ = self.sets[number]
        return self._matrix(a, group, (0, 2)), self._matrix(b, group, (1, 2)).T

    def product(self, out: Any, group: int, part: slice) -> Any:
        return self._matrix(out, group, (0, 1))

    def grouped_mm_operands(self, number: int) -> tuple[Any, Any] | None:
        return None

    @property
    def depth(self) -> int:
        return max(k for _, _, k in self.sizes)


AXES: dict[str, type[GroupedProblem]] = {
    kind.axis: kind for kind in (RowGroups, DepthGroups, ListGroups)
}
"""The kinds of grouped problem, by the extent that groups divide."""
