"""A kernel on a device, and the driver's description of a launch of it."""

from __future__ import annotations

import ctypes

from codegen.nvptx.driver import Device, bindings, check, cuda, describe, direct
from coordgraph import CodegenError

__all__ = ["Function", "LaunchConfig", "Spilled"]

LARGEST_PORTABLE_CLUSTER = 8
"""CTAs of a cluster that every device takes (CUDA Programming Guide, "Thread Block Clusters"); more
have to be allowed."""


class LaunchAttribute(ctypes.Structure):
    """The driver's CUlaunchAttribute; of its values only those that are numbers."""

    _fields_ = (
        ("id", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("value", ctypes.c_uint32 * 16),
    )


class LaunchConfig(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint32),
    )


class Spilled(CodegenError):
    """A kernel has too few registers; what it keeps in memory instead would make it slow."""


class Function:
    """A kernel loaded on a device.

    Args:
        where: the device, which must be current.
        code: PTX, which the driver assembles, or a cubin.
        threads: of a workgroup.
        shared_bytes: dynamic shared memory to allow.
        cluster: CUDA's workgroups (CTAs) in each of the schedule's.
        together: all workgroups of a launch must be resident at once.
        overlaps: the code itself waits for earlier launches, so it may start before they end.

    Raises:
        CodegenError: the driver refuses the code.
        Spilled: registers were spilled to memory.
    """

    def __init__(
        self,
        where: Device,
        code: bytes,
        name: str,
        threads: int,
        shared_bytes: int,
        *,
        cluster: int = 1,
        together: bool = False,
        overlaps: bool = False,
    ) -> None:
        driver = bindings()
        status, self.module = driver.cuModuleLoadData(code + b"\0")
        if status != driver.CUresult.CUDA_SUCCESS:
            raise CodegenError(
                f"the driver does not assemble the kernel for {where.name}: {describe(status)}"
            )
        self.device, self.threads, self.shared_bytes = where, threads, shared_bytes
        self.cluster, self.together, self.overlaps = cluster, together, overlaps
        self.handle = cuda("cuModuleGetFunction", self.module, name.encode())
        self.address = int(self.handle)
        self._launch = direct().cuLaunchKernelEx
        self.registers = self._attribute("NUM_REGS")
        spilled = self._attribute("LOCAL_SIZE_BYTES")
        if spilled:
            self.close()
            raise Spilled(
                f"the driver spilled {spilled} bytes of registers to memory; use a smaller tile"
            )
        self._set("MAX_DYNAMIC_SHARED_SIZE_BYTES", shared_bytes)
        if cluster > LARGEST_PORTABLE_CLUSTER:
            self._set("NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
        self.resident = self._resident()

    def close(self) -> None:
        """Unload the code; no launch of it may be under way."""
        cuda("cuModuleUnload", self.module)

    def _attribute(self, name: str) -> int:
        kinds = bindings().CUfunction_attribute
        which = getattr(kinds, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(cuda("cuFuncGetAttribute", which, self.handle))

    def _set(self, name: str, value: int) -> None:
        kinds = bindings().CUfunction_attribute
        cuda("cuFuncSetAttribute", self.handle, getattr(kinds, f"CU_FUNC_ATTRIBUTE_{name}"), value)

    def _resident(self) -> int:
        """Workgroups of the schedule that the device holds at a time."""
        if self.cluster == 1:
            per_processor = cuda(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                self.handle,
                self.threads,
                self.shared_bytes,
            )
            return int(per_processor) * self.device.processors
        found, config = ctypes.c_int(), self.config(1)
        status = direct().cuOccupancyMaxActiveClusters(
            ctypes.addressof(found), self.address, ctypes.addressof(config)
        )
        check("cuOccupancyMaxActiveClusters", status)
        return found.value

    def config(self, grid: int) -> LaunchConfig:
        """A launch of `grid` workgroups of the schedule; the stream is left to be set."""
        made = LaunchConfig()
        made.grid[:] = (grid * self.cluster, 1, 1)
        made.block[:] = (self.threads, 1, 1)
        made.shared_bytes = self.shared_bytes
        attributes = self._attributes()
        made.attributes = (LaunchAttribute * len(attributes))(*attributes)
        made.count = len(attributes)
        return made

    def _attributes(self) -> list[LaunchAttribute]:
        found: dict[str, tuple[int, ...]] = {}
        if self.cluster > 1:
            found["CLUSTER_DIMENSION"] = (self.cluster, 1, 1)
        if self.together:
            found["COOPERATIVE"] = (1,)
        elif self.overlaps:
            found["PROGRAMMATIC_STREAM_SERIALIZATION"] = (1,)
        kinds = bindings().CUlaunchAttributeID
        made: list[LaunchAttribute] = []
        for name, values in found.items():
            attribute = LaunchAttribute(int(getattr(kinds, f"CU_LAUNCH_ATTRIBUTE_{name}")))
            attribute.value[: len(values)] = values
            made.append(attribute)
        return made

    def __call__(self, config: int, arguments: int) -> None:
        """Launch, by the addresses of a `LaunchConfig` and of the arguments' addresses."""
        if status := self._launch(config, self.address, arguments, None):
            check("cuLaunchKernelEx", status)
