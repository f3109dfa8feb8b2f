"""How products of `DTensor` are divided among the devices of a mesh.

A layer whose weight is a `DTensor`, as after `parallelize_module`, calls the operators `matmul` and
`addmm` with it. Each device then multiplies its own part of the factors by a kernel. Importing this
module tells PyTorch which parts give which part of the result. The functions here list the
possibilities along one axis of the mesh: the placement of the result, and those of the tensors.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from codegen.torch.ops import ADDMM, MATMUL

__all__: list[str] = []

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


def _register() -> None:
    """Register the functions if this version of PyTorch has `DTensor`."""
    try:
        register = import_module("torch.distributed.tensor.experimental").register_sharding
    except (ImportError, AttributeError):
        return
    register(MATMUL)(_of_product)
    register(ADDMM)(_of_sum)


try:
    _placed: Any = import_module("torch.distributed.tensor")
except (ImportError, AttributeError):
    _placed = None
if _placed is not None:
    _register()
