"""Repeated calls of one kernel give right results, also from several threads and with overlap."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx import CudaKernel, program
from codegen.targets.nvptx.driver import device
from coordgraph import Gemm, LaunchError
from passes import DataParallel, StreamK, TwoTileStreamK
from passes.lowering import LowerToHopper
from tests.gpu.kernels import DATA_PARALLEL, STREAM_K, Problem, Spec, check, kernel

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

BOXES = Spec((DataParallel(),), (128, 128, 64))
"""A kernel whose launches overlap on GPUs with TMA."""
STREAMED = Spec((TwoTileStreamK(owner="last"),), (128, 128, 64))
PER_THREAD = 2
"""The value of the stream handle CU_STREAM_PER_THREAD: each thread's own default stream."""
MOST_TIMES = 4
"""Largest allowed ratio of a call's host time to the host time of torch.matmul."""
every = pytest.mark.parametrize("spec", [DATA_PARALLEL, STREAM_K, BOXES, STREAMED], ids=str)


def in_thread(work: Callable[[], None]) -> None:
    """Run `work` in a new thread, which has no CUDA context yet; raise its errors here."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


@every
def test_buffers_take_turns(spec: Spec):
    """If calls of one kernel alternate between tensors, each call uses the tensors that it gets."""
    problems = [Problem.make(spec, (264, 392, 520), seed) for seed in range(5)]
    expected = [problem.run().clone() for problem in problems]
    for _ in range(20):
        outs = [problem.run() for problem in problems]
        assert all(map(torch.equal, outs, expected))
    for problem, right in zip(problems, expected, strict=True):
        problem.check(right)


@every
def test_each_launch_sees_what_the_one_before_wrote(spec: Spec):
    """Each launch reads the result of the previous launch, without synchronization by the host.

    Launches may overlap, but may not read a result before it is complete.
    """
    size, turns = 512, 40
    b = torch.randn(size, size, device="cuda").to(torch.bfloat16) / size**0.5
    first = torch.randn(size, size, device="cuda").to(torch.bfloat16)

    def run(*, wait: bool) -> Any:
        x, y = first.clone(), torch.empty_like(first)
        for _ in range(turns):
            kernel(spec)(x, b, out=y)
            if wait:
                torch.cuda.synchronize()
            x, y = y, x
        return x

    right = run(wait=True)
    assert right.isfinite().all()
    for _ in range(5):
        assert torch.equal(run(wait=False), right)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(wait=False)
    for _ in range(5):
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, right)


@pytest.mark.parametrize("cluster", [{"cluster_m": 2}, {"cluster_n": 2}], ids=str)
@pytest.mark.parametrize("schedule", [DataParallel(), StreamK(), STREAMED.schedule[0]], ids=str)
def test_clusters(schedule: Any, cluster: dict[str, Any]):
    if device(0).architecture != "sm_90a":
        pytest.skip(f"clusters are lowered for sm_90a, this is {device(0).architecture}")
    graph = schedule(BOXES.gemm.graph((256, 128, 64)))
    made = codegen.compile(graph, debug=True, lowering=LowerToHopper(**cluster))
    assert isinstance(made, CudaKernel)
    assert 1 <= made.resident <= device(0).processors // 2
    for shape in ((1000, 776, 1032), (8, 8, 8), (256, 2048, 264)):
        problem = Problem.make(BOXES, shape)
        for _ in range(3):
            out = problem.out()
            made(problem.a, problem.b, problem.c, out=out, alpha=0.5, beta=2.0)
            problem.check(out, alpha=0.5, beta=2.0)


@every
def test_threads(spec: Spec):
    """Results are right if four threads launch at once, and then a thread without CUDA context."""
    problems = [Problem.make(spec, (392, 264, 1032), seed) for seed in range(4)]
    expected = [problem.run() for problem in problems]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        problem, stream = problems[number], torch.cuda.Stream()
        with torch.cuda.stream(stream):
            outs = [problem.run() for _ in range(100)]
        stream.synchronize()
        wrong.append(sum(not torch.equal(out, expected[number]) for out in outs))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * 4
    out = problems[0].out()
    torch.cuda.synchronize()
    in_thread(lambda: kernel(spec)(problems[0].a, problems[0].b, out=out, stream=0))
    torch.cuda.synchronize()
    assert torch.equal(out, expected[0])


def test_the_streams_of_threads_share_no_workspace():
    """The handle CU_STREAM_PER_THREAD denotes a different stream in each thread.

    Launches of two threads on it overlap, so each stream needs its own workspace.
    """
    spec, made = STREAM_K, kernel(STREAM_K)
    problems = [Problem.make(spec, (392, 264, 3080), seed) for seed in range(2)]
    expected = [problem.run() for problem in problems]
    outs = [[problem.out() for _ in range(50)] for problem in problems]
    torch.cuda.synchronize()
    barrier = threading.Barrier(2)

    def work(number: int) -> None:
        problem = problems[number]
        barrier.wait()
        for out in outs[number]:
            made(problem.a, problem.b, out=out, stream=PER_THREAD)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for found, right in zip(outs, expected, strict=True):
        assert all(torch.equal(out, right) for out in found)


def test_what_is_refused_after_a_good_call():
    problem = Problem.make(BOXES, (128, 128, 128))
    made, out = kernel(BOXES), problem.out()
    made(problem.a, problem.b, out=out)
    # The transposed matrix has the same shape, but its memory order differs.
    transposed = torch.empty_like(problem.b).T
    with pytest.raises(LaunchError, match="not contiguous row-major"):
        made(problem.a, transposed, out=out)
    with pytest.raises(LaunchError, match="lies on 'cpu'"):
        made(problem.a.cpu(), problem.b, out=out)
    with pytest.raises(LaunchError, match="a has no memory of its own"):
        made(problem.a.to_sparse(), problem.b, out=out)
    with pytest.raises(LaunchError, match="'out' overlaps b"):
        made(problem.a, problem.b, out=problem.b)
    with pytest.raises(LaunchError, match="holds f16"):
        made(problem.a.half(), problem.b, out=out)
    parameter = torch.nn.Parameter(problem.a)
    again = made(parameter, problem.b)
    assert torch.equal(again, out)
    problem.check(out)


@every
def test_a_new_output_each_time(spec: Spec):
    problem = Problem.make(spec, (136, 264, 392))
    kept = [kernel(spec)(problem.a, problem.b) for _ in range(20)]
    assert len({out.data_ptr() for out in kept}) == 20
    for out in kept:
        check(out, problem.a, problem.b, None)


@pytest.mark.parametrize("spec", [DATA_PARALLEL, BOXES, STREAMED], ids=str)
def test_from_the_cache_on_disk(spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A kernel from the disk cache is not generated again, and gives the same bits."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    graph = spec.schedule[0](spec.gemm.graph(spec.tile))
    problem = Problem.make(spec, (520, 264, 1032))
    outs = []
    for turn in range(2):
        if turn:
            for name in ("lowered", "module", "ptx"):
                monkeypatch.setattr(program.CudaProgram, name, property(None))
        made = codegen.compile(graph, debug=True)
        outs.append(made(problem.a, problem.b, problem.c, alpha=0.5, beta=0.25))
    problem.check(outs[0], alpha=0.5, beta=0.25)
    assert torch.equal(*outs)
    assert len(list(tmp_path.glob("*.kernel.zip"))) == 1


def host_seconds(call: Callable[[], Any]) -> float:
    times: list[float] = []
    for _ in range(20):
        torch.cuda.synchronize()
        for _ in range(16):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return median(times)


@pytest.mark.parametrize("spec", [DATA_PARALLEL, BOXES, STREAMED], ids=str)
def test_a_call_is_cheap(spec: Spec):
    problem = Problem.make(spec, (256, 256, 256))
    a, b, c, out, made = problem.a, problem.b, problem.c, problem.out(), kernel(spec)
    best = host_seconds(lambda: torch.matmul(a, b, out=out))
    assert host_seconds(lambda: made(a, b, out=out)) < MOST_TIMES * best
    assert host_seconds(lambda: made(a, b)) < MOST_TIMES * best
    assert host_seconds(lambda: made(a, b, c, out=out, beta=0.5)) < MOST_TIMES * best


def test_a_pickled_kernel_multiplies_as_before():
    graph = DataParallel()(Gemm("bf16").graph(tile=(128, 128, 64)))
    made = codegen.compile(graph)
    a, b = (torch.randn(256, 256, device="cuda").bfloat16() for _ in "ab")
    assert torch.equal(pickle.loads(pickle.dumps(made))(a, b), made(a, b))
