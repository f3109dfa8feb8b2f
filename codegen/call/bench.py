"""`Bench` times launches of plans of one problem, on copies of the operands.

The launches of a sample are the nodes of a CUDA graph. So the time of a launch is that of the GPU,
also if the host needs longer to enqueue a launch, for example while other processes use the CPU.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from codegen.call.arrays import row_major
from codegen.call.request import PlanRequest
from codegen.call.views import TensorView, label
from codegen.kernel import Kernel
from coordgraph import Gemm, LaunchError
from coordgraph.epilogue import ALPHA_BETA
from coordgraph.interpreter.arguments import numpy_dtype
from passes.choosing import Plan, sizes

if TYPE_CHECKING:
    from codegen.targets.nvptx.memory import DeviceMemory

__all__ = ["Bench", "opened", "other_operands"]

COLD_BYTES, MOST_SETS = 192 << 20, 8
"""COLD_BYTES: total size of the copies of the operands that launches alternate between, so that the
L2 cache does not hold them. MOST_SETS: largest number of copies; eight copies of small operands may
fit in the L2 cache."""
FLUSH_BYTES, FLUSHES = 256 << 20, 4
"""Before each sample, FLUSH_BYTES bytes of GPU memory are written FLUSHES times. The writes keep
the GPU busy until the host has launched the CUDA graph of the sample."""
SAMPLE_SECONDS, MOST_LAUNCHES = 3e-3, 256
"""A CUDA graph has as many launches as take SAMPLE_SECONDS seconds together, at most
MOST_LAUNCHES; this number is rounded up so that each copy of the operands is used equally often."""
SUSTAINED_SECONDS = 1.2e-2
"""A sample under load replays the graph for about SUSTAINED_SECONDS seconds. After several such
samples in a row the GPU is at the clock rate to which its power limit lowers it."""
TOLERANCE = 2e-2
"""The largest accepted difference between a plan's D and the D of the first plan, relative to the
largest element of the first plan's D."""
COMPARED_ROWS = 256


@contextmanager
def opened(request: PlanRequest, views: Mapping[str, TensorView]) -> Generator[Bench]:
    """A context manager: a `Bench` on a GPU, whose memory is freed at the end of the `with` block.

    Args:
        request: the problem and the device.
        views: row-major A and B, which are copied, and other operands, which are read in place.
    """
    from codegen.targets.nvptx.driver import allow_while_capturing, cuda, device
    from codegen.targets.nvptx.memory import DeviceMemory

    where = device(request.ordinal)
    with where.current(), allow_while_capturing(), DeviceMemory(where) as memory:
        bench = Bench(request, views, memory)
        try:
            yield bench
        finally:
            cuda("cuStreamSynchronize", bench.stream)
            bench.close()


def other_operands(gemm: Gemm, views: Mapping[str, TensorView]) -> dict[str, Any]:
    """The operands of a user-defined epilogue, by the names of the kernel's arguments.

    Array operands are the caller's arrays, which kernels only read. Scalar operands are 1, since
    the times do not depend on their values. The result is empty for the default epilogue.
    """
    if gemm.epilogue == ALPHA_BETA:
        return {}
    others = ("A", "B", *gemm.stored)
    arrays = {label(name): view for name, view in views.items() if name not in others}
    return {**dict.fromkeys((one.name for one in gemm.epilogue.scalars), 1), **arrays}


def _like(gemm: Gemm, output: str, d: TensorView, views: Mapping[str, TensorView]) -> TensorView:
    """A view with the layout and type of the array `output`, an output of the epilogue besides D.

    The result is the caller's array if `views` has one, else `d` with the type of the output.
    """
    if output in views:
        return views[output]
    return replace(d, dtype=gemm.outputs[output].dtype or d.dtype)


