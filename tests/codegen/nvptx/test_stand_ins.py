"""Which kernel of a GPU serves a call while a better one is built; nothing is built in captures."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from threading import current_thread

import pytest

import codegen
from codegen.call import background_compiler, build, matmul
from codegen.call.request import PlanRequest
from codegen.targets.nvptx import CudaKernel
from coordgraph import CodegenError, Gemm
from passes.choosing import Plan, choices, rank
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.codegen.slow_builder import Builder
from tests.support.sampling import quick_cases

A, B, D = 1 << 30, 2 << 30, 3 << 30
SIZES = (2048, 2048, 2048), (300, 2048, 512), (2048, 200, 4096)
SERVING = "64x64x64 data-parallel", "128x256x64 data-parallel"
"""Plans whose kernels the tests load first; for every tested size the cost model prefers others."""
REQUEST = PlanRequest(Gemm("bf16"), "sm_90a", "NVIDIA H200", 132)


def product(m: int, n: int, k: int, at: int = D, **options: object) -> None:
    a, b, out = matrix(m, k, A), matrix(k, n, B), matrix(m, n, at)
    codegen.matmul(a, b, out=out, **options)  # type: ignore[arg-type]


@pytest.fixture
def loaded(fake: FakeDriver, slow: Builder) -> FakeDriver:
    """A fake driver that has loaded the kernels of the plans in `SERVING`."""
    for plan in SERVING:
        product(256, 256, 256, plan=plan)
    return fake


def function(plan: str) -> int:
    """The handle that the fake driver gave to the function of a plan's kernel."""
    kernel = build.built(REQUEST)[plan]
    assert isinstance(kernel, CudaKernel)
    (found,) = kernel._functions.values()
    return found.function.handle


@quick_cases(1)
@pytest.mark.parametrize("size", SIZES)
def test_the_best_loaded_plan_serves(loaded: FakeDriver, slow: Builder, size: tuple[int, ...]):
    """The cost model selects the plan, with its grid, among all plans of loaded kernels."""
    request = replace(REQUEST, gemm=replace(REQUEST.gemm, **dict(zip("mnk", size, strict=True))))
    every = [choice.plan for choice in choices(request.gemm, request.constants)]
    (preferred, *_) = rank(request.gemm, request.constants)
    expected = next(plan for plan in every if plan.kernel in SERVING)
    assert preferred.plan.kernel not in SERVING
    for _ in range(2):
        product(*size, background=True)
        assert loaded.launches[-1].function == function(expected.kernel)
    assert len(loaded.loaded) == 2
    slow.finish()
    product(*size, background=True)
    assert slow.plans == [preferred.plan.kernel]
    assert loaded.launches[-1].function == function(preferred.plan.kernel)
    assert len(loaded.loaded) == 3


def test_a_captured_call_uses_what_is_built(loaded: FakeDriver, slow: Builder):
    """While a CUDA graph is captured, a call with background=True builds and loads nothing.

    The call allocates no memory either.
    """
    loaded.capturing[0] = 1
    for _ in range(2):
        product(*SIZES[0], background=True)
    assert background_compiler.wait(0)
    assert (slow.plans, len(loaded.loaded), loaded.allocated) == ([], 2, [])
    serving = {launch.function for launch in loaded.launches[-2:]}
    assert serving <= {function(plan) for plan in SERVING}
    loaded.capturing.clear()
    product(*SIZES[0], background=True)
    slow.finish()
    loaded.capturing[0] = 2
    product(*SIZES[0], background=True)
    assert loaded.launches[-1].function == function(slow.plans[0])


def test_only_loaded_programs_serve(loaded: FakeDriver, slow: Builder):
    """A call uses a loaded kernel only if the program for the call's alignment is loaded.

    Otherwise the call would have to compile that program.
    """
    product(512, 512, 512, D + 2, background=True)
    assert len(loaded.loaded) == 3
    product(2048, 2048, 2048, D + 2, background=True)
    product(2048, 2048, 2048, D + 4, background=True)
    assert len(loaded.loaded) == 4
    assert not background_compiler.wait(0)
    slow.finish()
    assert len(loaded.loaded) == 5


def test_a_kernel_that_spills_on_the_device(loaded: FakeDriver, slow: Builder):
    loaded.spills = lambda code: current_thread().name == background_compiler.THREAD
    product(*SIZES[1], background=True)
    with pytest.warns(RuntimeWarning, match="cannot be built.*spilled"):
        slow.finish()
    loaded.spills = lambda code: False
    # A loaded kernel computes this call, while the second-best plan's kernel is built.
    product(*SIZES[1], background=True)
    slow.finish()
    product(*SIZES[1], background=True)
    refused, second = slow.plans
    assert refused != second
    assert loaded.launches[-1].function == function(second)


def test_a_refused_kernel_is_kept(loaded: FakeDriver):
    """A kernel that is refused after it was loaded stays in memory until `build.forget()`.

    A CUDA graph may have captured launches of the kernel.
    """
    plan = Plan.parse(SERVING[0])
    kernels = [weakref.ref(build.kernel_of(Plan.parse(text), REQUEST)) for text in SERVING]
    build.fail(plan, REQUEST, CodegenError("no registers"))
    build.refuse(build.built(REQUEST)[SERVING[1]], CodegenError("no registers"))
    matmul._prepared.clear()
    gc.collect()
    assert build.built(REQUEST) == {}
    assert all(kernel() is not None for kernel in kernels)
    build.forget()
    gc.collect()
    assert all(kernel() is None for kernel in kernels)
