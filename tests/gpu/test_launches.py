"""Launches in CUDA graphs, on any stream and with any grid are right; invalid calls are errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx import CudaKernel
from codegen.targets.nvptx.driver import device
from coordgraph import Gemm, LaunchError
from passes import DataParallel, StreamK, TwoTileStreamK
from tests.gpu.kernels import (
    DATA_PARALLEL,
    STREAM_K,
    STREAM_K_LAST,
    TWO_TILE,
    WARPGROUPS,
    Problem,
    Spec,
    buffers,
    flags_are_down,
    kernel,
    poison_partials,
    poisoned,
)

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

SHAPE = (520, 392, 2056)
every_schedule = pytest.mark.parametrize(
    "spec", [DATA_PARALLEL, STREAM_K, STREAM_K_LAST, TWO_TILE, WARPGROUPS], ids=str
)
SLEEP = 600_000_000
"""GPU clock cycles for which a stream sleeps: about a third of a second."""


@every_schedule
def test_a_hundred_replays(spec: Spec):
    """A hundred replays of a CUDA graph each give the same bits as a launch without a graph."""
    problem = Problem.make(spec, SHAPE)
    expected, out = problem.run(), problem.out()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(spec)(problem.a, problem.b, out=out)
    for _ in range(100):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, expected)
    # Launches outside the graph between replays use another workspace.
    for _ in range(10):
        out.fill_(float("nan"))
        other = problem.run()
        graph.replay()
        assert torch.equal(other, expected)
        assert torch.equal(out, expected)


@pytest.mark.parametrize("spec", [STREAM_K, STREAM_K_LAST, WARPGROUPS], ids=str)
def test_the_first_launch_may_be_captured(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A kernel whose code is in the cache on disk is loaded during a capture."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    graph_of = spec.schedule[0](spec.gemm.graph(spec.tile))
    before, fresh = (codegen.compile(graph_of, "native", debug=True) for _ in range(2))
    problem = Problem.make(spec, SHAPE)
    before(problem.a, problem.b)
    out, graph = problem.out(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fresh(problem.a, problem.b, out=out)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        problem.check(out)


def test_two_launches_in_one_graph():
    """Two launches of a kernel in one CUDA graph run in sequence, and share one workspace."""
    one, two = Problem.make(STREAM_K, SHAPE), Problem.make(STREAM_K, (128, 1000, 4000), seed=1)
    outs, graph = (one.out(), two.out()), torch.cuda.CUDAGraph()
    expected = (one.run(), two.run())
    with torch.cuda.graph(graph):
        for problem, out in zip((one, two), outs, strict=True):
            kernel(STREAM_K)(problem.a, problem.b, out=out)
    for _ in range(20):
        for out in outs:
            out.fill_(float("nan"))
        graph.replay()
        assert all(map(torch.equal, outs, expected))


@pytest.mark.parametrize("spec", [STREAM_K, STREAM_K_LAST, WARPGROUPS], ids=str)
def test_two_streams_at_once(spec: Spec):
    one, two = Problem.make(spec, SHAPE), Problem.make(spec, (300, 700, 3000), seed=1)
    expected = (one.run(), two.run())
    streams = (torch.cuda.Stream(), torch.cuda.Stream())
    torch.cuda.synchronize()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    counts = []
    for stream, problem, right in zip(streams, (one, two), expected, strict=True):
        with torch.cuda.stream(stream):
            counts.append((stream, problem, right, problem.out(), wrong.clone()))
    torch.cuda.synchronize()
    for _ in range(100):
        for stream, problem, right, out, count in counts:
            with torch.cuda.stream(stream):
                out.fill_(float("nan"))
                kernel(spec)(problem.a, problem.b, out=out)
                count += (out != right).sum()
    torch.cuda.synchronize()
    assert [int(count) for *_, count in counts] == [0, 0]
    assert flags_are_down(kernel(spec))


def test_different_kernels_on_streams_at_once():
    specs = (STREAM_K, WARPGROUPS, TWO_TILE, STREAM_K_LAST, DATA_PARALLEL)
    work = [(torch.cuda.Stream(), Problem.make(s, SHAPE, seed=i)) for i, s in enumerate(specs)]
    expected = [problem.run() for _, problem in work]
    torch.cuda.synchronize()
    for _ in range(20):
        outs = []
        for stream, problem in work:
            with torch.cuda.stream(stream):
                outs.append(problem.run())
        torch.cuda.synchronize()
        assert all(map(torch.equal, outs, expected))


@pytest.mark.parametrize("spec", [STREAM_K, STREAM_K_LAST, TWO_TILE, WARPGROUPS], ids=str)
@pytest.mark.parametrize("workgroups", [1, 2, 7, 61, 132])
def test_grids(spec: Spec, workgroups: int):
    problem = Problem.make(spec, (333, 264, 1048))
    first = problem.run(workgroups=workgroups)
    problem.check(first)
    assert torch.equal(first, problem.run(workgroups=workgroups))
    assert flags_are_down(kernel(spec))


def test_a_persistent_grid():
    spec = Spec((DataParallel(persistent=True),))
    problem = Problem.make(spec, (700, 600, 96))
    results = [problem.run(workgroups=w) for w in (1, 5, 110, 5000)]
    for result in results:
        problem.check(result)
        assert torch.equal(result, results[0]), "sums of whole tiles do not depend on the grid"


def test_more_workgroups_than_the_device_holds():
    many = 20000
    problem = Problem.make(STREAM_K, (1000, 1000, 5000))
    out = problem.out()
    with pytest.raises(LaunchError, match=r"20000 workgroups wait for each other, .* owner='last'"):
        kernel(STREAM_K)(problem.a, problem.b, out=out, workgroups=many)
    torch.cuda.synchronize()
    assert out.isnan().all()
    last = Problem.make(STREAM_K_LAST, (1000, 1000, 5000))
    for workgroups in (5000, many):
        last.check(last.run(workgroups=workgroups))
    assert flags_are_down(kernel(STREAM_K_LAST))


@pytest.mark.parametrize("spec", [STREAM_K, STREAM_K_LAST, TWO_TILE, WARPGROUPS], ids=str)
def test_what_the_workspace_held_does_not_matter(spec: Spec):
    problem = Problem.make(spec, SHAPE)
    expected = problem.run()
    torch.cuda.synchronize()
    assert buffers(kernel(spec), "partials")
    poison_partials(kernel(spec))
    assert torch.equal(problem.run(), expected)
    assert flags_are_down(kernel(spec))


def test_the_workspace_grows_and_old_launches_keep_theirs():
    spec = Spec((StreamK(),), (32, 32, 32))
    small, large = Problem.make(spec, (40, 40, 900)), Problem.make(spec, (999, 999, 99), seed=1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        results = [p.run(workgroups=w) for p, w in ((small, 3), (large, 264), (small, 100))]
    stream.synchronize()
    for problem, result in zip((small, large, small), results, strict=True):
        problem.check(result)


@pytest.mark.parametrize("spec", [STREAM_K, STREAM_K_LAST], ids=str)
def test_a_captured_workspace_stays_when_others_grow(spec: Spec):
    """The workspace of a captured launch stays in place when later launches need larger ones."""
    small, large = Problem.make(spec, SHAPE), Problem.make(spec, (1500, 1400, 300), seed=1)
    expected, stream = (small.run(workgroups=7), large.run()), torch.cuda.Stream()
    graphs: list[tuple[Any, Any, Any]] = []
    for problem, right, grid in ((small, expected[0], 7), (large, expected[1], None)):
        out, graph = problem.out(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kernel(spec)(problem.a, problem.b, out=out, workgroups=grid)
        graphs.append((graph, out, right))
        large.run()
    for _ in range(20):
        for graph, out, right in graphs:
            out.fill_(float("nan"))
            graph.replay()
            assert torch.equal(out, right)
    assert flags_are_down(kernel(spec))


def test_the_stream_argument():
    problem = Problem.make(STREAM_K, SHAPE)
    expected, run = problem.run(), kernel(STREAM_K)
    for handle in (lambda s: s, lambda s: s.cuda_stream):
        stream, out = torch.cuda.Stream(), problem.out()
        # The first launch is made here, so that nothing is allocated or loaded while the stream
        # sleeps.
        run(problem.a, problem.b, out=out, stream=handle(stream))
        torch.cuda.synchronize()
        assert out.fill_(float("nan")).isnan().all()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP)
        run(problem.a, problem.b, out=out, stream=handle(stream))
        assert not stream.query(), "the launch did not wait for the stream"
        assert out.isnan().all(), "the kernel ran on another stream"
        stream.synchronize()
        assert torch.equal(out, expected)


def test_the_current_stream_is_the_default():
    problem = Problem.make(DATA_PARALLEL, SHAPE)
    stream, out = torch.cuda.Stream(), problem.out()
    assert problem.run().isfinite().all()
    assert out.isnan().all()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP)
        kernel(DATA_PARALLEL)(problem.a, problem.b, out=out)
    assert out.isnan().all()
    stream.synchronize()
    problem.check(out)


Bad = Callable[[Any, Any, Any], tuple[tuple[Any, ...], dict[str, Any]]]
BAD: dict[str, tuple[Bad, str]] = {
    "k differs": (lambda a, b, c: ((a[:, :40].contiguous(), b), {}), "k would be 40 and 64"),
    "a vector": (lambda a, b, c: ((a[0], b), {}), "a matrix is needed"),
    "no rows": (lambda a, b, c: ((a[:0], b), {}), "out is 64x64, but 0x64 is needed"),
    "another type": (lambda a, b, c: ((a.half(), b), {}), "a holds f16"),
    "no such type": (lambda a, b, c: ((a.int(), b), {}), "a holds i32"),
    "host memory": (lambda a, b, c: ((a.cpu(), b), {}), "lies on 'cpu'"),
    "numpy": (lambda a, b, c: ((a.float().cpu().numpy(), b), {}), "numpy array in host memory"),
    "not contiguous": (lambda a, b, c: ((a, b.T.contiguous().T), {}), "not contiguous row-major"),
    "beta without c": (lambda a, b, c: ((a, b), {"beta": 1.0}), "needs c"),
    "c of another shape": (lambda a, b, c: ((a, b, c[:50]), {"beta": 1.0}), "c is 50x64"),
    "a fixed grid": (lambda a, b, c: ((a, b), {"workgroups": 3}), "was made for a fixed number"),
    "a list": (lambda a, b, c: (([[1.0]], b), {}), "a list, which is no array"),
}


@pytest.mark.parametrize("name", BAD)
def test_nothing_is_written_on_bad_input(name: str):
    a, b, c = (torch.randn(64, 64, device="cuda").bfloat16() for _ in range(3))
    out = poisoned((64, 64), "bf16")
    change, words = BAD[name]
    positional, named = change(a, b, c)
    with pytest.raises(LaunchError, match=words):
        kernel(DATA_PARALLEL)(*positional, out=out, **named)
    torch.cuda.synchronize()
    assert out.isnan().all()


def test_the_output_must_not_overlap_the_operands():
    memory = torch.randn(3 * 64 * 64, device="cuda").bfloat16()
    a, b = memory[:4096].view(64, 64), memory[4096:8192].view(64, 64)
    before = memory.clone()
    for start in (0, 4095, 8191):
        with pytest.raises(LaunchError, match="'out' overlaps"):
            kernel(DATA_PARALLEL)(a, b, out=memory[start : start + 4096].view(64, 64))
    torch.cuda.synchronize()
    assert torch.equal(memory, before)


@every_schedule
def test_resources(spec: Spec):
    made = kernel(spec)
    Problem.make(spec, (64, 64, 64)).run()
    for loaded in made._functions.values():
        assert 16 <= loaded.function.registers <= 255
        assert loaded.function._attribute("LOCAL_SIZE_BYTES") == 0
        assert loaded.function.resident >= device(0).processors
    assert 16 <= made.registers <= 255


def test_native_is_the_gpu():
    graph = TwoTileStreamK()(Gemm().graph((64, 64, 32)))
    made = codegen.compile(graph, "native")
    assert isinstance(made, CudaKernel)
    assert made.target == device(0).architecture
    assert codegen.compile(StreamK()(Gemm("f32").graph((8, 8, 8))), "native").target == "cpu"
