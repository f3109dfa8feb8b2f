"""`recorder`: records a computation for the backward pass, as one `torch.autograd.Function`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor

from codegen.torch.derivatives import Derivatives, SingleLevel

__all__ = ["recorder"]


@cache
def recorder(name: str, derivatives: Derivatives) -> Callable[..., Any]:
    """A function that computes a result and records it for the backward pass.

    It is called with the arguments for `derivatives`, and then with a function of these arguments
    that computes the result. It supports neither forward-mode differentiation nor the transforms of
    `torch.func`.

    Args:
        name: what is computed; autograd's nodes get the name `coordgraph_NAMEBackward`.
        derivatives: the derivatives of the result.
    """

    def forward(ctx: Any, *given: Any) -> Any:
        *arguments, compute = given
        found = compute(*arguments)
        if isinstance(found, Tensor) and found._is_view():
            found = found.clone()  # PyTorch refuses to change views that a Function returns
        derivatives.setup(ctx, (*arguments,), found)
        return found

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return (*derivatives.gradients(ctx, *gradients), None)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    function: Any = type(f"coordgraph_{name}", (SingleLevel,), methods)
    return function.apply
