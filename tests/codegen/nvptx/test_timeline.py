"""Only kernels that are compiled with a timeline write records; they spill no registers."""

from __future__ import annotations

import re

import pytest

import codegen
from codegen.targets.nvptx.program import CudaProgram
from coordgraph import Gemm, KernelGraph
from coordgraph.control.operations import If
from coordgraph.control.timeline import Begin, Stamp, Timed
from passes import DataParallel, Pass, SplitK, StreamK
from passes.lowering.sm_80 import LowerToTensorCores
from passes.lowering.sm_90a import LowerToHopper
from passes.timeline import MOST_RECORDS, TIMELINE
from tests.support.ptxas import assert_clean
from tests.support.sampling import chosen, quick_cases

Case = tuple[Pass, tuple[int, int, int], LowerToHopper]
HOPPER: tuple[Case, ...] = (
    (DataParallel(), (128, 256, 64), LowerToHopper()),
    (StreamK(), (128, 256, 64), LowerToHopper()),
    (SplitK(2), (256, 128, 64), LowerToHopper()),
    (StreamK(), (256, 256, 64), LowerToHopper(cluster_m=2)),
    (StreamK(), (128, 128, 64), LowerToHopper(consumers="pingpong")),
    (DataParallel(), (64, 256, 64), LowerToHopper(consumers="pingpong")),
    (StreamK(reduction="scatter"), (128, 256, 64), LowerToHopper()),
    (StreamK(reduction="atomic"), (128, 256, 64), LowerToHopper()),
)
ALONE = [(case,) for case in HOPPER]
"""Each case of `HOPPER` in a 1-tuple: `chosen` would pass the items of a case as separate
arguments."""


def graph_of(schedule: Pass, tile: tuple[int, int, int]) -> KernelGraph:
    return schedule(Gemm("bf16").graph(tile=tile))


def hopper(case: Case, timeline: int = MOST_RECORDS) -> CudaProgram:
    schedule, tile, lowering = case
    graph = graph_of(schedule, tile)
    return CudaProgram(graph, "sm_90a", lowering=lowering, instructions="wgmma", timeline=timeline)


def stamps(program: CudaProgram, role: str) -> list[str]:
    found = program.lowered.control.of_kind(Stamp)
    return [stamp.activity for stamp in found if stamp.role == role]


@quick_cases(1)
@pytest.mark.parametrize("case", chosen(ALONE[1::3], ALONE), ids=str)
def test_records_fit_in_the_registers(case):
    assert_clean(hopper(case).report())


@quick_cases(1)
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("schedule", [DataParallel(), StreamK(), SplitK(2)], ids=str)
def test_records_of_mma_kernels_fit_in_the_registers(schedule, architecture):
    graph = graph_of(schedule, (128, 128, 32))
    lowering = LowerToTensorCores(architecture)
    program = CudaProgram(
        graph, architecture, lowering=lowering, instructions="mma.sync", timeline=MOST_RECORDS
    )
    assert_clean(program.report())
    assert {"start", "multiply", "finish", "end"} <= set(stamps(program, ""))


@quick_cases(1)
@pytest.mark.parametrize("kind", [{"batched": True}, {"grouped": True}], ids=str)
@pytest.mark.parametrize("schedule", [DataParallel(persistent=True), StreamK()], ids=str)
def test_records_of_batches_and_groups_fit_in_the_registers(schedule, kind):
    graph = schedule(Gemm("bf16", **kind).graph(tile=(128, 256, 64)))
    program = CudaProgram(graph, "sm_90a", instructions="wgmma", timeline=MOST_RECORDS)
    assert_clean(program.assembled()[1])
    (finish,) = (s for s in program.lowered.control.of_kind(Stamp) if s.activity == "finish")
    # a record names its tile by m and n, and by the product if there are several
    assert len(finish.tile) == (3 if "batched" in kind else 2)


def test_consumers_and_producer_record_their_activities():
    program = hopper(HOPPER[1])
    assert stamps(program, "consumer") == [
        *("multiply", "send", "wait", "receive", "finish", "drain")
    ]
    assert stamps(program, "producer") == ["load", "wait", "load", "drain"]
    assert stamps(program, "") == ["start", "end"]
    assert "%globaltimer" in program.ptx
    assert "%smid" in program.ptx


def test_ping_pong_warpgroups_record_their_turns():
    program = hopper(HOPPER[5])
    assert stamps(program, "consumer") == ["turn", "multiply", "finish", "drain"]
    # On Hopper, one thread of each warpgroup records; elsewhere the first thread of the workgroup.
    elected = [str(op.condition) for op in program.lowered.control.of_kind(If)]
    assert any("FloorMod(workitem, 128)" in text and "timeline" in text for text in elected)


@quick_cases(1)
@pytest.mark.parametrize("case", HOPPER[1:6:2], ids=str)
def test_a_wait_reads_the_clock_only_if_the_phase_has_not_completed(case):
    # Reading the clock takes tens of cycles, too long for every wait of the main loop.
    program = hopper(case)
    probe = r"mbarrier\.test_wait\S* p, [^;]*; @p bra (DONE_\d+);"
    waits = re.findall(probe + r"[^}]*%clock;[^}]*%clock;[^}]* \1: }", program.ptx)
    control = program.lowered.control
    assert len(waits) >= len(control.of_kind(Timed)) > 0
    clocks = program.ptx.count("%clock") - 2 * len(waits)
    assert clocks == len(control.of_kind(Stamp))


def test_every_mark_becomes_a_record():
    control = hopper(HOPPER[1]).lowered.control
    assert not control.of_kind(Begin)


@pytest.mark.parametrize("case", chosen(ALONE[:1], ALONE[:6:2]), ids=str)
def test_a_kernel_without_records_has_no_trace_of_them(case):
    before = hopper(case, 0).ptx
    assert hopper(case).ptx != before
    assert hopper(case, 0).ptx == before
    assert not re.search("clock|globaltimer|smid", before)
    assert TIMELINE not in {t.name for t in hopper(case, 0).lowered.tensors}


def test_the_room_for_records_follows_from_the_loops():
    once = hopper(HOPPER[0]).lowered.tensor(TIMELINE)
    *_, records, words = once.shape
    assert (records, words) == (5, 8)  # the 5 records are: start, multiply, finish, drain, end
    many = hopper(HOPPER[1], 50).lowered
    name = str(many.tensor(TIMELINE).shape[-2])
    assert "Minimum(52," in str(many.parameters[name].value)


def test_compile_takes_the_number_of_records():
    kernel = codegen.compile(graph_of(StreamK(), (128, 256, 64)), "sm_90a", timeline=20)
    found = kernel.lowered.parameters["timeline_records"]
    assert found.maximum == 22
