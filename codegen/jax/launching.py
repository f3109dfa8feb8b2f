"""The foreign functions that XLA calls: each multiplies the buffers of a call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from json import loads
from math import prod
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from codegen.call.arrays import row_major
from codegen.call.matmul import matmul
from codegen.call.views import TensorView
from codegen.jax.xla_ffi import Buffer, Call, address_of_handler
from coordgraph.elements import dtype
from coordgraph.epilogue import EpilogueFunction, parse_function
from coordgraph.interpreter.arguments import numpy_dtype

__all__ = ["TARGET", "register"]

TARGET = "coordgraph_matmul"
"""The name of the foreign function in XLA's programs."""
HOST, GPU = "cpu", "CUDA"
"""XLA's names of the platforms that have kernels."""


@lru_cache(maxsize=1)
def register() -> tuple[Any, ...]:
    """Register the foreign function with XLA once; returns objects that keep its C code alive."""
    owners = list[Any]()
    for platform, function in ((HOST, _on_host), (GPU, _on_gpu)):
        owner, address = address_of_handler(function)
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(address), platform=platform)
        owners.append(owner)
    return tuple(owners)


def _on_host(call: Call) -> None:
    """Multiply for an XLA call whose arrays are in host memory."""
    _multiply(call, _host_array)


def _on_gpu(call: Call) -> None:
    """Launch the kernel of a call on a GPU, on the stream that XLA gives the call."""
    stream, device = call.stream, call.device

    def view(buffer: Buffer) -> TensorView:
        where = _device_of(buffer.pointer) if device is None else device
        strides = row_major(buffer.shape)
        return TensorView(buffer.pointer, buffer.shape, strides, buffer.dtype, where)

    _multiply(call, view, stream=stream)


def _multiply(call: Call, array: Callable[[Buffer], Any], **options: Any) -> None:
    """Call `codegen.matmul` with the buffers that XLA passes: A, B, operands and outputs.

    Args:
        call: the call, with the attributes `transpose_a`, `transpose_b`, `invariant`, `parts`,
            `epilogue` (the text of the epilogue, or '' for the product alone), `operands` (the
            names of the further arrays: operands, or `rows`), `outputs` (the names of the results,
            D first if it is stored), both separated by commas, and `numbers` (the values of number
            operands, as a JSON object).
        array: a function from a buffer to an array that `codegen.matmul` accepts.
        options: further arguments of `codegen.matmul`.
    """
    given: Any = call.attributes
    a, b, *operands = map(array, call.inputs)
    results = dict(zip(given["outputs"].split(","), map(array, call.results), strict=True))
    if given["epilogue"]:
        names = filter(None, given["operands"].split(","))
        options |= dict(zip(names, operands, strict=True)) | loads(given["numbers"])
        options["epilogue"] = _epilogue(given["epilogue"])
    for name in ("transpose_a", "transpose_b", "invariant", "parts"):
        options[name] = given[name]
    matmul(a, b, out=results.pop("D", None), **results, **options)


@lru_cache(maxsize=256)
def _epilogue(text: str) -> EpilogueFunction:
    return parse_function(text)


def _host_array(buffer: Buffer) -> npt.NDArray[Any]:
    """A NumPy array that shares the memory of a buffer."""
    size = prod(buffer.shape) * dtype(buffer.dtype).bytes
    memory: Any = (ctypes.c_char * size).from_address(buffer.pointer) if size else b""
    return np.frombuffer(memory, numpy_dtype(buffer.dtype)).reshape(buffer.shape)


def _device_of(pointer: int) -> int:
    """The ordinal of the GPU whose memory holds an address."""
    from codegen.targets.nvptx.driver import bindings, cuda

    which = bindings().CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(cuda("cuPointerGetAttribute", which, pointer))
