"""Kernel arguments as the driver takes them: an array of addresses of values."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from codegen.nvptx.launch import LaunchConfig
from codegen.nvptx.tensormaps import TensorMap

__all__ = ["ArgumentTable"]


class ArgumentTable:
    """The arguments of one launch at a time: pointers, tensor maps, floats, integers.

    It is laid out once; before a launch, `pointers`, `floats`, the maps and the stream are set.

    Args:
        tensors: number of tensor arguments.
        maps: number of tensor maps.
        floats: number of single-precision scalars.
        integers: the integer arguments, which stay as they are.
        config: the launch that the table belongs to.
    """

    def __init__(
        self, tensors: int, maps: int, floats: int, integers: Sequence[int], config: LaunchConfig
    ) -> None:
        self.config = config
        self.config_address = ctypes.addressof(config)
        self.pointers = (ctypes.c_uint64 * tensors)()
        self.floats = (ctypes.c_float * floats)()
        # Eight bytes hold 32 or 64 bits: the machine is little-endian, as CUDA's all are.
        self._integers = (ctypes.c_uint64 * len(integers))(*integers)
        self._maps: list[TensorMap | None] = [None] * maps
        self._first_map = tensors
        addresses = [
            *_each(self.pointers, 8),
            *(0 for _ in range(maps)),
            *_each(self.floats, 4),
            *_each(self._integers, 8),
        ]
        self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        self.address = ctypes.addressof(self._addresses)
        self.context = ctypes.c_void_p()
        """Room for the driver to say which context is current."""
        self.context_address = ctypes.addressof(self.context)
        self.capturing = ctypes.c_int()
        """The same for whether a stream captures."""
        self.capturing_address = ctypes.addressof(self.capturing)

    def set_map(self, number: int, found: TensorMap) -> None:
        """Pass a tensor map; it stays alive until another takes its place."""
        self._maps[number] = found
        self._addresses[self._first_map + number] = found.address


def _each(
    array: ctypes.Array[ctypes.c_uint64] | ctypes.Array[ctypes.c_float], size: int
) -> list[int]:
    first = ctypes.addressof(array)
    return [first + size * i for i in range(len(array))]
