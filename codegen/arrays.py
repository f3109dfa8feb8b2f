"""Arrays of other libraries: PyTorch, CuPy, JAX, numpy, and whatever speaks DLPack.

No library is imported here: an array says by its type which one it comes from, and then that
library is loaded already. What we need of a library is one class; `library` finds it.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

from codegen.checks import TensorView, type_name
from coordgraph import LaunchError

__all__ = ["Library", "library", "row_major", "stream_handle"]


PROTOCOLS = ("__dlpack__", "__cuda_array_interface__")


class Library:
    """An array library, known by DLPack and the CUDA array interface alone."""

    waits = False
    """It cannot be told of our stream: `finish` must follow a launch."""
    on_host = False
    """Its arrays lie in host memory, whatever the device."""
    shares = False
    """What is reshaped or expanded lies where it was."""

    def view(self, array: Any, what: str) -> TensorView:
        """Address, shape, strides and type of a GPU array, once it may be read.

        Raises:
            LaunchError: it is no GPU array, or its type is none that kernels know.
        """
        if not any(hasattr(array, protocol) for protocol in PROTOCOLS):
            raise LaunchError(
                f"{what}: a {type(array).__name__} is no array; pass one of PyTorch, CuPy or JAX "
                "that lies on a GPU, or for the CPU one of numpy, as numpy.asarray makes"
            )
        memory_view = import_module("cuda.core.utils").StridedMemoryView
        try:
            # -1: no stream order is asked for here; the caller's stream has to see to it.
            buffer = memory_view.from_any_interface(array, stream_ptr=-1)
        except (BufferError, RuntimeError, TypeError, AttributeError) as error:
            raise LaunchError(
                f"{what}: a {type(array).__name__} is no GPU array ({error})"
            ) from error
        if not buffer.is_device_accessible:
            raise LaunchError(f"{what} lies in host memory; move it to the GPU")
        shape, strides = tuple(buffer.shape), buffer.strides
        if strides is None:
            strides = row_major(shape)
        kind = type_name(str(buffer.dtype), what)
        return TensorView(int(buffer.ptr), shape, tuple(strides), kind, buffer.device_id)

    def glance(self, array: Any, what: str) -> tuple[Hashable, int]:
        """What a call's checks depend on but for the address, and the address."""
        found = self.view(array, what)
        return (found.shape, found.strides, found.dtype, found.device), found.pointer

    def address(self, array: Any) -> int:
        """The address alone."""
        return self.view(array, "an array").pointer

    def empty(self, like: Any, shape: tuple[int, ...], kind: str) -> Any:
        """A new array on the same device."""
        raise LaunchError(f"pass out=: no way is known to make a new {type(like).__name__}")

    def turned(self, array: Any) -> Any:
        """The transpose of each matrix."""
        return array.swapaxes(-1, -2)

    def spread(self, array: Any, count: int) -> Any:
        """A matrix, or an array of one, as so many matrices."""
        raise LaunchError(
            f"no way is known to expand a {type(array).__name__}: pass a matrix for each product"
        )

    def first(self, array: Any) -> Any:
        """The first of several matrices."""
        return array[0]

    def joined(self, array: Any) -> Any:
        """One matrix with the rows of several that lie one after another."""
        count, rows, columns = array.shape
        return array.reshape(count * rows, columns)

    def current_stream(self, array: Any) -> int:
        """The stream on which the library works now."""
        return 0

    def finish(self, stream: int) -> None:
        """Let the library see the result."""


class _Raw(Library):
    """Memory that has been looked at already, as of `codegen.nvptx.memory`."""

    shares = True

    def view(self, array: Any, what: str) -> TensorView:
        return array

    def turned(self, array: Any) -> Any:
        (*more, rows, columns), (*steps, step, least) = array.shape, array.strides
        return replace(array, shape=(*more, columns, rows), strides=(*steps, least, step))

    def spread(self, array: Any, count: int) -> Any:
        return replace(array, shape=(count, *array.shape[-2:]), strides=(0, *array.strides[-2:]))

    def first(self, array: Any) -> Any:
        return array.first

    def joined(self, array: Any) -> Any:
        count, rows, columns = array.shape
        return replace(array, shape=(count * rows, columns), strides=(columns, 1))


