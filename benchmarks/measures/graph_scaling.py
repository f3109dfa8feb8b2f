"""Measure the seconds to build, verify, print, parse and traverse graphs of many edges.

    python -m benchmarks graph --edges 100 1000 10000 --json scaling.json

Times should grow near-linearly. The graph is a chain of links `x --Tile--> number, inside
--Flatten--> y --PassThrough--> x'` with symbolic sizes, and about one operation for every ten
edges. `reverse` computes the first coordinate of the chain from the last one. `wide` takes another
graph, of equally many `Tile` edges without a common dimension, and computes the tiled coordinates
of all these edges in one call. Each time is the minimum of a few runs. No GPU is needed.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sympy import Integer

from benchmarks.options import command_line
from coordgraph import CoordinateGraph, Gemm, KernelGraph, parse
from coordgraph.checks import run_checks
from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import For, Kernel, LoadTile
from coordgraph.coordinates.dimensions import Linear
from coordgraph.coordinates.edges import Flatten, PassThrough, Tile
from coordgraph.integers import size_symbol
from coordgraph.parameters import Parameter, Parameters
from coordgraph.text import print_graph

STEPS = ("build", "verify", "print", "parse", "reverse", "wide")
EDGES = (100, 1000, 10000)
LENGTH = 5040
INSIDE = tuple(d for d in range(2, LENGTH) if LENGTH % d == 0)
"""Extents of inner tiles: every divisor of `LENGTH` but 1 and itself; `Tile` edges take turns."""
COUNTS = 8


def chain(edges: int) -> KernelGraph:
    """A kernel graph whose coordinates are a chain of at least `edges` edges.

    Each link of the chain has three edges: `Tile`, `Flatten` and `PassThrough`.
    """
    parameters = tuple(Parameter(f"n{i}", 1, 65535) for i in range(COUNTS))
    count = -(-edges // 3)
    size = size_symbol("n0") * LENGTH
    with CoordinateGraph().edit() as e:
        e.add(Linear("x0", size))
        for i in range(count):
            inside = INSIDE[i % len(INSIDE)]
            e.add(Linear(f"number{i}", size_symbol("n0") * (LENGTH // inside), note="which tile"))
            e.add(Linear(f"inside{i}", Integer(inside)))
            e.add(Linear(f"y{i}", size))
            e.add(Linear(f"x{i + 1}", size))
            e.connect(Tile(f"x{i}", (f"number{i}", f"inside{i}")))
            e.connect(Flatten((f"number{i}", f"inside{i}"), f"y{i}"))
            e.connect(PassThrough(f"y{i}", f"x{i + 1}"))
    loops = tuple(
        For(
            f"number{i}",
            Integer(0),
            size_symbol(f"n{i % COUNTS}") + i,
            body=(LoadTile("A", (f"number{i}", f"inside{i}")),),
        )
        for i in range(0, count, 7)
    )
    control = ControlGraph(Kernel(loops))
    return KernelGraph(Gemm(), e.graph, control, Parameters(parameters))


def fan(edges: int) -> CoordinateGraph:
    """A coordinate graph of `edges` independent `Tile` edges."""
    tiles = size_symbol("n0")
    with CoordinateGraph().edit() as e:
        for i in range(edges):
            inside = INSIDE[i % len(INSIDE)]
            e.add(Linear(f"x{i}", tiles * inside))
            e.add(Linear(f"number{i}", tiles))
            e.add(Linear(f"inside{i}", Integer(inside)))
            e.connect(Tile(f"x{i}", (f"number{i}", f"inside{i}")))
    return e.graph


def measure(edges: int, repeats: int = 1) -> dict[str, float]:
    """The least seconds, in `repeats` runs, of each step on a graph of `edges` edges.

    The keys of the result are the steps: `build`, `verify`, `print`, `parse`, `reverse` and `wide`.
    """
    graph = chain(edges)
    text = print_graph(graph)
    independent = fan(edges)
    upstream = [d.id for d in independent if d.id.startswith("x")]
    downstream = [d.id for d in independent if not d.id.startswith("x")]
    last = f"x{len(graph.coordinates.edges) // 3}"
    steps: dict[str, Callable[[], object]] = {
        "build": lambda: chain(edges),
        "verify": lambda: run_checks(graph, ("well-formed",)),
        "print": lambda: print_graph(graph),
        "parse": lambda: parse(text),
        "reverse": lambda: graph.coordinates.reverse([last], ["x0"]),
        "wide": lambda: independent.reverse(downstream, upstream),
    }
    return {name: min(_seconds(step) for _ in range(repeats)) for name, step in steps.items()}


def _seconds(step: Callable[[], object]) -> float:
    gc.collect()  # else garbage of earlier steps might be collected while this step is timed
    start = time.process_time()
    step()
    return time.process_time() - start


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks graph`."""
    made = command_line("graph", __doc__)
    made.add_argument("--edges", type=int, nargs="+", default=list(EDGES), metavar="N")
    made.add_argument("--repeats", type=int, default=3, help="runs of each step; default 3")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the seconds to FILE too")
    return made


def main() -> None:
    """Run `python -m benchmarks graph`."""
    options = parser().parse_args()
    results = {edges: measure(edges, options.repeats) for edges in options.edges}
    table = Table("edges", *STEPS, title="seconds")
    for edges, times in results.items():
        table.add_row(str(edges), *(f"{times[step]:.4f}" for step in STEPS))
    Console().print(table)
    if options.json:
        options.json.write_text(
            json.dumps({str(n): t for n, t in results.items()}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
