"""Every supported configuration is assembled, by LLVM and then by ptxas, without a spill."""

from __future__ import annotations

import pytest

from codegen.nvptx.program import Vectors
from passes import DataParallel, Reorder, StreamK, TwoTileStreamK
from tests.codegen.nvptx.configurations import Configuration, hopper, sweep
from tests.support.ptxas import assert_clean

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
    Configuration((128, 256, 64), (TwoTileStreamK(),), "nt", architecture="sm_90a", boxes=True),
    Configuration((16, 16, 16), (StreamK(workgroups=7),), architecture="sm_120"),
)
TURNS = 2


def check(configuration: Configuration) -> None:
    program = configuration.program
    if configuration.boxes and (reason := program.why_not()):
        pytest.skip(f"the other way is taken: {reason}")
    program, report = program.assembled()
    assert_clean(report)
    (use,) = report.functions.values()
    assert use.stack_frame == 0
    assert use.registers is not None
    # All of a workgroup must fit the 65536 registers of a processor, 255 at most for a thread.
    assert use.registers <= 255
    assert use.registers * program.threads <= 65536


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("configuration", QUICK, ids=str)
def test_a_representative_is_assembled(configuration: Configuration):
    check(configuration)


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(
    "configuration", [*(c for turn in range(TURNS) for c in sweep(turn)), *hopper()], ids=str
)
def test_every_configuration_is_assembled(configuration: Configuration):
    check(configuration)
