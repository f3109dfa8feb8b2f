"""Groups of rows, each with its own B: one launch of ours against one cuBLAS call for each group.

    python -m benchmarks groups                               # 8 to 64 uneven groups, some empty
    python -m benchmarks groups --shapes 8192x4096x7168 --counts 32 --skew 1.5
    python -m benchmarks groups --plans "128x256x64 data-parallel{persistent=true}"

A shape is rows of all groups x n x k, as a layer of a mixture of experts has it: A holds the rows
sorted by group, B a matrix (n x k, given as its transpose) for each. How many rows a group has
falls by a power of its rank, `--skew`; ranks are shuffled, and one group in eight is empty.

Contenders: cuBLAS (torch.matmul for every group that has rows, all of them in one CUDA graph: the
sizes are known when it is captured), torch._grouped_mm where PyTorch has it, a persistent Triton
kernel where Triton is installed (the fastest of a few tiles, tried for every problem), and plans of
ours. The last three read where groups begin when they run. Operands are normal numbers in buffers
that take turns and exceed thrice the L2 cache; every result is checked first, in an output full of
NaN, against float32; figures are medians over rounds of CUDA-graph replays whose order rotates.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from benchmarks.contenders import CUBLAS, FAILED, Unavailable, exit_where_wrong
from benchmarks.monitor import Monitor
from benchmarks.options import add_measuring, command_line
from benchmarks.plans import Plan, compile_for, parse_plan
from benchmarks.problem import DTYPES, POISON, buffer_sets
from benchmarks.record import RESULTS, environment, result_path, write
from benchmarks.report import console_here
from benchmarks.shapes import Shape, shape
from benchmarks.timing import REGIMES, Sampler, Spread, quick_seconds, take_turns
from codegen.nvptx.driver import unavailable
from coordgraph import CoordGraphError, Gemm

SHAPES = ("8192x4096x7168", "8192x7168x2048", "1024x4096x7168", "65536x2048x2048")
COUNTS = (8, 16, 32, 64)
PLANS = (
    "128x256x64 data-parallel{persistent=true}",
    "128x256x64 rasterize,data-parallel{persistent=true}",
    "128x128x64 data-parallel{persistent=true}",
    "64x128x64 data-parallel{persistent=true}",
    "128x256x64 two-tile-stream-k{owner=last}",
    "128x128x64 two-tile-stream-k{owner=last}",
)
EMPTY_EVERY = 8
Launch = Callable[[int], Any]
"""Computes D of the buffer set of a number; returns it."""
Prepare = Callable[["Groups"], Launch]
"""Gets ready for a problem; raises Unavailable or CoordGraphError where it cannot."""
PEERS = (CUBLAS, "torch._grouped_mm", "Triton")


def uneven(rows: int, groups: int, skew: float, seed: int = 0) -> list[int]:
    """Rows of each group: falling by a power of the rank, shuffled, one in eight empty.

    >>> uneven(1000, 4, 1.0)
    [480, 240, 160, 120]
    >>> sizes = uneven(8192, 16, 1.2)
    >>> sum(sizes), sizes.count(0)
    (8192, 2)
    """
    ranks = list(range(1, groups + 1))
    empty = groups // EMPTY_EVERY
    weights = [rank**-skew for rank in ranks[: groups - empty]] + [0.0] * empty
    if groups >= EMPTY_EVERY:
        random.Random(seed).shuffle(weights)
    ends = [round(rows * sum_) for sum_ in accumulate(w / sum(weights) for w in weights)]
    return [end - begin for begin, end in pairwise([0, *ends])]


class Groups:
    """One problem on the GPU: operands in buffers that take turns, and what is right."""

    def __init__(self, found: Shape, sizes: Sequence[int], dtype: str) -> None:
        import torch

        name, self.half = DTYPES[dtype]
        self.torch, self.shape, self.sizes, self.dtype = torch, found, sizes, dtype
        self.offsets = [0, *accumulate(sizes)]
        kind, (m, n, k) = getattr(torch, name), (found.m, found.n, found.k)
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        torch.manual_seed(0)

        def normal(*extents: int) -> Any:
            return torch.randn(*extents, device="cuda", dtype=kind)

        count = len(sizes)
        bytes_of_set = 2 * (m * k + count * n * k + m * n)
        self.sets = [
            (normal(m, k), normal(count, n, k), torch.empty(m, n, device="cuda", dtype=kind))
            for _ in range(buffer_sets(bytes_of_set, cache))
        ]
        self.on_device = torch.tensor(self.offsets, device="cuda", dtype=torch.int32)
        a, b, _ = self.sets[0]
        self.exact = torch.empty(m, n, device="cuda", dtype=torch.float32)
        self.size = torch.empty_like(self.exact)
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        for group, rows in self.each():
            left, right = a[rows].float(), b[group].T.float()
            torch.matmul(left, right, out=self.exact[rows])
            torch.sqrt(left.square() @ right.square(), out=self.size[rows])
        torch.backends.cuda.matmul.allow_tf32 = before

    def each(self) -> Iterator[tuple[int, slice]]:
        """Groups that have rows, and which."""
        for group, (begin, end) in enumerate(pairwise(self.offsets)):
            if begin < end:
                yield group, slice(begin, end)

    def fault(self, compute: Callable[[], Any]) -> str | None:
        """What is wrong with what `compute` returns for the first buffer set, or None."""
        self.sets[0][2].fill_(POISON)
        self.torch.cuda.synchronize()
        out = compute()
        self.torch.cuda.synchronize()
        # As for single products: one rounding, sums cut off every 8 products, also in the
        # reference; libraries may round the parts of a sum.
        steps = (self.shape.k / 8 + 16) * 2.0**-22 * 4
        allowed = self.half * self.exact.abs() + (steps + 8 * self.half) * self.size + 2.0**-24
        wrong = int((~((out.float() - self.exact).abs() <= allowed)).sum())
        return f"WRONG: {wrong} of {out.numel()} elements" if wrong else None


def cublas(problem: Groups) -> Launch:
    """A call for every group that has rows."""
    matmul = problem.torch.matmul

    def launch(number: int) -> Any:
        a, b, out = problem.sets[number]
        for group, rows in problem.each():
            matmul(a[rows], b[group].T, out=out[rows])
        return out

    return launch


def grouped_mm(problem: Groups) -> Launch:
    """PyTorch's own, which takes the groups' ends."""
    if problem.dtype != "bf16":
        raise Unavailable("torch._grouped_mm multiplies bf16 only")
    compute, ends = problem.torch._grouped_mm, problem.on_device[1:].contiguous()

    def launch(number: int) -> Any:
        a, b, _ = problem.sets[number]
        return compute(a, b.transpose(-2, -1), offs=ends)

    return launch


class Triton:
    """A persistent Triton kernel, with the fastest of its configurations that are right.

    `details` are about the last problem.
    """

    def __init__(self) -> None:
        try:
            import triton
        except ImportError as error:
            raise Unavailable(f"the package triton cannot be imported ({error})") from None
        self.version = triton.__version__
        self.details: dict[str, Any] = {}

    def __call__(self, problem: Groups) -> Launch:
        from benchmarks.triton_groups import Product, configurations

        best: tuple[float, str, Launch] | None = None
        reasons: list[str] = []
        for config in configurations():
            launch = _launch_of(Product(config), problem)
            try:
                reason = problem.fault(lambda launch=launch: launch(0))
                seconds = quick_seconds(launch, len(problem.sets)) if reason is None else 0.0
            except Unavailable as error:
                reason, seconds = str(error), 0.0
            if reason is not None:
                reasons.append(f"{config}: {reason}")
            elif best is None or seconds < best[0]:
                best = seconds, str(config), launch
        if wrong := [reason for reason in reasons if "WRONG" in reason]:
            raise RuntimeError("; ".join(wrong))  # a fault of ours, not to be tuned away
        if best is None:
            raise Unavailable("no Triton configuration runs: " + "; ".join(reasons))
        self.details = {"configuration": best[1], "triton": self.version}
        return best[2]


def _launch_of(run: Any, problem: Groups) -> Launch:
    """Launches of something that is called with operands and where groups begin."""

    def launch(number: int) -> Any:
        a, b, out = problem.sets[number]
        run(a, b, out, problem.on_device)
        return out

    return launch


def ours(plan: Plan, kernel: Any) -> Prepare:
    """A plan's kernel; `kernel` may be the error that it ended with."""

    def prepare(problem: Groups) -> Launch:
        if isinstance(kernel, CoordGraphError):
            raise kernel

        def run(a: Any, b: Any, out: Any, offsets: Any) -> None:
            kernel(a, b, out=out, offsets=offsets, workgroups=plan.workgroups)

        return _launch_of(run, problem)

    return prepare


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = command_line("groups", __doc__)
    made.add_argument("--shapes", type=shape, nargs="+", default=[shape(text) for text in SHAPES])
    made.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), help="of groups")
    made.add_argument("--skew", type=float, default=0.8, help="0: even groups")
    made.add_argument(
        "--plans", type=parse_plan, nargs="*", default=[parse_plan(text) for text in PLANS]
    )
    add_measuring(made, regime="sustained", rounds=9, seconds=0.003)
    made.add_argument("--no-graphs", dest="graphs", action="store_false", help="launch one by one")
    made.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON")
    return made


