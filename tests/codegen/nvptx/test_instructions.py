"""The multiply instruction of a kernel: `kernel.instructions` names it; callers can require it."""

from __future__ import annotations

from typing import Any

import pytest

import codegen
from codegen.targets.nvptx import CudaKernel
from coordgraph import CodegenError, Gemm, LaunchError
from passes import DataParallel
from passes.lowering import LowerToTensorCores
from tests.codegen.cli.commands import coordgraph
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix

HOPPER, OLDER = "wgmma + TMA", "mma.sync + cp.async"
SHALLOW = (
    "tile 64x64x32: a workgroup's part 64x64x32 must be a multiple of 64 in k; choose another tile "
    "or cluster"
)
GRAPH = DataParallel()(Gemm("bf16").graph((128, 128, 64)))
SHALLOW_GRAPH = DataParallel()(Gemm("bf16").graph((64, 64, 32)))


@pytest.mark.parametrize(
    ("graph", "target", "family"),
    [
        (GRAPH, "sm_90a", HOPPER),
        (SHALLOW_GRAPH, "sm_90a", OLDER),
        (GRAPH, "sm_80", OLDER),
        (GRAPH, "interpreter", "numpy"),
    ],
)
def test_a_kernel_names_them(graph: Any, target: str, family: str):
    made = codegen.compile(graph, target)
    assert made.instruction_family == family
    assert f"{target} ({family}): bf16 -> bf16, data-parallel>" in repr(made)


def test_the_cpu_names_its_vectors():
    family = codegen.compile(DataParallel()(Gemm("f32").graph((16, 16, 16))), "cpu")
    assert family.instruction_family.endswith("-bit vectors")


def test_the_instructions_that_are_demanded_multiply():
    for name, ptx in (("wgmma", "wgmma.mma_async"), ("mma.sync", "mma.sync.aligned")):
        made = codegen.compile(GRAPH, "sm_90a", instructions=name)
        assert isinstance(made, CudaKernel)
        assert (made.instructions, ptx in made.ptx) == (name, True)
    assert made.lowering_notes == ("wgmma: the caller passed instructions='mma.sync'",)


@pytest.mark.parametrize(
    ("graph", "target", "instructions", "why"),
    [
        (SHALLOW_GRAPH, "sm_90a", "wgmma", f"wgmma \\+ TMA refuses: {SHALLOW}"),
        (GRAPH, "sm_80", "wgmma", "sm_80 has no lowering to .wgmma.; choose one of: mma.sync"),
        (GRAPH, "sm_90a", "", "instructions = '' is no name of instructions"),
        (GRAPH, "sm_90a", 5, "instructions = 5 is no name"),
        (GRAPH, "interpreter", "wgmma", "is for NVIDIA GPUs, but the target is 'interpreter'"),
    ],
)
def test_a_fall_back_is_refused(graph: Any, target: str, instructions: Any, why: str):
    with pytest.raises(CodegenError, match=why):
        codegen.compile(graph, target, instructions=instructions)


def test_options_of_another_lowering_contradict_them():
    with pytest.raises(CodegenError, match="contradict each other; give options of LowerToHopper"):
        codegen.compile(
            GRAPH, "sm_90a", instructions="wgmma", lowering=LowerToTensorCores("sm_90a")
        )


def test_arrays_that_they_cannot_take_are_refused(fake_driver: FakeDriver):
    arrays = matrix(256, 127, 1 << 24), matrix(127, 512, 2 << 24)
    out = matrix(256, 512, 3 << 24)
    codegen.compile(GRAPH, "sm_90a")(*arrays, out=out)
    assert "mma.sync" in fake_driver.loaded[-1]
    loaded = len(fake_driver.loaded)
    with pytest.raises(LaunchError, match=r"no multiples of 16 bytes, which wgmma \+ TMA needs"):
        codegen.compile(GRAPH, "sm_90a", instructions="wgmma")(*arrays, out=out)
    assert len(fake_driver.loaded) == loaded


def test_a_tile_that_no_lowering_takes_is_refused_by_each():
    graph = DataParallel()(Gemm("bf16").graph((256, 256, 64)))
    with pytest.raises(CodegenError) as caught:
        codegen.compile(graph, "sm_90a")
    said = str(caught.value)
    assert f"from this graph: {HOPPER} refuses: tile 256x256x64: a workgroup's part 256x256" in said
    assert f"{OLDER} refuses: the output tile 256x256 needs 256 accumulator registers" in said
    assert said.endswith("the tile 128x256x64 works")


def test_the_command_line_reports_them():
    words = ("compile", "-t", "sm_90a", "--tile", "64x64x32", "-s", "data-parallel")
    said = " ".join(coordgraph(*words).err.split())
    assert f"code {OLDER} declined wgmma: {SHALLOW}" in said
    found = coordgraph(*words, "--json").json
    assert (found["instructions"], found["lowering_notes"]) == (OLDER, [f"wgmma: {SHALLOW}"])
    refused = coordgraph(*words, "--instructions", "wgmma")
    assert refused.code == 3
    assert f"{HOPPER} refuses: {SHALLOW}" in " ".join(refused.err.split())


@pytest.mark.slow
def test_the_command_line_says_what_other_code_a_call_takes():
    words = ("compile", "-t", "sm_90a", "--m", "510", "--n", "511", "--k", "512", "--json")
    found = coordgraph(*words).json
    assert (found["instructions"], found["instructions_at_call"]) == (HOPPER, OLDER)
    refused = coordgraph(*words, "--instructions", "wgmma")
    assert refused.code == 3
    assert "no multiples of 16 bytes" in refused.json["error"]["message"]


def test_a_run_reports_them():
    sizes = ("--m", "16", "--n", "16", "--k", "16", "-t", "interpreter", "--repeat", "1")
    assert coordgraph("run", *sizes, "--json").json["instructions"] == "numpy"
    assert "code numpy" in " ".join(coordgraph("run", *sizes).out.split())


def test_leaving_instructions_out_is_advised_only_where_another_lowering_accepts():
    words = ("compile", "-t", "sm_90a", "-s", "data-parallel")
    done = coordgraph(*words, "--tile", "64x64x32", "--instructions", "wgmma")
    assert done.code == 3
    assert f"or leave instructions out, and the kernel multiplies by {OLDER}" in done.err
    assert coordgraph(*words, "--tile", "64x64x32").code == 0
    done = coordgraph(*words, "--tile", "128x100x64", "--instructions", "wgmma")
    assert done.code == 3
    assert "leave instructions out" not in done.err
    assert "must be a multiple of 8 in m and in n" in done.err
    assert f"{OLDER} refuses too: the tile 128x100x64 must be a multiple of 16x16x16" in done.err
    assert coordgraph(*words, "--tile", "128x104x64", "--instructions", "wgmma").code == 0
