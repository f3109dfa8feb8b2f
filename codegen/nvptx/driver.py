"""The CUDA driver, through cuda-python; imported only when a GPU is used."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from ctypes import addressof
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from coordgraph import CodegenError, LaunchError
from passes.lowering.machine import newest_for

__all__ = [
    "Device",
    "Function",
    "Spilled",
    "allow_while_capturing",
    "bindings",
    "cuda",
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
        return f"the CUDA driver does not start: {_name(status)}"
    (status, count) = driver.cuDeviceGetCount()
    if status != driver.CUresult.CUDA_SUCCESS or count == 0:
        return "the CUDA driver sees no GPU"
    return None


def cuda(name: str, *args: Any) -> Any:
    """Call a driver function; LaunchError with the driver's words where it fails."""
    driver = bindings()
    status, *results = getattr(driver, name)(*args)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(f"{name} failed: {_name(status)}")
    return results[0] if len(results) == 1 else tuple(results)


def _name(status: Any) -> str:
    driver = bindings()
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
    architecture = newest_for(number)
    name = cuda("cuDeviceGetName", 128, handle).split(b"\0")[0].decode()
    context = cuda("cuDevicePrimaryCtxRetain", handle)
    return Device(ordinal, name, architecture, read["MULTIPROCESSOR_COUNT"], context)


class Spilled(CodegenError):
    """A kernel has too few registers; what it keeps in memory instead would make it slow."""


class Function:
    """A kernel loaded on a device.

    Args:
        where: the device, which must be current.
        ptx: assembled by the driver.
        shared_bytes: dynamic shared memory to allow.

    Raises:
        CodegenError: the driver refuses the PTX.
        Spilled: registers were spilled to memory.
    """

    def __init__(self, where: Device, ptx: str, name: str, threads: int, shared_bytes: int) -> None:
        driver = bindings()
        status, self.module = driver.cuModuleLoadData(ptx.encode() + b"\0")
        if status != driver.CUresult.CUDA_SUCCESS:
            raise CodegenError(
                f"the driver does not assemble the kernel for {where.name}: {_name(status)}"
            )
        self.device, self.threads, self.shared_bytes = where, threads, shared_bytes
        self.handle = cuda("cuModuleGetFunction", self.module, name.encode())
        self.registers = self._attribute("NUM_REGS")
        spilled = self._attribute("LOCAL_SIZE_BYTES")
        if spilled:
            self.close()
            raise Spilled(
                f"the driver spilled {spilled} bytes of registers to memory; use a smaller tile"
            )
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        cuda("cuFuncSetAttribute", self.handle, limit, shared_bytes)
        per_processor = cuda(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor", self.handle, threads, shared_bytes
        )
        self.resident = int(per_processor) * where.processors

    def close(self) -> None:
        """Unload the code; no launch of it may be under way."""
        cuda("cuModuleUnload", self.module)

    def _attribute(self, name: str) -> int:
        kinds = bindings().CUfunction_attribute
        which = getattr(kinds, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(cuda("cuFuncGetAttribute", which, self.handle))

    def launch(self, grid: int, stream: int, arguments: Any, *, together: bool) -> None:
        """Launch `grid` workgroups; `together`: all of them must be resident at once."""
        driver = bindings()
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self.threads, 1, 1
        config.sharedMemBytes = self.shared_bytes
        config.hStream = stream
        if together:
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            attribute.value.cooperative = 1
            config.attrs, config.numAttrs = [attribute], 1
        else:
            config.numAttrs = 0
        cuda("cuLaunchKernelEx", config, self.handle, addressof(arguments), 0)
