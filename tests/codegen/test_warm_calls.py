"""Tests of `codegen.warm_calls` with a fake driver: which calls compile nothing after the block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.call import build, families, matmul, prepared_calls, warming
from codegen.call.compile_workers import CompileWorkers
from codegen.call.views import TensorView
from codegen.targets.nvptx import driver
from coordgraph import CodegenError, LaunchError, PassError
from coordgraph.epilogue import epilogue, silu
from passes.choosing.kernel_family import choose_family
from tests.codegen.nvptx.fake_driver import ARCHITECTURE, CONTEXT, PROCESSORS, FakeDriver, install
from tests.support.sampling import quick_cases

NAME = "NVIDIA H200"
A, B, D, MORE, OFFSETS = (number << 40 for number in range(1, 6))
N, K = 512, 256
PLAN = "128x128x64 data-parallel"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDriver]:
    """A fake H200; kernels are compiled in this process, and only 10 random sizes are tried."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    found = install(monkeypatch)
    device = driver.Device(0, NAME, ARCHITECTURE, PROCESSORS, CONTEXT)
    monkeypatch.setattr(driver, "device", lambda ordinal: device)
    monkeypatch.setattr(CompileWorkers, "run", lambda self, jobs, advance: None)

    def few(*args: Any, **options: Any) -> object:
        return choose_family(*args, **{**options, "drawn": 10})

    monkeypatch.setattr(warming, "choose_family", few)
    monkeypatch.setattr(warming, "BY_RULE", 10)
    yield found
    families.forget()
    matmul.forget()


@epilogue(bias="n")
def biased(acc: Any, bias: Any) -> Any:
    return acc + bias


@epilogue()
def swiglu(gate: Any, up: Any) -> Any:
    return silu(gate) * up


def view(at: int, *shape: int, pitch: int = 0, kind: str = "bf16") -> TensorView:
    """A row-major array without memory; `pitch` elements lie between the starts of its rows."""
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append((pitch or extent) if len(strides) == 1 else strides[-1] * extent)
    return TensorView(at, shape, tuple(reversed(strides)), kind, 0)


def plain(m: int) -> None:
    codegen.matmul(view(A, m, K), view(B, N, K).transposed, out=view(D, m, N))


def with_bias(m: int) -> None:
    arrays = view(A, m, K), view(B, N, K).transposed
    codegen.matmul(*arrays, out=view(D, m, N), epilogue=biased, bias=view(MORE, N))


def gated(m: int) -> None:
    codegen.matmul(view(A, m, K), view(B, K, 2 * N), out=view(D, m, N), epilogue=swiglu)


def added(m: int) -> None:
    c, d = view(MORE, m, N), view(D, m, N)
    codegen.matmul(view(A, m, K), view(B, K, N), c, out=d, beta=0.5)


def batched(m: int) -> None:
    codegen.matmul(view(A, 4, m, K), view(B, 4, K, N), out=view(D, 4, m, N))


def joined(m: int) -> None:
    """A batch with one matrix B, which is computed as one product."""
    codegen.matmul(view(A, 4, m, K), view(B, K, N), out=view(D, 4, m, N))


def grouped(m: int) -> None:
    offsets = view(OFFSETS, 5, kind="i32")
    codegen.grouped_matmul(view(A, m, K), view(B, 4, K, N), offsets, out=view(D, m, N))


def gated_groups(m: int) -> None:
    offsets = view(OFFSETS, 5, kind="i32")
    arrays = view(A, m, K), view(B, 4, K, 2 * N), offsets
    codegen.grouped_matmul(*arrays, out=view(D, m, N), epilogue=swiglu)


def with_gaps(m: int) -> None:
    codegen.matmul(view(A, m, K, pitch=3 * K), view(B, K, N), out=view(D, m, N, pitch=2 * N))


def transposed_out(m: int) -> None:
    codegen.matmul(view(A, m, K), view(B, K, N), out=view(D, N, m, pitch=8192).transposed)


def unaligned(m: int) -> None:
    codegen.matmul(view(A + 2, m, K), view(B, K, N), out=view(D, m, N))


def invariant(m: int) -> None:
    codegen.matmul(view(A, m, K), view(B, K, N), out=view(D, m, N), invariant=True)


