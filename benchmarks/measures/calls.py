"""Measure the host time of one call, and of compiling and loading a kernel.

    python -m benchmarks calls
    python -m benchmarks calls --size 512x512x512 --plan "128x128x64 data-parallel"

The first figures are the microseconds that one call takes on the host. Calls are asynchronous, and
the launch queue is kept short so that none waits for the GPU. PyTorch's functions, a compiled
kernel `kernel(a, b, out=out)`, `codegen.matmul` and `codegen.torch.linear` are timed in turn, with
an array `out` and with a new array for D, with a bias, with a gradient recorded, and with a
backward pass that computes the gradient of the weight. The second figures are the seconds from a
graph to a loaded kernel, each in a new process: with empty caches, and from coordgraph's cache on
disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from benchmarks.options import add_results, add_target, command_line
from benchmarks.peers.plans import Plan, build, gemm_of_layout, loaded, parse_plan
from benchmarks.problems.shapes import Shape, parse_shape
from benchmarks.reports.console import make_console
from benchmarks.reports.record import environment, result_path, write
from codegen.targets.nvptx.driver import unavailable

PLAN = "128x128x64 data-parallel"
PEERS = ("torch.", "F.")
"""How the names of PyTorch's functions begin."""
QUEUE = 32
"""Number of calls between two waits for the GPU: small, because a full launch queue blocks a
call."""


@dataclass(frozen=True)
class Cost:
    """The host microseconds of one call of a function.

    Args:
        name: the name of the function.
        median, low, high: the median and the quartiles, in microseconds.
        calls: the number of calls that were timed.
    """

    name: str
    median: float
    low: float
    high: float
    calls: int