def contenders(
    plans: Iterable[tuple[Plan, Any]], tell: Callable[[str], None]
) -> dict[str, Prepare]:
    """Who competes, by name: peers, and plans with their kernels."""
    import torch

    cublas_name, grouped_name, triton_name = PEERS
    found: dict[str, Prepare] = {cublas_name: cublas}
    if hasattr(torch, "_grouped_mm"):
        found[grouped_name] = grouped_mm
    else:
        tell(f"without {grouped_name}: PyTorch {torch.__version__} has none")
    try:
        found[triton_name] = Triton()
    except Unavailable as error:
        tell(f"without {triton_name}: {error}")
    return found | {str(plan): ours(plan, kernel) for plan, kernel in plans}


def enter(prepare: Prepare, problem: Groups, options: Any) -> Sampler | str:
    """A contender ready to be timed, or what is wrong with it."""
    try:
        launch = prepare(problem)
        fault = problem.fault(lambda: launch(0))
        if fault is not None:
            return fault
        sampler = Sampler(launch, len(problem.sets), options.seconds, graphs=options.graphs)

        def sampled() -> Any:
            sampler.sample()
            return problem.sets[0][2]

        # Launches that follow each other closely must not disturb each other either. What makes an
        # output of its own cannot be looked at.
        if launch(0) is problem.sets[0][2]:
            fault = problem.fault(sampled)
        return sampler if fault is None else fault
    except (CoordGraphError, Unavailable) as error:
        return str(error)
    except Exception as error:  # a long run goes on without this one, and ends with a failure
        return f"{FAILED}: {type(error).__name__}: {error}"


