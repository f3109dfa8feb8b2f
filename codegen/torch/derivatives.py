"""`differentiable`: gradients and tangents of an operator, in every transform of PyTorch.

`torch.library.register_autograd` defines gradients for the backward pass alone: `torch.func.grad`
refuses such an operator, and forward-mode differentiation gets no tangent, without an error. So the
operators of this package have autograd kernels of their own, which PyTorch's dispatcher calls once
for each level of `torch.func.grad`, `vjp`, `jvp` and of what is made of these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coordgraph import LaunchError

__all__ = [
    "Derivatives",
    "SingleLevel",
    "differentiable",
    "in_forward_mode",
    "is_differentiated",
    "refused",
    "total",
]

KEYS = ("AutogradCPU", "AutogradCUDA", "AutogradMeta")
"""The dispatch keys for which `differentiable` registers autograd kernels."""
_library = torch.library.Library("coordgraph", "FRAGMENT")
_forward_mode = torch.autograd.forward_ad
_inside_transforms = torch._functorch.utils.enable_single_level_autograd_function
_base: Any = torch.autograd.function._SingleLevelFunction


class SingleLevel(_base):
    """A `torch.autograd.Function` whose `apply` does not handle the transforms of `torch.func`.

    PyTorch's dispatcher handles them.
    """

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int]:
        """The key by which compiled autograd finds the compiled backward pass of this class."""
        return (ctx._autograd_function_id,)


@dataclass(frozen=True)
class Derivatives:
    """The derivatives of an operator.

    Args:
        setup: `setup(ctx, arguments, result)` saves in `ctx` what `gradients` needs, as for
            `torch.library.register_autograd`.
        gradients: `gradients(ctx, *gradients of the results)` returns a gradient, or None, for each
            argument.
        tangents: `tangents(arguments, tangents)` returns the tangent of the result, or a tuple with
            the tangent of each result. It gets all arguments of the operator, and for each a
            tangent, or None for an argument without one. None as a tangent of a result is zero.
            `tangents` is None for a function that calls operators in forward-mode differentiation:
            these compute the tangents.
    """

    setup: Callable[[Any, tuple[Any, ...], Any], None]
    gradients: Callable[..., Any]
    tangents: Callable[[tuple[Any, ...], tuple[Any, ...]], Any] | None = None


def refused(what: str, advice: str) -> Derivatives:
    """Derivatives of an operator that has none: computing one raises LaunchError.

    Args:
        what: what would be differentiated, the subject of the message.
        advice: what to do instead.
    """

    def setup(ctx: Any, arguments: tuple[Any, ...], result: Any) -> None:
        pass

    def gradients(ctx: Any, *found: Any) -> Any:
        raise LaunchError(f"{what} cannot be differentiated; {advice}")

    def tangents(arguments: tuple[Any, ...], found: tuple[Any, ...]) -> Any:
        raise LaunchError(f"{what} cannot be differentiated in forward mode; {advice}")

    return Derivatives(setup, gradients, tangents)


def is_differentiated() -> bool:
    """Whether what is computed now may be differentiated: by a backward pass or in forward mode.

    In a backward pass this is the case if the gradients will be differentiated again.
    """
    return torch.is_grad_enabled() or in_forward_mode()


def in_forward_mode() -> bool:
    """Whether tangents may be computed: inside `torch.func.jvp` or `forward_ad.dual_level`."""
    return _forward_mode._current_level >= 0


def total(terms: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of tensors, of which None is zero; None if all are."""
    found = [x for x in terms if x is not None]
    return sum(found[1:], found[0]) if found else None


@dataclass
class _Call:
    """One call of an operator by the autograd kernel.

    Args:
        keys: the dispatch keys of the call.
        recorded, forward: whether gradients are recorded, and whether tangents are computed.
        arguments, result: all arguments and what the operator returned. Both are removed at the end
            of the call, so that contexts of the backward pass keep no tensors by them.
    """

    keys: Any
    recorded: bool
    forward: bool
    arguments: tuple[Any, ...]
    result: Any = None


def _unpacked(x: Any) -> tuple[Any, Tensor | None]:
    """The value and the tangent of an argument; None if it has no tangent."""
    return _forward_mode.unpack_dual(x, level=0) if isinstance(x, Tensor) else (x, None)


def differentiable(op: Any, derivatives: Derivatives) -> None:
    """Give the operator `op`, such as `torch.ops.coordgraph.matmul.default`, its derivatives."""
    tangents_of = derivatives.tangents
    assert tangents_of is not None, "an operator needs tangents; pass Derivatives with `tangents`"

    def forward(ctx: Any, *given: Any) -> Any:
        *arguments, call = given
        # PyTorch disabled both modes for this level; the levels below have those of the call.
        with (
            torch._C._AutoDispatchBelowAutograd(),
            torch.set_grad_enabled(call.recorded),
            _forward_mode._set_fwd_grad_enabled(call.forward),
        ):
            found = op.redispatch(call.keys & torch._C._after_autograd_keyset, *arguments)
        if isinstance(found, Tensor) and found._is_view():
            found = found.clone()  # PyTorch refuses to change views that a Function returns
        ctx.call, call.result = call, found
        derivatives.setup(ctx, call.arguments, found)
        return found

    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return (*derivatives.gradients(ctx, *gradients), None)

    def jvp(ctx: Any, *given: Any) -> Any:
        call = ctx.call
        with _forward_mode._set_fwd_grad_enabled(True):
            # The values without their tangents of this level: products of them have the tangents
            # of other levels. PyTorch passes zeros for an argument that has no tangent.
            pairs = [_unpacked(x) for x in call.arguments]
            tangents = [
                None if pair[1] is None else x for pair, x in zip(pairs, given, strict=False)
            ]
            found = tangents_of(tuple(value for value, _ in pairs), tuple(tangents))
        if isinstance(call.result, Tensor):
            return torch.zeros_like(call.result) if found is None else found
        return tuple(
            torch.zeros_like(x) if tangent is None else tangent
            for x, tangent in zip(call.result, found, strict=True)
        )

    methods = {"forward": forward, "backward": backward, "jvp": jvp}
    function: Any = type(
        f"coordgraph_{op.name().rpartition(':')[2]}",
        (SingleLevel,),
        {name: staticmethod(method) for name, method in methods.items()},
    )
    apply = function.apply
    defaults = [x.default_value for x in op._schema.arguments]

    def kernel(keys: Any, *arguments: Any) -> Any:
        arguments = (*arguments, *defaults[len(arguments) :])  # the dispatcher leaves out defaults
        modes = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()
        call = _Call(keys, *modes, arguments)
        with _inside_transforms():
            try:
                return apply(*arguments, call)
            finally:
                call.arguments, call.result = (), None

    for key in KEYS:
        _library.impl(op, kernel, key, with_keyset=True)
