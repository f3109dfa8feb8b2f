"""Arrays of other libraries: PyTorch, CuPy, JAX, NumPy, and any library that exports DLPack.

No library is imported here: the type of an array names its library, which the caller has imported.
There is one class for each library; `library` finds the class for an array.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from operator import methodcaller
from typing import Any

from codegen.call.views import TensorView, type_name
from coordgraph import LaunchError
from coordgraph.elements import DTYPES
from coordgraph.interpreter.arguments import as_numpy, numpy_dtype
from coordgraph.validation import a_type

__all__ = ["Library", "library", "row_major", "stream_handle"]


PROTOCOLS = ("__dlpack__", "__cuda_array_interface__")
NO_VIEW = (
    "argument 'out' cannot be reshaped to matrices in place: it has gaps between its rows or "
    "matrices, or is immutable; pass a contiguous array, or leave out 'out'"
)
"""Error message for an `out` with several batch axes that cannot be viewed as one batch of
matrices, so that kernels cannot write to its memory."""


class Library:
    """Reads arrays by DLPack or the CUDA array interface; a subclass knows one array library."""

    waits = False
    """Whether `finish` must follow each launch, as the library cannot wait for a CUDA stream."""
    keyed = False
    """Whether arrays have the attributes of PyTorch's tensors of which `matmul` makes its keys."""
    on_host = False
    """Whether the arrays of the library are in host memory."""
    makes_views = False
    """Whether reshaping or expanding an array makes a view of the same memory, never a copy."""

    def view(self, array: Any, what: str) -> TensorView:
        """Address, shape, strides and type of a GPU array.

        Raises:
            LaunchError: the array is not on a GPU, or kernels do not support its element type.
        """
        if not any(hasattr(array, protocol) for protocol in PROTOCOLS):
            raise LaunchError(
                f"{what} is {a_type(array)}, which is no array; pass a PyTorch, CuPy or JAX array "
                "on a GPU, or for the CPU a numpy array"
            )
        memory_view = import_module("cuda.core.utils").StridedMemoryView
        try:
            # stream_ptr=-1: DLPack must not synchronize; the launch's stream orders the accesses.
            buffer = memory_view.from_any_interface(array, stream_ptr=-1)
        except (BufferError, RuntimeError, TypeError, AttributeError) as error:
            raise LaunchError(
                f"{what} is {a_type(array)}, which is no GPU array ({error}); pass a PyTorch, CuPy "
                "or JAX array on a GPU"
            ) from error
        if not buffer.is_device_accessible:
            raise LaunchError(
                f"{what} lies in host memory; move it to the GPU, or for the CPU pass a numpy "
                f"array, as numpy.from_dlpack({what})"
            )
        shape, strides = tuple(buffer.shape), buffer.strides
        if strides is None:
            strides = row_major(shape)
        kind = type_name(str(buffer.dtype), what)
        return TensorView(int(buffer.ptr), shape, tuple(strides), kind, buffer.device_id)

    def layout_key(self, array: Any, what: str) -> tuple[Hashable, int]:
        """A hashable key of an array's shape, strides, type and device; and the array's address."""
        found = self.view(array, what)
        return (found.shape, found.strides, found.dtype, found.device), found.pointer

    def address(self, array: Any) -> int:
        """The address of an array's first element."""
        return self.view(array, "an array").pointer

    def empty(self, like: Any, shape: tuple[int, ...], kind: str) -> Any:
        """A new array on the device of `like`, with uninitialized elements of type `kind`."""
        raise LaunchError(
            f"no new {type(like).__name__} can be made for the result; pass an array of yours as "
            "the argument 'out'"
        )

    def maker(self, like: Any, shape: tuple[int, ...], kind: str) -> Callable[[], Any]:
        """A function without arguments, whose calls return what `empty` returns for these."""
        return partial(self.empty, like, shape, kind)

    transposed: Callable[[Any], Any] = staticmethod(methodcaller("swapaxes", -1, -2))
    """A view of the array with its last two axes swapped: the transpose of each matrix."""

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        """A view of the array, repeated along axes of extent 1 to another shape.

        Raises:
            LaunchError: arrays of this library cannot be repeated.
        """
        raise LaunchError(
            f"{a_type(array)} cannot be repeated along batch axes; pass a matrix for each "
            "product, in arrays with equal batch axes"
        )

    def reshaped_view(self, array: Any, shape: tuple[int, ...]) -> Any:
        """A view of the array's memory in another shape, for writing to it.

        Raises:
            LaunchError: no view of that shape exists, because the array has gaps between its rows
                or matrices, or its library makes no views.
        """
        raise LaunchError(NO_VIEW)

    def first_matrix(self, array: Any) -> Any:
        """The first matrix of a batch."""
        return array[0]

    def as_one_matrix(self, array: Any) -> Any:
        """Reshape a batch to one matrix that has the rows of all its matrices.

        All consecutive rows of the batch must be the same distance apart in memory.
        """
        count, rows, columns = array.shape
        return array.reshape(count * rows, columns)

    def current_stream(self, array: Any) -> int:
        """The handle of the library's current stream."""
        return 0

    def stream_of(self, array: Any) -> Callable[[], int]:
        """A function that returns what `current_stream` returns for arrays on this array's GPU."""
        return partial(self.current_stream, array)

    def finish(self, stream: int) -> None:
        """Make the result of a launch visible to the library; this may wait for the launch."""

    @property
    def functions(self) -> Any:
        """The module with the library's functions of arrays, such as `amax` and `exp`.

        Raises:
            LaunchError: no functions of this library are known, only the layout of its arrays.
        """
        raise LaunchError(
            "a reduction of rows is finished by functions of the array's library, and this library "
            "is unknown; pass PyTorch, CuPy, JAX or NumPy arrays, or call a compiled kernel"
        )

    def on_stream(self, array: Any, stream: Any) -> AbstractContextManager[Any]:
        """A context in which the library's functions run on `stream`.

        Args:
            array: an array on the device of the stream.
            stream: a CUDA stream, as an object or as its handle; None for the library's current
                stream.
        """
        return nullcontext()


