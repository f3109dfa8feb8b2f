"""Launches of a kernel on arrays whose layouts an earlier call of the kernel has checked.

`codegen.Kernel.repeated` says which arguments a caller must have compared with the earlier call's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from codegen.call.arrangement import NO_OPERANDS
from codegen.call.arrays import library, stream_handle
from codegen.call.seen_launches import SeenLaunch, saw, thread
from codegen.kernel import Kernel
from codegen.targets.nvptx.launch.call import Launches, other_operands
from codegen.targets.nvptx.launch.call_keys import LOW_BITS
from coordgraph.gemm import tensor_of

__all__ = ["RepeatedCall", "RepeatedEpilogue"]


class RepeatedCall:
    """Repeats a call of a kernel with the default epilogue.

    Args:
        checked: the checked call. The addresses of its arrays are multiples of 16 bytes.
        kernel: the kernel, whose code is loaded as long as something refers to the kernel.
        arrays: A, B, C, `out` and `offsets` of the earlier call; C is None if it was left out,
            `out` is None if the call made a new array, and `offsets` is None without groups.
    """

    __slots__ = (
        "_checked",
        "_device",
        "_kernel",
        "_make",
        "_new",
        "_shape",
        "_stream",
        "_type_b",
        "_type_of_c",
        "_type_of_offsets",
    )

    def __init__(
        self, checked: Launches, kernel: Kernel, arrays: tuple[Any, Any, Any, Any, Any]
    ) -> None:
        a, b, c, out, offsets = arrays
        self._checked, self._kernel = checked, kernel
        self._device, self._type_b = a.device, b.dtype
        self._shape, self._new = checked.shapes["D"], out is None
        home, kind = library(a), kernel.graph.tensor("D").dtype
        self._make, self._stream = home.maker(a, self._shape, kind), home.stream_of(a)
        self._type_of_c = None if c is None else c.dtype
        self._type_of_offsets = None if offsets is None else offsets.dtype

    def __call__(
        self,
        a: Any,
        b: Any,
        c: Any,
        out: Any,
        alpha: float,
        beta: float,
        stream: Any,
        operands: Mapping[str, Any] = NO_OPERANDS,
        offsets: Any = None,
    ) -> Any:
        """Launch the kernel and return D; or return None, without a launch, to refuse the call.

        A call is refused if an address is not a multiple of 16 bytes, if memory of `out` overlaps
        another array (C may be the array `out`), if alpha is no float, if offsets are not
        contiguous, or if one of these is not that of the earlier call: the type or the device of B,
        of C or of the offsets, the shape of C, or the shape or the device of `out`.
        """
        device = self._device
        if b.device != device or b.dtype != self._type_b or type(alpha) is not float:
            return None
        if self._new:
            out = self._make()
        elif out.shape != self._shape or out.device != device:
            return None
        at_a, at_b, at_c, at_d, at_offsets = a.data_ptr(), b.data_ptr(), 0, out.data_ptr(), 0
        if c is not None:
            if c.shape != self._shape or c.dtype != self._type_of_c or c.device != device:
                return None
            at_c = c.data_ptr()
        if offsets is not None:
            kind = self._type_of_offsets
            if offsets.device != device or offsets.dtype != kind or not offsets.is_contiguous():
                return None
            at_offsets = offsets.data_ptr()
        if (at_a | at_b | at_c | at_d) & LOW_BITS:
            return None
        pointers = (at_a, at_b, at_c, at_d, at_offsets)
        if not self._new and self._checked.overlaps(pointers):
            return None
        handle = self._stream() if stream is None else stream_handle(stream)
        self._checked.launch(pointers, (alpha, beta), handle)
        if thread.seen is not None:
            made = (out,) if self._new else ()
            saw(SeenLaunch(self._checked.launch, self._kernel, pointers, (alpha, beta)), made)
        return out


class RepeatedEpilogue:
    """Repeats a call of a kernel with an epilogue of its own, or with tables of rows.

    Args:
        checked: the checked call. The addresses of its arrays are multiples of 16 bytes.
        kernel: the kernel, whose code is loaded as long as something refers to the kernel.
        a: the array A of the earlier call.
        scalars: the scalars of the earlier call, in the order of the epilogue's parameters.
    """

    __slots__ = (
        "_checked",
        "_has_c",
        "_kernel",
        "_make",
        "_others",
        "_outputs",
        "_reads",
        "_scalars",
        "_stores_d",
        "_stream",
    )

    def __init__(self, checked: Launches, kernel: Kernel, a: Any, scalars: Sequence[float]) -> None:
        graph = kernel.graph
        epilogue = graph.gemm.epilogue
        self._checked, self._kernel = checked, kernel
        self._scalars = tuple(o.name for o in epilogue.scalars)
        self._reads = [value != 0 for value in scalars]
        arguments = {tensor_of(o.name): o.name for o in epilogue.tensors}
        self._has_c = "C" in arguments
        self._others = tuple(arguments.get(name, name) for name in other_operands(graph.tensors))
        self._outputs, self._stores_d = tuple(graph.gemm.outputs), epilogue.stores_d
        home = library(a)
        self._make = {
            name: home.maker(a, checked.shapes[name], graph.tensor(name).dtype)
            for name in graph.gemm.stored
        }
        self._stream = home.stream_of(a)

    def __call__(
        self,
        a: Any,
        b: Any,
        c: Any,
        out: Any,
        alpha: float,
        beta: float,
        stream: Any,
        operands: Mapping[str, Any] = NO_OPERANDS,
        offsets: Any = None,
    ) -> Any:
        """Launch the kernel and return D and other outputs, or None to refuse the call.

        A call is refused, without a launch, if an address is not a multiple of 16 bytes, if memory
        of an output overlaps another array, if a scalar is no float, or if it is 0 and was not 0 in
        the earlier call, or the other way around.
        """
        checked = self._checked
        scalars: list[Any] = []
        if self._scalars:
            given: dict[str, Any] = {"alpha": alpha, "beta": beta, **operands}
            scalars = [given.get(name) for name in self._scalars]
            for value, read in zip(scalars, self._reads):  # noqa: B905 - strict takes host time
                if type(value) is not float or (value != 0) is not read:
                    return None
        new = out is None and self._stores_d
        if new:
            out = self._make["D"]()
        made: dict[str, Any] = {}
        for name in self._outputs:
            if operands.get(name) is None:
                made[name] = self._make[name]()
        every = {**operands, **made} if made else operands
        pointers = [
            a.data_ptr(),
            b.data_ptr(),
            c.data_ptr() if self._has_c and c is not None else 0,
            out.data_ptr() if out is not None else 0,
            offsets.data_ptr() if offsets is not None else 0,
        ]
        for name in self._others:
            operand = every.get(name)
            pointers.append(0 if operand is None else operand.data_ptr())
        for pointer in pointers:
            if pointer & LOW_BITS:
                return None
        addresses = tuple(pointers)
        all_new = (new or not self._stores_d) and len(made) == len(self._outputs)
        if not all_new and checked.overlaps(addresses):
            return None
        handle = self._stream() if stream is None else stream_handle(stream)
        checked.launch(addresses, scalars, handle)
        if thread.seen is not None:
            every_new = (*made.values(), *((out,) if new else ()))
            saw(SeenLaunch(checked.launch, self._kernel, addresses, scalars), every_new)
        return (out, *(every[name] for name in self._outputs)) if self._outputs else out
