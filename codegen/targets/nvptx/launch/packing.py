"""Kernel arguments in the form that the CUDA driver needs: an array of each argument's address."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from codegen.emit.elements import scalar_type
from codegen.targets.nvptx.launch.tensormaps import TensorMap
from coordgraph.elements import dtype

__all__ = ["ArgumentTable"]


class ArgumentTable:
    """The arguments of a launch (pointers, tensor maps, scalars, integers), for repeated use.

    The memory of the table is laid out once. Before each launch the caller sets `pointers`,
    `scalars`, the tensor maps and the stream.

    Args:
        tensors: number of tensor arguments.
        maps: number of tensor maps.
        scalars: the type of each scalar operand of the epilogue, such as f32 or i32.
        integers: the integer arguments, which are the same in every launch.
        config: the `CUlaunchConfig` of these launches.
    """

    def __init__(
        self,
        tensors: int,
        maps: int,
        scalars: Sequence[str],
        integers: Sequence[int],
        config: Any,
    ) -> None:
        self.config, self._stream = config, -1
        self.filled: tuple[int, ...] = ()
        """The tensor addresses for which pointers and tensor maps were last set; () before the
        first call."""
        self.pointers = (ctypes.c_uint64 * tensors)()
        self.scalars = tuple(scalar_type(dtype(kind))() for kind in scalars)
        # Each integer, of 32 or 64 bits, has 8 bytes. For a 32-bit argument the driver reads the
        # first 4, which are the low ones, because all hosts of CUDA are little-endian.
        self._integers = (ctypes.c_uint64 * len(integers))(*integers)
        self._maps: list[TensorMap | None] = [None] * maps
        self._first_map = tensors
        addresses = [
            *_each(self.pointers, 8),
            *(0 for _ in range(maps)),
            *map(ctypes.addressof, self.scalars),
            *_each(self._integers, 8),
        ]
        self._addresses = (ctypes.c_void_p * len(addresses))(*addresses)
        self.address = ctypes.addressof(self._addresses)

    def set_stream(self, stream: int) -> None:
        """Set the stream of the next launch; nothing is written if the stream is unchanged."""
        if stream != self._stream:
            self.config.hStream = self._stream = stream

    def set_map(self, number: int, found: TensorMap) -> None:
        """Set the tensor map `number`; the table keeps it alive until another replaces it."""
        self._maps[number] = found
        self._addresses[self._first_map + number] = found.address


def _each(array: ctypes.Array[ctypes.c_uint64], size: int) -> list[int]:
    """The address of each element of `array`; an element has `size` bytes."""
    first = ctypes.addressof(array)
    return [first + size * i for i in range(len(array))]
