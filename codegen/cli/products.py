"""The products of a run: one product, a batch of one shape, groups along m or k, or a list.

`Products` also finds the matrices of each product within the arrays that a kernel takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import typer

from codegen import lists
from codegen.cli.options import Problem
from coordgraph.gemm import OFFSETS, OFFSETS_OF
from coordgraph.parameters import LARGEST_INDEX

__all__ = ["Matrices", "Products", "Shape"]

Array = npt.NDArray[Any]


class Shape(NamedTuple):
    """The extents m, n and k of one matrix product."""

    m: int
    n: int
    k: int


class Matrices(NamedTuple):
    """The matrices of one product: A is m x k and B is k x n, even if stored transposed."""

    a: Array
    b: Array
    c: Array | None
    d: Array


@dataclass(frozen=True)
class Products:
    """The extents of all products of a run.

    Args:
        problem: the command's options that describe the problem; for groups along m or k, its
            extent along that axis is the sum over all groups.
        shapes: the extents m, n and k of each product.
    """

    problem: Problem
    shapes: tuple[Shape, ...]

    @classmethod
    def of(cls, problem: Problem, batches: int | None, extents: str | None) -> Products:
        """The products that `--m`, `--n`, `--k`, `--batches`, `--groups` and `--extents` give.

        Raises:
            typer.BadParameter: an option is missing, or contradicts another one.
        """
        if (problem.groups != "") != (extents is not None):
            raise typer.BadParameter(
                "only one of --groups and --extents is given; give both, as in --groups m "
                "--extents 200,0,56"
            )
        if batches is not None and extents is not None:
            raise typer.BadParameter("both --batches and --groups are given; give one of them")
        needed = [axis for axis in "mnk" if axis not in problem.groups]
        missing = [f"--{axis}" for axis in needed if getattr(problem, axis) is None]
        if missing:
            raise typer.BadParameter(f"sizes are missing; give {', '.join(missing)} too")
        if extents is not None:
            return cls._grouped(problem, extents)
        shape = Shape(problem.m or 0, problem.n or 0, problem.k or 0)
        return cls(replace(problem, batched=batches is not None), (shape,) * (batches or 1))

    @classmethod
    def _grouped(cls, problem: Problem, extents: str) -> Products:
        axes = problem.groups
        if given := [f"--{axis}" for axis in axes if getattr(problem, axis) is not None]:
            raise typer.BadParameter(
                f"--extents gives the sizes along {axes} of each group; leave out "
                f"{', '.join(given)}"
            )
        shapes = tuple(_shape(problem, text) for text in extents.split(","))
        if len(axes) == 1:
            total = sum(getattr(shape, axes) for shape in shapes)
            problem = replace(problem, **{axes: total})
        return cls(problem, shapes)

    @property
    def flops(self) -> float:
        """The number of multiplications and additions of all products."""
        return sum(2.0 * m * n * k for m, n, k in self.shapes)

    @property
    def depth(self) -> int:
        """The largest k of all products."""
        return max(shape.k for shape in self.shapes)

    @property
    def empty(self) -> bool:
        """Whether every product has an extent of 0; a kernel then does not run its schedule."""
        return self.flops == 0

    def __str__(self) -> str:
        p, count = self.problem, len(self.shapes)
        if not p.groups:
            size = " x ".join(map(str, self.shapes[0]))
            return f"{size}, a batch of {count}" if p.batched else size
        if len(p.groups) > 1:
            return ", ".join(" x ".join(map(str, shape)) for shape in self.shapes)
        size = " x ".join(str(getattr(p, axis)) for axis in "mnk")
        lengths = ", ".join(str(getattr(shape, p.groups)) for shape in self.shapes)
        return f"{size}, groups along {p.groups} of {lengths}"

    def shapes_of(self, tensor: str) -> tuple[tuple[int, ...], ...]:
        """A tensor's array shapes: one for each product of a list of products, else only one."""
        p = self.problem
        axes = {"A": "km" if p.transpose_a else "mk", "B": "nk" if p.transpose_b else "kn"}
        order = axes.get(tensor, "mn")
        if len(p.groups) > 1:
            return tuple(tuple(getattr(s, axis) for axis in order) for s in self.shapes)
        plain = tuple(getattr(p, axis) or 0 for axis in order)
        each = p.batched or (p.groups != "" and p.groups not in order)
        return ((len(self.shapes), *plain) if each else plain,)

    def joined(self, arrays: Sequence[Array]) -> Array:
        """Pack the matrices of a list of products in one vector; else return the only array."""
        return lists.pack(arrays) if len(self.problem.groups) > 1 else arrays[0]

    def matrices(self, a: Array, b: Array, c: Array | None, d: Array) -> Iterator[Matrices]:
        """The matrices of each product, as views of the arrays that a kernel takes."""
        p = self.problem
        of_a, of_b = self._views("A", a), self._views("B", b)
        of_c = self._views("C", c) if c is not None else [None] * len(self.shapes)
        for one, two, three, four in zip(of_a, of_b, of_c, self._views("D", d), strict=True):
            yield Matrices(
                one.T if p.transpose_a else one, two.T if p.transpose_b else two, three, four
            )

    def _views(self, tensor: str, array: Array) -> list[Array]:
        axis, count = self.problem.groups, len(self.shapes)
        if len(axis) > 1:
            return lists.unpack(array, [(r, c) for r, c in self.shapes_of(tensor)])
        if array.ndim == 3:
            return list(array)
        if not axis:
            return [array] * count
        ends = self._starts(axis)[1:-1]
        return np.split(array, ends, axis=self._place(tensor))

    def _place(self, tensor: str) -> int:
        """The array axis, 0 or 1, along which the matrices of all groups are joined."""
        first = {"A": "m", "B": "k"}.get(tensor, "m") == self.problem.groups
        transposed = {"A": self.problem.transpose_a, "B": self.problem.transpose_b}
        return int(first == transposed.get(tensor, False))

    def _starts(self, axis: str) -> list[int]:
        """The index along an axis at which each product begins, and at which the last one ends."""
        return [0, *accumulate(getattr(shape, axis) for shape in self.shapes)]

    @property
    def offsets(self) -> Array | None:
        """A kernel's argument `offsets`: the index where each group begins; None without groups."""
        axes = self.problem.groups
        if not axes:
            return None
        rows = np.array([self._starts(axis) for axis in axes], np.int32)
        return rows if len(axes) > 1 else rows[0]

    def tables(self) -> dict[str, list[int]]:
        """By table name: the indices where groups begin along an axis, and where the last ends."""
        axes = self.problem.groups
        if len(axes) == 1:
            return {OFFSETS: self._starts(axes)}
        return {OFFSETS_OF[axis]: self._starts(axis) for axis in axes}

    def arguments(self) -> dict[str, int]:
        """Values of all sizes (m, batches, …) that may be launch arguments of a graph, by name."""
        p, count = self.problem, len(self.shapes)
        found = {axis: getattr(p, axis) for axis in "mnk" if getattr(p, axis) is not None}
        elements = {f"elements_{tensor}": LARGEST_INDEX for tensor in "abd"}
        return {**found, **elements, "batches": count, "groups": count}


def _shape(problem: Problem, text: str) -> Shape:
    """Parse the extents of one group: `200`, or `64x96x128` for a product of a list."""
    axes = problem.groups
    if not re.fullmatch("x".join([r"\s*\d{1,9}\s*"] * len(axes)), text):
        wanted = "m, n and k, as in 64x96x128" if len(axes) > 1 else "a whole number"
        raise typer.BadParameter(
            f"--extents: '{text}' of a group along {axes} is not {wanted}; correct this part"
        )
    given = dict(zip(axes, map(int, text.split("x")), strict=True))
    return Shape(*(given[axis] if axis in given else getattr(problem, axis) for axis in "mnk"))
