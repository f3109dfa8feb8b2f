"""Reduce-scatter on the CPU: workgroups that wait for each other run on one thread each."""

from __future__ import annotations

import numpy as np
import pytest

from codegen.targets.cpu import HostKernel, launch_plan
from codegen.targets.cpu.order import Circle, starting_order
from coordgraph import Gemm, LaunchError
from coordgraph.control.operations import AwaitPartial, Body, Operation, SendPartial
from coordgraph.progress import wait_direction
from passes import StreamK
from tests.codegen.cpu.kernels import Problem, kernel
from tests.passes.schedules import in_tiles, parameters, symbolic
from tests.passes.test_scatter import changed
from tests.support.sampling import quick_cases

# A kernel that hangs is in native code, which pytest-timeout can only end by its method `thread`.
pytestmark = pytest.mark.timeout(240, method="thread")

NAMES = ("stream-k{reduction=scatter}", "split-k{splits=4,reduction=scatter}")
STREAM = NAMES[0]


@quick_cases(1)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("threads", [1, 3])
def test_one_tile_in_many_pieces(name: str, threads: int):
    """A launch with reduce-scatter runs a thread for each workgroup, even if fewer are requested.

    The workgroups of a tile wait for each other, so with fewer threads the launch could not end.
    """
    problem = Problem(kernel(name), 10, 30, 24 * 40, 1.0, 1.0)
    first = problem.check(workgroups=40, threads=threads)
    for _ in range(5):
        assert np.array_equal(problem.run(workgroups=40, threads=threads), first)


@quick_cases(1)
@pytest.mark.parametrize("tile", [(5, 8, 8), (12, 40, 24), (64, 16, 8)])
def test_tiles_are_cut_into_rows_of_blocks(tile: tuple[int, int, int]):
    code = kernel(STREAM, tile=tile)
    m, n, k = tile
    for shape in ((m, n, 9 * k), (2 * m - 1, 3 * n - 3, 5 * k - 1), (1, 1, 7 * k)):
        for beta in (0.0, -0.5):
            Problem(code, *shape, 2.0, beta).check(workgroups=6)


def test_flags_are_zero_again():
    code = HostKernel(symbolic(STREAM))
    Problem(code, 20, 60, 300).check(workgroups=9)
    (kept,) = (w for free in code._workspaces._free.values() for w in free)
    assert not kept.tensors["flags"].any()
    assert len(kept.tensors["flags"]) == 2 * 9 * 4


@quick_cases(1)
@pytest.mark.parametrize("kind", ["batch", "groups"])
def test_batches_and_groups(kind: str):
    random = np.random.default_rng(0)
    b = random.integers(-4, 5, (3, 61, 20)).astype("f4")
    if kind == "batch":
        a = random.integers(-4, 5, (3, 19, 61)).astype("f4")
        code = HostKernel(StreamK(reduction="scatter")(Gemm("f32", batched=True).graph((8, 8, 8))))
        assert np.array_equal(code(a, b, workgroups=11), a @ b)
        return
    a, ends = random.integers(-4, 5, (37, 61)).astype("f4"), [0, 5, 5, 37]
    code = HostKernel(StreamK(reduction="scatter")(Gemm("f32", grouped=True).graph((8, 8, 8))))
    wanted = [a[i:j] @ x for i, j, x in zip(ends[:-1], ends[1:], b, strict=True)]
    d = code(a, b, offsets=np.array(ends, np.int32), workgroups=11)
    assert np.array_equal(d, np.concatenate(wanted))


def test_who_must_run_together_is_seen():
    graph = symbolic(STREAM)
    given = parameters(graph, in_tiles(1, 1, 16, 5))
    with pytest.raises(Circle, match=r"wait for each other in a circle"):
        starting_order(graph, wait_direction(graph), 5, given)
    # Each tile is computed by one workgroup, so any order of the workgroups works.
    alone = parameters(graph, in_tiles(5, 1, 3, 5))
    assert sorted(starting_order(graph, "mixed", 5, alone)) == list(range(5))  # type: ignore[arg-type]


def test_a_circle_for_ever_is_refused():
    """A schedule in which workgroups wait before they send is refused: it would deadlock."""

    def before(op: Operation) -> Operation | Body:
        return (AwaitPartial(op.slot), op) if isinstance(op, SendPartial) else op

    graph = changed(symbolic(STREAM), before)
    with pytest.raises(LaunchError, match="the launch would never end, because workgroups wait"):
        starting_order(graph, "mixed", 5, parameters(graph, in_tiles(1, 1, 16, 5)))


def test_too_many_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch_plan, "MOST_THREADS", 8)
    problem = Problem(HostKernel(symbolic(STREAM)), 4, 4, 400)
    problem.check(workgroups=8)
    with pytest.raises(LaunchError, match=r"of the 9 workgroups.*most 8 threads.*than scatter"):
        problem.run(workgroups=9)


def test_by_default_there_is_a_workgroup_for_each_thread():
    code = HostKernel(symbolic(STREAM))
    a, b = np.ones((4, 400), np.float32), np.ones((400, 4), np.float32)
    assert (code(a, b, threads=3) == 400).all()
    (kept,) = (w for free in code._workspaces._free.values() for w in free)
    assert len(kept.tensors["flags"]) == 2 * 3 * 4


def test_shares_are_those_of_the_lowered_graph():
    """A reduce-scatter divides a tile into as many shares (parts) as the lowered graph has.

    The scheduled graph has 12 shares; the lowering chooses as many as a tile has register blocks
    along m.
    """
    code = kernel(STREAM)
    shares, blocks = (code.lowered.coordinates[d].fixed_size for d in ("fixup.share", "block.m"))
    assert shares == blocks
    assert code.graph.coordinates["fixup.share"].fixed_size == 12
