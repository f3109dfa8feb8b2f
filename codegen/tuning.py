"""Tuning: measure the most promising plans for a problem, and remember the best.

What was found is kept in `tuned.json` in the folder of the kernel cache, one entry for each
problem, layout, types, GPU, driver and version of the generator. It only ever saves time: where the
file cannot be read or written, a process remembers by itself.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from codegen.arrays import row_major
from codegen.cache import cache_directory, key_of
from codegen.checks import TensorView
from codegen.kernel import Kernel
from coordgraph import CodegenError, CoordGraphError, LaunchError
from coordgraph.interpreter.arguments import numpy_dtype
from passes.choosing import Plan, sizes

if TYPE_CHECKING:
    from codegen.nvptx.memory import DeviceMemory
    from codegen.situation import Situation

__all__ = ["MEASURED", "Measured", "forget", "preferred", "remember", "remembered", "tuned"]

MEASURED = 12
"""Plans that are timed."""
FILE, LOCK, MOST_ENTRIES, LONGEST_WAIT = "tuned.json", "tuned.lock", 5000, 20.0
COLD_BYTES, MOST_SETS = 192 << 20, 8
"""Operands take turns, so that one launch does not find those of the launch before in the cache."""
FLUSH_BYTES, FLUSHES = 256 << 20, 4
"""Written before each sample: for as long as it takes to prepare the launches."""
ROUNDS, SAMPLE_SECONDS, MOST_LAUNCHES = 7, 1e-3, 16
TOLERANCE = 2e-2
"""Of a result against that of the first plan, relative to its largest element."""
COMPARED_ROWS = 256

Build = Callable[["Situation"], Iterator[tuple[Plan, Kernel]]]
_known: dict[str, dict[str, float]] = {}
"""Seconds of plans by their text, for every problem; the fastest first."""
_read_from: Path | None = None
_lock = threading.RLock()


@dataclass(frozen=True)
class Measured:
    """What plans took for a problem: median seconds of a launch, the fastest first."""

    times: tuple[tuple[Plan, float], ...]

    @property
    def plan(self) -> Plan:
        """The best."""
        return self.times[0][0]

    @property
    def seconds(self) -> float:
        """Of the best."""
        return self.times[0][1]


def remembered(situation: Situation) -> Measured | None:
    """What was measured for the problem on the device, or None."""
    with _lock:
        _read()
        times = _known.get(_key(situation)) if _known else None
    if not times:
        return None
    try:
        return Measured(tuple((Plan.parse(text), seconds) for text, seconds in times.items()))
    except CoordGraphError:  # somebody wrote something else there
        return None


def preferred(situation: Situation) -> Iterator[Plan]:
    """Plans, the best first: the one that was measured to be, then as they are predicted."""
    measured = remembered(situation)
    if measured is not None:
        yield measured.plan
    yield from situation.plans()


def remember(situation: Situation, seconds: Mapping[Plan, float]) -> None:
    """Keep what plans took for calls to come, also of other processes."""
    key = _key(situation)
    times = _fastest_first({str(plan): taken for plan, taken in seconds.items()})
    best = next(iter(times))
    with _lock:
        _known[key] = times
    folder = cache_directory()
    if folder is None:
        return
    import filelock

    with suppress(OSError, NotImplementedError):  # not writable, not lockable, or a wait too long
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with filelock.FileLock(folder / LOCK, timeout=LONGEST_WAIT):
            entries = _entries(folder)
            entries[key] = {
                "plan": best,
                "seconds": times[best],
                "times": times,
                "problem": _text(situation),
            }
            _write(folder, dict(list(entries.items())[-MOST_ENTRIES:]))


def forget() -> None:
    """Read the file again when it is needed next."""
    global _read_from
    with _lock:
        _known.clear()
        _read_from = None


def _read() -> None:
    """Read the file once, and again where the cache has moved."""
    global _read_from
    folder = cache_directory()
    if folder == _read_from:
        return
    _known.clear()
    _read_from = folder
    if folder is not None:
        _known.update({key: _times(entry) for key, entry in _entries(folder).items()})


def _entries(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        found = json.loads((folder / FILE).read_text("utf-8"))
        return {key: entry for key, entry in found.items() if isinstance(entry["plan"], str)}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _times(entry: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of an entry's plans; empty where somebody wrote something else there."""
    try:
        return _fastest_first({text: float(taken) for text, taken in entry["times"].items()})
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _fastest_first(times: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(times.items(), key=lambda item: item[1]))


def _write(folder: Path, entries: Mapping[str, Any]) -> None:
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=FILE, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(entries, file, indent=1)
        os.replace(name, folder / FILE)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def _text(situation: Situation) -> str:
    g = situation.gemm
    layout = "".join("t" if turned else "n" for turned in (g.transpose_a, g.transpose_b))
    kinds = f"{g.dtype} {g.out_dtype or g.dtype} {'boxes' if situation.boxes else 'elements'}"
    kinds += " C" if situation.reads_c else ""
    where = f"{situation.device} {situation.processors} {situation.target}"
    many = f"{situation.batches} of " if g.batched else ""
    if g.grouped:
        many = f"{situation.batches} groups of {g.group_axis} in "
    return f"{many}{g.m}x{g.n}x{g.k} {layout} {kinds} {where}"


