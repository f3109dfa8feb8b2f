"""Random calls: an operator, its tensors, alpha and beta, and the way in which it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import codegen.torch as cgt
from tests.fuzz_torch.tensors import DTYPES, OTHER_DTYPES, Drawn, extent

__all__ = ["Case", "Way", "case", "one_by_one"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Way:
    """How a function is called.

    Args:
        kernels: whether PyTorch's function is called inside `use_kernels`; False calls the function
            of `codegen.torch` directly.
        autocast: the type to which a region of autocast casts, or None.
        recorded: whether gradients are recorded; False is `torch.no_grad()`.
        out: whether the result is written to `out`.
    """

    kernels: bool = False
    autocast: torch.dtype | None = None
    recorded: bool = True
    out: bool = False


@dataclass(frozen=True)
class Case:
    """One call to try, of a function of `codegen.torch` and of PyTorch.

    Args:
        name: the name of the function.
        ours, theirs: the function of `codegen.torch`, and PyTorch's.
        exact: the reference: a function of the same tensors that computes in float64.
        tensors: the arguments that are tensors.
        options: the other arguments, by name.
        way: gradients, autocast and other circumstances of the call.
        ends: for each group of `grouped_mm`, the end of its range of rows, columns or k; None
            without groups.
    """

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    exact: Callable[..., Tensor]
    tensors: tuple[Drawn, ...]
    options: dict[str, Any]
    way: Way
    ends: tuple[int, ...] | None = None

    def __str__(self) -> str:
        rest = [f"{name}={x}" for name, x in self.options.items()]
        rest += [f"offs={list(self.ends)}"] if self.ends is not None else []
        return f"{self.name}({', '.join([*map(str, self.tensors), *rest])}), {self.way}"


def one_by_one(a: Tensor, b: Tensor, offs: Tensor | None = None) -> Tensor:
    """`grouped_mm` as one product after another; elements of D that belong to no group are 0."""
    if offs is None:
        return a @ b
    if a.dim() == 3:
        return one_by_one(b.mT, a.mT, offs).mT
    ends = offs.tolist()
    spans = list(zip([0, *ends], ends, strict=False))
    if b.dim() == 2:
        parts = [a[:, first:end] @ b[first:end] for first, end in spans]
        return torch.stack(parts) if parts else a.new_zeros(0, a.shape[0], b.shape[1])
    parts = [a[first:end] @ b[group] for group, (first, end) in enumerate(spans)]
    left = a.shape[0] - (ends[-1] if ends else 0)
    return torch.cat([*parts, a.new_zeros(left, b.shape[-1])])


def _exact_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    d = torch.matmul(x, weight if weight.dim() == 1 else weight.t())
    return d if bias is None else d + bias


def _batch(draw: Random) -> Shape:
    return tuple(draw.choice((0, 1, 2, 2, 3, 4)) for _ in range(draw.choice((0, 0, 1, 1, 2, 3))))


def _broadcastable(draw: Random, batch: Shape) -> Shape:
    """A shape that broadcasts to `batch`: leading axes may be left out, extents may become 1."""
    kept = tuple(1 if draw.random() < 0.3 else size for size in batch)
    return kept[draw.randint(0, len(kept)) :]


def _matmul(draw: Random) -> tuple[Shape, ...]:
    m, n, k, batch = extent(draw), extent(draw), extent(draw), _batch(draw)
    a = (k,) if draw.random() < 0.12 else (*_broadcastable(draw, batch), m, k)
    b = (k,) if draw.random() < 0.12 else (*_broadcastable(draw, batch), k, n)
    return a, b


def _linear(draw: Random) -> tuple[Shape, ...]:
    n, k, rows = extent(draw), extent(draw), tuple(extent(draw) for _ in range(draw.randint(0, 3)))
    weight = (k,) if draw.random() < 0.05 else (n, k)
    rows = tuple(min(x, 9) for x in rows)
    bias = draw.choice(((n,), (n,), (n,), (), (1,))) if len(weight) > 1 else ()
    return ((*rows, k), weight, *([bias] * draw.choice((0, 1, 1))))


def _addmm(draw: Random) -> tuple[Shape, ...]:
    m, n, k = extent(draw), extent(draw), extent(draw)
    return draw.choice(((m, n), (n,), (1, n), (m, 1), (1,), ())), (m, k), (k, n)


def _mm(draw: Random) -> tuple[Shape, ...]:
    m, n, k = extent(draw), extent(draw), extent(draw)
    return (m, k), (k, n)


def _bmm(draw: Random) -> tuple[Shape, ...]:
    m, n, k, count = extent(draw), extent(draw), extent(draw), draw.choice((0, 1, 2, 3, 5))
    return (count, m, k), (count, k, n)


def _grouped(draw: Random) -> tuple[Shape, ...]:
    m, n, k, groups = extent(draw), extent(draw), extent(draw), draw.choice((0, 1, 2, 3, 5))
    a, b = draw.choice(((2, 3), (2, 3), (3, 2), (2, 2), (3, 3)))
    return ((groups,) if a == 3 else ()) + (m, k), ((groups,) if b == 3 else ()) + (k, n)


FUNCTIONS: dict[str, tuple[Any, Any, Any]] = {
    "matmul": (cgt.matmul, torch.matmul, _matmul),
    "mm": (cgt.matmul, torch.mm, _mm),
    "linear": (cgt.linear, F.linear, _linear),
    "addmm": (cgt.addmm, torch.addmm, _addmm),
    "bmm": (cgt.bmm, torch.bmm, _bmm),
    "grouped_mm": (cgt.grouped_mm, F.grouped_mm, _grouped),
}
WEIGHTS = (5, 1, 4, 4, 2, 3)
WRONG = 0.06
"""Probability that one tensor of a call has a wrong shape; also that one has another type.

