"""Measure batch-invariant products: codegen.matmul(invariant=True) for m = 1, 2, 4, … 8192.

    python -m benchmarks invariant                            # five layers, about 6 minutes
    python -m benchmarks invariant --layers 4096x4096 1024x4096 --rows 1 16 256 4096
    python -m benchmarks invariant --predict                  # without a GPU: the model's times

A layer NxK multiplies m tokens by weights with n outputs and k inputs. Contenders, timed in turn:

  coordgraph            codegen.matmul, by the plan that it chooses for each m
  coordgraph invariant  with invariant=True: one order of additions along k for every m
  Triton invariant      one tile configuration for every m, no split-k: a program for each tile
  Triton invariant, persistent    the same kernel with a program for each SM

Results are checked first, as by `benchmarks gemm`. The bits of the invariant product are compared
too: rows 0..m-1 of the product with the largest m are compared with the product of these rows
alone. `of default` is the speed of the invariant product divided by that of `coordgraph` without
invariant=True; the goal is 0.97. `of Triton` is its speed divided by that of the faster Triton
kernel; the goal is 1.5.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.options import (
    add_dtype,
    add_layouts,
    add_results,
    add_sampling,
    add_time_limit,
    command_line,
    require_positive,
)
from benchmarks.problems.problem import transposed
from benchmarks.problems.shapes import Shape
from benchmarks.reports.console import make_console, progress_bars
from benchmarks.reports.record import result_path, write
from benchmarks.reports.summary import Row, geometric_mean
from coordgraph import Gemm
from passes.choosing.pinned_orders import ROWS, pinned_order, predict

__all__ = ["LAYERS", "Ratios", "main", "parse_layer", "predicted", "ratios"]

DEFAULT, INVARIANT, TRITON = "coordgraph", "coordgraph invariant", "Triton invariant"
LAYERS = ("6144x4096", "4096x4096", "28672x4096", "4096x14336", "1024x4096")
"""Layers as n x k: Llama 3 8B's qkv, o, gate_up and down, and one with few columns."""
GOALS = (0.97, 1.5)
"""Goals for the speed of the invariant product: relative to codegen.matmul without invariant=True,
and relative to the faster Triton kernel."""


@dataclass(frozen=True)
class Ratios:
    """The speed of the invariant product of one layer and m, relative to others.

    Args:
        n, k, m: the extents of the product: outputs and inputs of the layer, and tokens.
        seconds: the time of the invariant product, in seconds.
        of_default: the time of codegen.matmul without invariant=True, divided by `seconds`.
        of_triton: the time of the faster Triton kernel, divided by `seconds`; None if no Triton
            kernel was timed.
    """

    n: int
    k: int
    m: int
    seconds: float
    of_default: float
    of_triton: float | None = None


def parse_layer(text: str) -> tuple[int, int]:
    """Parse a layer, `4096x14336`: n and k.

    Raises:
        argparse.ArgumentTypeError: the text has another form.
    """
    try:
        n, k = map(int, text.split("x"))
    except ValueError:
        n = k = 0
    if min(n, k) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no layer; write n and k like 4096x14336")
    return n, k


def ratios(rows: Iterable[Row]) -> list[Ratios]:
    """The speed of the invariant product, for each problem with a time of it and of the default."""
    times: dict[tuple[int, int, int], dict[str, float]] = {}
    for row in rows:
        if "seconds" in row:
            found = times.setdefault((row["n"], row["k"], row["m"]), {})
            found[row["name"]] = row["seconds"]["median"]
    made: list[Ratios] = []
    for (n, k, m), found in times.items():
        if DEFAULT in found and INVARIANT in found:
            ours = found[INVARIANT]
            others = [seconds for name, seconds in found.items() if name.startswith(TRITON)]
            triton = min(others) / ours if others else None
            made.append(Ratios(n, k, m, ours, found[DEFAULT] / ours, triton))
    return made


