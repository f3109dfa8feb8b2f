"""Kernels with `turnstile` reduction assemble; workgroups add to a workspace slot in fixed order.

No kernel spills registers, and the flag of a workspace slot counts the partial sums in the slot.
"""

from __future__ import annotations

import re

import pytest

from coordgraph.control.lowered import ClearFlag, SignalFlag, WaitFlag
from passes import HybridStreamK, SplitK, StreamK, TwoTileStreamK
from tests.codegen.nvptx.configurations import Configuration, boxed
from tests.codegen.nvptx.test_assembly import check
from tests.support.sampling import chosen, quick_cases

FIRST, LAST = (StreamK(owner=owner, reduction="turnstile") for owner in ("first", "last"))
HYBRID = HybridStreamK(owner="last", reduction="turnstile")
SPLIT = SplitK(splits=4)
KERNELS = (
    Configuration((128, 128, 32), (FIRST,), architecture="sm_80"),
    Configuration((128, 256, 64), (LAST,), architecture="sm_80"),
    Configuration((64, 64, 64), (SPLIT,), "tn", ("f16", "f32"), architecture="sm_80"),
    boxed((128, 256, 64), schedule=FIRST),
    boxed((256, 256, 64), (2, 1, 1), "tn", LAST),
    boxed((256, 128, 64), layout="nn", schedule=HYBRID),
    boxed((128, 256, 64), schedule=SPLIT),
    boxed((256, 256, 64), (1, 2, 1), "nn", SplitK(splits=3, owner="first")),
    boxed((16, 256, 64), layout="nn", schedule=SplitK(splits=16)),
    boxed((64, 128, 128), (1, 1, 2), "nt", TwoTileStreamK(owner="last", reduction="turnstile")),
    boxed((64, 256, 64), schedule=LAST, consumers="pingpong"),
    boxed((256, 128, 64), (2, 1, 1), "nn", SPLIT, consumers="pingpong"),
)
PEERS = (
    Configuration((128, 128, 32), (SplitK(splits=4, reduction="peers"),), architecture="sm_80"),
    boxed((128, 128, 64), schedule=SplitK(splits=8, reduction="peers")),
    boxed((128, 128, 64), schedule=SplitK(splits=8, reduction="tree")),
)


@quick_cases(1)
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("configuration", chosen(KERNELS[2:4], [*KERNELS, *PEERS]), ids=str)
def test_it_is_assembled(configuration: Configuration):
    check(configuration)


@pytest.mark.parametrize("configuration", chosen(KERNELS[2:4], KERNELS), ids=str)
def test_flags_count_turns(configuration: Configuration):
    """Workgroups add to a workspace slot in a fixed order; the slot's flag counts the sums in it.

    A sender waits with acquire loads for the previous sender's flag value, and stores the next
    value with release semantics.
    """
    program = configuration.program
    control = program.lowered.control
    (wait,), (signal,) = control.of_kind(WaitFlag), control.of_kind(SignalFlag)
    assert wait.turn == signal.turn == "partial.turn"
    assert len(control.of_kind(ClearFlag)) == 1
    text = program.ptx
    (waited,) = re.findall(r"ld\.acquire\.gpu\.global\.u32 v, .*; setp\.ne\.u32 p, v, (\S+);", text)
    (raised,) = re.findall(r"st\.release\.gpu\.global\.u32 \[%rd\d+\], (\S+);", text)
    assert waited.startswith("%r")
    assert raised.startswith("%r")
    assert re.findall(r"st\.relaxed\.gpu\.global\.u32 \[%rd\d+\], 0;", text)


@quick_cases(2)
@pytest.mark.parametrize("configuration", chosen((*KERNELS[2:4], KERNELS[9]), KERNELS), ids=str)
def test_the_grid_needs_no_residency_where_the_last_piece_owns(configuration: Configuration):
    (schedule,) = configuration.schedule
    assert isinstance(schedule, StreamK | SplitK | HybridStreamK | TwoTileStreamK)
    from codegen.targets.nvptx.facts import Facts

    expected = "lower" if schedule.owner == "last" else "higher"
    assert Facts.of(configuration.program).waits == expected
