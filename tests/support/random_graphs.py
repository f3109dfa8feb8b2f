"""Random correct graphs: every schedule, order, kind of products, reduction and epilogue.

    python -m tests.support.random_graphs --count 2000 --seed 1

checks 2000 graphs and prints the text of each graph that a check refutes (a false alarm). The
command counts the graphs by schedule, tile, and kind of products. `--seconds` limits the time.
`--lowered` lowers the graphs for GPUs and checks their memory order.
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from coordgraph import CoordGraphError, Gemm, KernelGraph
from coordgraph import epilogue as ep
from coordgraph.verification import Outcome
from passes import Pass, Pipeline
from passes.lowering import LowerToHopper, LowerToTensorCores

__all__ = ["Drawn", "choose", "draw", "draw_lowered", "graphs"]

TILES = ((4, 4, 4), (8, 4, 2), (2, 8, 4), (16, 8, 8), (3, 5, 7), (1, 1, 1), (6, 2, 3), (4, 4, 16))
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"batched": True},
    {"grouped": True},
    {"grouped": True, "group_axis": "k"},
    {"grouped": True, "group_axis": "mnk"},
)
REDUCTIONS = ("peers", "tree", "turnstile", "scatter", "atomic")
FIRST_WORDS = (
    "data-parallel",
    "heterogeneous-tiles",
    "stream-k",
    "hybrid-stream-k",
    "two-tile-stream-k",
    "split-k",
)

LARGE_TILES = (
    *((64, 64, 32), (128, 64, 32), (64, 128, 64), (128, 128, 64), (256, 128, 64)),
    *((64, 40, 64), (128, 88, 64), (256, 72, 64), (40, 128, 64)),
)
"""Macro tiles that a lowering for GPUs may accept."""
LOWERINGS: tuple[Pass, ...] = (
    *(LowerToTensorCores("sm_80"), LowerToTensorCores("sm_80", stages=2)),
    *(LowerToHopper(), LowerToHopper(stages=3), LowerToHopper(consumers="pingpong")),
    *(LowerToHopper(cluster_m=2), LowerToHopper(cluster_n=2), LowerToHopper(cluster_k=2)),
)


@ep.epilogue(bias="n", residual="mn")
def biased(acc: ep.Value, bias: ep.Value, residual: ep.Value) -> ep.Value:
    """An epilogue: adds a bias along n, applies ReLU, adds a residual."""
    return ep.relu(acc + bias) + residual


@ep.epilogue(scale="m", shift="")
def scaled(acc: ep.Value, scale: ep.Value, shift: ep.Value) -> ep.Value:
    """An epilogue: multiplies by a scale along m and adds a number."""
    return ep.maximum(acc * scale, shift)


@ep.epilogue()
def clamped(acc: ep.Value) -> ep.Value:
    """An epilogue without operands: clamps to -3..3."""
    return ep.clamp(acc, -3, 3)


@ep.epilogue(product=ep.index("l"), row=ep.index("m"), column=ep.index("n"))
def masked(acc: ep.Value, product: ep.Value, row: ep.Value, column: ep.Value) -> ep.Value:
    """An epilogue with indices: keeps the sums up to a diagonal that depends on the product."""
    return ep.where(ep.compare(column, row + product, relation="<="), acc, 0)


EPILOGUES = (None, None, biased, scaled, clamped, masked)


@dataclass(frozen=True)
class Drawn:
    """A random graph, with the arguments that made it.

    Args:
        graph: the scheduled graph.
        gemm: the arguments of `Gemm`.
        tile: the extents of a macro tile.
        pipeline: the text of the pipeline.
    """

    graph: KernelGraph
    gemm: dict[str, Any]
    tile: tuple[int, int, int]
    pipeline: str

    def __str__(self) -> str:
        given = ", ".join(
            f"{name}={getattr(value, 'name', value)!r}" for name, value in self.gemm.items()
        )
        return f"Gemm({given}).graph({self.tile}), {self.pipeline}"

    @property
    def features(self) -> tuple[str, ...]:
        """Schedule, tile and kind of products, as texts; `main` counts graphs by each of these."""
        # Longest first, because `two-tile-stream-k` ends in `stream-k`.
        longest = sorted(FIRST_WORDS, key=len, reverse=True)
        schedule = next(name for name in longest if name in self.pipeline)
        kind = self.gemm.get("group_axis", "m") if "grouped" in self.gemm else "one product"
        return (
            f"schedule: {schedule}",
            f"tile: {self.tile}",
            f"products: {'batched' if 'batched' in self.gemm else kind}",
        )


def choose(rng: random.Random) -> tuple[dict[str, Any], tuple[int, int, int], str]:
    """Random (arguments of `Gemm`, tile, pipeline text); passes may refuse the combination."""
    return _gemm(rng), rng.choice(TILES), _pipeline(rng)


def draw(rng: random.Random) -> Drawn | None:
    """A random graph; None if a pass refuses the randomly chosen combination."""
    gemm, tile, pipeline = choose(rng)
    try:
        problem = Gemm(**gemm).graph(tile)
        return Drawn(Pipeline.parse(pipeline)(problem, verify="structure"), gemm, tile, pipeline)
    except CoordGraphError:
        return None


def draw_lowered(rng: random.Random) -> Drawn | None:
    """A random lowered graph; None if a pass refuses the randomly chosen combination."""
    gemm, _, pipeline = choose(rng)
    gemm["dtype"] = rng.choice(("f16", "bf16"))
    tile, lowering = rng.choice(LARGE_TILES), rng.choice(LOWERINGS)
    try:
        graph = Pipeline.parse(pipeline)(Gemm(**gemm).graph(tile), verify="structure")
        return Drawn(lowering(graph), gemm, tile, f"{pipeline},{lowering}")
    except CoordGraphError:
        return None


def graphs(seed: int, drawn: Callable[[random.Random], Drawn | None] = draw) -> Iterator[Drawn]:
    """An endless sequence of random graphs; the same seed gives the same graphs."""
    rng = random.Random(seed)
    while True:
        if (found := drawn(rng)) is not None:
            yield found


def _gemm(rng: random.Random) -> dict[str, Any]:
    gemm: dict[str, Any] = {"dtype": rng.choice(("f32", "f32", "f16", "bf16", "f64", "u8", "i8"))}
    gemm |= rng.choice(KINDS)
    for name in ("transpose_a", "transpose_b"):
        if rng.random() < 0.25:
            gemm[name] = True
    if "grouped" not in gemm and rng.random() < 0.3:
        gemm |= {axis: rng.randint(1, 70) for axis in "mnk" if rng.random() < 0.6}
    if (function := rng.choice(EPILOGUES)) is not None:
        gemm["epilogue"] = function
    return gemm


def _pipeline(rng: random.Random) -> str:
    return ",".join([*_orders(rng), _schedule(rng)])


def _orders(rng: random.Random) -> Iterator[str]:
    orders: tuple[Callable[[], str], ...] = (
        lambda: _text(
            "rasterize",
            width=rng.choice((1, 2, 3, 4, 8)),
            snake=rng.choice(("true", "false")),
            along=rng.choice("mn"),
            order=rng.choice(("columns", "hilbert", "morton")),
        ),
        lambda: _text("grouped", groups=rng.randint(1, 8)),
        lambda: _text("reorder", swap=rng.choice(("true", "false")), group=rng.randint(1, 5)),
        lambda: "longest-first",
    )
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        yield rng.choice(orders)()


def _schedule(rng: random.Random) -> str:
    name = rng.choice(FIRST_WORDS)
    options: dict[str, Any] = {}
    if name == "split-k":
        options["splits"] = rng.randint(2, 9)
    elif rng.random() < 0.35:
        options["workgroups"] = rng.choice((1, 2, 3, 5, 8, 13, 24))
    if name == "data-parallel":
        options["persistent"] = rng.choice(("true", "false"))
        if options["persistent"] == "false":
            options.pop("workgroups", None)
    elif name == "heterogeneous-tiles":
        options |= {
            axis: rng.randint(1, 4) for axis in ("small_m", "small_n") if rng.random() < 0.3
        }
    else:
        options["owner"] = rng.choice(("first", "last"))
        options["reduction"] = rng.choice(REDUCTIONS)
    if name in ("stream-k", "hybrid-stream-k", "two-tile-stream-k") and rng.random() < 0.5:
        options[rng.choice(("least", "least_segment"))] = rng.randint(1, 7)
    if name == "stream-k" and rng.random() < 0.3:
        options["shares"] = "balanced"
    if name in ("hybrid-stream-k", "two-tile-stream-k"):
        options["first"] = rng.choice(("sk", "dp"))
        options["waves"] = rng.choice(("strided", "contiguous"))
    return _text(name, **options)


def _text(name: str, **options: Any) -> str:
    inside = ",".join(f"{key}={value}" for key, value in options.items())
    return f"{name}{{{inside}}}" if inside else name


def main() -> int:
    """Check random graphs and print the false alarms; return how many there are."""
    parser = argparse.ArgumentParser(description="Check random correct graphs.")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="the longest time")
    parser.add_argument("--lowered", action="store_true", help="check graphs lowered for GPUs")
    given = parser.parse_args()
    drawn = graphs(given.seed, draw_lowered if given.lowered else draw)
    start, alarms, checked = perf_counter(), 0, 0
    outcomes: Counter[str] = Counter()
    for number, found in zip(range(given.count), drawn, strict=False):
        if perf_counter() - start > given.seconds:
            break
        checked += 1
        outcomes.update(found.features)
        try:
            report = found.graph.check()
        except Exception:  # an exception in a check counts as a false alarm too
            alarms += 1
            print(f"{number}: {found}\n{traceback.format_exc()}", flush=True)
            continue
        outcomes.update(f"{verdict.name}: {verdict.outcome.value}" for verdict in report)
        if report.refuted or Outcome.UNKNOWN in {verdict.outcome for verdict in report}:
            alarms += bool(report.refuted)
            print(f"{number}: {found}\n{report}", flush=True)
    for what, count in sorted(outcomes.items()):
        print(f"{count:6} {what}")
    seconds = perf_counter() - start
    print(f"seed {given.seed}: {checked} graphs, {alarms} false alarms, {seconds:.0f} s")
    return alarms


if __name__ == "__main__":
    sys.exit(min(main(), 1))
