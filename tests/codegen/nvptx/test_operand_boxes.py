"""Tests of epilogue operands that TMA loads into pipeline stages: addresses and mbarriers."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from sympy import Basic, Symbol

from codegen.targets.nvptx.program import CudaProgram, Vectors
from coordgraph import Gemm, KernelGraph
from coordgraph import epilogue as ep
from coordgraph.control.asynchronous import CopyBox
from coordgraph.control.lowered import ApplyFragment
from coordgraph.control.resolve import Node, resolve
from coordgraph.coordinates.dimensions import Shared
from coordgraph.integers import compile_function
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.codegen.nvptx import isa
from tests.codegen.nvptx.hopper import LAUNCH, mesh, with_warp
from tests.codegen.nvptx.hopper_machine import Hopper
from tests.support.epilogues import EPILOGUES
from tests.support.ptxas import assert_clean
from tests.support.sampling import chosen, quick_cases

BIAS = EPILOGUES[0].function
BYTES = {"bias": 2, "residual": 2}
PERSISTENT = "data-parallel{persistent=true}"
Case = tuple[str, tuple[int, int, int], tuple[int, int, int]]
CASES: tuple[Case, ...] = (
    (PERSISTENT, (128, 256, 64), (1, 1, 1)),
    # A row of a TMA box has 64 bytes.
    (PERSISTENT, (256, 160, 64), (1, 1, 1)),
    # One warpgroup computes the tile.
    (PERSISTENT, (128, 64, 64), (1, 1, 1)),
    # Two warpgroups divide the tile's columns.
    ("data-parallel", (192, 128, 64), (1, 1, 1)),
    # A row of a TMA box has 32 bytes.
    ("data-parallel", (128, 208, 64), (1, 1, 1)),
    ("two-tile-stream-k", (256, 256, 64), (2, 1, 1)),
    ("stream-k{owner=last}", (128, 256, 64), (1, 2, 1)),
    ("heterogeneous-tiles", (128, 128, 64), (1, 1, 1)),
    # A row of a TMA box has 16 bytes, or it is a whole row of the tile.
    ("data-parallel", (128, 88, 64), (1, 1, 1)),
    ("stream-k", (64, 40, 64), (1, 1, 1)),
)
every_case = pytest.mark.parametrize(
    ("schedule", "tile", "cluster"), chosen((*CASES[:2], CASES[3], CASES[5]), CASES), ids=str
)


@cache
def program(
    schedule: str,
    tile: tuple[int, int, int],
    cluster: tuple[int, int, int] = (1, 1, 1),
    function: ep.EpilogueFunction = BIAS,
    operands: int = 0,
    consumers: str = "cooperative",
) -> CudaProgram:
    """The program for aligned tensors. An access to an epilogue operand moves `operands` elements,
    or 16 bytes if `operands` is 0.
    """
    graph = Pipeline.parse(schedule)(Gemm("bf16", epilogue=function).graph(tile))
    m, n, k = cluster
    lowering = LowerToHopper(cluster_m=m, cluster_n=n, cluster_k=k, consumers=consumers)
    vectors = Vectors(operands=operands)
    return CudaProgram(graph, "sm_90a", vectors, "wgmma", reads_c=False, lowering=lowering)


def nodes(graph: KernelGraph, kind: type) -> list[Node]:
    roots = resolve(graph.control.root.body, graph.scope())
    return [node for root in roots for node in root.walk() if isinstance(node.op, kind)]


def value(expr: Basic, at: dict[str, Any]) -> Any:
    """The value of an expression, as an array.

    Indices have their values in `at`, else the tests' fixed values in `LAUNCH`, else 1.
    """
    known = {**LAUNCH, **with_warp(at)}
    symbols = sorted((s for s in expr.free_symbols if isinstance(s, Symbol)), key=str)
    (found,) = compile_function([expr], symbols)(*(known.get(s.name, 1) for s in symbols))
    return np.asarray(found)


def place(node: Node, dim: str, at: dict[str, Any]) -> Any:
    return value(node.place(dim).values[0], at)


def applied(graph: KernelGraph) -> list[Node]:
    """The operations that apply the epilogue to operands in shared memory."""
    found = nodes(graph, ApplyFragment)
    return [n for n in found if isinstance(n.op, ApplyFragment) and n.op.memories]


def loaded_by_tma(graph: KernelGraph) -> set[str]:
    return {op.tensor for op in graph.control.of_kind(CopyBox)}


def sizes(graph: KernelGraph, dims: list[str]) -> dict[str, int]:
    return {d: graph.coordinates[d].fixed_size for d in dims if d in graph.coordinates}


@quick_cases(2)
@every_case
def test_threads_read_what_tma_has_loaded(
    schedule: str, tile: tuple[int, int, int], cluster: tuple[int, int, int]
):
    """In every step, each thread reads the operands' elements at its own row and column of D."""
    graph = program(schedule, tile, cluster).lowered
    reads, copies = applied(graph), nodes(graph, CopyBox)
    assert reads
    checked = 0
    for place_of, node in enumerate(reads):
        assert isinstance(node.op, ApplyFragment)
        assert set(node.op.sources) == {"bias", "residual"}
        step = node.op.registers[1]
        own = step.removesuffix("operand.step")
        for rank, number in product(
            range(np.prod(cluster)), range(graph.coordinates[step].fixed_size)
        ):
            at = {"cluster.rank": np.array(rank), step: np.array(number), "ring.step": np.array(3)}
            for tensor, memory in node.op.read_from.items():
                home = graph.coordinates[memory]
                assert isinstance(home, Shared)
                assert home.within
                loaded = load(graph, copies, place_of, tensor, memory, own, at)
                loops = [
                    own + name for name in ("acc.m", "operand.box", "operand.eight", "acc.half")
                ]
                grid = mesh(
                    workitem=graph.coordinates["workitem"].fixed_size - 128,
                    **{k.replace(".", "_"): v for k, v in sizes(graph, loops).items()},
                )
                here = {**at, **grid}
                read = np.broadcast_arrays(
                    place(node, memory, here), *(place(node, f"D.{axis}", here) for axis in (0, 1))
                )
                for address, row, column in zip(*(x.ravel() for x in read), strict=True):
                    wanted = (int(row), int(column)) if tensor == "residual" else (int(column),)
                    assert loaded[int(address)] == wanted
                    checked += 1
    # The schedule `heterogeneous-tiles` has tiles of two shapes, of which `tile` is only one.
    if schedule != "heterogeneous-tiles":
        # Each of the two operands is read once for every element of the tile.
        assert checked == len(reads) * tile[0] * tile[1]


