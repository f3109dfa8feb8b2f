"""Calls the CUDA driver through cuda-python, which is imported only when a GPU is used.

`cuda` calls a driver function by its name. For functions that every launch calls, callers look up
the function once and check its status by `check`. `python -m benchmarks driver` compares the time
of calls through cuda-python with the time of the same calls through ctypes.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from coordgraph import CodegenError, LaunchError
from passes.lowering.architectures import native_to

__all__ = [
    "Device",
    "allow_while_capturing",
    "bindings",
    "check",
    "cuda",
    "describe",
    "device",
    "device_count",
    "is_capturing",
    "require_gpu",
    "unavailable",
]


@cache
def bindings() -> Any:
    """The module `cuda.bindings.driver`, imported at the first call: the package may be missing."""
    return import_module("cuda.bindings.driver")


@cache
def unavailable() -> str | None:
    """Why no GPU can be used on this machine, or None if a GPU can be used."""
    try:
        driver = bindings()
    except ImportError as error:
        return f"cuda-python is not installed ({error}); pip install cuda-python"
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # libcuda is not installed
        return f"no NVIDIA driver: {str(error).rstrip('.')}"
    if status != driver.CUresult.CUDA_SUCCESS:
        return f"the CUDA driver does not start: {describe(status)}"
    (status, count) = driver.cuDeviceGetCount()
    if status != driver.CUresult.CUDA_SUCCESS or count == 0:
        return "the CUDA driver sees no GPU"
    return None


def cuda(name: str, *args: Any) -> Any:
    """Call a CUDA driver function, and return its results without the status.

    Args:
        name: the function, such as `cuMemAlloc`.
        args: the arguments of the function.

    Raises:
        LaunchError: the function fails, or there is no driver.
    """
    driver = bindings()
    try:
        status, *results = getattr(driver, name)(*args)
    except RuntimeError as error:  # libcuda is not installed
        raise LaunchError(
            f"no NVIDIA driver can be loaded: {error}; install one, or compile for target='cpu'"
        ) from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"{name} failed: {describe(status)}")
    return results[0] if len(results) == 1 else tuple(results)


def check(name: str, status: Any) -> None:
    """Raise LaunchError if the status that the driver function `name` returned is an error."""
    if status:
        raise LaunchError(f"{name} failed: {describe(status)}")


def describe(status: Any) -> str:
    """The name and the description of a status code of the CUDA driver, as text."""
    driver = bindings()
    status = driver.CUresult(status)
    _, name = driver.cuGetErrorName(status)
    _, text = driver.cuGetErrorString(status)
    return f"{(name or b'').decode()}: {(text or b'').decode()}"


def require_gpu() -> None:
    """Raise CodegenError, with the reason, if no GPU can be used on this machine."""
    if reason := unavailable():
        raise CodegenError(
            f"no GPU can be used: {reason}; compile for target='cpu', which runs everywhere"
        )


@contextmanager
def allow_while_capturing() -> Generator[None, None, None]:
    """A context manager: this thread may allocate memory and load code during a graph capture."""
    relaxed = bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = cuda("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        cuda("cuThreadExchangeStreamCaptureMode", before)


def is_capturing(stream: int) -> bool:
    """Whether a stream, by the driver's handle, is capturing a CUDA graph."""
    nothing = bindings().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return bool(cuda("cuStreamIsCapturing", stream) != nothing)


def device_count() -> int:
    """How many GPUs the driver reports; 0 if there is no driver."""
    return 0 if unavailable() else int(cuda("cuDeviceGetCount"))


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        ordinal: the number of the device.
        name: the name of the device, such as `NVIDIA H200`.
        architecture: the best registered architecture for the device, such as `sm_90a`.
        processors: how many streaming multiprocessors the device has.
        context: the device's primary CUDA context.
    """

    ordinal: int
    name: str
    architecture: str
    processors: int
    context: Any

    def activate(self) -> None:
        """Make the device's primary context current, which PyTorch, CuPy and JAX use too."""
        cuda("cuCtxSetCurrent", self.context)

    @contextmanager
    def current(self) -> Generator[None]:
        """A context manager that makes this device current, and restores the caller's device.

        If the thread has no current context and this is device 0, it stays current. The CUDA
        runtime does the same for a thread without a context. Without a context, a later call of
        cuBLAS by PyTorch would print a warning.
        """
        if self.ordinal == 0 and not int(cuda("cuCtxGetCurrent")):
            self.activate()
            yield
            return
        cuda("cuCtxPushCurrent", self.context)
        try:
            yield
        finally:
            cuda("cuCtxPopCurrent")


@cache
def device(ordinal: int = 0) -> Device:
    """The GPU with the number `ordinal`.

    Raises:
        CodegenError: no GPU can be used on this machine, or the GPU is too old.
        LaunchError: there is no GPU of that number.
    """
    require_gpu()
    driver = bindings()
    handle = cuda("cuDeviceGet", ordinal)
    attribute = driver.CUdevice_attribute
    read = {
        name: cuda(
            "cuDeviceGetAttribute", getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), handle
        )
        for name in ("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MULTIPROCESSOR_COUNT")
    }
    number = 10 * read["COMPUTE_CAPABILITY_MAJOR"] + read["COMPUTE_CAPABILITY_MINOR"]
    architecture = native_to(number).name
    name = cuda("cuDeviceGetName", 128, handle).split(b"\0")[0].decode()
    context = cuda("cuDevicePrimaryCtxRetain", handle)
    return Device(ordinal, name, architecture, read["MULTIPROCESSOR_COUNT"], context)
