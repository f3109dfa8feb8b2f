"""Hopper kernels give right results, with stores of every width, and equal bits under load.

Like users' kernels, the kernels have no watchdog that traps after long waits. Run with
`--timeout-method=thread`, which also ends a test whose kernel never ends.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from codegen.targets.nvptx import CudaKernel
from codegen.targets.nvptx.driver import device
from codegen.targets.nvptx.launch.call import CheckedCall
from tests.gpu import hopper
from tests.gpu.hopper import SCALES, WAYS_OF_D, Case
from tests.gpu.hopper_kernels import DIFFERENT_D, RANDOM, SHARING, STEADY, SWEEP, TURNS, TWO_SHAPES
from tests.gpu.kernels import Problem, Spec, compare, flags_are_down, kernel, poison_partials
from tests.support.gpu import require_gpu

torch: Any = pytest.importorskip("torch")

FRAME = 1024
"""Number of elements before an output, and after it, that a kernel must not write; a multiple of
a cache line.
"""
SLEEP = 10_000_000
"""Clock cycles, about 6 ms, during which the host enqueues launches."""
SHAPE, OTHER_SHAPE = (520, 776, 2056), (264, 1032, 3080)


@pytest.fixture(scope="module", autouse=True)
def _on_hopper() -> None:
    require_gpu()
    if device(0).architecture != "sm_90a":
        pytest.skip(f"these kernels are for sm_90a, this is {device(0).architecture}")


@pytest.fixture(scope="module")
def _code(_on_hopper: None) -> None:
    hopper.warm(hopper.code_of(RANDOM, hopper.random_cases))


@pytest.fixture(scope="module")
def _code_of_d(_on_hopper: None) -> None:
    hopper.warm(hopper.code_of_d())


@pytest.fixture(scope="module")
def _code_of_the_sweep(_on_hopper: None) -> None:
    hopper.warm(hopper.code_of((*SWEEP, *TURNS), hopper.sweep_cases))


@pytest.fixture(scope="module")
def _code_of_two_shapes(_on_hopper: None) -> None:
    hopper.warm(hopper.code_of(TWO_SHAPES, hopper.two_shape_cases))


every_sharing_kernel = pytest.mark.parametrize("spec", SHARING, ids=str)


def framed(rows: int, columns: int, kind: Any, offset: int = 0) -> tuple[Any, Any]:
    """(memory full of NaN, a matrix in it).

    The matrix begins `offset` elements after an aligned address.
    """
    size, start = rows * columns, FRAME + offset
    memory = torch.full((size + 2 * FRAME + 16,), float("nan"), dtype=kind, device="cuda")
    return memory, memory[start : start + size].view(rows, columns)


def written_outside(memory: Any, out: Any) -> Any:
    """Number of elements of `memory` outside `out` that were written."""
    start = out.storage_offset()
    around = (memory[:start], memory[start + out.numel() :])
    return sum((~part.isnan()).sum() for part in around)


class Launched:
    """A launched case; `wrong` counts wrong elements on the GPU, without synchronization."""

    def __init__(self, case: Case) -> None:
        self.case, self.problem = case, Problem.make(case.spec, case.shape, case.seed)
        m, n, _ = case.shape
        if not case.beta:  # with beta = 0 the kernel may not read C
            self.problem.c.fill_(float("nan"))
        self.memory, self.out = framed(m, n, self.problem.c.dtype)
        made, p = kernel(case.spec), self.problem
        poison_partials(made)
        made(
            p.a,
            p.b,
            p.c,
            out=self.out,
            alpha=case.alpha,
            beta=case.beta,
            workgroups=case.workgroups,
        )
        wrong, *_ = compare(self.out, *p.operands, case.alpha, case.beta)
        self.wrong = wrong.sum() + written_outside(self.memory, self.out)


def all_right(launches: list[Launched]) -> None:
    """Wait for all launches; if one is wrong, fail with its case (seed, shape, scalars)."""
    bad = torch.stack([launch.wrong for launch in launches]).nonzero().flatten().tolist()
    if not bad:
        return
    first = launches[bad[0]]
    try:
        first.problem.check(first.out, alpha=first.case.alpha, beta=first.case.beta)
    except AssertionError as error:
        pytest.fail(f"{len(bad)} of {len(launches)} are wrong; the first is {first.case}: {error}")
    pytest.fail(f"{len(bad)} of {len(launches)} write outside of D; the first is {first.case}")


@pytest.mark.usefixtures("_code")
@pytest.mark.parametrize("spec", RANDOM, ids=str)
def test_thousands_of_random_shapes(spec: Spec):
    """Each kernel gives right results in a hundred random cases.

    Workspaces and D are filled with NaN before, so that an element that is not written shows.
    """
    cases = hopper.random_cases(spec)
    all_right([Launched(case) for case in cases])
    loaded = {variant for _, variant in kernel(spec)._functions}
    assert loaded == {case.variant for case in cases}
    assert flags_are_down(kernel(spec))


@pytest.mark.slow
@pytest.mark.usefixtures("_code_of_the_sweep")
@pytest.mark.parametrize("spec", [*SWEEP, *TURNS], ids=str)
def test_every_schedule_tile_layout(spec: Spec):
    cases = hopper.sweep_cases(spec)
    first, again = ([Launched(case) for case in cases] for _ in range(2))
    all_right(first)
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one.out, two.out), f"{one.case}: another result the second time"
    assert flags_are_down(kernel(spec))


@pytest.mark.usefixtures("_code_of_two_shapes")
@pytest.mark.parametrize("spec", TWO_SHAPES, ids=str)
def test_tiles_of_two_shapes(spec: Spec):
    cases = hopper.two_shape_cases(spec)
    first, again = ([Launched(case) for case in cases] for _ in range(2))
    all_right(first)
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one.out, two.out), f"{one.case}: another result the second time"


def serves(made: CudaKernel, problem: Problem, out: Any, c: Any) -> int:
    """The number of elements of D per store, in the code that a call with these tensors uses."""
    views = made._views(problem.a, problem.b, c, out, None, ())
    plan = made._checked(views, (1.0, 1.0), None)
    assert isinstance(plan, CheckedCall)
    ((_, variant),) = (k for k, it in made._functions.items() if it.function is plan.function)
    assert variant.instructions == "wgmma"
    return variant.vectors.d


@pytest.mark.usefixtures("_code_of_d")
@pytest.mark.parametrize(("columns", "d_offset", "c_offset", "width"), WAYS_OF_D)
@pytest.mark.parametrize("spec", DIFFERENT_D, ids=str)
def test_every_way_of_d(spec: Spec, columns: int, d_offset: int, c_offset: int, width: int):
    """D is stored by TMA boxes, pairs or single elements; no element around D is written.

    The alignment of D and C decides how D is stored.
    """
    made, problem = kernel(spec), Problem.make(spec, (333, columns, 520))
    m, n = problem.c.shape
    _, c = framed(m, n, problem.c.dtype, c_offset)
    c.copy_(problem.c)
    for alpha, beta in SCALES:
        memory, out = framed(m, n, c.dtype, d_offset)
        assert serves(made, problem, out, c) == min(width, hopper.chunk_of_d(spec))
        assert made(problem.a, problem.b, c, out=out, alpha=alpha, beta=beta) is out
        problem.check(out, alpha=alpha, beta=beta)
        assert int(written_outside(memory, out)) == 0
    # Results are also right if C and D are the same tensor.
    memory, out = framed(m, n, c.dtype, d_offset)
    out.copy_(c)
    made(problem.a, problem.b, out, out=out, alpha=0.5, beta=-2.0)
    problem.check(out, alpha=0.5, beta=-2.0)
    assert int(written_outside(memory, out)) == 0


class Lane:
    """A CUDA stream with a problem of its own.

    `wrong` counts elements of D that differ from the first launch's D, over all launches.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.stream = problem, torch.cuda.Stream()
        self.expected = problem.run()
        problem.check(self.expected)
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            # The first launch is made here, so that later launches allocate and load nothing.
            self.out, self.wrong = problem.run(), torch.zeros((), dtype=torch.int64, device="cuda")
        torch.cuda.synchronize()

    def launch(self) -> None:
        """On the CUDA stream of this lane, enqueue a launch and compare D with the first result."""
        made = kernel(self.problem.spec)
        with torch.cuda.stream(self.stream):
            poison_partials(made, self.stream)
            self.out.fill_(float("nan"))
            made(self.problem.a, self.problem.b, out=self.out)
            self.wrong += (self.out != self.expected).sum()