def load(
    graph: KernelGraph,
    copies: list[Node],
    number: int,
    tensor: str,
    memory: str,
    own: str,
    at: dict[str, Any],
) -> dict[int, tuple[int, ...]]:
    """The elements of an operand that TMA loads in one pipeline step.

    The result maps an address in shared memory, in elements, to the indices of the element there.

    Args:
        graph: the lowered graph.
        copies: the TMA loads of all tensors.
        number: which of the operand's loads is simulated; each epilogue in the graph has one.
        tensor: name of the operand.
        memory: coordinate of the shared memory that holds the operand.
        own: prefix of the coordinates that belong to the tile shape of this epilogue.
        at: values of the cluster rank and of the step.
    """
    found: dict[int, tuple[int, ...]] = {}
    every = [n for n in copies if isinstance(n.op, CopyBox) and n.op.tensor == tensor]
    node = every[number]
    op, size = node.op, BYTES[tensor]
    assert isinstance(op, CopyBox)
    assert op.destination == memory
    wide, high = (*op.box, 1)[:2]
    loops = sizes(graph, [own + "operand.load.warpgroup", own + "operand.load.box"])
    for numbers in product(*map(range, loops.values())):
        here = {**at, **dict(zip(loops, map(np.array, numbers), strict=True))}
        first = int(place(node, memory, here)) * size
        assert first % 128 == 0, "the address of a TMA box is a multiple of 128 bytes"
        start = [int(place(node, dim, here)) for dim in op.source]
        for row, column in product(range(high), range(wide)):
            byte = np.array(first + size * (row * wide + column))
            if len(op.box) > 1:
                byte = isa.swizzled(byte, size * wide)
            where = (start[1] + row, start[0] + column) if len(op.box) > 1 else (start[0] + column,)
            assert int(byte) // size not in found, "two boxes overlap"
            found[int(byte) // size] = where
    return found


SIZES = {"m": 300, "n": 520, "k": 300}


@quick_cases(1)
@pytest.mark.parametrize(
    ("schedule", "tile", "cluster"),
    chosen((CASES[0], CASES[3], CASES[5]), CASES),
    ids=str,
)
@pytest.mark.parametrize("seed", range(2))
def test_the_ring_carries_operands(
    schedule: str, tile: tuple[int, int, int], cluster: tuple[int, int, int], seed: int
):
    """On a simulated GPU that runs warps in random order, no warp deadlocks.

    The simulation refuses to overwrite data in a stage before all consumers have read the data.
    """
    graph = program(schedule, tile, cluster).lowered
    given = {p.name for p in graph.parameters.given}
    sizes = {**SIZES, **({"workgroups": 3} if "workgroups" in given else {})}
    machine = Hopper(graph, sizes, resident=3, seed=seed)
    machine.run()
    steps = {role: len(s) for role, s in machine.memory[0][0].steps.items()}
    assert len(set(steps.values())) == 1, "a role misses steps of the ring"
    assert machine.operand_steps, "no operand was loaded"


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "tile", "cluster"), chosen(CASES[1:2], CASES), ids=str)
def test_nothing_spills(schedule: str, tile: tuple[int, int, int], cluster: tuple[int, int, int]):
    _, report = program(schedule, tile, cluster).assembled()
    assert_clean(report)


@ep.epilogue(first="mn", second="mn", row="m", bias=ep.operand("n", "f32"))
def several(acc: Any, first: Any, second: Any, row: Any, bias: Any) -> Any:
    return (acc + first) * second + row + bias


def test_one_operand_like_d_and_one_vector_are_loaded_by_boxes():
    """TMA loads one matrix and one vector; threads read further operands from global memory."""
    graph = program(PERSISTENT, (128, 128, 64), function=several).lowered
    assert loaded_by_tma(graph) == {"A", "B", "first", "bias"}
    (node,) = applied(graph)
    assert isinstance(node.op, ApplyFragment)
    assert {t for t, memory in node.op.read_from.items() if t == memory} == {"second", "row"}


def test_a_gated_stage_is_not_loaded_by_boxes():
    """TMA does not load `gate`, an operand that a launch may omit."""
    graph = program(PERSISTENT, (128, 128, 64), function=EPILOGUES[2].function).lowered
    assert "gate" not in loaded_by_tma(graph)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"operands": 2}, "operands that are not aligned to 16 bytes"),
        ({"consumers": "pingpong"}, "ping-pong consumers"),
        ({"tile": (128, 128, 128), "cluster": (1, 1, 2)}, "a cluster that divides k"),
    ],
)
def test_operands_are_read_from_global_memory(options: dict[str, Any], why: str):
    graph = program(**{"schedule": PERSISTENT, "tile": (128, 128, 64), **options}).lowered
    assert loaded_by_tma(graph) == {"A", "B"}, why
    assert not applied(graph)
