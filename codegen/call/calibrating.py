"""`calibrate`: measure plans on a GPU, and fit the cost model's constants of this GPU to the times.

No kernel is compiled after 40 % of the allowed time; the rest is spent on measuring. One kernel
takes every size, so a few hundred kernels serve hundreds of sizes (see
`passes.choosing.drawn_plans`).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from importlib import import_module
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.call.arrays import row_major
from codegen.call.bench import Bench, opened
from codegen.call.build import kernel_of, refuse
from codegen.call.compile_workers import CompileWorkers
from codegen.call.progress import Advance, progress
from codegen.call.request import PlanRequest
from codegen.call.views import TensorView
from coordgraph import CodegenError, CoordGraphError, Gemm, LaunchError
from coordgraph.interpreter.arguments import numpy_dtype
from passes.choosing import Plan, sizes
from passes.choosing.calibrate import Calibration, calibrated
from passes.choosing.constants import (
    TIMES,
    Constants,
    constants_of,
    file_of,
    known_devices,
    user_folder,
)
from passes.choosing.drawn_plans import Drawn, draw_plans
from passes.choosing.measurements import BY_HOST, Measurements

if TYPE_CHECKING:
    from codegen.targets.nvptx.driver import Device
    from codegen.targets.nvptx.memory import DeviceMemory

__all__ = ["LEAST_MINUTES", "Calibrated", "calibrate"]

LEAST_MINUTES = 1.0
"""The shortest allowed time in minutes; in less time, few constants could be measured."""
LAYOUTS = {"nt": (False, True), "nn": (False, False)}
"""The measured layouts: whether A, and whether B, is given as its transpose."""
SIZES_PER_MINUTE, KERNELS_PER_MINUTE = 80, 50
"""For each layout: how many problem sizes are measured, and at most how many kernels are compiled,
per minute of the time limit."""
COMPILING = 0.4
"""Fraction of the time limit after which no further kernel is compiled; the rest of the time is
spent on measuring."""
FITTING_SECONDS = 15.0
"""Measuring ends this many seconds before the time limit, so that the constants can be fitted."""
CHUNK, WORKERS = 32, 32
"""CHUNK: the time limit is checked after this many kernels were compiled. WORKERS: largest number
of processes that compile kernels."""
ROUNDS = 5
"""Every plan of a size is sampled ROUNDS times, in turn with the others, after one dropped
sample."""
MEMORY_SHARE = 0.9
"""The fraction of the DRAM's peak bandwidth that kernels are assumed to reach."""
RANDOM_ELEMENTS = 1 << 22
"""Number of random elements, which are repeated to fill A and B."""


@dataclass(frozen=True)
class Calibrated:
    """The result of `calibrate`.

    Attributes:
        fitted: the fitted constants of the cost model, and the quality of its choices on sizes that
            were held out of the fit.
        times: the number of measured times, one for each plan that was timed on a problem.
        path: the file to which the constants were written.
        record: the file to which the measured times were written.
    """

    fitted: Calibration
    times: int
    path: Path
    record: Path

    def __str__(self) -> str:
        return f"{self.times} times\n{self.fitted}\nconstants: {self.path}\ntimes: {self.record}"


def calibrate(
    minutes: float = 8.0,
    *,
    device: int = 0,
    output: Path | None = None,
    record: Path | None = None,
) -> Calibrated:
    """Measure plans on a GPU, fit the cost model's constants to the times, and store the constants.

    Later processes of this user find the constants in the user's folder, by the name of the GPU
    (see `passes.choosing.constants.user_folder`). The GPU should be idle.

    Args:
        minutes: the time to take, in minutes; at least 1.
        device: the number of the GPU.
        output: the file to write the constants to; None for the GPU's file in the user's folder.
        record: the file to write the measured times to; None for one in the folder of `output`.

    Raises:
        CodegenError: there is no GPU, or the cost model does not describe its kernels.
        LaunchError: `minutes` is too short, or too few plans could be measured.
        ImportError: scipy is not installed.
    """
    import_module("scipy.optimize")  # fail now if scipy is missing, not after the measurements
    from codegen.targets.nvptx.driver import device as gpu

    start = time.monotonic()
    if not minutes >= LEAST_MINUTES:
        raise LaunchError(f"minutes = {minutes:g} is too short; give at least {LEAST_MINUTES:g}")
    where = gpu(device)
    path = output or file_of(where.name, user_folder())
    record = record or path.with_suffix(TIMES)
    before = constants_of(where.name, where.processors)
    source = f"coordgraph calibrate --minutes {minutes:g}, {date.today().isoformat()}"
    with progress("calibrate") as advance:
        found = measure(where, before, start, 60 * minutes, advance)
        data = {"kind": "sweep", "source": source, **found}
        path.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(data, indent=0), "utf-8")
        advance("fitting", 0, 1)
        known = replace(before, estimated=False, **found["resident"], **found["known"])
        source = f"{source}: {len(found['rows'])} times"
        measured = Measurements.read([record], known)
        fitted = calibrated(measured, replace(known, source=source), before)
    path.write_text(fitted.constants.to_json(), "utf-8")
    known_devices.cache_clear()
    return Calibrated(fitted, len(found["rows"]), path, record)