def race(lanes: list[Lane], rounds: int) -> None:
    """Launch kernels concurrently on several CUDA streams, `rounds` times; check the results.

    A lane is a stream with its own problem. Each result must equal the lane's first result.
    """
    for lane in lanes:
        with torch.cuda.stream(lane.stream):
            torch.cuda._sleep(SLEEP)
    for _ in range(rounds):
        for lane in lanes:
            lane.launch()
    torch.cuda.synchronize()
    assert [int(lane.wrong) for lane in lanes] == [0] * len(lanes)
    for lane in lanes:
        assert flags_are_down(kernel(lane.problem.spec))


@pytest.mark.usefixtures("_code")
@every_sharing_kernel
def test_the_same_bits_on_two_streams_at_once(spec: Spec):
    """A kernel that runs on two streams at once gives the same bits as when it runs alone."""
    race([Lane(Problem.make(spec, SHAPE)), Lane(Problem.make(spec, OTHER_SHAPE, seed=1))], 5)


@pytest.mark.usefixtures("_code")
@every_sharing_kernel
def test_two_kernels_on_streams_of_their_own(spec: Spec):
    other = SHARING[(SHARING.index(spec) + 1) % len(SHARING)]
    race([Lane(Problem.make(spec, SHAPE)), Lane(Problem.make(other, OTHER_SHAPE, seed=1))], 20)


