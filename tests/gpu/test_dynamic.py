"""Dynamic tile schedulers on the GPU: right results, equal bits, and a counter that ends at 0."""

from __future__ import annotations

from typing import Any

import pytest

from codegen.targets.nvptx.driver import device
from tests.gpu.dynamic_kernels import SPECS
from tests.gpu.kernels import Problem, Spec, flags_are_down, kernel, shapes
from tests.support.gpu import require_gpu

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

every_kernel = pytest.mark.parametrize("spec", SPECS, ids=str)
SHAPE = (1032, 1288, 520)


@pytest.fixture(autouse=True)
def _architecture(spec: Spec) -> None:
    require_gpu()
    if spec.target == "sm_90a" and device(0).architecture != "sm_90a":
        pytest.skip(f"this kernel is for sm_90a, this is {device(0).architecture}")


@every_kernel
def test_results(spec: Spec):
    """D is right for few and for many workgroups, and also if there are more of them than tiles."""
    for shape in (*shapes(3, 6, aligned=True), SHAPE):
        problem = Problem.make(spec, shape)
        problem.check(problem.run())
        for workgroups in (1, 5, 4000):
            problem.check(problem.run(workgroups=workgroups))
    assert flags_are_down(kernel(spec))


@every_kernel
def test_launches_without_a_pause_give_the_same_bits(spec: Spec):
    """Each launch finds the counter of tiles at 0, although the host never waits in between."""
    problem = Problem.make(spec, SHAPE)
    first = problem.run()
    problem.check(first)
    for found in [problem.run(workgroups=1 + 7 * (i % 30)) for i in range(60)]:
        assert torch.equal(found, first)
    assert flags_are_down(kernel(spec))


@every_kernel
def test_replays_of_a_captured_graph(spec: Spec):
    problem = Problem.make(spec, SHAPE)
    right, out, graph = problem.run(), problem.out(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(3):
            kernel(spec)(problem.a, problem.b, out=out)
    for _ in range(20):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, right)
    assert flags_are_down(kernel(spec))


@every_kernel
def test_two_streams_have_counters_of_their_own(spec: Spec):
    """Launches on two streams, which share the SMs, take tiles from separate counters."""
    problem = Problem.make(spec, SHAPE)
    right = problem.run()
    streams, found = [torch.cuda.Stream() for _ in range(2)], list[Any]()
    torch.cuda.synchronize()
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(problem.run())
    torch.cuda.synchronize()
    assert all(torch.equal(each, right) for each in found)
    assert flags_are_down(kernel(spec))
