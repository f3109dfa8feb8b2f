"""Every function of the library works with architectures that are registered from outside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import codegen
from codegen.architectures import Architecture, register, unregister
from codegen.call.build import compile_plan
from codegen.call.request import PlanRequest
from codegen.targets.nvptx import CudaKernel
from coordgraph import CodegenError, Gemm
from passes import DataParallel, StreamK
from passes.choosing import Plan
from passes.lowering import ARCHITECTURES, MMA_SYNC, WGMMA, LowerToHopper
from passes.lowering.architectures import native_to
from tests.codegen.cli.commands import coordgraph, process
from tests.codegen.nvptx.fake_driver import install, matrix
from tests.codegen.outside_architecture import (
    MARK,
    OWN_PLAN,
    SM_8X,
    SM_8Y,
    LowerWithoutWide,
    register_all,
)
from tests.support.ptxas import assert_clean

OUTSIDE = ("sm_8x", "sm_8y", "sm_9x")


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    register_all()
    yield
    for name in OUTSIDE:
        unregister(name)


def kernel(target: str, tile: Any = (128, 128, 64), **options: Any) -> CudaKernel:
    made = codegen.compile(StreamK()(Gemm().graph(tile)), target, **options)
    assert isinstance(made, CudaKernel)
    return made


@pytest.mark.usefixtures("ptxas")
def test_facts_of_its_own():
    """The shared memory and the names that an architecture was registered with are used.

    Less shared memory gives fewer stages; LLVM and ptxas get the registered names.
    """
    stages = {
        name: kernel(name).lowered.coordinates["stage"].fixed_size for name in ("sm_80", "sm_8x")
    }
    assert stages == {"sm_80": 4, "sm_8x": 2}
    made = kernel("sm_8x")
    assert ".target sm_80" in made.ptx
    assert made.program().shared_bytes <= 64 * 1024
    assert_clean(made.program().assembled()[1])
    with pytest.raises(CodegenError, match=r"sm_8x .* do not fit in sm_8x's shared memory"):
        kernel("sm_8x", (128, 256, 64))


@pytest.mark.usefixtures("ptxas")
def test_wgmma_with_less_shared_memory():
    made = kernel("sm_9x")
    assert (made.instructions, made.lowering_notes) == ("wgmma", ())
    assert made.program().shared_bytes <= 128 * 1024 < kernel("sm_90a").program().shared_bytes
    assert_clean(made.program().assembled()[1])
    reason = LowerToHopper("sm_80").why_not(made.graph)
    assert reason == (
        "architecture=sm_80 has no wgmma; choose sm_90a or sm_9x, or LowerToTensorCores"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
def test_a_lowering_of_its_own():
    made = kernel("sm_8y", (64, 64, 64))
    assert (made.instructions, made.lowering_notes) == ("mma.sync.narrow", ())
    assert MARK in made.ptx
    assert_clean(made.program().assembled()[1])
    wide = kernel("sm_8y")
    assert wide.instructions == "mma.sync"
    assert wide.lowering_notes == ("mma.sync.narrow: tiles are wider than widest=64",)
    assert MARK not in wide.ptx
    option = kernel("sm_8y", lowering=LowerWithoutWide("sm_8y", widest=128))
    assert MARK in option.ptx
    with pytest.raises(CodegenError, match="sm_80 has no lowering LowerWithoutWide"):
        kernel("sm_80", lowering=LowerWithoutWide("sm_80"))


def test_tensors_are_served_by_the_lowering_that_takes_them(monkeypatch: pytest.MonkeyPatch):
    fake = install(monkeypatch)
    made = codegen.compile(DataParallel()(Gemm().graph((64, 64, 64))), "sm_8y")
    b, d = matrix(128, 512, 2 << 24), matrix(256, 512, 3 << 24)
    for shift in (0, 8):
        made(matrix(256, 128, (1 << 24) + shift), b, out=d)
    assert [MARK in code for code in fake.loaded] == [True, False]


def test_plans_are_chosen_for_it():
    gemm = Gemm(m=512, n=512, k=512)
    aligned = PlanRequest(gemm, "sm_8y", "a GPU", 108)
    assert list(aligned.plans()) == [OWN_PLAN]
    by_rule = PlanRequest(gemm, "sm_80", "a GPU", 108)
    assert replace(aligned, alignment=8).plans().__next__() == by_rule.simple_plan
    assert PlanRequest(gemm, "sm_8x", "a GPU", 108).simple_plan == by_rule.simple_plan
    made = compile_plan(OWN_PLAN, gemm, "sm_8y")
    assert isinstance(made, CudaKernel)
    assert made.instructions == "mma.sync.narrow"
    with pytest.raises(
        CodegenError, match=r"kernels for sm_8y do not have; leave clusters out of the plan$"
    ):
        compile_plan(Plan.parse("64x64x64@c2x1 stream-k"), gemm, "sm_8y")


def test_targets_and_the_command_line_know_it():
    assert {*OUTSIDE, "sm_80", "sm_90a", "cpu", "native"} <= set(codegen.TARGETS)
    assert codegen.TARGETS[0] == "interpreter"
    words = ("--tile", "64x64x64", "-s", "data-parallel", "-e", "ptx")
    done = coordgraph("compile", "-t", "sm_8y", *words)
    assert done.code == 0
    assert MARK in done.out
    unregister("sm_8y")
    unknown = coordgraph("compile", "-t", "sm_8y", *words)
    assert unknown.code == 2
    assert "sm_80" in unknown.err
    register(SM_8Y)
    with pytest.raises(CodegenError, match=r"for 'sm_77a'; choose one of: sm_80, sm_8x, sm_86, "):
        kernel("sm_77a")


@pytest.mark.slow
def test_a_module_that_registers_is_imported_by_the_command_line():
    words = ("--import", "tests.codegen.registers_architectures", "--tile", "64x64x64")
    done = process("compile", *words, "-t", "sm_8x", "-s", "data-parallel", "-e", "ptx")
    assert done.code == 0, done.err
    assert ".target sm_80" in done.out


def test_what_is_registered_is_checked():
    with pytest.raises(CodegenError, match="the architecture sm_8x is registered already"):
        register(SM_8X)
    with pytest.raises(CodegenError, match="begins with 'sm_'"):
        register(replace(SM_8X, name="gfx942"))
    with pytest.raises(
        CodegenError, match="the last of its lowerings must take tensors of every"
    ):
        register(Architecture("sm_8z", 80, 1 << 16, (MMA_SYNC, WGMMA)))

    with pytest.raises(CodegenError, match="'sm_86' is no Architecture; pass one, as in register"):
        register("sm_86")  # type: ignore[arg-type]

    class Unheard(type(MMA_SYNC)):
        instructions = "mma.unheard"

    unknown = r"sm_8z: the lowering mma\.unheard has no emitter; pass emitters="
    with pytest.raises(CodegenError, match=unknown):
        register(Architecture("sm_8z", 80, 1 << 16, (Unheard(),)))
    with pytest.raises(CodegenError, match=r"mma\.sync have another emitter already"):
        register(Architecture("sm_8z", 80, 1 << 16, (MMA_SYNC,)), emitters={"mma.sync": "x:y"})
    assert "sm_8z" not in ARCHITECTURES


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("name", 86, "name = 86 is not text"),
        (
            "lowerings",
            MMA_SYNC,
            r"is no tuple of Lowering objects; give a tuple, such as \(MMA_SYNC,\)",
        ),
        ("lowerings", (3,), r"lowerings = \(3,\) is no tuple of Lowering"),
        ("shared_bytes", "64K", "sm_8z: shared_bytes = '64K' is not a whole number; .* of bytes"),
        ("shared_bytes", -1, "sm_8z: shared_bytes = -1 must be at least 1; it is a number of"),
        ("capability", "86", "capability = '86' is not a whole number; give an int; it is the"),
        ("capability", 8.6, "capability = 8.6 is not .* times ten: 86 for 8.6"),
        ("reduction", "foo", "sm_8z: reduction = 'foo' must be scalar or vector"),
        ("ptx", 20, "sm_8z: ptx = 20 must be at least 70; it is the PTX version times ten"),
        ("exact", "no", "sm_8z: exact = 'no' is neither True nor False"),
        ("isa", "gfx942", "isa = 'gfx942' is no processor of LLVM and ptxas; give one such as"),
        ("isa", 86, "isa = 86 is no processor"),
    ],
)
def test_wrong_fields_of_an_architecture_are_refused(field: str, value: Any, why: str):
    right = {"name": "sm_8z", "capability": 86, "shared_bytes": 1 << 16, "lowerings": (MMA_SYNC,)}
    with pytest.raises(CodegenError, match=why):
        Architecture(**{**right, field: value})


def test_gpus_get_the_best_that_runs_on_them():
    wanted = {80: "sm_80", 86: "sm_86", 88: "sm_87", 90: "sm_90a", 103: "sm_100", 121: "sm_120"}
    assert {number: native_to(number).name for number in wanted} == wanted
    assert native_to(89).name == "sm_8y"  # sm_8y is registered for exactly compute capability 8.9
    unregister("sm_8y")
    assert native_to(89).name == "sm_89"
    register(SM_8Y)
    with pytest.raises(CodegenError, match=r"compute capability 7\.5 is too old"):
        native_to(75)


def test_a_processor_that_llvm_does_not_know_is_refused():
    """An architecture without a processor name that LLVM knows is refused with an error.

    LLVM would assume its oldest processor, fail to select instructions and end the process.
    """
    register(Architecture("sm_86s", 86, 65536, (MMA_SYNC,)))
    try:
        with pytest.raises(CodegenError, match=r"knows no GPU 'sm_86s'; register .* with isa="):
            codegen.compile(DataParallel()(Gemm("bf16").graph()), "sm_86s").ptx  # noqa: B018
    finally:
        unregister("sm_86s")


def test_only_registered_architectures_can_be_removed():
    with pytest.raises(
        CodegenError, match="no architecture is called 'sm_nope'; choose one that is registered: "
    ):
        unregister("sm_nope")
