"""Compare calls of the CUDA driver by cuda-python and by ctypes, with the same arguments.

    python -m benchmarks driver

The figure is host microseconds of one call of each function. Calls by cuda-python and by ctypes are
timed in turn. Calls are asynchronous, and the launch queue is kept short so that no call waits for
the GPU. The functions are those that every launch of a coordgraph kernel calls: to get the current
context, to ask whether the stream is being captured, and to launch.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.options import command_line
from benchmarks.reports.console import make_console
from codegen.targets.nvptx.driver import Device, bindings, cuda, device, unavailable
from codegen.targets.nvptx.launch.loaded_function import Function
from codegen.targets.nvptx.launch.tensormaps import MAP_BYTES

QUEUE = 32
"""Number of calls between two waits for the GPU: small, because a full launch queue blocks a
call."""


PARAMETERS = (
    *(".u64",) * 4,  # kernel parameters: the addresses of A, B, C and D
    *(".align 64 .b8",) * 3,  # kernel parameters: the tensor maps of A, B and D
    *(".f32",) * 2,
    *(".u32",) * 8,
)
KERNEL = (
    ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty("
    + ", ".join(
        f".param {kind} p{i}{f'[{MAP_BYTES}]' if 'b8' in kind else ''}"
        for i, kind in enumerate(PARAMETERS)
    )
    + ") { ret; }\n"
)
"""PTX of an empty kernel with the argument list of a kernel that uses TMA."""


@dataclass(frozen=True)
class Cost:
    """The host microseconds of one call of a driver function, by cuda-python and by ctypes."""

    name: str
    bindings: float
    ctypes: float

    @property
    def saved(self) -> float:
        """Microseconds per call that ctypes saves over cuda-python."""
        return self.bindings - self.ctypes


Ways = tuple[Callable[[], object], Callable[[], object]]
"""Two functions that make the same driver call: by cuda-python and by ctypes."""


def median_microseconds(
    ways: Ways,
    synchronize: Callable[[], object],
    rounds: int,
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> tuple[float, float]:
    """Median host microseconds of one call of each function in `ways`.

    In each round the two functions take turns, with `QUEUE` calls in a row of each.
    """
    found: tuple[list[float], list[float]] = ([], [])
    for call in ways:
        call()
    for _ in range(rounds):
        for call, times in zip(ways, found, strict=True):
            synchronize()
            start = clock()
            for _ in range(QUEUE):
                call()
            times.append((clock() - start) / 1000 / QUEUE)
    synchronize()
    first, second = map(statistics.median, found)
    return first, second


def library() -> Any:
    """The CUDA driver's library loaded by ctypes."""
    found = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    address = ctypes.c_void_p
    for name, types in {
        "cuCtxGetCurrent": (address,),
        "cuStreamIsCapturing": (address, address),
        "cuLaunchKernelEx": (address,) * 4,
    }.items():
        getattr(found, name).argtypes = types
    return found


def launches(where: Device) -> dict[str, Ways]:
    """By name, the driver functions that a launch calls, each by cuda-python and by ctypes."""
    driver, direct = bindings(), library()
    function = Function(where, KERNEL.encode(), "empty", threads=128, shared_bytes=0)
    address = int(function.handle)
    config, room = function.config(1), ctypes.create_string_buffer(MAP_BYTES)
    config.hStream = 0
    values = (ctypes.c_void_p * len(PARAMETERS))(*[ctypes.addressof(room)] * len(PARAMETERS))
    table, at_config = ctypes.addressof(values), config.getPtr()
    context, capturing = ctypes.c_void_p(), ctypes.c_int()
    at_context, at_capturing = ctypes.addressof(context), ctypes.addressof(capturing)
    keep = (config, values, room, context, capturing)
    return {
        "cuCtxGetCurrent": (
            driver.cuCtxGetCurrent,
            lambda _=keep: direct.cuCtxGetCurrent(at_context),
        ),
        "cuStreamIsCapturing": (
            lambda: driver.cuStreamIsCapturing(0),
            lambda _=keep: direct.cuStreamIsCapturing(0, at_capturing),
        ),
        "cuLaunchKernelEx": (
            lambda _=keep: driver.cuLaunchKernelEx(config, function.handle, table, 0),
            lambda _=keep: direct.cuLaunchKernelEx(at_config, address, table, None),
        ),
    }


def measure(rounds: int) -> list[Cost]:
    """Time every driver function, called by cuda-python and by ctypes."""
    where = device(0)
    where.activate()
    return [
        Cost(name, *median_microseconds(ways, lambda: cuda("cuCtxSynchronize"), rounds))
        for name, ways in launches(where).items()
    ]


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks driver`."""
    made = command_line("driver", __doc__)
    made.add_argument(
        "--rounds", type=int, default=500, help=f"rounds of {QUEUE} calls; default 500"
    )
    return made


def main() -> None:
    """Run `python -m benchmarks driver`."""
    options = parser().parse_args()
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}; run this measure on a machine with an NVIDIA GPU")
    costs = measure(options.rounds)
    title = "host time of one call"
    table = Table("function", "cuda-python, µs", "ctypes, µs", "saved, µs", title=title)
    for cost in costs:
        table.add_row(cost.name, f"{cost.bindings:.2f}", f"{cost.ctypes:.2f}", f"{cost.saved:.2f}")
    saved = sum(cost.saved for cost in costs)
    console = make_console()
    console.print(table)
    console.print(f"a launch through ctypes saves {saved:.2f} µs of host time")


if __name__ == "__main__":
    main()
