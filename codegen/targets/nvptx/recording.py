"""`RecordingKernel`: a CUDA kernel that records a timeline of its workgroups."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from codegen.call.views import TensorView
from codegen.targets.nvptx.cuda_kernel import CudaKernel
from codegen.targets.nvptx.driver import cuda
from codegen.targets.nvptx.launch.call import CheckedCall, Depthless, Launches, Pointers
from codegen.timeline import Timeline, decode
from coordgraph import KernelGraph, LaunchError
from coordgraph.control.timeline import RECORD_WORDS
from passes import Pass
from passes.timeline import MOST_RECORDS, TIMELINE

__all__ = ["RecordingKernel"]


class _Latest(threading.local):
    """For each thread that calls kernels: the checked call and the stream of its latest launch."""

    def __init__(self) -> None:
        self.call: CheckedCall | None = None
        self.stream = 0
        self.alone = False
        """True while this thread runs the method `timeline`: the host then waits for all earlier
        work on the stream before it launches the kernel, so that nothing overlaps the kernel."""


class _Noted:
    """A checked call that remembers its latest launch, so that the launch's timeline can be read.

    Args:
        plan: the checked call.
        latest: the object that stores the latest launch of each thread.
    """

    def __init__(self, plan: CheckedCall | Depthless, latest: _Latest) -> None:
        self.plan, self.latest, self.shapes = plan, latest, plan.shapes

    def overlaps(self, pointers: Pointers) -> bool:
        """Whether the address ranges of D and another tensor overlap."""
        return self.plan.overlaps(pointers)

    def launch(self, pointers: Pointers, scalars: Sequence[float], stream: int) -> None:
        """Launch the kernel, and store the checked call and the stream of the launch."""
        plan, latest = self.plan, self.latest
        call = plan.plan if isinstance(plan, Depthless) else plan
        if latest.alone:
            with call.function.device.current():
                _refuse_capture(stream)
                # Zero the buffer: a warpgroup that records nothing does not write its part of it.
                buffer = call.workspace(stream, TIMELINE)
                cuda("cuMemsetD32Async", buffer, 0, prod(call.records), stream)
                cuda("cuStreamSynchronize", stream)
        plan.launch(pointers, scalars, stream)
        latest.call, latest.stream = call, stream


class RecordingKernel(CudaKernel):
    """A `CudaKernel` that was compiled with `timeline=True`; a call takes the same arguments."""

    def __init__(
        self,
        graph: KernelGraph,
        architecture: str,
        *,
        debug: bool = False,
        lowering: Pass | None = None,
        instructions: str | None = None,
        timeline: int = MOST_RECORDS,
        verify: bool = False,
    ) -> None:
        super().__init__(
            graph,
            architecture,
            debug=debug,
            lowering=lowering,
            instructions=instructions,
            timeline=timeline,
            verify=verify,
        )
        self._latest = _Latest()

    def _checked(
        self,
        views: dict[str, TensorView],
        scalars: tuple[float, ...],
        workgroups: int | None,
        stream: int | None = None,
    ) -> Launches:
        plan = super()._checked(views, scalars, workgroups, stream)
        return _Noted(plan, self._latest) if isinstance(plan, CheckedCall | Depthless) else plan

    def timeline(self, *args: Any, **options: Any) -> Timeline:
        """Run the kernel once and return its timeline, as described for `Kernel.timeline`."""
        self._latest.call, self._latest.alone = None, True
        try:
            self(*args, **options)
        finally:
            self._latest.alone = False
        call = self._latest.call
        records = np.zeros((0, 1, RECORD_WORDS), np.int32)
        if call is not None:  # no kernel is launched if D is empty
            records = self._records(call, self._latest.stream)
        return decode(records, target=self.target, name=self.title)

    @staticmethod
    def _records(call: CheckedCall, stream: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Wait for the end of a launch and copy its timeline records to the host."""
        records = np.empty(call.records, np.int32)
        with call.function.device.current():
            pointer = call.workspace(stream, TIMELINE)
            cuda("cuStreamSynchronize", stream)
            cuda("cuMemcpyDtoH", records.ctypes.data, pointer, records.nbytes)
        return records


def _refuse_capture(stream: int) -> None:
    """Raise LaunchError if `stream` is capturing a CUDA graph, since the kernel would not run."""
    if int(cuda("cuStreamIsCapturing", stream)):
        raise LaunchError(
            "timeline() was called for a stream that captures a CUDA graph, where no kernel runs; "
            "call it for another stream, or before the capture"
        )
