"""Our kernels against cuBLAS (torch.matmul), on a GPU.

    python -m benchmarks gemm --quick
    python -m benchmarks gemm --shapes 4096x4096x4096 1024x1024x65536 \
        --schedules data-parallel "two-tile-stream-k{owner=last}" --tiles 128x256x64 --layouts nn nt

Operands are normal numbers in buffers that take turns, more of them than the L2 cache holds. All
contenders are measured in every round, one after the other in an order that rotates; figures are
medians over the rounds. Every result is checked first, in an output full of NaN.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import codegen
from benchmarks.timing import Sampler, Spread, device_state
from codegen.nvptx import CudaKernel
from codegen.nvptx.driver import device, unavailable
from coordgraph import CoordGraphError, Gemm
from passes import Pipeline

Triple = tuple[int, int, int]
CUBLAS = "cuBLAS"
RESULTS = Path(__file__).parent / "results"
QUICK = ("4096x4096x4096", "1024x1024x8192")
SHAPES = (
    # Square ones, small to large.
    *("1024x1024x1024", "2048x2048x2048", "4096x4096x4096", "8192x8192x8192"),
    # Few tiles and a deep k: what splitting along k is for.
    *("256x256x16384", "512x512x16384", "1024x1024x16384", "128x4096x4096"),
    # A little more than whole waves of tiles.
    *("2176x2048x4096", "3200x3072x4096", "4352x4096x4096"),
    # Layers of a language model: a batch of tokens by weights.
    *("64x8192x8192", "512x14336x4096", "4096x14336x4096", "4096x4096x14336"),
)
SCHEDULES = ("data-parallel", "stream-k", "two-tile-stream-k", "two-tile-stream-k{owner=last}")
TILES = ("128x256x64", "128x128x64")
SAMPLED_ROWS = 256
BUSY = 25
"""Samples that run while the device is asked for its clocks."""


@dataclass
class Contender:
    """A way to multiply, and what was measured of it."""

    name: str
    run: Callable[[Any, Any, Any], Any]
    details: dict[str, Any] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    problem: str = ""


def triple(text: str) -> Triple:
    """`4096x4096x64` as numbers."""
    try:
        m, n, k = (int(word) for word in text.lower().split("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not like 4096x4096x64") from None
    return m, n, k


def preset(path: Path) -> list[Triple]:
    """Shapes in a file, one in a line (`4096 4096 64` or with x); # begins a comment."""
    lines = (line.partition("#")[0].split() for line in path.read_text().splitlines())
    return [triple("x".join(words)) for words in lines if words]


def contenders(options: argparse.Namespace, layout: str) -> Iterator[Contender]:
    """CuBLAS first, then every schedule with every tile."""
    import torch

    a_turned, b_turned = (side == "t" for side in layout)

    def cublas(a: Any, b: Any, out: Any) -> None:
        torch.matmul(a.T if a_turned else a, b.T if b_turned else b, out=out)

    yield Contender(CUBLAS, cublas)
    for schedule in options.schedules:
        for tile in options.tiles:
            name = f"{schedule} {'x'.join(map(str, tile))}"
            gemm = Gemm(options.dtype, transpose_a=a_turned, transpose_b=b_turned)
            try:
                kernel = codegen.compile(Pipeline.parse(schedule)(gemm.graph(tile)), options.target)
                assert isinstance(kernel, CudaKernel)
                details = {"registers": kernel.registers, "resident": kernel.resident}
            except CoordGraphError as error:
                yield Contender(name, cublas, problem=str(error))
                continue
            yield Contender(name, lambda a, b, out, k=kernel: k(a, b, out=out), details)