class _Raw(Library):
    """`TensorView`s used as arrays: device memory without an array library."""

    makes_views = True

    def view(self, array: Any, what: str) -> TensorView:
        return array

    @staticmethod
    def transposed(array: Any) -> Any:
        return array.transposed

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        added = (0,) * (len(shape) - len(array.shape))
        before = zip((*added, *array.shape), (*added, *array.strides), shape, strict=True)
        strides = tuple(step if extent == new else 0 for extent, step, new in before)
        return replace(array, shape=shape, strides=strides)

    def first_matrix(self, array: Any) -> Any:
        return array.first

    def as_one_matrix(self, array: Any) -> Any:
        count, rows, columns = array.shape
        pitch = array.leading_dimension if rows > 1 else array.matrix_stride
        return replace(array, shape=(count * rows, columns), strides=(pitch, array.strides[2]))


class _Torch(Library):
    keyed = True
    makes_views = True

    def __init__(self) -> None:
        self.torch = sys.modules["torch"]
        self._types = {d.name: getattr(self.torch, d.library) for d in DTYPES.values()}
        self._raw_stream = getattr(self.torch._C, "_cuda_getCurrentRawStream", None)

    def view(self, array: Any, what: str) -> TensorView:
        if not array.is_cuda:
            raise LaunchError(
                f"{what} lies on '{array.device}'; move it to the GPU with .cuda(); on the CPU, "
                "call codegen.torch.matmul, or codegen.torch.grouped_mm for groups, or if the call "
                f"has an epilogue or other options, pass numpy arrays: {as_numpy(array, what)}"
            )
        kind = type_name(str(array.dtype).removeprefix("torch."), what)
        _, pointer = self.layout_key(array, what)
        return TensorView(pointer, tuple(array.shape), array.stride(), kind, array.device.index)

    def layout_key(self, array: Any, what: str) -> tuple[Hashable, int]:
        try:
            layout = array.is_contiguous() or array.stride()
            key = (array.shape, array.dtype, array.device, layout)
            return key, array.data_ptr()
        except RuntimeError as error:  # sparse, fake and functional tensors have no address
            raise LaunchError(
                f"{what} has no memory of its own: {error}; pass a dense tensor on the GPU"
            ) from error

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def empty(self, like: Any, shape: tuple[int, ...], kind: str) -> Any:
        return self.maker(like, shape, kind)()

    def maker(self, like: Any, shape: tuple[int, ...], kind: str) -> Callable[[], Any]:
        # torch.empty parses separate extents faster than a tuple, but needs at least one argument.
        extents: Any = shape or ((),)
        return partial(self.torch.empty, *extents, dtype=self._types[kind], device=like.device)

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        return array.expand(shape)

    def reshaped_view(self, array: Any, shape: tuple[int, ...]) -> Any:
        try:
            return array.view(shape)
        except RuntimeError as error:
            raise LaunchError(NO_VIEW) from error

    def current_stream(self, array: Any) -> int:
        if self._raw_stream is not None:
            return self._raw_stream(array.device.index)
        return int(self.torch.cuda.current_stream(array.device).cuda_stream)

    def stream_of(self, array: Any) -> Callable[[], int]:
        if self._raw_stream is not None:
            return partial(self._raw_stream, array.device.index)
        device = array.device
        return lambda: int(self.torch.cuda.current_stream(device).cuda_stream)

    @property
    def functions(self) -> Any:
        return self.torch

    def on_stream(self, array: Any, stream: Any) -> AbstractContextManager[Any]:
        if stream is None:
            return nullcontext()
        cuda = self.torch.cuda
        return cuda.stream(cuda.ExternalStream(stream_handle(stream), array.device))