def host_microseconds(
    calls: dict[str, Callable[[], object]],
    synchronize: Callable[[], object],
    rounds: int,
    *,
    queue: int = QUEUE,
    clock: Callable[[], int] = time.perf_counter_ns,
    step: Callable[[], None] = lambda: None,
) -> list[Cost]:
    """Time single calls of each function on the host; returns a `Cost` for each function.

    Args:
        calls: by name, the functions to time.
        synchronize: a function that waits for the GPU.
        rounds: the number of rounds; each round calls every function `queue` times in a row.
        queue: the number of calls in a row before `synchronize`.
        clock: a function that returns the time in nanoseconds; tests replace it.
        step: a function that is called after each round of all functions.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            synchronize()
            times = found[name]
            for _ in range(queue):
                start = clock()
                call()
                times.append((clock() - start) / 1000)
        step()
    synchronize()
    costs: list[Cost] = []
    for name, times in found.items():
        low, median, high = statistics.quantiles(times, n=4, method="inclusive")
        costs.append(Cost(name, median, low, high, len(times)))
    return costs


def operands(size: Shape) -> tuple[Any, Any, Any]:
    """Allocate A, B and D of type bf16 on the GPU."""
    import torch

    a, b, d = (
        torch.randn(*extents, device="cuda", dtype=torch.bfloat16)
        for extents in ((size.m, size.k), (size.k, size.n), (size.m, size.n))
    )
    return a, b, d


def per_call(
    plan: Plan, size: Shape, target: str, rounds: int, step: Callable[[], None]
) -> list[Cost]:
    """Time calls of PyTorch, of the kernel of a plan, and of this library.

    Only the calls named `…, gradient` and `…, backward` record an autograd graph: their weight is a
    `Parameter`. The latter also compute the gradient of the weight.
    """
    import torch

    import codegen.torch

    a, b, out = operands(size)
    weight, bias = b.t(), out[0].clone()
    parameter = torch.nn.Parameter(weight.detach())
    kernel = build(plan, gemm_of_layout("bf16", "nn"), target)
    linear = torch.nn.functional.linear

    def recorded(function: Callable[..., object], *given: Any) -> object:
        with torch.enable_grad():
            return function(*given)

    def differentiated(function: Callable[..., Any]) -> object:
        with torch.enable_grad():
            return torch.autograd.grad(function(a, parameter, bias), (parameter,), out)

    calls: dict[str, Callable[[], object]] = {
        "torch.matmul": lambda: torch.matmul(a, b, out=out),
        f"kernel ({plan})": lambda: kernel(a, b, out=out),
        "codegen.matmul": lambda: codegen.matmul(a, b, out=out),
        "torch.matmul, new D": lambda: torch.matmul(a, b),
        "codegen.matmul, new D": lambda: codegen.matmul(a, b),
        "F.linear with a bias": lambda: linear(a, weight, bias),
        "codegen.torch.linear with a bias": lambda: codegen.torch.linear(a, weight, bias),
        "F.linear, gradient": lambda: recorded(linear, a, parameter, bias),
        "codegen.torch.linear, gradient": lambda: recorded(
            codegen.torch.linear, a, parameter, bias
        ),
        "F.linear, backward": lambda: differentiated(linear),
        "codegen.torch.linear, backward": lambda: differentiated(codegen.torch.linear),
    }
    with torch.no_grad():
        return host_microseconds(calls, torch.cuda.synchronize, rounds, step=step)


def of_pytorch(costs: list[Cost]) -> dict[str, float]:
    """For each function, its median time divided by that of PyTorch's function for the same call.

    PyTorch's function is the last one before it in the list whose name begins with PyTorch's.
    """
    found: dict[str, float] = {}
    peer = costs[0]
    for cost in costs:
        peer = cost if cost.name.startswith(PEERS) else peer
        found[cost.name] = cost.median / peer.median
    return found


def load_in_this_process(plan: Plan, target: str) -> dict[str, Any]:
    """Measure how long scheduling, compiling and loading a kernel take in this process.

    Returns:
        `schedule_seconds`; `load_seconds`, to compile and load; and `cache`, the folder of
        coordgraph's cache on disk, or None if it is off.
    """
    import torch

    import codegen.targets.nvptx

    torch.cuda.synchronize()
    start = time.perf_counter()
    graph = plan.graph(gemm_of_layout("bf16", "nn"))
    scheduled = time.perf_counter()
    loaded(plan, graph, target)
    finished = time.perf_counter()
    where = getattr(codegen, "cache_directory", None)
    return {
        "schedule_seconds": scheduled - start,
        "load_seconds": finished - scheduled,
        "cache": str(where()) if where else None,
    }


def load_in_fresh_processes(plan: Plan, target: str) -> dict[str, dict[str, Any]]:
    """Run `load_in_this_process` in two new processes, one after the other.

    The first process starts with empty caches (of coordgraph and of the CUDA driver, in a new
    temporary folder), the second with the caches that the first has filled. The keys of the result
    are `cold` and `from the disk cache`. If coordgraph's cache is off, only the first process runs.
    """
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        caches = {"XDG_CACHE_HOME": folder, "CUDA_CACHE_PATH": f"{folder}/driver"}
        for name in ("cold", "from the disk cache"):
            command = [sys.executable, "-m", "benchmarks", "calls", "--load", str(plan)]
            done = subprocess.run(
                [*command, "--target", target],
                env=os.environ | caches,
                cwd=Path(__file__).resolve().parents[2],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            found[name] = json.loads(done.stdout.splitlines()[-1])
            cache = found[name]["cache"]
            if cache is None:
                break
            if not cache.startswith(folder):
                found[name]["note"] = f"the cache is {cache}, which may have been filled before"
    return found


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks calls`."""
    made = command_line("calls", __doc__)
    made.add_argument(
        "--size", type=parse_shape, default=parse_shape("256x256x256"), metavar="MxNxK",
        help="a small problem, so that the GPU keeps up with the host; default 256x256x256",
    )  # fmt: skip
    made.add_argument(
        "--plan", type=parse_plan, default=parse_plan(PLAN), help=f"plan; default {PLAN}"
    )
    add_target(made)
    made.add_argument("--rounds", type=int, default=50, help=f"rounds of {QUEUE} calls; default 50")
    add_results(made)
    made.add_argument("--load", type=parse_plan, help=argparse.SUPPRESS)
    return made


def main() -> None:
    """Run `python -m benchmarks calls`."""
    options = parser().parse_args()
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}; run this measure on a machine with an NVIDIA GPU")
    if options.load:
        print(json.dumps(load_in_this_process(options.load, options.target)))
        return
    console = make_console()
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("calls", total=options.rounds)
        costs = per_call(
            options.plan,
            options.size,
            options.target,
            options.rounds,
            lambda: progress.advance(task),
        )
    table = Table("call", "µs", "quartiles", "of PyTorch's", title="host time of one call")
    for cost, ratio in zip(costs, of_pytorch(costs).values(), strict=True):
        spread = f"{cost.low:.1f}–{cost.high:.1f}"
        table.add_row(cost.name, f"{cost.median:.1f}", spread, f"{ratio:.2f}")
    console.print(table)
    with console.status("compiling in a fresh process"):
        loads = load_in_fresh_processes(options.plan, options.target)
    table = Table("kernel", "schedule, s", "to loaded, s", title=f"from a graph: {options.plan}")
    for name, load in loads.items():
        table.add_row(name, f"{load['schedule_seconds']:.3f}", f"{load['load_seconds']:.3f}")
    console.print(table)
    record: dict[str, Any] = {**environment("calls"), "size": options.size.size, "loads": loads}
    record["rows"] = [asdict(cost) for cost in costs]
    path = result_path(options.results, record)
    write(path, record)
    console.print(f"written to {path}")


if __name__ == "__main__":
    main()
