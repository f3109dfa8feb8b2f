"""Tuning: measure the most promising plans for a problem, and keep the times for later calls."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from codegen.call.arrays import row_major
from codegen.call.build import try_plans
from codegen.call.measured import remember, remembered
from codegen.call.request import PlanRequest
from codegen.call.views import TensorView
from codegen.kernel import Kernel
from coordgraph import CodegenError, LaunchError
from coordgraph.interpreter.arguments import numpy_dtype
from passes.choosing import Plan, sizes

if TYPE_CHECKING:
    from codegen.targets.nvptx.memory import DeviceMemory

__all__ = ["MEASURED", "tune_plans"]

MEASURED = 12
"""The largest number of plans that are measured for a problem."""
COLD_BYTES, MOST_SETS = 192 << 20, 8
"""COLD_BYTES: total size of the copies of the operands that launches alternate between, so that the
L2 cache holds none of them. MOST_SETS: largest number of copies."""
FLUSH_BYTES, FLUSHES = 256 << 20, 4
"""Bytes of memory to write, and how often, before each sample: it keeps the GPU busy while the host
enqueues the launches."""
ROUNDS, SAMPLE_SECONDS, MOST_LAUNCHES = 7, 1e-3, 16
TOLERANCE = 2e-2
"""Largest difference from the first plan's result, relative to that result's largest element."""
COMPARED_ROWS = 256


def tune_plans(request: PlanRequest, views: Mapping[str, TensorView], stream: Any) -> None:
    """Measure the most promising plans for a call, unless they were measured before.

    The times are stored, and `codegen.call.choose` prefers the fastest plan from then on. Nothing
    is measured on the CPU, for products without elements, or if there is only one plan.

    Args:
        request: the problem and the device.
        views: row-major A and B; they are copied, and no other memory of the caller is accessed.
        stream: the stream of the call, or None.

    Raises:
        LaunchError: the stream is capturing a CUDA graph, or a plan gives a wrong result.
        CodegenError: no plan can be built.
    """
    empty = any(view.bytes == 0 for view in views.values())
    if request.target == "cpu" or empty or remembered(request) is not None:
        return
    _refuse_capture(stream)
    plans = try_plans(request, None, lambda plan, kernel: (plan, kernel), count=MEASURED)
    if len(plans) > 1 and (seconds := _measured(request, views, plans)):
        remember(request, seconds)


def _refuse_capture(stream: Any) -> None:
    from codegen.call.arrays import stream_handle
    from codegen.targets.nvptx.driver import bindings, cuda

    handles = [0] if stream is None else [stream_handle(stream)]
    torch = sys.modules.get("torch")
    if stream is None and torch is not None and torch.cuda.is_initialized():
        handles = [int(torch.cuda.current_stream().cuda_stream)]
    nothing = bindings().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    for handle in handles:
        if cuda("cuStreamIsCapturing", handle) != nothing:
            raise LaunchError(
                "tune=True inside the capture of a CUDA graph: launches cannot be timed there. "
                "Call matmul with tune=True once before, then without in the capture"
            )


def _measured(
    request: PlanRequest, views: Mapping[str, TensorView], plans: Sequence[tuple[Plan, Kernel]]
) -> dict[Plan, float]:
    """Median seconds of a launch of each plan that runs; every round samples each plan once."""
    from codegen.targets.nvptx.driver import allow_while_capturing, cuda, device
    from codegen.targets.nvptx.memory import DeviceMemory

    where = device(request.ordinal)
    with where.current(), allow_while_capturing(), DeviceMemory(where) as memory:
        bench = _Bench(request, views, memory)
        try:
            samples: dict[int, list[float]] = {}
            counts = [0] * len(plans)
            for at, (plan, kernel) in enumerate(plans):
                with suppress(CodegenError):  # the device refuses the code
                    counts[at] = bench.start(plan, kernel)
                    samples[at] = []
            places = list(samples)
            for turn in range(ROUNDS):
                for place in range(len(places)):
                    at = places[(place + turn) % len(places)]
                    samples[at].append(bench.sample(*plans[at], counts[at]))
        finally:
            cuda("cuStreamSynchronize", bench.stream)
            bench.close()
    return {plans[at][0]: statistics.median(found) for at, found in samples.items()}


class _Bench:
    """Copies of the operands in device memory, and timed launches on them."""

    def __init__(
        self, request: PlanRequest, views: Mapping[str, TensorView], memory: DeviceMemory
    ) -> None:
        from codegen.targets.nvptx.driver import cuda

        gemm, (m, n, _) = request.gemm, sizes(request.gemm)
        self.memory = memory
        kind = gemm.out_dtype or gemm.dtype
        shape = (request.batches, m, n) if gemm.batched else (m, n)
        like = TensorView(0, shape, row_major(shape), kind, memory.device.ordinal)
        size = views["A"].bytes + views["B"].bytes + like.bytes
        count = min(max(-(-COLD_BYTES // size), 2), MOST_SETS)
        cuda("cuCtxSynchronize")  # kernels on any stream may still be writing A and B
        self.sets = [
            (self._copy(views["A"]), self._copy(views["B"]), self._empty(like))
            for _ in range(count)
        ]
        self.flush = memory.allocate(FLUSH_BYTES)
        self.stream = int(cuda("cuStreamCreate", 1))
        self.events = cuda("cuEventCreate", 0), cuda("cuEventCreate", 0)
        self.turn = 0
        self.right: npt.NDArray[np.float32] | None = None

    def close(self) -> None:
        from codegen.targets.nvptx.driver import cuda

        for event in self.events:
            cuda("cuEventDestroy", event)
        cuda("cuStreamDestroy", self.stream)

    def _copy(self, view: TensorView) -> TensorView:
        from codegen.targets.nvptx.driver import cuda

        made = self._empty(view)
        cuda("cuMemcpyDtoD", made.pointer, view.pointer, view.bytes)
        return made

    def _empty(self, like: TensorView) -> TensorView:
        """New memory with the same address modulo 16 as `like`: TMA needs 16-byte alignment."""
        offset = like.pointer % 16
        pointer = self.memory.allocate(like.bytes + offset) + offset
        return TensorView(pointer, like.shape, like.strides, like.dtype, like.device)

    def start(self, plan: Plan, kernel: Kernel) -> int:
        """Check the plan's result; return the number of launches for a sample."""
        from codegen.targets.nvptx.driver import cuda

        d = self.sets[0][2]
        cuda("cuMemsetD8", d.pointer, 0xFF, d.bytes)  # every float of D becomes NaN
        cuda("cuCtxSynchronize")
        self.turn = 0
        self.launch(plan, kernel)
        cuda("cuStreamSynchronize", self.stream)
        found = self._rows(d)
        if self.right is None:
            self.right = found
        error = float(np.abs(found - self.right).max())
        if not error <= TOLERANCE * max(float(np.abs(self.right).max()), 1e-30):
            raise LaunchError(f"'{plan}' gives a result that differs by {error:g}; not measured")
        once = self.sample(plan, kernel, 2)
        return min(max(int(SAMPLE_SECONDS / max(once, 1e-7)), 2), MOST_LAUNCHES)

    def launch(self, plan: Plan, kernel: Kernel) -> None:
        """Launch a kernel once, on the next copy of the operands."""
        a, b, d = self.sets[self.turn % len(self.sets)]
        self.turn += 1
        kernel(a, b, None, d, stream=self.stream, workgroups=plan.workgroups)

    def sample(self, plan: Plan, kernel: Kernel, count: int) -> float:
        """Seconds of one launch: the mean of `count` launches back to back."""
        from codegen.targets.nvptx.driver import cuda

        before, after = self.events
        for _ in range(FLUSHES):
            cuda("cuMemsetD32Async", self.flush, 0, FLUSH_BYTES // 4, self.stream)
        cuda("cuEventRecord", before, self.stream)
        for _ in range(count):
            self.launch(plan, kernel)
        cuda("cuEventRecord", after, self.stream)
        cuda("cuEventSynchronize", after)
        return float(cuda("cuEventElapsedTime", before, after)) / 1e3 / count

    def _rows(self, view: TensorView) -> npt.NDArray[np.float32]:
        """Up to COMPARED_ROWS rows, spread over all matrices, copied to the host as f32."""
        from codegen.targets.nvptx.driver import cuda

        rows, columns = prod(view.shape[:-1]), view.shape[-1]
        kind = numpy_dtype(view.dtype)
        wanted = np.unique(np.linspace(0, rows - 1, COMPARED_ROWS).astype(int))
        found = np.empty((len(wanted), columns), kind)
        pitch = columns * kind.itemsize
        for place, row in enumerate(wanted):
            start = view.pointer + int(row) * pitch
            cuda("cuMemcpyDtoH", found[place].ctypes.data, start, pitch)
        return found.astype(np.float32)
