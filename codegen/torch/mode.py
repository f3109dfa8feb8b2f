"""`use_kernels`: PyTorch's own matrix products, computed by the operators of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ContextDecorator
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from codegen.torch.functions import addmm, bmm, grouped_mm, linear, matmul
from codegen.torch.ops import TYPES as PRODUCTS
from codegen.torch.plain import DEVICES
from coordgraph import LaunchError
from coordgraph.validation import flag

__all__ = ["use_kernels"]

TYPES = (torch.bfloat16, torch.float16)
"""The element types that kernels multiply on GPUs."""


_tensor: Any = Tensor
_fake = import_module("torch._subclasses.fake_tensor")
_functional = import_module("torch._subclasses.functional_tensor")
FUNCTIONS = (_tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)
"""What `__torch_function__` is in classes of tensors that do not override PyTorch's functions."""
TRACED = (_fake.FakeTensor, _functional.FunctionalTensor)
"""Classes of tensors in traces of PyTorch, for which the operators of this package have rules."""


def _is_ordinary(kind: Any) -> bool:
    """Whether a class of tensors leaves operators to PyTorch's dispatcher, or is in `TRACED`.

    A class that overrides operators, such as DTensor, knows those of PyTorch, but not all of this
    package.
    """
    if kind is Tensor or kind is torch.nn.Parameter or kind in TRACED:
        return True
    function = kind.__torch_function__
    overrides = kind.__torch_dispatch__ is not _tensor.__torch_dispatch__
    return not overrides and getattr(function, "__func__", function) in FUNCTIONS


def _mm(input: Tensor, mat2: Tensor, *, invariant: bool = False) -> Tensor:
    """`torch.mm`: the product of two matrices. PyTorch raises its own error for other tensors."""
    two = input.dim() == mat2.dim() == 2
    return matmul(input, mat2, invariant=invariant) if two else torch.mm(input, mat2)


def _reversed_matmul(input: Tensor, other: Tensor, *, invariant: bool = False) -> Tensor:
    """`Tensor.__rmatmul__`: the product of `other` (on the left) and `input`."""
    return matmul(other, input, invariant=invariant)


REPLACED: dict[Any, Callable[..., Tensor]] = {
    torch.matmul: matmul,
    torch.mm: _mm,
    torch.bmm: bmm,
    torch.addmm: addmm,
    torch.nn.functional.linear: linear,
    Tensor.matmul: matmul,
    Tensor.mm: _mm,
    Tensor.bmm: bmm,
    Tensor.addmm: addmm,
    Tensor.__matmul__: matmul,
    Tensor.__rmatmul__: _reversed_matmul,
}
"""For each replaced function of PyTorch: the function that computes its result by kernels."""
GROUPED = getattr(torch, "_grouped_mm", None)
"""The function that `torch.nn.functional.grouped_mm` calls; None if this PyTorch has none."""
OPTIONS = {"bias", "beta", "alpha", "input", "other", "weight", "mat1", "mat2", "offs"}
"""Keyword arguments that kernels support; PyTorch computes calls with other keyword arguments."""


def _grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    invariant: bool = False,
) -> Tensor:
    """`grouped_mm` with the positional arguments of `torch._grouped_mm`."""
    return grouped_mm(mat_a, mat_b, offs=offs, bias=bias, invariant=invariant)


if GROUPED is not None:
    REPLACED[GROUPED] = _grouped_mm


def _several(name: str, given: Any, known: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values of an argument that holds several of `known`.

    Raises:
        LaunchError: the argument is no sequence of these. A single text is refused, too, because
            Python would take each of its characters for a value.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise LaunchError(
            f"{name} = {given!r} is no sequence; pass a tuple, as {name}=({given!r},)"
        )
    found: tuple[Any, ...] = tuple(given)  # pyright: ignore[reportUnknownArgumentType]
    for x in found:
        if x not in known:
            raise LaunchError(f"{x!r} in {name} is unknown; choose among {known}")
    return found


class use_kernels(TorchFunctionMode, ContextDecorator):
    """Compute matrix products of a block of code, or of a decorated function, by kernels.

    ```
    with codegen.torch.use_kernels():
        y = model(x)
    ```

    Calls of `torch.matmul`, `mm`, `bmm`, `addmm`, of the methods of these names, of `@`, and of
    `torch.nn.functional.linear` and `grouped_mm` become calls of `codegen.torch`, if all tensors
    lie on one device of `devices`, and all hold one type of `dtypes` or, in a region of
    `torch.autocast`, are cast to one. PyTorch computes all other calls, also calls with arguments
    such as `out` or `out_dtype`, or with tensors of a class that overrides operators, such as
    DTensor. It computes the products inside its own functions, such as `torch.einsum`, too.

    Args:
        dtypes: the element types for which kernels are used.
        devices: the types of devices on which kernels are used: `"cuda"`, `"cpu"`.
        invariant: whether the bits of a row of a product must not depend on the other rows, as for
            `codegen.matmul`. Products that PyTorch computes do not have this property. A
            `grouped_mm` of two matrices, whose groups divide k, is refused.

    Raises:
        LaunchError: `dtypes` or `devices` is no sequence, or has types or devices for which there
            are no kernels.
    """

    def __init__(
        self,
        dtypes: Sequence[torch.dtype] = TYPES,
        devices: Sequence[str] = ("cuda",),
        *,
        invariant: bool = False,
    ) -> None:
        super().__init__()
        self.dtypes = _several("dtypes", dtypes, PRODUCTS)
        self.devices = _several("devices", devices, DEVICES)
        self.invariant = flag(invariant, "invariant", LaunchError)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call this package's function if kernels multiply the arguments, else PyTorch's."""
        kwargs = kwargs or {}
        ours = REPLACED.get(func)
        if ours is not None:
            given = {name: x for name, x in kwargs.items() if x is not None}
            if self._fits(func, args, given):
                options: Any = {"invariant": True} if self.invariant else {}
                return ours(*args, **given, **options)
        return func(*args, **kwargs)

    def _fits(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> bool:
        """Whether kernels multiply these arguments.

        Where autocast is enabled, the type that it casts to must be one of `dtypes`. Autocast does
        not cast the factors of PyTorch's `grouped_mm`, so their own type must be one of `dtypes`.
        """
        if not kwargs.keys() <= OPTIONS:
            return False
        # Other positional arguments are `out_dtype`, or factors in signatures that PyTorch has
        # deprecated, such as `torch.addmm(beta, input, alpha, mat1, mat2)`.
        if any(x is not None and not isinstance(x, Tensor) for x in args):
            return False
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if not tensors or not all(_is_ordinary(type(x)) for x in tensors):
            return False
        device = tensors[0].device.type
        if device not in self.devices or any(x.device.type != device for x in tensors):
            return False
        if any(x.layout is not torch.strided or x.is_nested for x in tensors):
            return False
        if func is GROUPED:
            tensors = [x for x in tensors if x.dtype != torch.int32]  # leave out `offs`
        elif torch.is_autocast_enabled(device):
            cast = all(x.is_floating_point() and x.dtype != torch.float64 for x in tensors)
            return cast and torch.get_autocast_dtype(device) in self.dtypes
        return all(x.dtype in self.dtypes and x.dtype == tensors[0].dtype for x in tensors)
