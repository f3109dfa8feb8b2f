"""Calls of a GPU kernel check and cache arguments, and pass the right ones to a fake driver."""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx import CudaKernel, cuda_kernel
from codegen.targets.nvptx.driver import Device
from codegen.targets.nvptx.launch import capture_pool, device_workspaces, tensormaps
from codegen.targets.nvptx.launch.call import CheckedCall
from coordgraph import Gemm, LaunchError
from passes import DataParallel, HeterogeneousTiles, Pass, StreamK, TwoTileStreamK
from passes.kit import Reduction
from tests.codegen.nvptx.fake_driver import OTHER_CONTEXT, FakeDriver, matrix
from tests.support.sampling import quick_cases

M, N, K = 256, 512, 128
A_AT, B_AT, C_AT, D_AT = (i << 24 for i in (1, 2, 3, 4))
TILE = (128, 128, 64)


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary disk cache of compiled kernels, which the tests of this file share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COORDGRAPH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def kernel(
    schedule: Pass | None = None, target: str = "sm_80", tile: Any = TILE, **gemm: Any
) -> CudaKernel:
    made = codegen.compile((schedule or DataParallel())(Gemm(**gemm).graph(tile)), target)
    assert isinstance(made, CudaKernel)
    return made


def count_arguments(made: CudaKernel, fake: FakeDriver) -> None:
    """Tell the fake driver how many arguments to read: as many as the kernel `made` declares."""
    head = made.ptx[made.ptx.index(".entry") : made.ptx.index("{")]
    fake.arguments = head.count(".param")


def operands(m: int = M, n: int = N, k: int = K, **at: int) -> tuple[Any, Any, Any, Any]:
    place = {"a": A_AT, "b": B_AT, "c": C_AT, "d": D_AT, **at}
    return (
        matrix(m, k, place["a"]),
        matrix(k, n, place["b"]),
        matrix(m, n, place["c"]),
        matrix(m, n, place["d"]),
    )


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


# The following tests check the tensor maps (TMA descriptors) that launches pass.


def test_maps_are_made_once_for_an_address(fake_driver: FakeDriver):
    made = kernel(target="sm_90a")
    assert made.instructions == "wgmma"
    boxes = made.program().walker.boxes
    sets = [operands(a=A_AT + i * 4096, b=B_AT + i * 4096) for i in range(50)]
    for _ in range(3):
        for a, b, _, d in sets:
            made(a, b, out=d)
    of_a = [x for x in fake_driver.encoded if x.shape == (M, K)]
    of_b = [x for x in fake_driver.encoded if x.shape == (K, N)]
    assert len(of_a) == len(of_b) == 50
    # 9 is CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3 is CU_TENSOR_MAP_SWIZZLE_128B.
    assert {(x.stride, x.box, x.kind, x.swizzle) for x in of_a} == {(2 * K, *boxes["A"], 9, 3)}
    assert {(x.stride, x.box, x.kind, x.swizzle) for x in of_b} == {(2 * N, *boxes["B"], 9, 3)}
    assert len([x for x in fake_driver.encoded if x.shape == (M, N)]) == ("D" in boxes)


@pytest.mark.slow
def test_each_shape_of_box_has_a_map_of_its_own(fake_driver: FakeDriver):
    made = kernel(HeterogeneousTiles(small_n=16), target="sm_90a")
    count_arguments(made, fake_driver)
    boxes = made.program().walker.boxes
    assert {name: len(shapes) for name, shapes in boxes.items()} == {"A": 1, "B": 2, "D": 2}
    a, b, _, d = operands()
    for _ in range(2):
        made(a, b, out=d)
    encoded = [(x.shape, x.box) for x in fake_driver.encoded]
    shapes = {"A": (M, K), "B": (K, N), "D": (M, N)}
    assert encoded == [(shapes[name], box) for name, every in boxes.items() for box in every]
    at = {"A": a.pointer, "B": b.pointer, "D": d.pointer}
    wanted = tuple(at[name] for name, every in boxes.items() for _ in every)
    assert fake_driver.launches[-1].values[4 : 4 + len(wanted)] == wanted


def test_each_launch_has_the_maps_of_its_tensors(fake_driver: FakeDriver):
    """Every launch passes tensor maps with the addresses of its own tensors."""
    made = kernel(target="sm_90a")
    count_arguments(made, fake_driver)
    order = list(made.program().walker.boxes)
    for i in (0, 1, 0, 2, 1):
        a, b, _, d = operands(a=A_AT + 64 * i, b=B_AT + 128 * i)
        made(a, b, out=d)
        at = {"A": a.pointer, "B": b.pointer, "D": d.pointer}
        found = fake_driver.launches[-1].values[4 : 4 + len(order)]
        assert found == tuple(at[name] for name in order)


