"""Grouped GEMM problems on the GPU: operands in rotating buffers, and reference results.

There are three kinds. Groups divide the rows of A and D, and each has its own B (`RowGroups`); or
they divide k, and each has its own D, as the weight gradients of such a layer do (`DepthGroups`; A
is stored as its transpose, so that rows of both operands are k); or they are a list of products
that share no extent (`ListGroups`).
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
"""Enqueues the products of one set of operands, by its number, and returns D."""


def uneven(rows: int, groups: int, skew: float, seed: int = 0) -> list[int]:
    """Divide rows (or k) among groups unevenly: by a power of the rank, shuffled, one in 8 empty.

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
    """One grouped problem.

    Args:
        shape: extents of all groups together.
        sizes: of each group its extent along `axis`; for `ListGroups` its m, n and k.
        dtype: element type of A, B and D, one of `DTYPES`.
    """

    axis: ClassVar[str]
    """The extent that groups divide: `m`, `k`, or `mnk` for all of them."""

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
        """The `sizes` of so many groups, uneven by `skew`; see `uneven`."""
        return uneven(getattr(shape, cls.axis), count, skew)

    @staticmethod
    def offsets_of(sizes: Sequence[Any]) -> list[Any]:
        """Where each group begins, and where the last one ends."""
        return [0, *accumulate(sizes)]

    @property
    def flops(self) -> float:
        """Floating-point operations of all groups; a multiply-add counts as two."""
        return 2.0 * self.shape.m * self.shape.n * self.shape.k

    @classmethod
    @abstractmethod
    def gemm(cls, dtype: str) -> Gemm:
        """The problem for which our kernels are generated."""

    @abstractmethod
    def extents(self, shape: Shape, count: int) -> tuple[tuple[int, ...], ...]:
        """Extents of the arrays A, B and D."""

    @abstractmethod
    def operands(self, number: int, group: int, part: slice) -> tuple[Any, Any]:
        """A (m x k) and B (k x n) of one group as views, from the set of this number."""

    @abstractmethod
    def product(self, out: Any, group: int, part: slice) -> Any:
        """D of one group as a view."""

    @abstractmethod
    def grouped_mm_operands(self, number: int) -> tuple[Any, Any] | None:
        """A and B as `torch._grouped_mm` takes them; None where it has no such products."""

    def filled_groups(self) -> Iterator[tuple[int, slice]]:
        """Each group that is not empty, and its range along `axis`."""
        for group, (begin, end) in enumerate(pairwise(self.offsets)):
            if begin < end:
                yield group, slice(begin, end)

    @property
    def depth(self) -> int:
        """The largest k of a group."""
        return self.shape.k

    def fault(self, compute: Callable[[], Any]) -> str | None:
        """Say what is wrong with the D that `compute` returns for the first set; None if right."""
        self.sets[0][2].fill_(math.nan)
        self.torch.cuda.synchronize()
        out = compute()
        self.torch.cuda.synchronize()
        # As for single products: one rounding, sums truncated every 8 products, here also in the
        # reference; libraries may round the parts of a sum.
        steps = (self.depth / 8 + 16) * 2.0**-22 * 4
        parts = 8 * self.rounding
        allowed = self.rounding * self.exact.abs() + (steps + parts) * self.magnitude + 2.0**-24
        wrong = int((~((out.float() - self.exact).abs() <= allowed)).sum())
        return f"WRONG: {wrong} of {out.numel()} elements" if wrong else None


class RowGroups(GroupedProblem):
    """Groups divide the rows of A (m x k) and D; each has its own B, stored as n x k."""

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
    """Groups divide k of A (stored as k x m) and B (k x n); each has its own D."""

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

    The shape's rows are divided among them; each has all, half or three quarters of its n, and all,
    half or a quarter of its k. The matrices of all products follow one another in memory.
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
        """The matrix of a group whose rows and columns are these `axes` of its (m, n, k)."""
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
"""Kinds of problems by the extent that groups divide."""