With half this probability all tensors of a call have the same type out of `OTHER_DTYPES`.
"""


def case(seed: int, number: int) -> Case:
    """Make the random call with this seed and number."""
    draw = Random(f"{seed}:{number}")
    (name,) = draw.choices(list(FUNCTIONS), WEIGHTS)
    ours, theirs, shapes_of = FUNCTIONS[name]
    shapes = [list(shape) for shape in shapes_of(draw)]
    if draw.random() < WRONG:
        wrong = draw.choice(shapes)
        if wrong and draw.random() < 0.6:
            wrong[draw.randrange(len(wrong))] += draw.choice((1, 2))
        else:
            wrong.insert(0, 2)
    dtype = draw.choice(DTYPES)
    dtypes = [dtype for _ in shapes]
    if draw.random() < WRONG:
        dtypes[draw.randrange(len(dtypes))] = draw.choice(DTYPES + OTHER_DTYPES)
    if draw.random() < WRONG / 2:
        dtypes = [draw.choice(OTHER_DTYPES)] * len(shapes)
    tensors = tuple(
        Drawn.of(draw, tuple(shape), kind) for shape, kind in zip(shapes, dtypes, strict=True)
    )
    options: dict[str, Any] = {}
    if name == "addmm":
        factors = (0, 1, 1, 2, -0.5, 0.0)
        chosen = {"beta": draw.choice(factors), "alpha": draw.choice(factors)}
        options = {x: y for x, y in chosen.items() if draw.random() < 0.7}
    ends = None
    if name == "grouped_mm":
        a, b = (drawn.shape for drawn in tensors)
        limit = a[0] if len(a) < len(b) else a[-1] if len(a) == len(b) else b[-1]
        count = b[0] if len(b) == 3 else a[0] if len(a) == 3 else draw.choice((0, 1, 2, 4))
        ends = tuple(sorted(draw.randint(0, limit) for _ in range(count)))
        if len(a) == len(b) == 3 and draw.random() < 0.95:
            ends = None
    autocast = draw.choice((torch.bfloat16, torch.float16)) if draw.random() < 0.15 else None
    way = Way(
        name == "mm" or draw.random() < 0.3, autocast, draw.random() < 0.9, _has_out(name, draw)
    )
    exact = {"grouped_mm": one_by_one, "linear": _exact_linear}.get(name, theirs)
    return Case(name, ours, theirs, exact, tensors, options, way, ends)


def _has_out(name: str, draw: Random) -> bool:
    return name not in ("linear", "grouped_mm") and draw.random() < 0.08
