"""`direct`: call an operator's kernel without PyTorch's dispatcher where nothing needs it.

A custom operator written in Python costs tens of microseconds of host time for each call, and its
gradient costs more. In eager mode on plain tensors the kernel and one `torch.autograd.Function`
give the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import codegen.torch.plain as plain
from codegen.torch.derivatives import Derivatives
from codegen.torch.recording import recorder
from codegen.torch.repeats import repeating

__all__ = ["as_multiplied", "cast", "direct", "operator"]

_known = plain.KNOWN  # if False, all calls go through the dispatcher


def operator(name: str, kernel: Callable[..., Any], schema: str) -> torch.library.CustomOpDef:
    """Define the operator `torch.ops.coordgraph.NAME`, whose kernel runs on all `plain.DEVICES`.

    The kernel records no gradients: PyTorch's dispatcher calls it while gradients may be recorded,
    and `codegen.matmul` would call the operator again to record them.

    Args:
        name: the operator's name.
        kernel: a function of the operator's arguments.
        schema: the arguments and results, in the notation of `torch.library.custom_op`.
    """
    define = torch.library.custom_op(
        f"coordgraph::{name}", mutates_args=(), device_types=plain.DEVICES, schema=schema
    )
    return define(torch.no_grad()(kernel))


def direct(
    op: Any,
    count: int,
    kernel: Callable[..., Any],
    derivatives: Derivatives,
    *,
    last: bool = False,
    casts: bool = True,
    repeats: bool = True,
) -> Callable[..., Any]:
    """A function that computes what the operator `op` computes, with less host time if possible.

    Args:
        op: the operator, which is called if the dispatcher must see the call: for tensors of a
            subclass, of a layout such as sparse, or of another device; inside `torch.compile`,
            `torch.export` and `torch.jit.trace`; in modes, such as `FakeTensorMode`; in transforms,
            such as `torch.vmap`; and in forward-mode differentiation.
        count: the number of the operator's tensors, which are its first arguments.
        last: whether the operator's last argument is a tensor, too.
        kernel: the operator's kernel.
        derivatives: the derivatives that `op` got by `differentiable`.
        casts: whether the operator casts tensors in a region of `torch.autocast`.
        repeats: whether calls that repeat an earlier one should only launch the kernel; False if
            the caller applies `repeating` itself.

    Returns:
        A function of all arguments of the operator, also of those that have a default.
    """
    of_cast = repeating(kernel, checked=True)
    record = recorder(op.__name__.lstrip("_").partition(".")[0], derivatives)

    def call(*arguments: Any) -> Any:
        # This condition comes first, because Dynamo cannot trace the other conditions.
        if torch.compiler.is_compiling() or not _known or not plain.is_plain_thread():
            return op(*arguments)
        differentiable = False
        for x in (*arguments[:count], arguments[-1]) if last else arguments[:count]:
            if x is not None:
                if type(x) not in plain.TYPES or plain.dispatch_keys(x) not in plain.KEYS:
                    return op(*arguments)
                differentiable = differentiable or x.requires_grad
        compute = kernel
        device = "cuda" if arguments[0].is_cuda else "cpu"
        if casts and torch.is_autocast_enabled(device):
            to = torch.get_autocast_dtype(device)
            arguments = tuple(cast(x, to, device) for x in arguments)
            compute = of_cast
        if differentiable and torch.is_grad_enabled():
            # If a caller has excluded the dispatch key of autograd, no gradient is recorded.
            return record(*arguments, compute) if plain.records() else op(*arguments)
        return compute(*arguments)

    if not repeats:
        return call
    return repeating(call, recorded=lambda *arguments: (record, arguments))


def cast(x: Any, to: torch.dtype, device: str) -> Any:
    """An argument as autocast passes it to an operator.

    Floating-point tensors of the device, except float64, are converted to the type `to`.
    """
    if not isinstance(x, Tensor) or x.dtype is to or not x.is_floating_point():
        return x
    return x if x.dtype is torch.float64 or x.device.type != device else x.to(to)


def as_multiplied(x: Tensor) -> Tensor:
    """`x` in the type to which a region of `torch.autocast` casts it; without a region, `x`.

    The operators of this package cast their arguments, too. Callers cast with this function first
    if the arguments go through PyTorch's own operators or through checks of types before that.
    """
    device = x.device.type
    enabled = device in plain.DEVICES and torch.is_autocast_enabled(device)
    return cast(x, torch.get_autocast_dtype(device), device) if enabled else x
