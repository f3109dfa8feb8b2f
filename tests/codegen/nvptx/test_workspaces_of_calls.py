"""Calls of a GPU kernel give it a workspace for partial sums and flags."""

from __future__ import annotations

import threading

import pytest

from codegen.targets.nvptx.launch import capture_pool, device_workspaces
from coordgraph import LaunchError
from passes import StreamK, TwoTileStreamK
from passes.kit import Reduction
from tests.codegen.nvptx.called import (
    TILE,
    count_arguments,
    kernel,
    operands,
)
from tests.codegen.nvptx.fake_driver import FakeDriver
from tests.support.sampling import quick_cases

pytestmark = pytest.mark.usefixtures("shared_cache")


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
