"""Numbers of operations of the operators, which `torch.utils.flop_counter.FlopCounterMode` counts.

As PyTorch does for its own products, a product of m x k and k x n counts 2·m·n·k, and what an
epilogue computes is not counted. Importing this module registers the formulas. They get the shapes
of tensors in place of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from math import prod
from typing import Any

from codegen.torch.activated import ACTIVATED, ACTIVATED_WITH_SUMS
from codegen.torch.cross_entropy import GRADIENT as LOSS_GRADIENT
from codegen.torch.cross_entropy import LOSS
from codegen.torch.gated_operators import GATED, GATED_WITH_SUMS, GRADIENT_OF_PRODUCT
from codegen.torch.grouped import GROUPED_MM
from codegen.torch.ops import ADDMM, MATMUL
from codegen.torch.scaled import SCALED_MM

__all__ = ["FORMULAS"]

Shape = tuple[int, ...]
Formula = Callable[..., int]


def _of_product(a: Shape, b: Shape, *rest: Any, **options: Any) -> int:
    """A·B of matrices or batches, or of a matrix A whose rows are divided into groups."""
    return 2 * prod(a) * b[-1]


def _of_groups(a: Shape, b: Shape, *rest: Any, **options: Any) -> int:
    """Number of floating-point operations of a grouped product, summed over all groups."""
    return 2 * a[-2] * a[-1] * b[-1]


def _of_last_product(first: Any, a: Shape, b: Shape, *rest: Any, **options: Any) -> int:
    """Number of operations of A·B, for an operator whose first argument is a tensor before A."""
    return _of_product(a, b)


def _of_losses(hidden: Shape, weight: Shape, *rest: Any, **options: Any) -> int:
    """The logits, `hidden·weightᵀ`."""
    return 2 * prod(hidden) * weight[0]


def _of_loss_gradients(
    grad: Shape,
    totals: Shape,
    hidden: Shape,
    weight: Shape,
    targets: Shape,
    ignore_index: int,
    of_hidden: bool,
    of_weight: bool,
    *rest: Any,
    **options: Any,
) -> int:
    """The logits, which are computed again, and the gradients of `hidden` and of `weight`."""
    return (1 + of_hidden + of_weight) * _of_losses(hidden, weight)


FORMULAS: dict[Any, Formula] = {
    MATMUL: _of_product,
    ADDMM: _of_last_product,
    GROUPED_MM: _of_groups,
    ACTIVATED: _of_product,
    ACTIVATED_WITH_SUMS: _of_product,
    GATED: _of_product,
    GATED_WITH_SUMS: _of_product,
    GRADIENT_OF_PRODUCT: _of_last_product,
    SCALED_MM: _of_product,
    LOSS: _of_losses,
    LOSS_GRADIENT: _of_loss_gradients,
}
"""For each operator that multiplies: the number of operations, given shapes and other arguments."""


def _register() -> None:
    """Register `FORMULAS` if this version of PyTorch counts operations."""
    try:
        register = import_module("torch.utils.flop_counter").register_flop_formula
    except (ImportError, AttributeError):
        return
    for operator, formula in FORMULAS.items():
        register(operator.overloadpacket)(formula)


_register()
