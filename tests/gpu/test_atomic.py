"""The `atomic` reduction on the GPU: results, and workspaces that every launch leaves zero.

Operands are small integers, so sums have no rounding errors and results do not depend on the order
of additions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx.driver import device
from passes import HybridStreamK, SplitK, StreamK, TwoTileStreamK
from tests.gpu import hopper
from tests.gpu.hopper import has_open_grid
from tests.gpu.hopper_kernels import ADDED
from tests.gpu.kernels import Problem, Spec, buffers, flags_are_down, kernel, shapes

# Skips this file without torch, before the imports below need it.
torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

from tests.gpu.test_hopper import Lane, race  # noqa: E402

FIRST, LAST = (StreamK(owner=owner, reduction="atomic") for owner in ("first", "last"))
PLAIN = (
    Spec((FIRST,), (64, 64, 32), "nn", "bf16", "f32", target="sm_80"),
    Spec((LAST,), (128, 128, 32), "nt", "f16", "f32", target="sm_80"),
    Spec((TwoTileStreamK(first="dp", reduction="atomic"),), (96, 96, 48), "tt", target="sm_80"),
    Spec((SplitK(splits=5, reduction="atomic"),), (64, 64, 32), "tn", "f16", target="sm_80"),
    # TMA cannot load these tiles, so a Hopper GPU runs mma.sync, and adds with vector atomics.
    Spec((HybridStreamK(owner="last", reduction="atomic"),), (64, 64, 32), "nt", "f16", "f32"),
    Spec((SplitK(splits=3, reduction="atomic"),), (32, 48, 32), "nn"),
)
TALL = ((512, 512, 16384), (128, 256, 65536), (264, 520, 8200), (8, 1032, 4104), (72, 8, 30008))
"""Shapes with few output tiles and many k tiles, some of them ragged."""
SHAPE, OTHER = (264, 392, 4104), (128, 136, 9000)


def on_this_device(spec: Spec) -> Spec:
    if spec.target == "sm_90a" and device(0).architecture != "sm_90a":
        pytest.skip(f"{spec} is for sm_90a, this is {device(0).architecture}")
    return spec


every_spec = pytest.mark.parametrize("spec", [*PLAIN, *ADDED], ids=str)


def whole(spec: Spec, shape: tuple[int, int, int], seed: int = 0) -> Problem:
    """A problem with operands of small integers."""
    problem = Problem.make(on_this_device(spec), shape, seed)
    generator = torch.Generator("cuda").manual_seed(seed)
    for operand in (problem.a, problem.b, problem.c):
        drawn = torch.randint(-2, 3, operand.shape, generator=generator, device="cuda")
        operand.copy_(drawn)
    return problem


def exact(problem: Problem, alpha: float = 1.0, beta: float = 0.0) -> Any:
    """The exact `alpha·A·B + beta·C` of the problem's operands, in D's type."""
    a, b, c = problem.operands
    sums = alpha * (a.double() @ b.double()) + beta * c.double()
    return sums.float().to(c.dtype)


@every_spec
def test_results(spec: Spec):
    """Repeated launches, launches with C, and launches on few workgroups are exact."""
    on_this_device(spec)
    for shape in (*TALL, *shapes(1, 6, aligned=True)):
        problem = whole(spec, shape)
        right = exact(problem)
        outs = [problem.run() for _ in range(4)]
        assert all(torch.equal(out, right) for out in outs), shape
        with_c = problem.run(c=problem.c, alpha=2.0, beta=-1.0)
        assert torch.equal(with_c, exact(problem, 2.0, -1.0)), shape
        if has_open_grid(spec):
            for workgroups in (1, 2, 7, 31):
                assert torch.equal(problem.run(workgroups=workgroups), right), (shape, workgroups)
    assert flags_are_down(kernel(spec))


@pytest.mark.parametrize("spec", PLAIN, ids=str)
def test_normal_numbers_and_odd_extents(spec: Spec):
    for aligned in (True, False):
        for shape in shapes(2, 6, aligned=aligned):
            problem = Problem.make(spec, shape)
            problem.check(problem.run())
            problem.check(problem.run(c=problem.c, alpha=0.5, beta=2.0), alpha=0.5, beta=2.0)
    assert flags_are_down(kernel(spec))


@every_spec
def test_what_is_no_number_does_not_stay(spec: Spec):
    """NaN in the operands of one launch does not stay in the workspace.

    Every launch clears the slots that it used, so the next launch is exact.
    """
    problem = whole(spec, SHAPE)
    right = exact(problem)
    a = problem.a.clone()
    problem.a.fill_(float("nan"))
    assert problem.run().isnan().all()
    assert flags_are_down(kernel(spec))
    problem.a.copy_(a)
    assert torch.equal(problem.run(), right)


@every_spec
def test_the_workspace_is_used(spec: Spec):
    """The kernels of this file divide tiles among workgroups, so they have partial sums."""
    whole(spec, TALL[0]).run()
    assert buffers(kernel(spec), "partials")


@every_spec
def test_fifty_replays(spec: Spec):
    """Every replay of a CUDA graph with two launches is exact, as are other launches in between."""
    problem = whole(spec, SHAPE)
    right, outs = exact(problem), (problem.out(), problem.out())
    assert torch.equal(problem.run(), right)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in outs:
            kernel(spec)(problem.a, problem.b, out=out)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(50):
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        for out in (*outs, problem.run()):
            wrong += (out != right).sum()
    assert int(wrong) == 0
    assert flags_are_down(kernel(spec))


@pytest.mark.parametrize("spec", [PLAIN[0], ADDED[0]], ids=str)
def test_the_first_launch_may_be_captured(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """If the first launch is captured, its workspace is zero when the CUDA graph is replayed."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    problem, options = whole(spec, SHAPE), {"debug": spec.watchdog, "lowering": spec.lowering}
    before, fresh = (codegen.compile(spec.graph, spec.target, **options) for _ in range(2))
    before(problem.a, problem.b)  # stores the kernel on disk: no kernel is compiled in a capture
    right, out, graph = exact(problem), problem.out(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fresh(problem.a, problem.b, out=out)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, right)


@pytest.mark.parametrize("spec", [PLAIN[1], PLAIN[3], *ADDED[:2], ADDED[4]], ids=str)
def test_two_streams_at_once(spec: Spec):
    """Two streams may run a kernel at the same time, because each stream has its own workspace."""
    race([Lane(whole(spec, SHAPE)), Lane(whole(spec, OTHER, seed=1))], 20)


@pytest.fixture(scope="module", autouse=True)
def _code() -> None:
    if torch.cuda.is_available() and device(0).architecture == "sm_90a":
        hopper.warm(hopper.code_of(ADDED, hopper.random_cases))
