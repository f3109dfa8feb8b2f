"""Compare the CPU target with NumPy's BLAS, on the same number of threads.

    python -m benchmarks cpu --threads 1 2 --json cpu.json

Each number of threads is measured in a process of its own, because BLAS libraries read that number
when they are loaded. In each round coordgraph and NumPy compute one product each; the figures are
medians over the rounds, in GFLOP/s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.options import command_line
from codegen.targets.cpu import HostKernel
from coordgraph import Gemm
from coordgraph.interpreter.arguments import numpy_dtype
from passes import PASSES, Pipeline

SIZE, ROUNDS, TILE = 1024, 15, (256, 256, 256)
WARM_UP = 2
"""Number of warm-up rounds, whose times are dropped."""
SCHEDULE, DTYPE = "stream-k", "f32"
VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "BLIS_NUM_THREADS",
    "COORDGRAPH_THREADS",
)
"""Environment variables for the number of threads of common BLAS libraries and of coordgraph."""


def measure(
    size: int = SIZE,
    threads: int = 1,
    *,
    dtype: str = DTYPE,
    tile: tuple[int, int, int] = TILE,
    schedule: str = SCHEDULE,
    rounds: int = ROUNDS,
) -> dict[str, float]:
    """The GFLOP/s of `coordgraph` and of `numpy`, measured in a new process."""
    options = {
        "size": size,
        "threads": threads,
        "dtype": dtype,
        "tile": tile,
        "schedule": schedule,
        "rounds": rounds,
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.measures.cpu_vs_numpy",
            "--measure",
            json.dumps(options),
        ],
        env=os.environ | dict.fromkeys(VARIABLES, str(threads)),
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def _measure_in_this_process(options: dict[str, Any]) -> dict[str, float]:
    size, threads = options["size"], options["threads"]
    gemm = Gemm(options["dtype"])
    graph = Pipeline([PASSES[options["schedule"]]()])(gemm.graph(tuple(options["tile"])))
    kernel = HostKernel(graph)
    random = np.random.default_rng(0)
    kind = numpy_dtype(gemm.dtype)
    a, b = (random.standard_normal((size, size)).astype(kind) for _ in "ab")
    out = np.empty((size, size), kind)
    arguments = {parameter.name for parameter in graph.parameters.given}
    grid = {"workgroups": threads} if "workgroups" in arguments else {}
    calls: dict[str, Callable[[], object]] = {
        "coordgraph": lambda: kernel(a, b, out=out, **grid),
        "numpy": lambda: np.matmul(a, b, out=out),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(options["rounds"] + WARM_UP):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if round_ >= WARM_UP:
                seconds[name].append(time.perf_counter() - start)
    return {name: 2e-9 * size**3 / median(values) for name, values in seconds.items()}


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks cpu`."""
    made = command_line("cpu", __doc__)
    made.add_argument(
        "--size", type=int, nargs="+", default=[SIZE], help=f"sizes m = n = k; default {SIZE}"
    )
    made.add_argument(
        "--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1],
        help="numbers of threads; default 1 and one for each core",
    )  # fmt: skip
    made.add_argument("--dtype", default=DTYPE, help=f"element type; default {DTYPE}")
    made.add_argument("--tile", type=int, nargs=3, default=TILE, metavar=("M", "N", "K"))
    made.add_argument("--schedule", default=SCHEDULE, help=f"name of a pass; default {SCHEDULE}")
    made.add_argument("--rounds", type=int, default=ROUNDS, help=f"rounds; default {ROUNDS}")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE too")
    made.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    return made


def main() -> None:
    """Run `python -m benchmarks cpu`."""
    options = parser().parse_args()
    if options.measure:
        print(json.dumps(_measure_in_this_process(options.measure)))
        return
    results: list[dict[str, float]] = []
    table = Table("size", "threads", "coordgraph", "numpy", "ratio", title="GFLOP/s")
    for size in options.size:
        for threads in dict.fromkeys(options.threads):
            found = measure(
                size,
                threads,
                dtype=options.dtype,
                tile=tuple(options.tile),
                schedule=options.schedule,
                rounds=options.rounds,
            )
            ratio = found["coordgraph"] / found["numpy"]
            results.append({"size": size, "threads": threads, "ratio": ratio, **found})
            figures = (found["coordgraph"], found["numpy"])
            table.add_row(str(size), str(threads), *(f"{x:.1f}" for x in figures), f"{ratio:.2f}")
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
