"""The CUDA driver, through cuda-python; imported only when a GPU is used.

`cuda` calls a function of the driver by its name. What every launch calls is looked up once and
checked with `check`. `python -m benchmarks driver` times it beside the same calls through ctypes.
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
    "require_gpu",
    "unavailable",
]


@cache
def bindings() -> Any:
    """The driver's functions and types (by name: the package is not everywhere, and untyped)."""
    return import_module("cuda.bindings.driver")


@cache
def unavailable() -> str | None:
    """Why no GPU can be used here, or None."""
    try:
        driver = bindings()
    except ImportError as error:
        return f"cuda-python is not installed ({error}); pip install cuda-python"
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:  # the driver library itself is not there
        return f"no NVIDIA driver: {error}"
    if status != driver.CUresult.CUDA_SUCCESS:
        return f"the CUDA driver does not start: {describe(status)}"
    (status, count) = driver.cuDeviceGetCount()
    if status != driver.CUresult.CUDA_SUCCESS or count == 0:
        return "the CUDA driver sees no GPU"
    return None


def cuda(name: str, *args: Any) -> Any:
    """Call a driver function; LaunchError with the driver's words where it fails."""
    driver = bindings()
    try:
        status, *results = getattr(driver, name)(*args)
    except RuntimeError as error:  # the driver library itself is not there
        raise LaunchError(f"no NVIDIA driver: {error}") from error
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"{name} failed: {describe(status)}")
    return results[0] if len(results) == 1 else tuple(results)


def check(name: str, status: Any) -> None:
    """LaunchError with the driver's words where a function of `bindings` failed."""
    if status:
        raise LaunchError(f"{name} failed: {describe(status)}")


def describe(status: Any) -> str:
    """A status of the driver by its name and in its words."""
    driver = bindings()
    status = driver.CUresult(status)
    _, name = driver.cuGetErrorName(status)
    _, text = driver.cuGetErrorString(status)
    return f"{(name or b'').decode()}: {(text or b'').decode()}"


def require_gpu() -> None:
    """CodegenError with the reason where no GPU can be used."""
    if reason := unavailable():
        raise CodegenError(f"no GPU: {reason}; target='cpu' runs everywhere")


@contextmanager
def allow_while_capturing() -> Generator[None, None, None]:
    """Let this thread allocate memory and load code while some stream captures a CUDA graph."""
    relaxed = bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = cuda("cuThreadExchangeStreamCaptureMode", relaxed)
    try:
        yield
    finally:
        cuda("cuThreadExchangeStreamCaptureMode", before)


def device_count() -> int:
    """How many GPUs the driver sees; 0 where there is no driver."""
    return 0 if unavailable() else int(cuda("cuDeviceGetCount"))


@dataclass(frozen=True)
class Device:
    """A GPU: `architecture` as `sm_90a`, `processors` its SMs."""

    ordinal: int
    name: str
    architecture: str
    processors: int
    context: Any

    def activate(self) -> None:
        """Make the device's primary context current; PyTorch, CuPy and JAX use the same one."""
        cuda("cuCtxSetCurrent", self.context)

    @contextmanager
    def current(self) -> Generator[None]:
        """The same inside a block; the caller's device is current again after it."""
        cuda("cuCtxPushCurrent", self.context)
        try:
            yield
        finally:
            cuda("cuCtxPopCurrent")


@cache
def device(ordinal: int = 0) -> Device:
    """A device by number; CodegenError with the reason where there is none."""
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
