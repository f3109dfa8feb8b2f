"""Arrays of other libraries: PyTorch, CuPy, JAX, numpy, and whatever speaks DLPack.

No library is imported here: an array says by its type which one it comes from, and then that
library is loaded already.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from codegen.checks import TensorView
from coordgraph import LaunchError, VerifyError
from coordgraph.tensors import dtype

__all__ = ["current_stream", "empty", "finish", "library", "prepare", "view"]

_TORCH = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}


def library(array: Any) -> str:
    """The top-level package of an array's type, as `torch`, `cupy`, `jax` or `numpy`."""
    name = type(array).__module__.partition(".")[0]
    return "jax" if name == "jaxlib" else name


def view(array: Any, what: str) -> TensorView:
    """Address, shape, strides and type of a GPU array.

    Raises:
        LaunchError: it is no GPU array, or its type is none that kernels know.
    """
    if isinstance(array, TensorView):  # raw memory, as of `codegen.nvptx.memory`
        return array
    if library(array) == "torch":
        if not array.is_cuda:
            raise LaunchError(f"{what} lies on '{array.device}'; move it to the GPU with .cuda()")
        kind = _name(str(array.dtype).removeprefix("torch."), what)
        place = array.device.index
        return TensorView(array.data_ptr(), tuple(array.shape), array.stride(), kind, place)
    if library(array) == "numpy":
        raise LaunchError(
            f"{what} is a numpy array in host memory; this kernel is for a GPU. Pass torch, CuPy "
            "or JAX arrays, or compile with target='cpu'"
        )
    if library(array) == "jax":
        return _view_of_jax(array, what)
    memory_view = import_module("cuda.core.utils").StridedMemoryView
    try:
        # -1: no stream order is asked for here; `prepare` has seen to it.
        buffer = memory_view.from_any_interface(array, stream_ptr=-1)
    except (BufferError, RuntimeError, TypeError, AttributeError) as error:
        raise LaunchError(f"{what}: a {type(array).__name__} is no GPU array ({error})") from error
    if not buffer.is_device_accessible:
        raise LaunchError(f"{what} lies in host memory; move it to the GPU")
    shape, strides = tuple(buffer.shape), buffer.strides
    if strides is None:
        strides = _row_major(shape)
    kind = _name(str(buffer.dtype), what)
    return TensorView(int(buffer.ptr), shape, tuple(strides), kind, buffer.device_id)


def _view_of_jax(array: Any, what: str) -> TensorView:
    """JAX asks DLPack's consumers for a stream of its own kind; its buffers say all we need."""
    (place,) = array.devices()
    if place.platform != "gpu":
        raise LaunchError(f"{what} lies on '{place.platform}'; move it to the GPU")
    shape = tuple(array.shape)
    pointer = int(array.unsafe_buffer_pointer())
    kind = _name(str(array.dtype), what)
    return TensorView(pointer, shape, _row_major(shape), kind, place.local_hardware_id)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))


def _name(name: str, what: str) -> str:
    try:
        return dtype(name).name
    except VerifyError as error:
        raise LaunchError(f"{what}: {error}") from error


def empty(like: Any, shape: tuple[int, int], kind: str) -> Any:
    """A new array of the same library on the same device."""
    module = sys.modules.get(library(like))
    if library(like) == "torch" and module is not None:
        return module.empty(shape, dtype=getattr(module, _TORCH[kind]), device=like.device)
    if library(like) == "cupy" and module is not None:
        return module.empty(shape, dtype=_array_type(kind))
    if library(like) == "jax" and module is not None:
        made = module.numpy.empty(shape, dtype=_array_type(kind), device=like.device)
        return made.block_until_ready()
    raise LaunchError(f"pass out=: no way is known to make a new {type(like).__name__}")


def _array_type(kind: str) -> Any:
    if kind == "bf16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return _TORCH[kind]


def current_stream(array: Any) -> int:
    """The stream on which the array's library works now."""
    module = sys.modules.get(library(array))
    if library(array) == "torch" and module is not None:
        return int(module.cuda.current_stream(array.device).cuda_stream)
    if library(array) == "cupy" and module is not None:
        return int(module.cuda.get_current_stream().ptr)
    return 0


def stream_handle(stream: Any) -> int:
    """A stream as the driver's handle: an int, or an object of PyTorch, CuPy or cuda.core."""
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    return int(stream)


def prepare(*arrays: Any) -> None:
    """Wait for arrays whose library schedules work out of our sight (JAX)."""
    for array in arrays:
        if array is not None and library(array) == "jax":
            array.block_until_ready()


def finish(array: Any, stream: int) -> None:
    """Let a library that cannot be told of our stream see the result (JAX)."""
    if library(array) == "jax":
        from codegen.nvptx.driver import cuda

        cuda("cuStreamSynchronize", stream)