def compete(
    everyone: dict[str, Prepare], problem: Groups, options: Any
) -> Iterator[dict[str, Any]]:
    """A row for each, timed in turns where the result is right."""
    entered = {name: enter(prepare, problem, options) for name, prepare in everyone.items()}
    faults = {name: found for name, found in entered.items() if isinstance(found, str)}
    samplers = {name: found for name, found in entered.items() if isinstance(found, Sampler)}
    times = take_turns([*samplers.values()], options.rounds, REGIMES[options.regime])
    spreads = {name: Spread.of(found) for name, found in zip(samplers, times, strict=True)}
    m, n, k = problem.shape.m, problem.shape.n, problem.shape.k
    for name, prepare in everyone.items():
        row: dict[str, Any] = {
            "shape": problem.shape.name, "m": m, "n": n, "k": k, "groups": len(problem.sizes),
            "sizes": list(problem.sizes), "name": name, "regime": options.regime,
            "buffers": len(problem.sets), "ours": name not in PEERS,
        }  # fmt: skip
        if name in faults:
            yield {**row, "problem": faults[name]}
            continue
        seconds = spreads[name].median
        row |= getattr(prepare, "details", {})
        row |= {"seconds": spreads[name].json(), "tflops": 2e-12 * m * n * k / seconds}
        if CUBLAS in spreads:
            row["of_cublas"] = spreads[CUBLAS].median / seconds
        yield row


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """A line for each problem and contender."""
    made = Table(box=SIMPLE)
    for title in ("rows x n x k", "groups", "contender", "µs", "TFLOP/s", "of cuBLAS"):
        made.add_column(title, justify="left" if title == "contender" else "right")
    for row in rows:
        place = (row["shape"], str(row["groups"]), row["name"])
        if "problem" in row:
            made.add_row(*place, "", "", row["problem"][:60])
            continue
        micro, ratio = 1e6 * row["seconds"]["median"], row.get("of_cublas")
        numbers = (f"{micro:.1f}", f"{row['tflops']:.0f}", "" if ratio is None else f"{ratio:.2f}")
        made.add_row(*place, *numbers)
    return made


def main() -> None:
    made = parser()
    options = made.parse_args()
    if options.rounds < 1 or options.seconds <= 0 or min(options.counts) < 1 or options.skew < 0:
        made.error("--rounds, --seconds and --counts must be positive, --skew not negative")
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}\n`python -m benchmarks cpu` measures the CPU target")
    console = console_here()
    record: dict[str, Any] = {
        **environment("groups"),
        "dtype": options.dtype,
        "skew": options.skew,
        "timing": "CUDA-graph replays" if options.graphs else "launches",
        "rows": [],
    }
    path = result_path(options.results, record)
    gemm = Gemm(options.dtype, transpose_b=True, grouped=True)
    bars = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Monitor() as monitor, Progress(*bars, console=console) as progress:
        compiling = progress.add_task("compiling", total=len(options.plans))
        compiled = compile_for(
            options.plans, gemm, options.target, lambda: progress.advance(compiling)
        )
        everyone = contenders(compiled, console.print)
        progress.remove_task(compiling)
        task = progress.add_task("groups", total=len(options.shapes) * len(options.counts))
        for found in options.shapes:
            for count in options.counts:
                progress.update(task, description=f"{found.name}, {count} groups")
                start = time.monotonic()
                problem = Groups(found, uneven(found.m, count, options.skew), options.dtype)
                rows = list(compete(everyone, problem, options))
                state = monitor.since(start)
                record["rows"] += [{**row, "device": state} for row in rows]
                write(path, record)
                console.print(table(rows))
                del problem
                progress.advance(task)
    console.print(f"written to {path}")
    exit_where_wrong(record["rows"])


if __name__ == "__main__":
    main()