class _Torch(Library):
    shares = True
    kinds: ClassVar = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}

    def __init__(self) -> None:
        self.torch = sys.modules["torch"]
        self._types = {name: getattr(self.torch, full) for name, full in self.kinds.items()}
        self._raw_stream = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)

    def view(self, array: Any, what: str) -> TensorView:
        if not array.is_cuda:
            raise LaunchError(f"{what} lies on '{array.device}'; move it to the GPU with .cuda()")
        kind = type_name(str(array.dtype).removeprefix("torch."), what)
        _, pointer = self.glance(array, what)
        return TensorView(pointer, tuple(array.shape), array.stride(), kind, array.device.index)

    def glance(self, array: Any, what: str) -> tuple[Hashable, int]:
        try:
            layout = array.is_contiguous() or array.stride()
            key = (array.shape, array.dtype, array.device, layout)
            return key, array.data_ptr()
        except RuntimeError as error:  # a tensor without memory: sparse, fake or functional
            raise LaunchError(f"{what} has no memory of its own: {error}") from error

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def empty(self, like: Any, shape: tuple[int, ...], kind: str) -> Any:
        # Extents one by one are read quicker than a tuple of them.
        return self.torch.empty(*shape, dtype=self._types[kind], device=like.device)

    def spread(self, array: Any, count: int) -> Any:
        return array.expand(count, *array.shape[-2:])

    def current_stream(self, array: Any) -> int:
        if self._raw_stream is not None:
            return self._raw_stream(array.device.index)
        return int(self.torch.cuda.current_stream(array.device).cuda_stream)


class _CuPy(Library):
    shares = True

    def spread(self, array: Any, count: int) -> Any:
        return sys.modules["cupy"].broadcast_to(array, (count, *array.shape[-2:]))

    def empty(self, like: Any, shape: tuple[int, ...], kind: str) -> Any:
        return sys.modules["cupy"].empty(shape, dtype=_array_type(kind))

    def current_stream(self, array: Any) -> int:
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)


class _Jax(Library):
    """JAX schedules work out of our sight, and cannot be told of our stream: both sides wait.

    It asks DLPack's consumers for a stream of its own kind; its buffers say all we need.
    """

    waits = True

    def spread(self, array: Any, count: int) -> Any:
        return sys.modules["jax"].numpy.broadcast_to(array, (count, *array.shape[-2:]))

    def view(self, array: Any, what: str) -> TensorView:
        array.block_until_ready()
        (place,) = array.devices()
        if place.platform != "gpu":
            raise LaunchError(f"{what} lies on '{place.platform}'; move it to the GPU")
        shape = tuple(array.shape)
        pointer = int(array.unsafe_buffer_pointer())
        kind = type_name(str(array.dtype), what)
        return TensorView(pointer, shape, row_major(shape), kind, place.local_hardware_id)

    def empty(self, like: Any, shape: tuple[int, ...], kind: str) -> Any:
        jax = sys.modules["jax"]
        made = jax.numpy.empty(shape, dtype=_array_type(kind), device=like.device)
        return made.block_until_ready()

    def finish(self, stream: int) -> None:
        from codegen.nvptx.driver import cuda

        cuda("cuStreamSynchronize", stream)


class _Numpy(Library):
    on_host = True
    shares = True

    def spread(self, array: Any, count: int) -> Any:
        return sys.modules["numpy"].broadcast_to(array, (count, *array.shape[-2:]))

    def view(self, array: Any, what: str) -> TensorView:
        raise LaunchError(
            f"{what} is a numpy array in host memory; this kernel is for a GPU. Pass torch, CuPy "
            "or JAX arrays, or compile with target='cpu'"
        )


_CLASSES: dict[str, type[Library]] = {
    "torch": _Torch,
    "cupy": _CuPy,
    "jax": _Jax,
    "jaxlib": _Jax,
    "numpy": _Numpy,
}
_found: dict[type, Library] = {TensorView: _Raw()}


def library(array: Any) -> Library:
    """The library of an array, by the top-level package of its type or of one it derives from."""
    kind = type(array)
    known = _found.get(kind)
    if known is None:
        packages = (base.__module__.partition(".")[0] for base in kind.__mro__)
        home = next((_CLASSES[p] for p in packages if p in _CLASSES and p in sys.modules), Library)
        known = _found[kind] = home()
    return known


def stream_handle(stream: Any) -> int:
    """A stream as the driver's handle: an int, or an object of PyTorch, CuPy or cuda.core."""
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise LaunchError(
            f"stream = {stream!r} is no stream of PyTorch, CuPy or cuda.core, nor the handle of one"
        ) from None


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array without gaps, in elements."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))


def _array_type(kind: str) -> Any:
    if kind == "bf16":
        import ml_dtypes

        return ml_dtypes.bfloat16
    return _Torch.kinds[kind]