def predicted(layers: Sequence[tuple[int, int]], dtype: str, layout: str) -> Iterator[Ratios]:
    """For every layer and m, the speed of the invariant product relative to the default plan.

    The cost model predicts the ratios; `of_triton` is None.
    """
    for n, k in layers:
        turned_a, turned_b = transposed(layout)
        problem = Gemm(dtype, n=n, k=k, transpose_a=turned_a, transpose_b=turned_b)
        unit = 64
        order = pinned_order(problem, "wgmma", unit)
        found = next(each for each in predict(problem, unit) if each.order == order)
        for (m, ratio), seconds in zip(found.ratios.items(), found.pinned, strict=True):
            yield Ratios(n, k, m, seconds, ratio)


def means(found: Sequence[Ratios]) -> dict[str, Any]:
    """For each layer, geometric mean and minimum of the ratios `of_default` and `of_triton`."""
    made: dict[str, Any] = {}
    for n, k in dict.fromkeys((one.n, one.k) for one in found):
        of_layer = [one for one in found if (one.n, one.k) == (n, k)]
        default = [one.of_default for one in of_layer]
        triton = [one.of_triton for one in of_layer if one.of_triton is not None]
        made[f"{n}x{k}"] = {
            "of_default": {"mean": geometric_mean(default), "least": min(default)},
        }
        if triton:
            made[f"{n}x{k}"]["of_triton"] = {"mean": geometric_mean(triton), "least": min(triton)}
    return made