class Bench:
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
        outputs = {n: self._empty(_like(gemm, n, like, views)) for n in gemm.outputs}
        self.others: dict[str, Any] = {**other_operands(gemm, views), **outputs}
        self.flush = memory.allocate(FLUSH_BYTES)
        self.stream = int(cuda("cuStreamCreate", 1))
        self.events = cuda("cuEventCreate", 0), cuda("cuEventCreate", 0)
        self.turn = 0
        self.started: dict[Plan, tuple[Kernel, float]] = {}
        """For each plan that `start` has launched: its kernel, and rough seconds per launch."""
        self.right: npt.NDArray[np.float32] | None = None

    def close(self) -> None:
        """Destroy the CUDA stream and the CUDA events."""
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

    def start(self, plan: Plan, kernel: Kernel) -> None:
        """Launch a plan once, check its result, and find how many launches a sample needs.

        Elements that are infinite or NaN in the first plan's result are not compared.

        Raises:
            CodegenError: the device refuses the kernel's code.
            LaunchError: the result differs from that of the first plan, or the first plan does not
                write all of D.
        """
        found = self._result(plan, kernel, 0xFF)  # elements that are not written are NaN
        if self.right is None:
            self.right = found
            # The operands may have infinite elements or NaN, and so may the result. Elements that
            # are not written differ from those of a second launch.
            if not np.isfinite(found).all() and not np.array_equal(
                found, self._result(plan, kernel, 0), equal_nan=True
            ):
                raise LaunchError(
                    f"the plan '{plan}' does not write all of D; call matmul without tune=True"
                )
        known = np.isfinite(self.right)
        error = float(np.abs(found[known] - self.right[known]).max(initial=0))
        if not error <= TOLERANCE * max(float(np.abs(self.right[known]).max(initial=0)), 1e-30):
            raise LaunchError(
                f"the result of the plan '{plan}' differs from the first plan's by {error:g}, so "
                "one of them is wrong; call matmul without tune=True"
            )
        self.started[plan] = kernel, SAMPLE_SECONDS
        self.started[plan] = kernel, max(self.sample(plan), 1e-7)

    def _result(self, plan: Plan, kernel: Kernel, byte: int) -> npt.NDArray[np.float32]:
        """Fill the first set's D with a byte, launch a kernel on that set, and return rows of D."""
        from codegen.targets.nvptx.driver import cuda

        d = self.sets[0][2]
        cuda("cuMemsetD8", d.pointer, byte, d.bytes)
        cuda("cuCtxSynchronize")
        self.turn = 0
        self.launch(plan, kernel)
        cuda("cuStreamSynchronize", self.stream)
        return self._rows(d)

    def launch(self, plan: Plan, kernel: Kernel) -> None:
        """Launch a kernel once, on the next copy of the operands."""
        a, b, d = self.sets[self.turn % len(self.sets)]
        self.turn += 1
        options = {"stream": self.stream, "workgroups": plan.workgroups}
        kernel(a, b, out=d, **options, **self.others)

    def sample(self, plan: Plan) -> float:
        """Mean seconds of one launch, over launches that follow each other; call `start` first."""
        return self._sample(plan, self.started[plan][1], replays=1)

    def sample_under_load(self, plan: Plan) -> float:
        """Like `sample`, with launches that follow each other for SUSTAINED_SECONDS seconds."""
        seconds = self.started[plan][1]
        replays = max(round(SUSTAINED_SECONDS / (seconds * self._launches(seconds))), 1)
        return self._sample(plan, seconds, replays)

    def _launches(self, seconds: float) -> int:
        """How many launches of about `seconds` seconds each a graph has.

        It has equally many on each set of operands, or one launch if that takes longer than
        SAMPLE_SECONDS; then the next graph uses the next set.
        """
        if seconds > SAMPLE_SECONDS:
            return 1
        count = min(int(SAMPLE_SECONDS / seconds), MOST_LAUNCHES)
        return -(-count // len(self.sets)) * len(self.sets)

    def _sample(self, plan: Plan, seconds: float, replays: int) -> float:
        """Mean seconds of one launch, measured over some replays of a CUDA graph of launches.

        Args:
            plan: a plan for which `start` was called.
            seconds: a rough time of one launch, which decides how many launches the graph has.
            replays: how often to replay the graph.
        """
        from codegen.targets.nvptx.driver import cuda

        count = self._launches(seconds)
        before, after = self.events
        with self._recorded(plan, count) as graph:
            for _ in range(FLUSHES):
                cuda("cuMemsetD32Async", self.flush, 0, FLUSH_BYTES // 4, self.stream)
            cuda("cuEventRecord", before, self.stream)
            for _ in range(replays):
                cuda("cuGraphLaunch", graph, self.stream)
            cuda("cuEventRecord", after, self.stream)
            cuda("cuEventSynchronize", after)
        return float(cuda("cuEventElapsedTime", before, after)) / 1e3 / (count * replays)

    @contextmanager
    def _recorded(self, plan: Plan, count: int) -> Generator[Any]:
        """A context manager: a CUDA graph of `count` launches of a plan, ready to be launched.

        There is one such graph at a time, so that all plans use the same memory for workspaces.
        """
        from codegen.targets.nvptx.driver import bindings, cuda

        kernel, _ = self.started[plan]
        relaxed = bindings().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        cuda("cuStreamBeginCapture", self.stream, relaxed)
        try:
            for _ in range(count):
                self.launch(plan, kernel)
        except BaseException:
            with suppress(LaunchError):  # the error of the launch is the one to raise
                cuda("cuGraphDestroy", cuda("cuStreamEndCapture", self.stream))
            raise
        recorded = cuda("cuStreamEndCapture", self.stream)
        try:
            graph = cuda("cuGraphInstantiate", recorded, 0)
        finally:
            cuda("cuGraphDestroy", recorded)
        try:
            cuda("cuGraphUpload", graph, self.stream)
            yield graph
        finally:
            cuda("cuGraphExecDestroy", graph)

    def _rows(self, view: TensorView) -> npt.NDArray[np.float32]:
        """Copy up to COMPARED_ROWS rows of an array, evenly spaced, to the host, as f32."""
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
