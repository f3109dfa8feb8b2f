"""Free what kernels hold on GPUs, when the kernels are no longer used and no graph is captured.

The garbage collector may drop a kernel at any time, in any thread, also while a stream captures a
CUDA graph. Waiting for a device, freeing memory and unloading code would then invalidate the
capture. So `release`, which the collector calls, only notes what is to be freed, and the next call
of a kernel with new shapes, on a stream that captures nothing, frees it.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from codegen.architectures import Variant
from codegen.targets.nvptx.driver import allow_while_capturing, cuda, is_capturing
from codegen.targets.nvptx.launch.call import Loaded
from codegen.targets.nvptx.launch.device_workspaces import Workspaces
from coordgraph import LaunchError

__all__ = ["free_released", "release"]

Functions = dict[tuple[int, Variant], Loaded]

released = deque[tuple[Functions, dict[int, Workspaces]]]()
"""The loaded code and the workspaces of kernels that no longer exist. Appending to a deque is
atomic, so that the garbage collector may append in any thread."""


def release(functions: Functions, workspaces: dict[int, Workspaces]) -> None:
    """Put a dropped kernel's code and workspaces in `released`; call no driver function."""
    if functions or workspaces:
        released.append((functions, workspaces))


def free_released(stream: int | None = None) -> None:
    """Wait for the launches of all released kernels, free their workspaces, unload their code.

    Args:
        stream: the stream of the next launch; if this stream captures a CUDA graph, nothing is
            freed. None if the caller knows that nothing is captured.
    """
    if not released or (stream is not None and is_capturing(stream)):
        return
    with suppress(LaunchError), allow_while_capturing():
        while released:
            try:
                functions, workspaces = released.popleft()
            except IndexError:  # another thread has taken the last entry of `released`
                return
            _free(functions, workspaces)


def _free(functions: Functions, workspaces: dict[int, Workspaces]) -> None:
    for owned in workspaces.values():
        with suppress(LaunchError), owned.device.current():
            cuda("cuCtxSynchronize")
            owned.close()
    for loaded in functions.values():
        with suppress(LaunchError), loaded.function.device.current():
            cuda("cuCtxSynchronize")
            loaded.function.close()