class Bench:
    """One problem: its buffers, its reference, its contenders."""

    def __init__(self, shape: Triple, layout: str, options: argparse.Namespace) -> None:
        import torch

        self.torch, self.shape, self.layout, self.options = torch, shape, layout, options
        m, n, k = shape
        kind = {"bf16": torch.bfloat16, "f16": torch.float16}[options.dtype]
        bytes_of_set = 2 * (m * k + k * n + m * n)
        cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 60 << 20
        sets = max(2, min(64, -(-3 * cache // bytes_of_set)))
        torch.manual_seed(0)

        def normal(rows: int, columns: int) -> Any:
            return torch.randn(rows, columns, device="cuda", dtype=kind)

        self.sets = [
            (
                normal(k, m) if layout[0] == "t" else normal(m, k),
                normal(n, k) if layout[1] == "t" else normal(k, n),
                torch.empty(m, n, device="cuda", dtype=kind),
            )
            for _ in range(sets)
        ]
        chosen = torch.randperm(m, device="cuda")[:SAMPLED_ROWS]
        a, b, _ = self.sets[0]
        a, b = (a.T if layout[0] == "t" else a), (b.T if layout[1] == "t" else b)
        rows, columns = a[chosen].double(), b.double()
        self.chosen = chosen
        self.exact = rows @ columns
        half = 2.0**-8 if options.dtype == "bf16" else 2.0**-11
        absolute = rows.abs() @ columns.abs()
        self.allowed = half * self.exact.abs() + (k + 4) * 2.0**-22 * absolute + 2.0**-24

    def check(self, contender: Contender) -> None:
        """Note a problem where a result is wrong or an element was not written."""
        a, b, out = self.sets[0]
        out.fill_(float("nan"))
        try:
            contender.run(a, b, out)
        except CoordGraphError as error:
            contender.problem = str(error)
            return
        wrong = ~((out[self.chosen].double() - self.exact).abs() <= self.allowed)
        if bool(out.isnan().any()) or bool(wrong.any()):
            contender.problem = f"WRONG: {int(wrong.sum())} of {wrong.numel()} sampled elements"

    def measure(self, found: list[Contender], step: Callable[[], None]) -> dict[str, str]:
        """Time all that are right, in rounds; returns what the device did under load."""
        samplers: list[tuple[Contender, Sampler]] = []
        for contender in found:
            if not contender.problem:
                self.check(contender)
            if not contender.problem:

                def launch(number: int, run: Any = contender.run) -> None:
                    run(*self.sets[number])

                sampler = Sampler(
                    launch, len(self.sets), self.options.seconds, graphs=self.options.graphs
                )
                samplers.append((contender, sampler))
        if not samplers:
            return {}
        for number in range(self.options.rounds):
            turn = number % len(samplers)
            for contender, sampler in samplers[turn:] + samplers[:turn]:
                contender.samples.append(sampler.sample())
            step()
        for _ in range(BUSY):  # keep it busy while it is asked for its clocks
            samplers[-1][1].enqueue()
        state = device_state()
        self.torch.cuda.synchronize()
        return state

    def rows(self, found: list[Contender]) -> Iterator[dict[str, Any]]:
        """What is written down of each contender."""
        m, n, k = self.shape
        best = Spread.of(found[0].samples).median if found[0].samples else None
        for contender in found:
            row: dict[str, Any] = {
                "m": m, "n": n, "k": k, "layout": self.layout, "name": contender.name,
                "buffers": len(self.sets), **contender.details,
            }  # fmt: skip
            if contender.problem:
                yield {**row, "problem": contender.problem}
                continue
            spread = Spread.of(contender.samples)
            yield {
                **row,
                "seconds": spread.json(),
                "tflops": 2e-12 * m * n * k / spread.median,
                "of_cublas": best / spread.median if best else None,
            }


def environment(options: argparse.Namespace) -> dict[str, Any]:
    """When, where and how."""
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions["cuda of torch"] = torch.version.cuda or ""
    for name in ("coordgraph", "llvmlite", "cuda-python", "numpy", "sympy"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks", "gemm", *sys.argv[1:]]),
        "gpu": device(0).name,
        "architecture": device(0).architecture,
        "processors": device(0).processors,
        "versions": versions,
        "idle": device_state(),
        "rounds": options.rounds,
        "timing": "CUDA-graph replays" if options.graphs else "launches",
        "dtype": options.dtype,
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    """A table: a line for each contender, grouped by problem."""
    table = Table("m x n x k", "layout", "contender", "µs", "quartiles", "TFLOP/s", "of cuBLAS")
    before = None
    for row in rows:
        problem = (row["m"], row["n"], row["k"], row["layout"])
        if before not in (None, problem):
            table.add_section()
        head = ("x".join(map(str, problem[:3])), row["layout"]) if before != problem else ("", "")
        before = problem
        if "problem" in row:
            table.add_row(*head, row["name"], "", "", "", row["problem"][:60], style="red")
            continue
        time, ratio = row["seconds"], row["of_cublas"]
        table.add_row(
            *head,
            row["name"],
            f"{1e6 * time['median']:.1f}",
            f"{1e6 * time['low']:.1f}–{1e6 * time['high']:.1f}",
            f"{row['tflops']:.0f}",
            f"{ratio:.1%}" if ratio else "",
        )
    console.print(table)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--shapes", type=triple, nargs="+", help="m x n x k, as 4096x4096x64")
    made.add_argument("--preset", type=Path, help="a file of shapes, one in a line")
    made.add_argument("--schedules", nargs="+", default=None, help="pipelines, as stream-k")
    made.add_argument("--tiles", type=triple, nargs="+", default=None)
    made.add_argument("--layouts", nargs="+", default=["nn"], choices=["nn", "nt", "tn", "tt"])
    made.add_argument("--dtype", default="bf16", choices=["bf16", "f16"])
    made.add_argument("--target", default="native", help="native, sm_80, …")
    made.add_argument("--rounds", type=int, default=15)
    made.add_argument("--seconds", type=float, default=0.02, help="about, for one sample")
    made.add_argument("--no-graphs", dest="graphs", action="store_false", help="launch one by one")
    made.add_argument("--quick", action="store_true", help="two shapes, two schedules, one tile")
    made.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    return made


def main() -> None:
    options = parser().parse_args()
    if reason := unavailable():
        sys.exit(f"no GPU: {reason}\n`python -m benchmarks cpu` measures the CPU target")
    if options.rounds < 1:
        sys.exit("--rounds must be at least 1")
    quick = options.quick
    options.schedules = options.schedules or (SCHEDULES[:3:2] if quick else SCHEDULES)
    options.tiles = options.tiles or [triple(t) for t in (TILES[:1] if quick else TILES)]
    options.rounds = min(options.rounds, 7) if quick else options.rounds
    shapes: list[Triple] = [
        *(options.shapes or ()),
        *(preset(options.preset) if options.preset else ()),
    ]
    shapes = shapes or [triple(t) for t in (QUICK if quick else SHAPES)]
    console, rows, states = Console(), [], []
    record = environment(options)
    with Progress(console=console) as progress:
        task = progress.add_task(
            "rounds", total=len(shapes) * len(options.layouts) * options.rounds
        )
        for layout in options.layouts:
            progress.update(task, description=f"compiling ({layout})")
            all_of_layout = list(contenders(options, layout))
            for shape in shapes:
                progress.update(task, description="x".join(map(str, shape)) + f" {layout}")
                bench = Bench(shape, layout, options)
                found = [
                    Contender(c.name, c.run, c.details, problem=c.problem) for c in all_of_layout
                ]
                states.append(bench.measure(found, lambda: progress.advance(task)))
                rows += bench.rows(found)
                del bench
    show(rows, console)
    options.results.mkdir(parents=True, exist_ok=True)
    stamp = record["date"].replace(":", "").replace("-", "")[:15]
    path = options.results / f"gemm-{stamp}.json"
    path.write_text(json.dumps({**record, "under load": states, "rows": rows}, indent=1) + "\n")
    console.print(f"written to {path}")
    if any(row.get("problem", "").startswith("WRONG") for row in rows):
        sys.exit("some results are wrong")


if __name__ == "__main__":
    main()
