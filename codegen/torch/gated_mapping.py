"""Rules of `torch.vmap` for the operators of `codegen.torch.gated`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from codegen.torch.mapping import in_front, one_by_one

__all__ = ["mapped", "rule"]


def mapped(op: Any, info: Any, axes: Any, given: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
    """A call of `op` on tensors that vmap maps; returns results and the axes that vmap mapped.

    Products of groups are computed by one call for each index of the mapped axis.

    Args:
        op: an operator whose arguments are `given` and `options`.
        info: vmap's information object; `info.batch_size` is the extent of the mapped axis.
        axes: the mapped axis of each argument, None for an argument without one.
        given: the gradient, if `op` takes one, then A, B and the bias.
        options: the arguments of `op` after the bias. The last one is the ends of groups, or None.
    """
    if options[-1] is not None:
        return one_by_one(op)(info, axes, *given, *options)
    *rest, b, bias = given
    *of_rest, of_b, of_bias = (*axes, None)[: len(given)]
    size = info.batch_size
    rows = [in_front(x, axis, size) for x, axis in zip(rest, of_rest, strict=True)]
    folded = (size, rows[-1].shape[1])
    if of_b is None and of_bias is None and b.dim() == 2:  # one B: stack the rows of A
        found = op(*(x.flatten(0, 1) for x in rows), b, bias, *options)
    else:
        b = in_front(b, of_b, size)
        bias = None if bias is None else in_front(bias, of_bias, size)
        if b.dim() == 3:
            found = op(*rows, b, bias, *options)
            return found, 0 if isinstance(found, Tensor) else (0, 0)
        if bias is not None:
            bias = bias if bias.dim() == 3 else bias.unsqueeze(1).expand(*folded, -1)
            bias = bias.flatten(0, 1)
        found = op(*(x.flatten(0, 1) for x in rows), b.flatten(0, 1), bias, *options)
    if isinstance(found, Tensor):
        return found.unflatten(0, folded), 0
    return tuple(x.unflatten(0, folded) for x in found), (0, 0)


def rule(op: Any) -> Callable[..., Any]:
    """The function that vmap calls for the operator `gated` or `gated_with_sums`."""

    def of_product(
        info: Any,
        in_dims: tuple[Any, ...],
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        activation: str = "silu",
        invariant: bool = False,
        ends: Tensor | None = None,
    ) -> Any:
        return mapped(op, info, in_dims, (a, b, bias), (activation, invariant, ends))

    return of_product