@pytest.mark.usefixtures("_code")
@every_sharing_kernel
def test_fifty_replays(spec: Spec):
    """Each replay of a CUDA graph resets the flags for the next replay."""
    replay(spec, SHAPE, 50)


def replay(spec: Spec, shape: tuple[int, int, int], times: int) -> None:
    """Capture a launch and replay it `times` times; check for equal bits of D and zero flags."""
    problem = Problem.make(spec, shape)
    expected, out = problem.run(), problem.out()
    problem.check(expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(spec)(problem.a, problem.b, out=out)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(times):
        poison_partials(kernel(spec))
        out.fill_(float("nan"))
        graph.replay()
        wrong += (out != expected).sum()
    assert int(wrong) == 0
    assert flags_are_down(kernel(spec))


class Chain:
    """Twenty products, each with the previous result as A, and PyTorch kernels in between.

    Two buffers alternate. A launch that starts too early would read a result that is not complete,
    or overwrite one that is still read.
    """

    def __init__(self, size: int) -> None:
        chance = random.Random(size)
        self.specs = [spec for _ in range(3) for spec in chance.sample(STEADY, len(STEADY))][:20]
        self.size = size

        def normal(scale: float) -> Any:
            generator = torch.Generator("cuda").manual_seed(size)
            made = torch.randn(size, size, device="cuda", generator=generator)
            return (made * scale).to(torch.bfloat16)

        self.first, self.b = normal(1.0), normal(size**-0.5)
        self.buffers = (torch.empty_like(self.first), torch.empty_like(self.first))

    def run(self, *, wait: bool) -> Any:
        """Run the chain and return the last result.

        With `wait`, every product is checked before the next one starts.
        """
        x, y = self.buffers
        x.copy_(self.first)
        y.fill_(float("nan"))
        for step, spec in enumerate(self.specs):
            kernel(spec)(x, self.b, x, out=y, beta=0.5)
            if wait:
                torch.cuda.synchronize()
                Problem(spec, (self.size, self.size, self.size), x, self.b, x).check(y, beta=0.5)
            if step % 6 == 3:
                torch.tanh(y, out=y)
            elif step % 6 == 5:
                y.sub_(x, alpha=0.25)
                x.fill_(float("nan"))
            if wait:
                torch.cuda.synchronize()
            x, y = y, x
        return x


@pytest.mark.usefixtures("_code")
@pytest.mark.parametrize("size", [264, 520, 1400])
def test_a_chain_of_overlapping_launches(size: int):
    # One of the kernels is Split-K with `splits=none` and `reduction=scatter`. It launches at least
    # one workgroup for each tile. They wait for each other, so all must be resident: 110 for tiles
    # of 152x128 and the largest size.
    chain = Chain(size)
    right = chain.run(wait=True).clone()
    assert right.isfinite().all()
    for _ in range(5):
        # While the stream sleeps the host enqueues all launches, so that they run without gaps.
        torch.cuda._sleep(SLEEP)
        assert torch.equal(chain.run(wait=False), right)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = chain.run(wait=False)
    for _ in range(5):
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, right)
