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
from codegen.torch.cross_entropy import GRADIENT as GRADIENT_OF_LOSS
from codegen.torch.cross_entropy import LOSS
from codegen.torch.gated_operators import GATED, GATED_WITH_SUMS, GRADIENT_OF_PRODUCT
from codegen.torch.gated_operators import GRADIENT as GRADIENT_OF_GATED
from codegen.torch.grouped import GROUPED_MM
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


def _of_gated(
    a: Any,
    b: Any,
    bias: Any = None,
    activation: str = "",
    invariant: bool = False,
    ends: Any = None,
) -> list[Placements]:
    """`act(gate)·up`: rows of A may be divided, unless they belong to groups.

    Parts of the columns of B would have columns of gate without those of up.
    """
    others = [_placed.Replicate()] * (1 + (bias is not None) + (ends is not None))
    found: list[Placements] = [([_placed.Replicate()], [_placed.Replicate(), *others])]
    if ends is None:
        by_rows = _placed.Shard(a.ndim - 2)
        found.append(([by_rows], [by_rows, *others]))
    return found


def _of_gated_with_sums(*given: Any) -> list[Placements]:
    """`act(gate)·up`, and gate and up."""
    return [(of_result * 2, of_tensors) for of_result, of_tensors in _of_gated(*given)]


def _of_groups(a: Any, b: Any, ends: Any, *rest: Any) -> list[Placements]:
    """The products of groups: the axes may be divided that are not divided into groups."""
    whole, both_matrices = _placed.Replicate(), a.ndim == b.ndim
    rows, columns = _placed.Shard(a.ndim - 2), _placed.Shard(b.ndim - 1)
    found: list[Placements] = [([whole], [whole, whole, whole])]
    if both_matrices or a.ndim == 3:
        found.append(([_placed.Shard(int(both_matrices))], [rows, whole, whole]))
    if both_matrices or b.ndim == 3:
        found.append(([_placed.Shard(1 + both_matrices)], [whole, columns, whole]))
    if not both_matrices:
        of_k = _placed.Shard(a.ndim - 1), _placed.Shard(b.ndim - 2)
        found.append(([_placed.Partial()], [*of_k, whole]))
    return found


def _of_gradient_of_gated(grad: Any, sums: Any, *rest: Any) -> list[Placements]:
    """The gradient of gate and up: rows and batches may be divided."""
    return [([x], [x, x]) for x in (_placed.Replicate(), *_shards(sums.ndim - 1))]


def _of_gradient_of_product(grad: Any, *given: Any) -> list[Placements]:
    """The gradient of gate and up, which are computed again, divided as that of the result is."""
    return [(of_result, of_result + of_tensors) for of_result, of_tensors in _of_gated(*given)]


def _of_losses(*given: Any) -> list[Placements]:
    """The loss and the logsumexp of each token: tokens may be divided, classes may not."""
    whole, tokens = _placed.Replicate(), _placed.Shard(0)
    return [([whole] * 2, [whole] * 3), ([tokens] * 2, [tokens, whole, tokens])]


def _of_gradients_of_losses(
    grad: Any,
    totals: Any,
    hidden: Any,
    weight: Any,
    targets: Any,
    ignore_index: int,
    of_hidden: bool,
    of_weight: bool,
    *rest: Any,
) -> list[Placements]:
    """The gradients of `hidden` and `weight`; one that is not needed has no elements."""
    whole, tokens = _placed.Replicate(), _placed.Shard(0)
    results = [tokens if of_hidden else whole, _placed.Partial() if of_weight else whole]
    return [([whole] * 2, [whole] * 5), (results, [tokens, tokens, tokens, whole, tokens])]


def _shards(count: int) -> list[Any]:
    """The placements that divide the first `count` axes of a tensor, one for each axis."""
    return [_placed.Shard(axis) for axis in range(count)]


DIVIDED: dict[Any, tuple[Callable[..., list[Placements]], int | None]] = {
    MATMUL: (_of_product, 2),
    ADDMM: (_of_sum, 5),
    ACTIVATED: (_of_activated, None),
    ACTIVATED_WITH_SUMS: (_of_activated_with_sums, None),
    GRADIENT_OF_ACTIVATED: (_of_gradient_of_activated, 2),
    GROUPED_MM: (_of_groups, None),
    LOSS: (_of_losses, 3),
    GRADIENT_OF_LOSS: (_of_gradients_of_losses, 5),
    GATED: (_of_gated, None),
    GATED_WITH_SUMS: (_of_gated_with_sums, None),
    GRADIENT_OF_GATED: (_of_gradient_of_gated, None),
    GRADIENT_OF_PRODUCT: (_of_gradient_of_product, None),
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
