"""Compares the arguments of a call with those of earlier calls.

`sort_arguments` separates tensors from other values. `layouts_key` makes a key of the layouts of
plain tensors. `Recent` recognizes the layouts of recent calls, in less time than a key takes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

import codegen.torch.plain as plain

__all__ = ["Recent", "layouts_key", "sort_arguments"]

VALUES = frozenset((type(None), bool, int, float, str, torch.dtype))
"""The types of arguments, besides tensors, that a call to be repeated may have."""
MOST_RECENT = 8
"""The most layouts that a `Recent` holds; each comparison of tensors with one takes host time."""
RARELY = 32
"""A full `Recent` stores new layouts at only one in this number of calls of `add`."""
_TENSORS, _strided = plain.TYPES, torch.strided
_keys: Any = getattr(torch._C, "_dispatch_keys", None)


def _guards(tensors: list[Tensor]) -> Callable[..., bool]:
    """A function that returns whether the tensors that it is given have the layouts of `tensors`.

    It compares types, dispatch keys, element types, devices, shapes, strides and `requires_grad`.
    It returns False if a tensor is given twice.
    """
    return torch._C._dynamo.guards.TensorGuards(
        *tensors,
        dynamic_dims_sizes=[[*x.shape] for x in tensors],
        dynamic_dims_strides=[[*x.stride()] for x in tensors],
    ).check


def _has_guards() -> bool:
    """Whether this version of PyTorch has what `_guards` needs."""
    try:
        return _guards([torch.empty(1, device="cpu")]) is not None
    except (AttributeError, TypeError):
        return False


KNOWN = _has_guards()
"""Whether `Recent` can compare tensors; otherwise it finds nothing."""


def sort_arguments(
    first: Hashable, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Hashable, ...], list[Tensor]] | None:
    """The arguments of a call as a key of all but the tensors, and a list of the tensors.

    The result is None if an argument has neither a type of `VALUES` nor of `plain.TYPES`, or is a
    sparse or nested tensor.

    Args:
        first: the first part of the key, such as the function.
        arguments, options: the arguments of the call.
    """
    values: list[Hashable] = [first, *options]
    tensors: list[Tensor] = []
    for x in (*arguments, *options.values()) if options else arguments:
        kind = type(x)
        if kind in _TENSORS:
            # Sparse and nested tensors have no strides, so `Recent` could not compare them.
            if x.layout is not _strided or x.is_nested:
                return None
            tensors.append(x)
            values.append(Tensor)
        elif x is None:
            values.append(None)
        elif kind in VALUES:
            values += kind, x
        else:
            return None
    return tuple(values), tensors


def layouts_key(values: tuple[Hashable, ...], tensors: list[Tensor]) -> Hashable:
    """A key of `values` and of the tensors' layouts; None if a tensor is not plain or on no GPU."""
    key: list[Hashable] = [values]
    for x in tensors:
        if _keys(x).raw_repr() not in plain.KEYS_ON_GPU:
            return None
        key += x.shape, x.stride(), x.dtype, x.device
    return tuple(key)


class Recent:
    """Layouts of tensors of recent calls, and something that is known about each."""

    __slots__ = ("_found", "_missed")

    def __init__(self) -> None:
        self._found: list[tuple[Callable[..., bool], Any, bool]] = []
        self._missed = 0

    def get(self, tensors: list[Tensor]) -> tuple[Any, bool] | None:
        """What is known about the layouts of the tensors, and whether one requires a gradient.

        The result is None if nothing is known. The tensors are neither sparse nor nested; their
        number is always the same.
        """
        for check, known, gradient in self._found:
            if check(*tensors):
                return known, gradient
        return None

    def add(self, tensors: list[Tensor], known: Any) -> None:
        """Keep what is known about the layouts of plain tensors, for which `get` has found nothing.

        If the object is full, one in `RARELY` calls replaces the oldest layouts by the new ones;
        the other calls do nothing.
        """
        found = self._found
        self._missed += 1
        if not KNOWN or (len(found) >= MOST_RECENT and self._missed % RARELY):
            return
        entry = _guards(tensors), known, any(x.requires_grad for x in tensors)
        self._found = [*found[-MOST_RECENT + 1 :], entry]  # threads may iterate over the old list
