"""Kernel arguments as the driver takes them: an array of addresses of values."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

__all__ = ["ArgumentPacker"]


class ArgumentPacker:
    """Lays out the arguments of a launch: pointers, tensor maps, floats, integers.

    Args:
        tensors: number of tensor arguments.
        maps: number of tensor maps, 128 bytes each.
        floats: number of single-precision scalars.
        widths: bits of each integer argument, 32 or 64.
    """

    def __init__(self, tensors: int, maps: int, floats: int, widths: Sequence[int]) -> None:
        self.tensors, self.maps, self.floats, self.widths = tensors, maps, floats, tuple(widths)

    def pack(
        self,
        pointers: Sequence[int],
        maps: Sequence[Any],
        floats: Sequence[float],
        integers: Sequence[int],
    ) -> tuple[Any, tuple[Any, ...]]:
        """The array of addresses, and what must stay alive until the launch returns."""
        places = (ctypes.c_uint64 * self.tensors)(*pointers)
        scalars = (ctypes.c_float * self.floats)(*floats)
        # Eight bytes hold either width: the machine is little-endian, as CUDA's all are.
        numbers = (ctypes.c_uint64 * len(self.widths))(*integers)
        addresses = [
            *_each(places, 8),
            *(int(found.getPtr()) for found in maps),
            *_each(scalars, 4),
            *_each(numbers, 8),
        ]
        table = (ctypes.c_void_p * len(addresses))(*addresses)
        return table, (places, scalars, numbers, *maps)


def _each(array: Any, size: int) -> list[int]:
    first = ctypes.addressof(array)
    return [first + size * i for i in range(len(array))]
