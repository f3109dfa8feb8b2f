"""Calls of a GPU kernel check and cache arguments, and pass the right ones to a fake driver."""

from __future__ import annotations

import struct
import sys
import threading
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx import CudaKernel, cuda_kernel
from codegen.targets.nvptx.driver import Device
from codegen.targets.nvptx.launch.call import CheckedCall
from coordgraph import Gemm, LaunchError
from passes import DataParallel
from tests.codegen.nvptx.called import (
    A_AT,
    B_AT,
    C_AT,
    D_AT,
    K,
    M,
    N,
    count_arguments,
    kernel,
    operands,
)
from tests.codegen.nvptx.fake_driver import OTHER_CONTEXT, FakeDriver, matrix

pytestmark = pytest.mark.usefixtures("shared_cache")


def as_float(value: int) -> float:
    return struct.unpack("f", struct.pack("I", value & 0xFFFFFFFF))[0]


def test_what_the_kernel_is_given(fake_driver: FakeDriver):
    made = kernel()
    count_arguments(made, fake_driver)
    a, b, c, d = operands()
    assert made(a, b, c, out=d, alpha=2.0, beta=-0.5, stream=77) is d
    (launch,) = fake_driver.launches
    assert launch.grid == (2 * 4, 1, 1)
    assert launch.block == (made.program().threads, 1, 1)
    assert launch.shared_bytes == made.program().shared_bytes
    assert launch.stream == 77
    assert launch.attributes == {}
    assert launch.values[:4] == (A_AT, B_AT, C_AT, D_AT)
    assert [as_float(x) for x in launch.values[4:6]] == [2.0, -0.5]
    # The integer arguments: m, n, k, read_c, tiles_m, tiles_n, tiles_k.
    assert launch.values[6:13] == (M, N, K, 1, 2, 4, 2)
    made(a, b, out=d)
    assert fake_driver.launches[1].values[:4] == (A_AT, B_AT, 0, D_AT)
    assert [as_float(x) for x in fake_driver.launches[1].values[4:6]] == [1.0, 0.0]
    assert fake_driver.launches[1].values[9] == 0
    made(a, b, c, out=d, beta=0.0)  # C is checked but not read
    assert fake_driver.launches[2].values[9] == 0
    made(a, b, c, out=d)  # the default of beta is 1 if C is given
    assert as_float(fake_driver.launches[3].values[5]) == 1.0
    assert fake_driver.launches[3].values[9] == 1


def test_a_call_like_one_before_is_not_checked_again(
    fake_driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
):
    checked: list[Any] = []
    real = cuda_kernel.check_call

    def noted(*args: Any, **options: Any) -> None:
        checked.append(args)
        real(*args, **options)

    monkeypatch.setattr(cuda_kernel, "check_call", noted)
    made = kernel()
    count_arguments(made, fake_driver)
    a, b, c, d = operands()
    for _ in range(3):
        made(a, b, out=d)
        # A and B are at other addresses than in the call before
        made(*operands(a=5 << 24, b=6 << 24)[:2], out=d)
        made(a, b, out=d, alpha=3.0, stream=5)
    assert len(checked) == 1
    made(a, b, c, out=d, beta=0.0)
    made(a, b, c, out=d)
    # C is also the output, so no overlap needs to be checked
    made(a, b, operands(c=D_AT)[2], out=d, beta=1.0)
    made(*operands(m=300)[:2], out=operands(m=300)[3])
    made(a, b, out=operands(d=D_AT + 4)[3])  # this D is aligned to 4 bytes only
    assert len(checked) == 5
    assert [x.grid[0] for x in fake_driver.launches[-2:]] == [3 * 4, 2 * 4]
    # one variant serves every D that is aligned to two elements
    assert len(fake_driver.loaded) == 1


@pytest.mark.parametrize(
    ("d_at", "words"),
    [
        (A_AT, "'out' overlaps a"),
        (B_AT + 2 * K * N - 16, "'out' overlaps b"),
        (C_AT - 16, "overlaps c"),
    ],
)
def test_overlaps_are_seen_in_every_call(fake_driver: FakeDriver, d_at: int, words: str):
    made = kernel()
    a, b, c, d = operands()
    made(a, b, c, out=d, beta=1.0)
    made(a, b, c, out=operands(d=C_AT)[3], beta=1.0)  # D may be the same array as C
    for _ in range(2):
        with pytest.raises(LaunchError, match=words):
            made(a, b, c, out=operands(d=d_at)[3], beta=1.0)
    assert len(fake_driver.launches) == 2


def test_refusals_stay_after_a_good_call(fake_driver: FakeDriver):
    made = kernel()
    a, b, c, d = operands()
    made(a, b, c, out=d)
    bad: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((matrix(M, K, A_AT, "f16"), b), {}, "a holds f16"),
        ((matrix(M, K, A_AT, strides=(2 * K, 1)), b), {}, "not contiguous"),
        ((matrix(M, K, A_AT, device=1), b), {}, "different devices"),
        ((a, b), {"beta": 1.0}, "needs c"),
        ((a, b), {"alpha": "much"}, "alpha = 'much' is not a number"),
        ((a, b), {"beta": "much"}, "beta = 'much' is not a number"),
        ((a, b), {"workgroups": 3}, "was made for a fixed number"),
        ((matrix(M, K, A_AT + 1), b), {}, "no multiple of 2 bytes"),
    ]
    for positional, options, words in bad:
        with pytest.raises(LaunchError, match=words):
            made(*positional, out=d, **options)
    assert len(fake_driver.launches) == 1