def test_maps_are_bounded(fake_driver: FakeDriver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tensormaps, "MOST_MAPS", 4)
    made = kernel(target="sm_90a")
    for _ in range(2):
        for i in range(20):
            a, b, _, d = operands(a=A_AT + 64 * i)
            made(a, b, out=d)
    assert len([x for x in fake_driver.encoded if x.shape == (M, K)]) == 40
    assert len([x for x in fake_driver.encoded if x.shape == (K, N)]) == 1


@quick_cases(1)
@pytest.mark.parametrize(
    ("at", "boxes"),
    [({}, True), ({"a": 8}, False), ({"b": 2}, False), ({"d": 2}, True), ({"d": 8}, True)],
)
def test_which_code_serves_which_address(fake_driver: FakeDriver, at: dict[str, int], boxes: bool):
    made = kernel(target="sm_90a")
    base = {"a": A_AT, "b": B_AT, "d": D_AT}
    a, b, _, d = operands(**{name: base[name] + off for name, off in at.items()})
    made(a, b, out=d)
    used = ["cp.async.bulk.tensor" in code for code in fake_driver.loaded]
    assert used == [boxes]


# The following tests check the workspaces for partial sums and flags.


def work(fake: FakeDriver) -> list[tuple[int, ...]]:
    """For each recorded launch of a kernel: (address of the partial sums, address of the flags)."""
    return [launch.values[4:6] for launch in fake.launches]


def test_streams_have_workspaces_of_their_own(fake_driver: FakeDriver):
    made = kernel(StreamK())
    count_arguments(made, fake_driver)
    a, b, _, d = operands()
    for stream in (0, 7, 9, 7, 0):
        made(a, b, out=d, stream=stream, workgroups=5)
    first, seven, nine, seven_again, first_again = work(fake_driver)
    assert (first, seven) == (first_again, seven_again)
    assert len({*first, *seven, *nine}) == 6
    fake_driver.capturing[7] = 1
    made(a, b, out=d, stream=7, workgroups=5)
    made(a, b, out=d, stream=7, workgroups=5)
    fake_driver.capturing[7] = 2
    made(a, b, out=d, stream=7, workgroups=5)
    one, one_again, two = work(fake_driver)[-3:]
    assert one == one_again
    assert len({*seven, *one, *two}) == 6


@quick_cases(1)
@pytest.mark.parametrize("reduction", ["peers", "atomic"])
def test_what_must_be_zero_is_made_so_once(fake_driver: FakeDriver, reduction: Reduction):
    """Flags and atomic sums are set to zero once; each launch leaves them zero for the next one."""
    made = kernel(StreamK(owner="last", reduction=reduction))
    count_arguments(made, fake_driver)
    a, b, _, d = operands()
    for _ in range(3):
        made(a, b, out=d, workgroups=6)
    sums, flags = fake_driver.launches[0].values[4:6]
    wanted = {flags: 6 * 4} | ({sums: 6 * TILE[0] * TILE[1] * 4} if reduction == "atomic" else {})
    buffers = capture_pool._pools[0].buffers
    reserved = {buffer.pointer: buffer.size for zeroed, buffer in buffers if zeroed}
    assert {p: max(size, 16) for p, size in wanted.items()} | reserved == dict(fake_driver.cleared)


@pytest.mark.slow
def test_the_stream_of_a_thread_is_not_that_of_another(fake_driver: FakeDriver):
    made = kernel(StreamK())
    count_arguments(made, fake_driver)
    a, b, _, d = operands()

    def launch() -> None:
        for _ in range(2):
            made(a, b, out=d, stream=device_workspaces.PER_THREAD_STREAM, workgroups=5)

    # Threads run one after another, and a new thread may get the identifier of a finished
    # one.
    for _ in range(3):
        thread = threading.Thread(target=launch)
        thread.start()
        thread.join()
    found = work(fake_driver)
    assert [found[i] == found[i + 1] for i in (0, 2, 4)] == [True] * 3
    assert len(set(found)) == 3


def test_a_workspace_grows(fake_driver: FakeDriver):
    made = kernel(StreamK())
    count_arguments(made, fake_driver)
    a, b, _, d = operands()
    for workgroups in (4, 3, 8, 8):
        made(a, b, out=d, workgroups=workgroups)
    four, three, eight, again = work(fake_driver)
    assert four == three
    assert eight == again != four


@pytest.mark.slow
def test_workgroups_that_need_each_other_are_launched_together(fake_driver: FakeDriver):
    waiting, free = kernel(StreamK()), kernel(TwoTileStreamK(owner="last"))
    assert (waiting.waits, free.waits) == ("higher", "lower")
    a, b, _, d = operands()
    for made in (waiting, free):
        made(a, b, out=d)
    together, loose = fake_driver.launches
    assert together.attributes == {2: (1, 0, 0)}  # 2 is CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    assert loose.attributes == {}
    with pytest.raises(LaunchError, match="133 workgroups wait for each other, but a GPU holds"):
        waiting(a, b, out=d, workgroups=133)
    free(a, b, out=d, workgroups=133)
    assert fake_driver.launches[-1].grid == (133, 1, 1)


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