def measure(
    where: Device, before: Constants, start: float, limit: float, advance: Advance
) -> dict[str, Any]:
    """Time plans on random sizes, and count the clusters that the GPU runs at the same time.

    The result is the record to write as JSON.

    Args:
        where: the GPU.
        before: the constants that predict which plans are worth measuring.
        start: the time when the calibration began, by `time.monotonic`.
        limit: seconds after `start` at which the calibration must end.
        advance: called with the current step, and how many items of how many are done.
    """
    jobs: list[tuple[PlanRequest, Drawn]] = []
    of_layout: list[list[tuple[PlanRequest, Drawn]]] = []
    resident: dict[str, int] = {}
    minutes = limit / 60
    count = round(SIZES_PER_MINUTE * minutes)
    for number, (turned_a, turned_b) in enumerate(LAYOUTS.values()):
        gemm = Gemm("bf16", transpose_a=turned_a, transpose_b=turned_b)
        request = _request(gemm, where)
        drawn = list[Drawn]()
        kernels = round(KERNELS_PER_MINUTE * minutes)
        for done, one in enumerate(draw_plans(gemm, before, count, kernels, seed=number)):
            advance("drawing plans", min(done, count), count)
            if one is not None:
                drawn.append(one)
        over = start + COMPILING * limit * (number + 1) / len(LAYOUTS)
        built = _built(request, drawn, lambda until=over: time.monotonic() > until, advance)
        resident |= _resident(built, request)
        some = [
            (_request(one.gemm, where), replace(one, plans=plans))
            for one in drawn
            if len(plans := tuple(plan for plan in one.plans if plan.kernel in built)) > 1
        ]
        of_layout.append(some)
    # Jobs of the layouts alternate, so that each layout has measurements when time runs out.
    jobs = [job for together in zip(*of_layout, strict=False) for job in together]
    rows: list[dict[str, Any]] = []
    with random_operands(where, jobs) as pools:
        for done, (request, drawn_plans) in enumerate(jobs):
            if time.monotonic() > start + limit - FITTING_SECONDS:
                break
            advance(f"measuring {_text(request.gemm)}", done, len(jobs))
            # A problem that does not fit into memory, for example, is left out.
            with suppress(CoordGraphError):
                rows += _measured(request, drawn_plans.plans, pools)
    if not rows:
        raise LaunchError(
            f"no plan was measured in {minutes:g} minutes; give more by --minutes, or run the "
            "command again: it finds the kernels that it has compiled in the kernel cache"
        )
    return {
        "device": where.name,
        "processors": where.processors,
        "dtype": "bf16",
        "launches": BY_HOST,
        "resident": resident,
        "known": memory_rate(where),
        "rows": rows,
    }


def memory_rate(where: Device) -> dict[str, float]:
    """The cost model's constant `dram_rate`, in bytes per second, as a dict by its name.

    The constant is MEMORY_SHARE of the peak rate, which follows from the DRAM's clock and bus
    width. The result is {} if the driver does not report clock and width.
    """
    from codegen.targets.nvptx.driver import bindings, cuda

    names, handle = bindings().CUdevice_attribute, cuda("cuDeviceGet", where.ordinal)
    kilohertz, bits = (
        float(cuda("cuDeviceGetAttribute", getattr(names, f"CU_DEVICE_ATTRIBUTE_{name}"), handle))
        for name in ("MEMORY_CLOCK_RATE", "GLOBAL_MEMORY_BUS_WIDTH")
    )
    peak = 2 * 1e3 * kilohertz * bits / 8  # the clock is in kHz, with two transfers per cycle
    return {"dram_rate": float(f"{MEMORY_SHARE * peak:.4g}")} if peak else {}


def _request(gemm: Gemm, where: Device) -> PlanRequest:
    """The `PlanRequest` that asks for plans of a problem on a GPU.

    Raises:
        CodegenError: the cost model does not describe the kernels for the GPU.
    """
    found = PlanRequest(gemm, where.architecture, where.name, where.processors, where.ordinal)
    if found.constants is None:
        raise CodegenError(
            f"{where.name} ({where.architecture}) has no wgmma instructions: the cost model "
            "that calibration fits describes kernels with wgmma only, so there is nothing to "
            "calibrate; pass tune=True to measure the plans of a size on this GPU"
        )
    return found