class _CuPy(Library):
    makes_views = True

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        return sys.modules["cupy"].broadcast_to(array, shape)

    def reshaped_view(self, array: Any, shape: tuple[int, ...]) -> Any:
        view = array.reshape(shape)
        if view.data.ptr != array.data.ptr:
            raise LaunchError(NO_VIEW)
        return view

    def empty(self, like: Any, shape: tuple[int, ...], kind: str) -> Any:
        return sys.modules["cupy"].empty(shape, dtype=numpy_dtype(kind))

    def current_stream(self, array: Any) -> int:
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)

    @property
    def functions(self) -> Any:
        return sys.modules["cupy"]

    def on_stream(self, array: Any, stream: Any) -> AbstractContextManager[Any]:
        if stream is None:
            return nullcontext()
        return sys.modules["cupy"].cuda.ExternalStream(stream_handle(stream))


class _Jax(Library):
    """JAX arrays. JAX does not expose its streams, so the host waits before and after a launch.

    JAX's DLPack export needs a stream too, so addresses and shapes are read from JAX's buffers.
    """

    waits = True

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        return sys.modules["jax"].numpy.broadcast_to(array, shape)

    def view(self, array: Any, what: str) -> TensorView:
        if isinstance(array, sys.modules["jax"].core.Tracer):
            raise LaunchError(
                f"{what} is traced by JAX, and has no memory yet; in jax.jit, jax.grad and "
                "jax.vmap use codegen.jax.matmul"
            )
        array.block_until_ready()
        (place,) = array.devices()
        if place.platform != "gpu":
            raise LaunchError(
                f"{what} lies on '{place.platform}'; move it to the GPU, as with jax.device_put"
            )
        shape = tuple(array.shape)
        pointer = int(array.unsafe_buffer_pointer())
        kind = type_name(str(array.dtype), what)
        return TensorView(pointer, shape, row_major(shape), kind, place.local_hardware_id)

    def empty(self, like: Any, shape: tuple[int, ...], kind: str) -> Any:
        jax = sys.modules["jax"]
        made = jax.numpy.empty(shape, dtype=numpy_dtype(kind), device=like.device)
        return made.block_until_ready()

    @property
    def functions(self) -> Any:
        return sys.modules["jax"].numpy

    def finish(self, stream: int) -> None:
        from codegen.targets.nvptx.driver import cuda

        cuda("cuStreamSynchronize", stream)


class _Numpy(Library):
    on_host = True
    makes_views = True

    def broadcast(self, array: Any, shape: tuple[int, ...]) -> Any:
        return sys.modules["numpy"].broadcast_to(array, shape)

    @property
    def functions(self) -> Any:
        return sys.modules["numpy"]

    def reshaped_view(self, array: Any, shape: tuple[int, ...]) -> Any:
        view = array.reshape(shape)
        if array.size and not sys.modules["numpy"].may_share_memory(view, array):
            raise LaunchError(NO_VIEW)
        return view

    def view(self, array: Any, what: str) -> TensorView:
        raise LaunchError(
            f"{what} is a numpy array in host memory, but this kernel is for a GPU; pass torch, "
            "CuPy or JAX arrays, or compile with target='cpu'"
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
    """The library of an array, by the top-level package of its type or of a base class."""
    kind = type(array)
    known = _found.get(kind)
    if known is None:
        packages = (base.__module__.partition(".")[0] for base in kind.__mro__)
        home = next((_CLASSES[p] for p in packages if p in _CLASSES and p in sys.modules), Library)
        known = _found[kind] = home()
    return known


def stream_handle(stream: Any) -> int:
    """The driver's handle of a stream: an int, or a stream object of PyTorch, CuPy or cuda.core."""
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise LaunchError(
            f"stream = {stream!r} is not a stream of PyTorch, CuPy or cuda.core, nor its handle; "
            "pass one of these"
        ) from None


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides, in elements, of a row-major array with these extents and without gaps."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))
