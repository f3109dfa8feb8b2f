"""Every supported configuration compiles with LLVM and ptxas, without a register spill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from codegen.targets.nvptx.program import Vectors
from coordgraph.control.asynchronous import SetRegisters
from passes import (
    DataParallel,
    Grouped,
    HeterogeneousTiles,
    HybridStreamK,
    Rasterize,
    Reorder,
    StreamK,
    TwoTileStreamK,
)
from tests.codegen.nvptx.configurations import (
    ALONE,
    Configuration,
    boxed,
    fitting,
    hopper,
    sweep,
    taking_turns,
    traits,
    two_shapes,
)
from tests.support.ptxas import assert_clean
from tests.support.sampling import cover, quick_cases

QUICK = (
    Configuration((128, 256, 64), (StreamK(),)),
    Configuration((256, 128, 32), (DataParallel(),), "tt", architecture="sm_80"),
    Configuration(
        (128, 128, 32), (TwoTileStreamK(owner="last", first="dp"),), "tn", ("f16", "f32")
    ),
    Configuration((64, 128, 32), (StreamK(owner="last"),), "nt", vectors=Vectors(4, 2, 1)),
    Configuration(
        (64, 64, 64),
        (Reorder(swap=True, group=3), DataParallel(persistent=True)),
        types=("bf16", "f16"),
        vectors=Vectors(1, 8, 1),
        architecture="sm_86",
    ),
    Configuration((96, 96, 48), vectors=Vectors(1, 1, 1), architecture="sm_89"),
    Configuration((16, 16, 16), (StreamK(workgroups=7),), architecture="sm_120"),
    Configuration((128, 128, 32), (HybridStreamK(owner="last"),), "nt"),
    Configuration((128, 128, 32), (TwoTileStreamK(least_segment=4, reduction="turnstile"),), "tn"),
    boxed((128, 256, 64), layout="nt", schedule=StreamK(owner="last", least_segment=8)),
    boxed((128, 256, 64), schedule=HybridStreamK(owner="last")),
    Configuration((128, 128, 32), (Rasterize(order="hilbert"), StreamK(owner="last"))),
    Configuration((64, 64, 64), (Grouped(groups=4), StreamK()), "tn"),
    replace(boxed((128, 256, 64)), schedule=(Rasterize(order="hilbert"), StreamK(owner="last"))),
    replace(boxed((128, 256, 64)), schedule=(Rasterize(order="morton"), DataParallel())),
    replace(boxed((256, 128, 64)), schedule=(Grouped(), TwoTileStreamK(owner="last"))),
    boxed((256, 256, 64), (2, 1, 1), "nn", DataParallel(persistent=True)),
    boxed((256, 256, 64), (1, 2, 1), "tt", StreamK(), vector=2),
    boxed((128, 256, 64), layout="nt", schedule=TwoTileStreamK()),
    boxed((256, 192, 64), (2, 1, 1), "tn", TwoTileStreamK(owner="last"), ("f16", "f32")),
    boxed((256, 160, 64), (2, 1, 1), "nt", DataParallel(persistent=True)),
    boxed((128, 144, 64), layout="tt", schedule=StreamK(owner="last"), types=("bf16", "f16")),
    boxed((256, 128, 64), layout="tn", schedule=DataParallel(), vector=1),
    boxed((128, 88, 64), layout="nn", schedule=StreamK(owner="last")),
    boxed((40, 128, 64), layout="tt", schedule=TwoTileStreamK()),
    boxed((64, 256, 64), layout="nn", schedule=TwoTileStreamK(owner="last")),
    boxed((16, 256, 64), layout="nn", schedule=StreamK(owner="last"), types=("f16", "f16")),
    boxed((32, 128, 64), layout="nt", schedule=DataParallel(), types=("bf16", "f32")),
    boxed((64, 128, 128), (1, 1, 2), "tn", StreamK()),
    boxed((64, 64, 512), (1, 1, 8), "nt", TwoTileStreamK(owner="last")),
    boxed((64, 256, 64), layout="nt", schedule=StreamK(owner="last"), consumers="pingpong"),
    boxed((256, 128, 64), (2, 1, 1), "nn", DataParallel(persistent=True), consumers="pingpong"),
    boxed((128, 192, 64), ALONE, "tt", DataParallel(persistent=True), consumers="pingpong"),
    boxed(
        (64, 128, 64),
        layout="tn",
        schedule=TwoTileStreamK(first="dp"),
        types=("f16", "f32"),
        consumers="pingpong",
    ),
    boxed(
        (128, 256, 64),
        (1, 2, 1),
        schedule=StreamK(reduction="tree"),
        types=("bf16", "f16"),
        vector=2,
        consumers="pingpong",
    ),
    boxed((16, 256, 64), layout="nn", schedule=TwoTileStreamK(), vector=1, consumers="pingpong"),
    Configuration((128, 256, 32), (HeterogeneousTiles(small_m=64, small_n=64),), "nt"),
    Configuration(
        (128, 128, 32),
        (Rasterize(width=4), HeterogeneousTiles()),
        "tn",
        ("f16", "f32"),
        Vectors(4, 2, 1),
        "sm_86",
    ),
    # This kernel's producer needs more than 40 registers; it has 72, since there is only one
    # consumer warpgroup.
    boxed((128, 320, 64), (2, 2, 1), "nn", StreamK(owner="last", shares="balanced")),
    boxed((128, 256, 64), schedule=HeterogeneousTiles(small_m=64, small_n=64)),
    boxed((256, 256, 64), (2, 1, 1), "nn", HeterogeneousTiles(), vector=2),
    boxed((128, 128, 64), layout="tt", schedule=HeterogeneousTiles(), consumers="pingpong"),
)
KINDS, TURNS = (sweep, hopper, taking_turns, two_shapes), 2


def check(configuration: Configuration) -> None:
    program = configuration.program
    assert program.why_not() is None
    program, report = program.assembled()
    assert_clean(report)
    (use,) = report.functions.values()
    assert use.stack_frame == 0
    assert use.registers is not None
    # An SM has 65536 registers for all threads of a workgroup, and a thread has at most 255.
    assert use.registers <= 255
    assert use.registers * program.threads <= 65536
    if budgets := program.lowered.control.of_kind(SetRegisters):
        # The consumers may take the registers that the producer gives back; if they asked
        # for more, setmaxnreg would wait for ever.
        grown, shrunk = (op.count for op in budgets)
        consumers = program.threads - 128
        assert grown * consumers + shrunk * 128 <= use.registers * program.threads


@quick_cases(1)
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("configuration", cover(0, QUICK, traits), ids=str)
def test_a_representative_is_assembled(configuration: Configuration):
    check(configuration)


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(
    "configuration",
    [c for turn in range(TURNS) for kind in KINDS for c in kind(turn)],
    ids=str,
)
def test_every_configuration_is_assembled(configuration: Configuration):
    check(fitting(configuration))