def _built(
    request: PlanRequest, drawn: list[Drawn], over: Callable[[], bool], advance: Advance
) -> dict[str, Any]:
    """The kernels that could be compiled and loaded in time, by the plan's text without a grid."""
    every = {plan.kernel: plan for one in drawn for plan in one.plans}
    plans = list(every.values())
    found: dict[str, Any] = {}
    with CompileWorkers(request, most=WORKERS) as workers:
        for first in range(0, len(plans), CHUNK):
            if over():
                break
            some = plans[first : first + CHUNK]
            advance("compiling", first, len(plans))
            refused = workers.compile(some)
            for plan in some:
                if plan not in refused and (kernel := _loaded(plan, request)) is not None:
                    found[plan.kernel] = kernel
    return found


def _loaded(plan: Plan, request: PlanRequest) -> Any:
    """The kernel of a plan; None if it cannot be built or loaded."""
    try:
        kernel: Any = kernel_of(replace(plan, workgroups=None), request)
    except CoordGraphError:
        return None
    try:
        kernel.resident  # noqa: B018 - loads the code
    except CodegenError as error:
        refuse(kernel, error)
        return None
    return kernel


def _resident(built: dict[str, Any], request: PlanRequest) -> dict[str, int]:
    """How many clusters the GPU runs at the same time, by the name of a constant of the cost model.

    The constant is `pairs` for clusters of 2 CTAs, `fours` for 4, and `eights` for 8. Sizes of
    clusters that none of the built kernels has are left out.
    """
    found: dict[str, int] = {}
    for text, kernel in built.items():
        workgroups = prod(Plan.parse(text).cluster)
        name = {2: "pairs", 4: "fours", 8: "eights"}.get(workgroups)
        if name is not None:
            # Kernels that need little shared memory may have two CTAs on an SM; the cost model
            # describes kernels with one.
            found[name] = min(found.get(name, kernel.resident), kernel.resident)
    return found


@contextmanager
def random_operands(
    where: Device, jobs: list[tuple[PlanRequest, Drawn]]
) -> Generator[tuple[int, int]]:
    """A context manager: GPU memory with random elements for the largest A and B of `jobs`.

    The `with` block gets the addresses of A and of B.
    """
    from codegen.targets.nvptx.memory import DeviceMemory

    extents = [sizes(request.gemm) for request, _ in jobs]
    source = np.random.default_rng(0).standard_normal(RANDOM_ELEMENTS, np.float32)
    block = source.astype(numpy_dtype("bf16"))
    with where.current(), DeviceMemory(where) as memory:
        yield (
            _filled(memory, 2 * max((m * k for m, _, k in extents), default=1), block),
            _filled(memory, 2 * max((n * k for _, n, k in extents), default=1), block),
        )


def _filled(memory: DeviceMemory, size: int, block: Any) -> int:
    """The address of `size` bytes of GPU memory, filled with copies of an array of the host."""
    from codegen.targets.nvptx.driver import cuda

    pointer = memory.allocate(size)
    first = min(size, block.nbytes)
    cuda("cuMemcpyHtoD", pointer, block.ctypes.data, first)
    for place in range(first, size, first):
        cuda("cuMemcpyDtoD", pointer + place, pointer, min(first, size - place))
    return pointer


def _measured(
    request: PlanRequest, plans: tuple[Plan, ...], pools: tuple[int, int]
) -> Iterator[dict[str, Any]]:
    """Measure the plans of one problem; yield a row with median seconds for each plan that runs."""
    gemm = request.gemm
    m, n, k = sizes(gemm)
    shapes = {
        "A": (k, m) if gemm.transpose_a else (m, k),
        "B": (n, k) if gemm.transpose_b else (k, n),
    }
    views = {
        name: TensorView(pointer, shape, row_major(shape), gemm.dtype, request.ordinal)
        for (name, shape), pointer in zip(shapes.items(), pools, strict=True)
    }
    with opened(request, views) as bench:
        for plan, seconds in times(bench, request, plans).items():
            layout = "".join("nt"[turned] for turned in (gemm.transpose_a, gemm.transpose_b))
            size = {"m": m, "n": n, "k": k, "layout": layout}
            yield {**size, "plan": str(plan), "t": float(f"{seconds:.5g}")}


def times(bench: Bench, request: PlanRequest, plans: tuple[Plan, ...]) -> dict[Plan, float]:
    """The median seconds of a launch of each plan that can be launched, sampled in turn."""
    ready: list[Plan] = []
    for plan in plans:
        try:
            kernel = kernel_of(plan, request)
            bench.start(plan, kernel)
        except CoordGraphError:
            continue
        ready.append(plan)
    samples: dict[Plan, list[float]] = {plan: [] for plan in ready}
    for _ in range(ROUNDS + 1):
        for plan in ready:
            samples[plan].append(bench.sample(plan))
    return {plan: statistics.median(taken[1:]) for plan, taken in samples.items()}


def _text(gemm: Gemm) -> str:
    m, n, k = sizes(gemm)
    return f"{m}x{n}x{k}"