def show(found: Sequence[Ratios], console: Console, *, title: str) -> None:
    """Print the invariant product's speed relative to others by layer and m; means by layer."""
    table = Table("n x k", "m", box=SIMPLE, title=title)
    for heading in ("invariant µs", "of default", "of Triton"):
        table.add_column(heading, justify="right")
    for one in found:
        triton = "" if one.of_triton is None else f"{one.of_triton:.2f}"
        name = f"{one.n}x{one.k}"
        table.add_row(name, str(one.m), f"{1e6 * one.seconds:.1f}", f"{one.of_default:.3f}", triton)
    console.print(table)
    for name, of in means(found).items():
        parts = [
            f"{key.replace('_', ' ')}: mean {values['mean']:.3f}, least {values['least']:.3f} "
            f"(goal {goal})"
            for (key, values), goal in zip(of.items(), GOALS, strict=False)
        ]
        console.print(f"{name}  {'; '.join(parts)}", highlight=False)


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks invariant`."""
    made = command_line("invariant", __doc__)
    made.add_argument(
        "--layers", type=parse_layer, nargs="+", metavar="NxK",
        default=[parse_layer(text) for text in LAYERS],
        help=f"n and k of the layers; default {' '.join(LAYERS)}",
    )  # fmt: skip
    made.add_argument(
        "--rows", type=int, nargs="+", default=list(ROWS), metavar="M",
        help="the values of m; default 1, 2, 4, … 8192",
    )  # fmt: skip
    made.add_argument(
        "--predict", action="store_true",
        help="print the times that the cost model predicts for the H200; needs no GPU",
    )  # fmt: skip
    made.add_argument("--no-triton", dest="triton", action="store_false", help="no Triton kernels")
    add_layouts(made, "nt")
    add_dtype(made)
    add_sampling(made, rounds=7, seconds=0.003, regime="sustained")
    add_time_limit(made, 6.0)
    add_results(made)
    return made


def changed_rows(n: int, k: int, rows: Sequence[int], layout: str, dtype: str) -> int:
    """The number of rows of invariant products whose bits depend on m, over all m in `rows`.

    The product of the first m rows of A is compared with the same rows of the product of all rows.
    """
    import torch

    import codegen
    from benchmarks.problems.problem import as_multiplied, operands

    a, b = as_multiplied(*operands(Shape("", max(rows), n, k), layout, dtype)[:2], layout)
    whole = codegen.matmul(a, b, invariant=True)
    changed = 0
    for m in rows:
        alone = codegen.matmul(a[:m], b, invariant=True)
        differs = alone.view(torch.int16) != whole[:m].view(torch.int16)
        changed += int(differs.any(dim=1).sum())
    return changed


def compile_kernels(n: int, k: int, rows: Sequence[int], layout: str, dtype: str) -> None:
    """Compile the kernels that `codegen.matmul` chooses for a layer, in parallel, to the cache."""
    from codegen.call.compile_workers import CompileWorkers
    from codegen.call.request import PlanRequest
    from codegen.targets.nvptx.driver import device

    here = device(0)
    turned_a, turned_b = transposed(layout)
    for invariant in (False, True):
        requests = [
            PlanRequest(
                Gemm(dtype, m=m, n=n, k=k, transpose_a=turned_a, transpose_b=turned_b),
                *(here.architecture, here.name, here.processors, here.ordinal),
                invariant=invariant,
            )
            for m in rows
        ]
        plans = [next(request.plans()) for request in requests]
        with CompileWorkers(requests[0], os.cpu_count()) as workers:
            workers.compile(plans)


def measure(options: argparse.Namespace, record: dict[str, Any], console: Console) -> None:
    """Time all layers and m; writes the record after each problem."""
    from benchmarks.peers.compete import compete
    from benchmarks.peers.ours import Library
    from benchmarks.problems.problem import Problem
    from benchmarks.timing.budget import TimeBudget
    from benchmarks.timing.monitor import Monitor

    contenders: list[Any] = [Library(), Library(invariant=True)]
    if options.triton:
        try:
            from benchmarks.peers.triton_invariant import InvariantTriton

            contenders += [InvariantTriton(persistent=False), InvariantTriton(persistent=True)]
        except ImportError as error:
            console.print(f"Triton is not timed: {error}")
    path = result_path(options.results, record)
    layouts = [(layout, *layer) for layout in options.layouts for layer in options.layers]
    jobs = [(*one, m) for one in layouts for m in options.rows]
    with console.status("compiling"):
        for layout, n, k in layouts:
            compile_kernels(n, k, options.rows, layout, options.dtype)
    with Monitor() as monitor, progress_bars(console) as progress:
        task = progress.add_task("problems", total=len(jobs))
        budget = TimeBudget(options.time_limit, len(jobs))
        for layout, n, k, m in jobs:
            progress.update(task, description=f"{m}x{n}x{k} {layout}")
            problem = Problem(Shape(f"{n}x{k}", m, n, k), layout, options.dtype)
            record["rows"] += compete(
                contenders,
                problem,
                options,
                regimes=[options.regime],
                deadline=budget.next_deadline(),
                device_state=monitor.since,
            )
            del problem
            record["means"] = means(ratios(record["rows"]))
            write(path, record)
            progress.advance(task)
    for layout, n, k in layouts:
        changed = changed_rows(n, k, options.rows, layout, options.dtype)
        record["changed_rows"][f"{n}x{k} {layout}"] = changed
        console.print(f"{n}x{k} {layout}: {changed} rows of the invariant product change with m")
    write(path, record)
    show(ratios(record["rows"]), console, title="batch-invariant products")
    console.print(f"written to {path}", highlight=False, soft_wrap=True)


def main() -> None:
    """Run `python -m benchmarks invariant`."""
    made = parser()
    options = made.parse_args()
    require_positive(made, options)
    if options.predict:
        for layout in options.layouts:
            found = [*predicted(options.layers, options.dtype, layout)]
            show(found, make_console(), title=f"predicted for the H200, {layout}")
        return
    from codegen.targets.nvptx.driver import unavailable

    if reason := unavailable():
        sys.exit(
            f"no GPU: {reason}; run this measure on a machine with an NVIDIA GPU, or with --predict"
        )
    from benchmarks.peers.compete import exit_if_wrong
    from benchmarks.reports.record import environment

    record: dict[str, Any] = {
        **environment("invariant"),
        "dtype": options.dtype,
        "means": {},
        "changed_rows": {},
        "rows": [],
    }
    measure(options, record, make_console())
    exit_if_wrong(record["rows"])
    if any(record["changed_rows"].values()):
        sys.exit("rows of the invariant product change with m")


if __name__ == "__main__":
    main()
