"""`Function`: a kernel loaded on a device, and the driver's `CUlaunchConfig` for its launches."""

from __future__ import annotations

from typing import Any

from codegen.targets.nvptx.driver import Device, bindings, check, cuda, describe
from coordgraph import CodegenError

__all__ = ["Function", "Spilled"]

LARGEST_PORTABLE_CLUSTER = 8
"""The most CTAs in a cluster that every device supports (CUDA Programming Guide, "Thread Block
Clusters"); larger clusters need the function attribute NON_PORTABLE_CLUSTER_SIZE_ALLOWED."""


class Spilled(CodegenError):
    """Raised if the CUDA driver spills a kernel's registers to local memory, which is slow."""


class Function:
    """A kernel loaded on a device.

    Args:
        where: the device, whose context must be the calling thread's current one.
        code: PTX, which the driver assembles, or a cubin.
        name: the kernel's name in the code.
        threads: number of threads of a CTA.
        shared_bytes: dynamic shared memory of a CTA, in bytes.
        cluster: number of CTAs in one workgroup of the schedule (a cluster); 1 without clusters.
        together: whether all workgroups of a launch must be resident at once.
        overlaps: whether the kernel itself waits for earlier launches, so that it may start before
            they end (programmatic dependent launch).

    Raises:
        CodegenError: the driver refuses the code.
        Spilled: the driver spilled registers to local memory.
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
                f"the driver cannot load the kernel's code on {where.name}: {describe(status)}; "
                "install a newer NVIDIA driver, if there is one"
            )
        self.device, self.threads, self.shared_bytes = where, threads, shared_bytes
        self.cluster, self.together, self.overlaps = cluster, together, overlaps
        self.handle = cuda("cuModuleGetFunction", self.module, name.encode())
        self._launch = driver.cuLaunchKernelEx
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
        """Unload the kernel's code; no launch of the kernel may be running."""
        cuda("cuModuleUnload", self.module)

    def _attribute(self, name: str) -> int:
        """The value of the function attribute CU_FUNC_ATTRIBUTE_<name>."""
        kinds = bindings().CUfunction_attribute
        which = getattr(kinds, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(cuda("cuFuncGetAttribute", which, self.handle))

    def _set(self, name: str, value: int) -> None:
        """Set the function attribute CU_FUNC_ATTRIBUTE_<name> to `value`."""
        kinds = bindings().CUfunction_attribute
        cuda("cuFuncSetAttribute", self.handle, getattr(kinds, f"CU_FUNC_ATTRIBUTE_{name}"), value)

    def _resident(self) -> int:
        """How many workgroups of the schedule (CTAs or clusters) can be resident at once."""
        if self.cluster == 1:
            per_processor = cuda(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                self.handle,
                self.threads,
                self.shared_bytes,
            )
            return int(per_processor) * self.device.processors
        return int(cuda("cuOccupancyMaxActiveClusters", self.handle, self.config(1)))

    def config(self, grid: int) -> Any:
        """A `CUlaunchConfig` for `grid` workgroups of the schedule; its stream is not set."""
        made = bindings().CUlaunchConfig()
        made.gridDimX, made.gridDimY, made.gridDimZ = grid * self.cluster, 1, 1
        made.blockDimX, made.blockDimY, made.blockDimZ = self.threads, 1, 1
        made.sharedMemBytes = self.shared_bytes
        attributes = self._attributes()
        made.attrs, made.numAttrs = attributes, len(attributes)
        return made

    def _attributes(self) -> list[Any]:
        """The launch attributes: cluster size, cooperative and programmatic dependent launch.

        A launch may be cooperative and also overlap earlier ones: the GPU then starts all its
        workgroups at once, as soon as there is room, and the kernel itself waits for the earlier
        launches.
        """
        found: list[Any] = []
        if self.cluster > 1:
            found.append(cluster := _attribute("CLUSTER_DIMENSION"))
            size = cluster.value.clusterDim
            size.x, size.y, size.z = self.cluster, 1, 1
        if self.together:
            found.append(launch := _attribute("COOPERATIVE"))
            launch.value.cooperative = 1
        if self.overlaps:
            found.append(launch := _attribute("PROGRAMMATIC_STREAM_SERIALIZATION"))
            launch.value.programmaticStreamSerializationAllowed = 1
        return found

    def __call__(self, config: Any, arguments: int) -> None:
        """Launch the kernel.

        Args:
            config: the `CUlaunchConfig` of the launch.
            arguments: the address of an array with the address of each kernel argument.
        """
        (status,) = self._launch(config, self.handle, arguments, 0)
        if status:
            check("cuLaunchKernelEx", status)


def _attribute(name: str) -> Any:
    """A new `CUlaunchAttribute` with id CU_LAUNCH_ATTRIBUTE_<name>; the caller sets its value."""
    driver = bindings()
    made = driver.CUlaunchAttribute()
    made.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    return made
