"""How products of `DTensor` are divided among the devices of a mesh.

A layer whose weight is a `DTensor`, as after `parallelize_module`, calls operators with it. Each
device then multiplies its own part of the factors by a kernel. Importing this module tells PyTorch
which parts give which part of the result. The functions here list the possibilities along one axis
of the mesh: the placements of the results, and those of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from codegen.torch.activated import ACTIVATED, ACTIVATED_WITH_SUMS
from codegen.torch.activated import GRADIENT as GRADIENT_OF_ACTIVATED
from codegen.torch.ops import ADDMM, MATMUL

__all__ = ["DIVIDED"]

Placements = tuple[list[Any], list[Any]]


def _of_product(a: Any, b: Any, *rest: Any) -> list[Placements]:
    """A·B: A and B are whole, or rows of A, columns of B, k, or the batch is divided."""
    rows, columns = a.ndim - 2, a.ndim - 1
    whole, by_rows, by_columns = _placed.Replicate(), _placed.Shard(rows), _placed.Shard(columns)
    found: list[Placements] = [
        ([whole], [whole, whole]),
        ([by_rows], [by_rows, whole]),
        ([by_columns], [whole, by_columns]),
        ([_placed.Partial()], [by_columns, by_rows]),
    ]
    if rows:
        batch = _placed.Shard(0)
        found.append(([batch], [batch, batch]))
    return found


def _of_sum(c: Any, a: Any, b: Any, *rest: Any) -> list[Placements]:
    """`alpha·A·B + beta·C`: C is divided as the result is, or whole if it lacks that axis."""
    return [
        ([of_result], [_as_result(of_result, c), *of_factors])
        for (of_result,), of_factors in _of_product(a, b)
    ]


def _as_result(of_result: Any, c: Any) -> Any:
    """The placement of C, which is broadcast to two axes, for a placement of the result."""
    if not of_result.is_shard():
        return of_result
    axis = of_result.dim - 2 + c.ndim
    return _placed.Shard(axis) if axis >= 0 and c.shape[axis] != 1 else _placed.Replicate()


def _of_activated(a: Any, b: Any, bias: Any, *rest: Any) -> list[Placements]:
    """`act(A·B + bias)`: no activation can be applied to parts of sums, so k is not divided."""
    whole, first, second = _placed.Replicate(), _placed.Shard(0), _placed.Shard(1)
    biased = bias is not None
    return [
        ([whole], [whole, whole, *[whole] * biased]),
        ([first], [first, whole, *[whole] * biased]),
        ([second], [whole, second, *[first] * biased]),
    ]


def _of_activated_with_sums(*given: Any) -> list[Placements]:
    """`act(A·B + bias)` and `A·B + bias`."""
    return [(of_result * 2, of_tensors) for of_result, of_tensors in _of_activated(*given)]


def _of_gradient_of_activated(
    grad: Any, before: Any, activation: str, biased: bool
) -> list[Placements]:
    """The gradients of `A·B + bias` and of the bias; the latter has no elements if not `biased`."""
    whole, first, second = _placed.Replicate(), _placed.Shard(0), _placed.Shard(1)
    of_bias = (_placed.Partial(), first) if biased else (whole, whole)
    return [
        ([whole, whole], [whole, whole]),
        ([first, of_bias[0]], [first, first]),
        ([second, of_bias[1]], [second, second]),
    ]


DIVIDED: dict[Any, tuple[Callable[..., list[Placements]], int | None]] = {
    MATMUL: (_of_product, 2),
    ADDMM: (_of_sum, 5),
    ACTIVATED: (_of_activated, None),
    ACTIVATED_WITH_SUMS: (_of_activated_with_sums, None),
    GRADIENT_OF_ACTIVATED: (_of_gradient_of_activated, 2),
}
"""For each operator: the function that lists the possibilities, and the index of the first argument
that is no tensor and on which shapes or types of the results depend."""


def _register() -> None:
    """Register `DIVIDED` if this version of PyTorch has `DTensor`."""
    try:
        register = import_module("torch.distributed.tensor.experimental").register_sharding
        info = import_module("torch.distributed.tensor._op_schema").RuntimeSchemaInfo
        known = _placed.DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    except (ImportError, AttributeError):
        return
    for operator, (function, static) in DIVIDED.items():
        register(operator)(function)
        # PyTorch keeps shapes and types of results for the next call. `register_sharding` assumes
        # that they do not depend on arguments that are neither tensors nor integers.
        if static is not None:
            known[operator] = info(static, needs_pytree=True)


try:
    _placed: Any = import_module("torch.distributed.tensor")
except (ImportError, AttributeError):
    _placed = None
if _placed is not None:
    _register()
