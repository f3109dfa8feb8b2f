"""Calls of `matmul` with PyTorch tensors that require a gradient.

PyTorch does not record launches of kernels for the backward pass, but records the operators of
`codegen.torch`, so these operators compute the calls. The operators have fewer options than
`matmul`: a call with another option is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from codegen.call.checks import number
from coordgraph import LaunchError

__all__ = ["differentiable_matmul", "recorded", "refuse_gradients"]


def recorded() -> bool:
    """Whether PyTorch records operations for a backward pass now (`torch.no_grad` turns it off)."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.is_grad_enabled()


def refuse_gradients(arrays: Mapping[str, Any], what: str, instead: str = "") -> None:
    """Raise LaunchError if the result would lack a gradient that PyTorch expects.

    Args:
        arrays: arrays of any library, or numbers, by the names of arguments.
        what: the call that has no gradient, as a noun for the message, such as `grouped_matmul`.
        instead: the end of the message, which advises something else, such as `, or leave it out`.
    """
    wanting = [name for name, x in arrays.items() if getattr(x, "requires_grad", False) is True]
    if wanting and recorded():
        raise LaunchError(
            f"{wanting[0]} requires a gradient, but {what} has none; call it under "
            f"torch.no_grad(){instead}"
        )


def differentiable_matmul(
    a: Any,
    b: Any,
    c: Any,
    alpha: Any,
    beta: float,
    *,
    transpose_a: bool,
    transpose_b: bool,
    invariant: bool = False,
    **without: Any,
) -> Any:
    """`alpha·A·B + beta·C` as a tensor with a gradient, or None if PyTorch records no gradients.

    For a batch with C, the sum is computed after the product, by PyTorch.

    Args:
        a, b, c, alpha, beta, transpose_a, transpose_b, invariant: the arguments of `matmul` with
            these names.
        without: by name, the other options of `matmul`, which the operators of `codegen.torch` do
            not have.

    Raises:
        LaunchError: an option in `without` is set, or `matmul` refuses an argument.
        CodegenError: there is no GPU, or it cannot multiply this type.
    """
    if not recorded():
        return None
    for option, value in without.items():
        if value is not None and value is not False:
            refuse_gradients(
                {"a": a, "b": b, "c": c}, f"matmul({option}=…)", f", or leave {option} out"
            )
    # Imported when it is needed: `codegen.torch` cannot be imported without PyTorch, and an import
    # at the top of this file would be a cycle, since `codegen.torch` calls `matmul`.
    general = import_module("codegen.torch.general")
    return general.matmul_by_operators(
        a, b, c, number(alpha, "alpha"), beta, transpose_a, transpose_b, invariant
    )
