"""Reduce-scatter on Hopper: many workgroups per output tile give equal bits in every run.

Like users' kernels, the kernels have no watchdog that traps after long waits, so run with
`--timeout-method=thread`.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from codegen.targets.nvptx.driver import device
from coordgraph import LaunchError
from tests.gpu import hopper
from tests.gpu.hopper import Case, has_open_grid
from tests.gpu.hopper_kernels import SCATTER
from tests.gpu.kernels import Problem, Spec, flags_are_down, kernel
from tests.support.gpu import require_gpu

# Skips this file without torch, before the imports below need it.
torch: Any = pytest.importorskip("torch")

from tests.gpu.test_hopper import Lane, Launched, all_right, race, replay  # noqa: E402

TALL = ((512, 512, 16384), (128, 256, 65536), (264, 520, 8200), (8, 1032, 4104), (72, 8, 30008))
"""Shapes with few output tiles and many k tiles, some of them ragged."""
SCALES = ((1.0, 0.0), (0.5, -2.0))
QUICK = SCATTER[::5]


@pytest.fixture(scope="module", autouse=True)
def _on_hopper() -> None:
    require_gpu()
    if device(0).architecture != "sm_90a":
        pytest.skip(f"these kernels are for sm_90a, this is {device(0).architecture}")


@pytest.fixture(scope="module")
def _code(_on_hopper: None) -> None:
    hopper.warm(hopper.code_of(SCATTER, cases))


def cases(spec: Spec) -> list[Case]:
    """Launches of a kernel to test: tall problems on the whole device, with and without C.

    If the number of workgroups is a launch argument, also launches of few workgroups.
    """
    found = [Case(spec, shape, 3, *scale) for shape in TALL for scale in SCALES]
    if has_open_grid(spec):
        found += [Case(spec, TALL[2], 5, 1.0, 0.0, workgroups) for workgroups in (1, 2, 5, 31)]
    return [case for case in found if fits(case)]


def fits(case: Case) -> bool:
    """Whether all workgroups of a split-k case can be resident; otherwise the launch is refused."""
    (schedule,) = (step for step in case.spec.schedule if hasattr(step, "reduction"))
    splits = getattr(schedule, "splits", 0)
    m, n, _ = case.shape
    rows, columns, _ = case.spec.tile
    return -(-m // rows) * -(-n // columns) * splits <= 100 // prod(case.spec.cluster or ())


@pytest.mark.usefixtures("_code")
@pytest.mark.parametrize("spec", SCATTER, ids=str)
def test_tall_products(spec: Spec):
    """Results are right, and a second launch gives equal bits.

    Workspaces and D are filled with NaN before each launch.
    """
    ours = cases(spec)
    assert len(ours) >= 2
    first, again = ([Launched(case) for case in ours] for _ in range(2))
    all_right(first)
    all_right(again)
    for one, two in zip(first, again, strict=True):
        assert torch.equal(one.out, two.out), f"{one.case}: another result the second time"
    assert flags_are_down(kernel(spec))


def shapes_of(spec: Spec) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Two problems (m, n, k) whose launches on the whole device the kernel does not refuse."""
    shapes = dict.fromkeys(case.shape for case in cases(spec) if not case.workgroups)
    one, other, *_ = shapes
    return one, other


@pytest.mark.usefixtures("_code")
@pytest.mark.parametrize("spec", QUICK, ids=str)
def test_two_streams_at_once(spec: Spec):
    """Launches on two streams at once end, and give the same bits as single launches.

    Each launch needs all its workgroups resident at once, so the second launch waits for the first.
    """
    one, other = shapes_of(spec)
    race([Lane(Problem.make(spec, one)), Lane(Problem.make(spec, other, seed=1))], 20)


@pytest.mark.usefixtures("_code")
@pytest.mark.parametrize("spec", QUICK, ids=str)
def test_hundred_replays(spec: Spec):
    """In each replay of a CUDA graph, the last reader of a flag resets it for the next launch."""
    replay(spec, shapes_of(spec)[0], 100)


@pytest.mark.usefixtures("_code")
def test_more_workgroups_than_there_is_room_for_are_refused():
    spec = next(spec for spec in SCATTER if has_open_grid(spec))
    problem = Problem.make(spec, TALL[0])
    with pytest.raises(LaunchError, match=r"wait for each other.*a reduction other than scatter"):
        kernel(spec)(problem.a, problem.b, out=problem.out(), workgroups=5000)
