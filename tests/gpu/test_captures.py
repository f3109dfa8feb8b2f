"""Captures of CUDA graphs: the memory of workspaces, and what a capture must not do."""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.call import families, matmul
from codegen.targets.nvptx.launch import capture_pool
from codegen.targets.nvptx.launch.graph_lifetime import GraphLifetime
from coordgraph import LaunchError
from tests.gpu.kernels import STREAM_K, STREAM_K_LAST, Problem, Spec, flags_are_down, kernel

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

SHAPE = (520, 392, 2056)
LONGEST = 5.0
"""Seconds for which a test waits until the driver has reported that a graph is destroyed."""
both = pytest.mark.parametrize("spec", [STREAM_K, STREAM_K_LAST], ids=str)


def pool() -> capture_pool.CapturePool:
    return capture_pool._pools[torch.cuda.current_device()]


def latest() -> GraphLifetime:
    """The lifetime of the graph that was captured last."""
    *_, lease = pool()._leases.values()
    assert lease.lifetime is not None, "the driver cannot tell when a graph is destroyed"
    return lease.lifetime


def captured(spec: Spec, problem: Problem, out: Any) -> Any:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(spec)(problem.a, problem.b, out=out)
    return graph


def replayed(graph: Any, out: Any, expected: Any) -> bool:
    out.fill_(float("nan"))
    graph.replay()
    return torch.equal(out, expected)


@both
def test_a_capture_after_a_call_allocates_nothing(spec: Spec, monkeypatch: pytest.MonkeyPatch):
    problem = Problem.make(spec, SHAPE)
    out = problem.out()
    for _ in range(3):
        expected = problem.run()
        with monkeypatch.context() as patch:
            patch.setattr(capture_pool, "allocate", lambda *_: pytest.fail("allocated"))
            graph = captured(spec, problem, out)
        assert replayed(graph, out, expected)
    assert flags_are_down(kernel(spec))


@both
def test_recaptures_reuse_the_memory_of_graphs_that_are_destroyed(spec: Spec):
    """The memory for captures does not grow, and the workspace of a graph that is kept stays."""
    problem = Problem.make(spec, SHAPE)
    expected, out, kept_out = problem.run(), problem.out(), problem.out()
    kept = captured(spec, problem, kept_out)
    sizes = []
    for _ in range(12):
        graph = captured(spec, problem, out)
        for _ in range(3):
            assert replayed(graph, out, expected)
        assert replayed(kept, kept_out, expected)
        torch.cuda.synchronize()
        lifetime = latest()
        del graph
        gc.collect()
        end = time.monotonic() + LONGEST
        while not lifetime.ended and time.monotonic() < end:
            time.sleep(0.01)
        assert lifetime.ended, "the driver has not reported that the graph is destroyed"
        sizes.append(sum(buffer.size for _, buffer in pool().buffers))
    assert len({*sizes[2:]}) == 1
    assert flags_are_down(kernel(spec))


def test_a_graph_that_runs_keeps_its_memory():
    """A graph that is destroyed while a replay waits on the GPU gives up its memory afterwards."""
    problem = Problem.make(STREAM_K, SHAPE)
    expected, out = problem.run(), problem.out()
    stream, graph = torch.cuda.Stream(), captured(STREAM_K, problem, out)
    lifetime = latest()
    out.fill_(float("nan"))
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(600_000_000)
        graph.replay()
    del graph
    gc.collect()
    early = lifetime.ended and not stream.query()
    stream.synchronize()
    assert not early
    assert torch.equal(out, expected)


def test_two_graphs_of_a_kernel_run_at_once():
    """Graphs that exist at the same time have workspaces of their own."""
    one, two = Problem.make(STREAM_K, SHAPE), Problem.make(STREAM_K, (300, 700, 3000), seed=1)
    expected, outs = (one.run(), two.run()), (one.out(), two.out())
    graphs = [captured(STREAM_K, *each) for each in zip((one, two), outs, strict=True)]
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in streams]
    torch.cuda.synchronize()
    for _ in range(50):
        for stream, graph, out, right, count in zip(
            streams, graphs, outs, expected, wrong, strict=True
        ):
            with torch.cuda.stream(stream):
                out.fill_(float("nan"))
                graph.replay()
                count += (out != right).sum()
    torch.cuda.synchronize()
    assert [int(count) for count in wrong] == [0, 0]


def test_no_kernel_is_compiled_during_a_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A call that would compile is refused, and the capture goes on; it is served afterwards.

    Another process, or a kernel object, that finds the code on disk may load it in a capture.
    """
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    families.forget()
    matmul.forget()
    a, b = (torch.randint(-1, 2, (256, 256), device="cuda").bfloat16() for _ in "ab")
    right, out = (a.float() @ b.float()).bfloat16(), torch.zeros_like(a)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.add_(1)
        with pytest.raises(LaunchError, match="make the same call once before the capture"):
            codegen.matmul(a, b, out=out)
    graph.replay()
    assert (out == 1).all()
    codegen.matmul(a, b, out=out)
    assert torch.equal(out, right)
    matmul.forget()
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        codegen.matmul(a, b, out=out)
    out.zero_()
    graph.replay()
    assert torch.equal(out, right)