def _key(situation: Situation) -> str:
    driver = "none"
    if situation.target != "cpu":
        from codegen.nvptx.driver import cuda

        driver = str(cuda("cuDriverGetVersion"))
    return key_of("tuned", _text(situation), driver)


def tuned(situation: Situation, views: Mapping[str, TensorView], stream: Any, build: Build) -> Plan:
    """The best plan: the one that is remembered, or else the fastest of those that are measured.

    Args:
        situation: the problem and the device.
        views: row-major A and B; they are copied, and nothing else is read or written.
        stream: of the call, or None.
        build: the plans that can be built, the best first, with their kernels.

    Raises:
        LaunchError: the stream captures a CUDA graph, or a plan gives a wrong result.
    """
    found = remembered(situation)
    if found is not None:
        return found.plan
    if situation.target == "cpu":
        return next(build(situation))[0]
    _refuse_capture(stream)
    plans = list(islice(build(situation), MEASURED))
    if len(plans) > 1:
        seconds = _measured(situation, views, plans)
        if seconds:
            remember(situation, seconds)
            return min(seconds, key=seconds.__getitem__)
    return plans[0][0]


def _refuse_capture(stream: Any) -> None:
    from codegen.arrays import stream_handle
    from codegen.nvptx.driver import bindings, cuda

    handles = [0] if stream is None else [stream_handle(stream)]
    torch = __import__("sys").modules.get("torch")
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
    situation: Situation, views: Mapping[str, TensorView], plans: Sequence[tuple[Plan, Kernel]]
) -> dict[Plan, float]:
    """Median seconds of each plan that the device takes; the plans take turns."""
    from codegen.nvptx.driver import allow_while_capturing, cuda, device
    from codegen.nvptx.memory import DeviceMemory

    where = device(situation.ordinal)
    with where.current(), allow_while_capturing(), DeviceMemory(where) as memory:
        bench = _Bench(situation, views, memory)
        try:
            samples: dict[int, list[float]] = {}
            counts = [0] * len(plans)
            for at, (plan, kernel) in enumerate(plans):
                with suppress(CodegenError):  # the device does not take the code
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
    """Copies of the operands, and launches on them."""

    def __init__(
        self, situation: Situation, views: Mapping[str, TensorView], memory: DeviceMemory
    ) -> None:
        from codegen.nvptx.driver import cuda

        gemm, (m, n, _) = situation.gemm, sizes(situation.gemm)
        self.memory = memory
        kind = gemm.out_dtype or gemm.dtype
        shape = (situation.batches, m, n) if gemm.batched else (m, n)
        like = TensorView(0, shape, row_major(shape), kind, memory.device.ordinal)
        size = views["A"].bytes + views["B"].bytes + like.bytes
        count = min(max(-(-COLD_BYTES // size), 2), MOST_SETS)
        cuda("cuCtxSynchronize")  # A and B may still be written, on whatever stream
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
        from codegen.nvptx.driver import cuda

        for event in self.events:
            cuda("cuEventDestroy", event)
        cuda("cuStreamDestroy", self.stream)

    def _copy(self, view: TensorView) -> TensorView:
        from codegen.nvptx.driver import cuda

        made = self._empty(view)
        cuda("cuMemcpyDtoD", made.pointer, view.pointer, view.bytes)
        return made

    def _empty(self, like: TensorView) -> TensorView:
        """Memory that is aligned for the copy engine where that of `like` is."""
        offset = like.pointer % 16
        pointer = self.memory.allocate(like.bytes + offset) + offset
        return TensorView(pointer, like.shape, like.strides, like.dtype, like.device)

    def start(self, plan: Plan, kernel: Kernel) -> int:
        """Check the plan's result; returns how many launches a sample should have."""
        from codegen.nvptx.driver import cuda

        d = self.sets[0][2]
        cuda("cuMemsetD8", d.pointer, 0xFF, d.bytes)  # NaN
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
        """Once, on the operands whose turn it is."""
        a, b, d = self.sets[self.turn % len(self.sets)]
        self.turn += 1
        kernel(a, b, None, d, stream=self.stream, workgroups=plan.workgroups)

    def sample(self, plan: Plan, kernel: Kernel, count: int) -> float:
        """Seconds of a launch among `count` back to back."""
        from codegen.nvptx.driver import cuda

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
        """Rows spread over all matrices, on the host."""
        from codegen.nvptx.driver import cuda

        rows, columns = prod(view.shape[:-1]), view.shape[-1]
        kind = numpy_dtype(view.dtype)
        wanted = np.unique(np.linspace(0, rows - 1, COMPARED_ROWS).astype(int))
        found = np.empty((len(wanted), columns), kind)
        pitch = columns * kind.itemsize
        for place, row in enumerate(wanted):
            start = view.pointer + int(row) * pitch
            cuda("cuMemcpyDtoH", found[place].ctypes.data, start, pitch)
        return found.astype(np.float32)