CALLS = (
    *(with_bias, grouped, with_gaps, plain, gated, added, batched, joined, gated_groups),
    *(transposed_out, unaligned, invariant),
)


@quick_cases(3)
@pytest.mark.parametrize("call", CALLS)
def test_calls_in_the_range_compile_and_load_nothing(fake: FakeDriver, call: Callable[[int], None]):
    """After the block, calls with any size in the range launch kernels that are loaded."""
    with codegen.warm_calls(m=(1, 4096), kernels=3) as warmed:
        call(200)
    built, loaded = dict(build._kernels), len(fake.loaded)
    assert warmed.kinds
    for m in (1, 2, 3, 16, 100, 200, 1000, 2048, 4095, 4096):
        launched = len(fake.launches)
        call(m)
        assert len(fake.launches) == launched + 1
    assert (dict(build._kernels), len(fake.loaded)) == (built, loaded)


@pytest.mark.parametrize("axis", ["n", pytest.param("k", marks=pytest.mark.slow)])
def test_rows_of_every_alignment_in_the_range(fake: FakeDriver, axis: str):
    """If the range begins with 1, calls whose rows are no multiples of 16 bytes compile nothing."""

    def call(extent: int) -> None:
        m, n, k = 64, *((extent, 64) if axis == "n" else (64, extent))
        codegen.matmul(view(A, m, k), view(B, k, n), out=view(D, m, n))

    ranges: Any = {axis: (1, 300)}
    with codegen.warm_calls(**ranges, kernels=2):
        call(64)
    built, loaded = dict(build._kernels), len(fake.loaded)
    for extent in (1, 2, 3, 4, 7, 12, 16, 24, 50, 100, 120, 255, 296, 299, 300):
        call(extent)
    assert (dict(build._kernels), len(fake.loaded)) == (built, loaded)


def test_calls_outside_the_range_choose_among_all_plans(fake: FakeDriver):
    with codegen.warm_calls(m=(64, 128), kernels=1) as warmed:
        with_bias(64)
    (kind,) = warmed.kinds
    assert [(each.m, each.n, each.k) for each in kind.ranges] == [((64, 128), (N, N), (K, K))]
    loaded = len(fake.loaded)
    with_bias(4096)
    assert len(fake.loaded) == loaded + 1


def test_each_kind_of_call_is_warmed_once(fake: FakeDriver):
    """Calls that were prepared before the block are recorded too; sizes of one kind are joined."""
    plain(64)
    with codegen.warm_calls(kernels=1) as warmed:
        for m in (64, 128, 64):
            plain(m)
        batched(64)
    single, batch = warmed.kinds
    assert [each.m for each in single.ranges] == [(64, 64), (128, 128)]
    assert [each.m for each in batch.ranges] == [(64, 64)]


def test_variants_for_the_alignments_of_the_calls_are_loaded(fake: FakeDriver):
    """A kernel has other code for a D whose address is no multiple of 16 bytes."""

    def at(address: int) -> None:
        codegen.matmul(view(A, 64, K), view(B, K, N), out=view(address, 64, N))

    with codegen.warm_calls(kernels=1):
        at(D)
        at(D + 2)
    loaded = len(fake.loaded)
    prepared_calls.forget_prepared()
    at(D)
    at(D + 2)
    assert len(fake.loaded) == loaded


def test_a_block_without_calls_is_an_error(fake: FakeDriver):
    message = "no call of matmul or grouped_matmul on a GPU"
    with pytest.raises(CodegenError, match=message), codegen.warm_calls(m=(1, 64)):
        codegen.matmul(view(A, 64, K), view(B, K, N), out=view(D, 64, N), plan=PLAN)


def test_an_error_of_the_block_is_passed_on(fake: FakeDriver):
    def fail() -> None:
        plain(64)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), codegen.warm_calls(m=(1, 64)):
        fail()
    assert not families.known
    with codegen.warm_calls(kernels=1) as warmed:
        added(64)
    assert len(warmed.kinds) == 1, "calls after a failed block are not added to its recording"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kernels": 0}, LaunchError, "kernels = 0"),
        ({"m": (9, 8)}, PassError, r"m = \(9, 8\) is an empty range"),
        ({"k": 0}, PassError, "an extent of k = 0"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        codegen.warm_calls(**options)