def test_without_an_output_there_must_be_somebody_to_make_it(fake_driver: FakeDriver):
    made = kernel()
    with pytest.raises(LaunchError, match="pass an array of yours as the argument 'out'"):
        made(*operands()[:2])
    assert not fake_driver.launches


def test_a_failed_launch_says_so(fake_driver: FakeDriver, monkeypatch: pytest.MonkeyPatch):
    made = kernel()
    a, b, _, d = operands()
    for name in ("cuGetErrorName", "cuGetErrorString"):
        monkeypatch.setattr(f"cuda.bindings.driver.{name}", lambda status: (0, b"NO LUCK"))
    fake_driver.status = 719
    for _ in range(2):
        with pytest.raises(LaunchError, match="cuLaunchKernelEx failed: NO LUCK"):
            made(a, b, out=d)


def test_the_context_is_switched_only_where_it_must_be(fake_driver: FakeDriver):
    made = kernel()
    a, b, _, d = operands()
    made(a, b, out=d)
    pushed: list[int] = []
    real = fake_driver.cuCtxPushCurrent
    for current, expected in ((fake_driver.current, 0), (OTHER_CONTEXT, 1)):
        fake_driver.current = current
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "cuda.bindings.driver.cuCtxPushCurrent", lambda c: (pushed.append(c), real(c))[1]
            )
            made(a, b, out=d)
        assert len(pushed) == expected
        # after the launch, the caller's CUDA context is current again
        assert fake_driver.current == current
    assert len(fake_driver.launches) == 3


def test_a_thread_without_a_context_keeps_that_of_the_first_device(fake_driver: FakeDriver):
    """A launch leaves device 0 current in a thread without a context, but no other device."""
    made = kernel()
    a, b, _, d = operands()
    home, fake_driver.current = fake_driver.current, 0
    made(a, b, out=d)
    assert fake_driver.current == home
    second = Device(1, "a GPU", "sm_90a", 132, home)
    fake_driver.current = 0
    with second.current():
        assert fake_driver.current == home
    assert fake_driver.current == 0


# The following tests call a kernel from several threads.


def test_threads_do_not_mix_their_arguments(fake_driver: FakeDriver):
    made = kernel(target="sm_90a")
    count_arguments(made, fake_driver)
    made(*operands()[:2], out=operands()[3])  # loads the kernel before the threads launch it

    def launch(number: int) -> None:
        a, b, _, d = operands(a=A_AT + 256 * number, b=B_AT + 256 * number, d=D_AT + 256 * number)
        for _ in range(300):
            made(a, b, out=d, alpha=float(number), stream=100 + number)

    threads = [threading.Thread(target=launch, args=(i,)) for i in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    alpha = 4 + len(made.program().walker.boxes)
    seen = set()
    for found in fake_driver.launches[1:]:
        number = found.stream - 100
        shift = 256 * number
        assert found.values[:4] == (A_AT + shift, B_AT + shift, 0, D_AT + shift)
        assert found.values[4:6] == (A_AT + shift, B_AT + shift)
        assert as_float(found.values[alpha]) == number
        seen.add(number)
    assert seen == set(range(4))
    assert len(fake_driver.launches) == 1201


def test_plans_are_bounded(fake_driver: FakeDriver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cuda_kernel, "MOST_PLANS", 3)
    planned: list[CheckedCall] = []
    real = cuda_kernel.CheckedCall

    def noted(*args: Any) -> CheckedCall:
        planned.append(real(*args))
        return planned[-1]

    monkeypatch.setattr(cuda_kernel, "CheckedCall", noted)
    made = kernel()
    for _ in range(2):
        for m in range(1, 11):
            a, b, _, d = operands(m=m)
            made(a, b, out=d)
    assert len(planned) == 20
    assert len(fake_driver.launches) == 20
    assert len(made._plans) <= 6


def test_records_of_a_timeline_are_cleared_before_its_launch(fake_driver: FakeDriver):
    """The buffer of timeline records is set to zero before each launch.

    Threads that record nothing write nothing, so old contents would be read as records.
    """
    graph = DataParallel()(Gemm().graph((128, 256, 64)))
    made = codegen.compile(graph, "sm_90a", timeline=True)
    assert isinstance(made, CudaKernel)
    count_arguments(made, fake_driver)
    a, b, _, d = operands()
    made(a, b, out=d)
    assert not fake_driver.copied
    for launches in (1, 2):
        assert len(made.timeline(a, b, out=d)) == 0
        *_, (_, size, cleared_at) = fake_driver.copied
        assert size > 0
        assert cleared_at == launches


def test_a_timeline_on_a_stream_that_captures_is_refused(fake_driver: FakeDriver):
    graph = DataParallel()(Gemm().graph((128, 256, 64)))
    made = codegen.compile(graph, "sm_90a", timeline=True)
    assert isinstance(made, CudaKernel)
    count_arguments(made, fake_driver)
    a, b, _, d = operands()
    made(a, b, out=d, stream=77)
    fake_driver.capturing[77] = 1
    with pytest.raises(LaunchError, match="captures a CUDA graph, where no kernel runs"):
        made.timeline(a, b, out=d, stream=77)
    assert len(fake_driver.launches) == 1
