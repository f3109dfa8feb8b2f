"""Random calls: an operator, its tensors, alpha and beta, and the way in which it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import codegen.torch as cgt
from tests.fuzz_torch import references
from tests.fuzz_torch.tensors import DTYPES, OTHER_DTYPES, Drawn, extent
from tests.fuzz_torch.transforms import TRANSFORMS

__all__ = ["Case", "Way", "case"]

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
        transform: the transform of `torch.func` in which the function is called, or None.
    """

    kernels: bool = False
    autocast: torch.dtype | None = None
    recorded: bool = True
    out: bool = False
    transform: str | None = None


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
        ends: for each group of `grouped_mm` or `gated`, the end of its range of rows, columns or
            k; None without groups.
        targets: the classes of the rows, of `cross_entropy`; None for other functions.
        bound: the function of absolute values of the tensors to which rounding errors are relative;
            None is `exact`.
    """

    name: str
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    exact: Callable[..., Tensor]
    tensors: tuple[Drawn, ...]
    options: dict[str, Any]
    way: Way
    ends: tuple[int, ...] | None = None
    targets: tuple[int, ...] | None = None
    bound: Callable[..., Tensor] | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether a tensor lies on another device, so that the call must be refused."""
        return any(x.elsewhere for x in self.tensors)

    def __str__(self) -> str:
        rest = [f"{name}={x}" for name, x in self.options.items()]
        rest += [f"offs={list(self.ends)}"] if self.ends is not None else []
        rest += [f"targets={list(self.targets)}"] if self.targets is not None else []
        return f"{self.name}({', '.join([*map(str, self.tensors), *rest])}), {self.way}"


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


def _gated(draw: Random) -> tuple[Shape, ...]:
    n, k, rows = extent(draw), extent(draw), tuple(extent(draw) for _ in range(draw.randint(0, 3)))
    rows = tuple(min(x, 9) for x in rows)
    return ((*rows, k), (2 * n, k), *([(2 * n,)] * draw.choice((0, 1))))


def _gated_groups(draw: Random) -> tuple[Shape, ...]:
    m, n, k, groups = extent(draw), extent(draw), extent(draw), draw.choice((1, 1, 2, 3, 5))
    return (m, k), (groups, 2 * n, k), *([(groups, 2 * n)] * draw.choice((0, 1)))


def _cross_entropy(draw: Random) -> tuple[Shape, ...]:
    rows = tuple(min(extent(draw), 9) for _ in range(draw.randint(0, 2)))
    k, classes = extent(draw), extent(draw)
    return (*rows, k), (classes, k)


FUNCTIONS: dict[str, tuple[Any, Any, Any]] = {
    "matmul": (cgt.matmul, torch.matmul, _matmul),
    "mm": (cgt.matmul, torch.mm, _mm),
    "linear": (cgt.linear, F.linear, _linear),
    "addmm": (cgt.addmm, torch.addmm, _addmm),
    "bmm": (cgt.bmm, torch.bmm, _bmm),
    "grouped_mm": (cgt.grouped_mm, F.grouped_mm, _grouped),
    "gated": (cgt.gated, references.gated, _gated),
    "gated groups": (cgt.gated, references.gated_groups, _gated_groups),
    "cross_entropy": (cgt.cross_entropy, references.cross_entropy, _cross_entropy),
}
WEIGHTS = (5, 1, 4, 4, 2, 3, 3, 2, 3)
EXACT: dict[str, Any] = {"grouped_mm": references.one_by_one, "linear": references.linear}
NONLINEAR = ("gated", "gated groups", "cross_entropy")
"""Functions whose absolute values do not bound rounding errors of second derivatives."""
NAMESAKES = ("matmul", "mm", "linear", "addmm", "bmm", "grouped_mm")
"""Functions that `use_kernels` replaces."""
IGNORED = -100
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
    # PyTorch computes "mm" of tensors on several devices, and has no sparse ones on "meta".
    mixes = name != "mm" and all(x.kind != "sparse" for x in tensors)
    if draw.random() < WRONG / 2 and mixes:
        number = draw.randrange(len(tensors))
        tensors = tuple(replace(x, elsewhere=n == number) for n, x in enumerate(tensors))
    options = _options(name, draw)
    ends = None
    if name in ("grouped_mm", "gated groups"):
        a, b = (drawn.shape for drawn in tensors[:2])
        limit = a[0] if len(a) < len(b) else a[-1] if len(a) == len(b) else b[-1]
        count = b[0] if len(b) == 3 else a[0] if len(a) == 3 else draw.choice((0, 1, 2, 4))
        ends = tuple(sorted(draw.randint(0, limit) for _ in range(count)))
        if len(a) == len(b) == 3 and draw.random() < 0.95:
            ends = None
    autocast = draw.choice((torch.bfloat16, torch.float16)) if draw.random() < 0.15 else None
    targets = None
    if name == "cross_entropy":
        rows, classes = shapes[0][:-1], shapes[1][0] if shapes[1] else 0
        choices = [IGNORED, *range(classes)]
        targets = tuple(
            draw.choice(choices if draw.random() < 0.8 else choices[:1]) for _ in range(prod(rows))
        )
    mixed = any(x.elsewhere for x in tensors)
    transform = draw.choice(list(TRANSFORMS)) if not mixed and draw.random() < 0.2 else None
    kernels = name == "mm" or (not mixed and name in NAMESAKES and draw.random() < 0.3)
    recorded = draw.random() < 0.9
    if transform in ("jvp", "vjp") and name in NONLINEAR:
        recorded = False
    # Infinite values become NaN by one formula, such as a product with a tangent of zeros, and not
    # by another. vmap of `addmm` does not read what an alpha of 0 multiplies.
    unread = transform == "vmap" and options.get("alpha") == 0
    if name in NONLINEAR or transform in ("jvp", "vjp") or unread:
        tensors = tuple(replace(x, seed=x.seed | 1) for x in tensors)
    out = not mixed and transform is None and _has_out(name, draw)
    return Case(
        name,
        ours,
        theirs,
        EXACT.get(name, theirs),
        tensors,
        options,
        Way(kernels, autocast, recorded, out, transform),
        ends,
        targets,
        references.bound_of_losses if name == "cross_entropy" else None,
    )


def _options(name: str, draw: Random) -> dict[str, Any]:
    """Arguments that are no tensors; some of them are left out at random."""
    if name == "addmm":
        factors = (0, 1, 1, 2, -0.5, 0.0)
        chosen = {"beta": draw.choice(factors), "alpha": draw.choice(factors)}
        return {x: y for x, y in chosen.items() if draw.random() < 0.7}
    if name in ("gated", "gated groups"):
        chosen = {
            "activation": draw.choice(list(references.ACTIVATIONS)),
            "recompute": draw.random() < 0.5,
        }
        return {x: y for x, y in chosen.items() if draw.random() < 0.7}
    if name == "cross_entropy":
        return {"ignore_index": IGNORED, "reduction": draw.choice(("mean", "sum", "none"))}
    return {}


def _has_out(name: str, draw: Random) -> bool:
    return name in ("matmul", "mm", "addmm", "bmm") and draw.random() < 0.08
