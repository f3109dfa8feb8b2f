"""`release`: frees a kernel's workspaces and code on GPUs, when the kernel is no longer used."""

from __future__ import annotations

from contextlib import suppress

from codegen.architectures import Variant
from codegen.targets.nvptx.driver import cuda
from codegen.targets.nvptx.launch.call import Loaded
from codegen.targets.nvptx.launch.device_workspaces import Workspaces
from coordgraph import LaunchError

__all__ = ["release"]


def release(
    functions: dict[tuple[int, Variant], Loaded], workspaces: dict[int, Workspaces]
) -> None:
    """Free the workspaces and unload the code of a kernel, after its launches have ended."""
    for owned in workspaces.values():
        with suppress(LaunchError), owned.device.current():
            cuda("cuCtxSynchronize")
            owned.close()
    for loaded in functions.values():
        with suppress(LaunchError), loaded.function.device.current():
            cuda("cuCtxSynchronize")
            loaded.function.close()
