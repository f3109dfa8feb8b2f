"""The targets of this machine: whether they can run, their processors and default grids."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

from codegen.cli.errors import Unavailable
from coordgraph import KernelGraph

if TYPE_CHECKING:
    from codegen.kernel import Kernel

__all__ = ["cpu_name", "describe_target", "resolve", "runnable", "settled_workgroups"]


def resolve(target: str, dtype: str) -> str:
    """`target`; for `native`, GPU 0's architecture, or `cpu` if no GPU multiplies `dtype`."""
    if target != "native":
        return target
    from codegen.api import native_target
    from coordgraph import Gemm

    return native_target(Gemm(dtype).graph())


def runnable(target: str) -> None:
    """Raise an error unless kernels for a target can run on this machine.

    Raises:
        CodegenError: code cannot be generated for the target.
        Unavailable: the machine has no GPU, or one that does not run code for the target.
    """
    if not target.startswith("sm_"):
        return
    from codegen.targets.nvptx.driver import device, unavailable
    from passes.lowering.architectures import architecture_of

    asked = architecture_of(target)  # raises CodegenError if the architecture is unknown or too old
    if reason := unavailable():
        raise Unavailable(
            f"{target} needs an NVIDIA GPU: {reason.rstrip('.')}; --target cpu runs everywhere, "
            f"and 'coordgraph compile --target {target}' needs no GPU"
        )
    here = device(0).architecture
    if not asked.runs_on(architecture_of(here).capability):
        raise Unavailable(
            f"{target} does not run here: the GPU is {device(0).name}, {here}; choose --target "
            f"{here}"
        )


def describe_target(target: str, threads: int | None = None) -> str:
    """A description of the processor that runs kernels for a target.

    Args:
        target: a target that is not `native`.
        threads: the number of threads on the CPU; None for COORDGRAPH_THREADS, else one for each
            processor.
    """
    if target == "interpreter":
        return "numpy, one workgroup at a time"
    if target == "cpu":
        from codegen.targets.cpu.threads import thread_count

        count = thread_count(threads)
        return f"{cpu_name()}, {count} thread{'' if count == 1 else 's'}"
    from codegen.targets.nvptx.driver import device

    return f"{device(0).name}, {device(0).processors} SMs"


def settled_workgroups(kernel: Kernel, workgroups: int | None, threads: int | None) -> int | None:
    """A launch's workgroup count; None if the graph fixes the count and the caller gave none.

    If the graph takes the number as a launch argument and the caller gave none, the result is the
    target's default: as many as the GPU runs at once, two for each CPU thread, or 4 in the
    interpreter. A kernel for a GPU is loaded on the GPU, so that the first launch compiles nothing.

    Args:
        kernel: the kernel to launch.
        workgroups: the caller's number of workgroups, or None.
        threads: the number of threads on the CPU; None for COORDGRAPH_THREADS, else one for each
            processor.
    """
    from codegen.targets.nvptx import CudaKernel

    resident = kernel.resident if isinstance(kernel, CudaKernel) else None
    if workgroups is not None or not _open_grid(kernel.graph):
        return workgroups
    if kernel.target == "cpu":
        from codegen.targets.cpu.runtime import WORKGROUPS_PER_THREAD
        from codegen.targets.cpu.threads import thread_count

        return WORKGROUPS_PER_THREAD * thread_count(threads)
    if kernel.target == "interpreter":
        from codegen.targets.interpreter import WORKGROUPS

        return WORKGROUPS
    return resident


def _open_grid(graph: KernelGraph) -> bool:
    return any(p.name == "workgroups" for p in graph.parameters.given)


def cpu_name() -> str:
    """The name of the processor, from the operating system or else from LLVM."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    import llvmlite.binding as llvm

    return platform.processor() or f"{platform.machine()} ({llvm.get_host_cpu_name()})"


def hardware_threads() -> int:
    """The number of hardware threads of the CPU."""
    return os.cpu_count() or 1
