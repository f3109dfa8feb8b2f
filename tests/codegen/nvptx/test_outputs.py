"""Tests, without a GPU, of outputs besides D on GPUs: indices, memory order, PTX and calls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest

import codegen
from codegen.call.views import TensorView
from codegen.targets.nvptx import CudaKernel
from coordgraph import CodegenError, Gemm, KernelGraph, LaunchError
from coordgraph import epilogue as ep
from coordgraph.control.lowered import ApplyFragment, StoreFragment
from coordgraph.control.resolve import Node, resolve
from coordgraph.verification import Outcome
from coordgraph.verification.memory_order.check import NAME
from passes import Pass, Pipeline
from passes.lowering import LowerToHopper, LowerToTensorCores
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.support.ptxas import assert_clean
from tests.support.sampling import chosen, cover, quick_cases


@ep.epilogue(bias="n", pre=ep.output("mn"))
def gelu_pre(acc: Any, bias: Any) -> Any:
    x = acc + bias
    return ep.gelu(x, approximate="tanh"), x


@ep.epilogue(bias="n", residual="mn", pre=ep.output("mn"), wide=ep.output(dtype="f32"))
def several(acc: Any, bias: Any, residual: Any) -> Any:
    x = acc + bias
    return ep.gelu(x, approximate="tanh") + residual, x, x * 2


@ep.epilogue(pre=ep.output(dtype="f32"))
def two_types(acc: Any) -> Any:
    return acc, acc


@dataclass(frozen=True)
class Case:
    """A target, a schedule, a tile, options of the lowering, and options of the problem."""

    target: str
    schedule: str
    tile: tuple[int, int, int]
    options: dict[str, Any]
    problem: dict[str, Any]


PERSISTENT = "data-parallel{persistent=true}"
CASES: tuple[Case, ...] = (
    Case("sm_90a", PERSISTENT, (128, 256, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {"consumers": "pingpong"}, {}),
    Case("sm_90a", PERSISTENT, (256, 128, 64), {"cluster_m": 2}, {}),
    Case("sm_90a", PERSISTENT, (128, 256, 64), {"cluster_n": 2}, {"transpose_b": True}),
    Case("sm_90a", PERSISTENT, (64, 64, 128), {"cluster_k": 2}, {}),
    Case("sm_90a", PERSISTENT, (16, 128, 64), {}, {}),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {"vector": 1}, {}),
    Case("sm_90a", "two-tile-stream-k{workgroups=132}", (128, 256, 64), {}, {}),
    Case("sm_90a", "stream-k{workgroups=132,reduction=scatter}", (128, 128, 64), {}, {}),
    Case("sm_90a", "stream-k{workgroups=132,reduction=turnstile}", (128, 128, 64), {}, {}),
    Case("sm_90a", "stream-k{workgroups=132,reduction=tree}", (128, 128, 64), {}, {}),
    Case("sm_90a", "stream-k{workgroups=132,reduction=atomic}", (128, 128, 64), {}, {}),
    Case("sm_90a", "split-k{splits=3}", (64, 128, 64), {}, {}),
    Case("sm_90a", "heterogeneous-tiles", (128, 128, 64), {}, {}),
    Case(
        "sm_90a", PERSISTENT, (128, 128, 64), {}, {"batched": True, "leading_dimensions": ("pre",)}
    ),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"grouped": True}),
    Case(
        "sm_90a",
        "stream-k{workgroups=132}",
        (128, 128, 64),
        {},
        {"grouped": True, "group_axis": "k", "transpose_a": True},
    ),
    Case("sm_90a", PERSISTENT, (128, 128, 64), {}, {"transposed_operands": ("pre",)}),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {}),
    Case("sm_80", PERSISTENT, (128, 128, 32), {"vector_d": 1}, {}),
    Case("sm_80", "stream-k{workgroups=132,reduction=scatter}", (128, 128, 32), {}, {}),
    Case("sm_80", "two-tile-stream-k{workgroups=132}", (128, 128, 64), {}, {}),
    Case("sm_80", "heterogeneous-tiles", (128, 128, 64), {}, {}),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {"batched": True}),
    Case("sm_80", PERSISTENT, (128, 128, 64), {}, {"grouped": True}),
)
QUICK = (CASES[1], CASES[5], CASES[8], CASES[15], CASES[19])
every_case = pytest.mark.parametrize("case", chosen(QUICK, CASES), ids=str)


def lowering(case: Case) -> Pass | None:
    if not case.options:
        return None
    if case.target == "sm_90a":
        return LowerToHopper(**case.options)
    return LowerToTensorCores(**case.options)


def compiled(function: ep.EpilogueFunction, case: Case) -> CudaKernel:
    gemm = Gemm(epilogue=function, **case.problem)
    graph = Pipeline.parse(case.schedule)(gemm.graph(case.tile))
    kernel = codegen.compile(graph, case.target, lowering=lowering(case))
    assert isinstance(kernel, CudaKernel)
    return kernel


def applications(graph: KernelGraph) -> list[Node]:
    nodes = (n for root in resolve(graph.control.root.body, graph.scope()) for n in root.walk())
    return [node for node in nodes if isinstance(node.op, ApplyFragment) and node.op.stores]


@quick_cases(3)
@every_case
def test_outputs_are_stored_at_the_indices_of_d(case: Case):
    """A register stores an output's element at the row and column of the register's element of D.

    The guards of both stores are equal, too.
    """
    graph = compiled(several, case).lowered
    found = applications(graph)
    assert found
    for node in found:
        op = node.op
        assert isinstance(op, ApplyFragment)
        assert op.stores == ("pre", "wide")
        for axis in (0, 1):
            (d,) = node.scope.reverse(f"D.{axis}").values
            for tensor in op.stores:
                (here,) = node.scope.reverse(f"{tensor}.{axis}").values
                assert here == d
        for tensor in op.stores:
            assert node.scope.reverse(tensor).guard == node.scope.reverse("D").guard
        if graph.gemm.is_apart("D"):
            assert graph.gemm.is_apart("pre")


@quick_cases(1)
@every_case
def test_no_memory_is_written_twice(case: Case):
    """The check `memory order` finds no two threads that write one element of an output."""
    verdict = compiled(gelu_pre, case).lowered.check(checks=(NAME,))[NAME]
    assert verdict.outcome is Outcome.HOLDS, "\n".join(map(str, verdict.counterexamples))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "case"),
    cover(
        0,
        product((several, two_types), CASES[3:]),
        lambda c: (c[0].name, c[1].target),
    ),
    ids=str,
)
def test_kernels_assemble_without_spills(function: ep.EpilogueFunction, case: Case):
    _, report = compiled(function, case).program().assembled()
    assert_clean(report)


def test_pairs_of_elements_are_stored_at_once():
    """bf16 pairs take one 32-bit store each, f32 pairs one 64-bit store, guarded by a predicate."""
    case = Case("sm_80", PERSISTENT, (64, 64, 32), {}, {})
    kernel, plain = compiled(several, case), compiled(ep.ALPHA_BETA, case).ptx
    wide, narrow = kernel.ptx, kernel.program(kernel.variant(2)).ptx
    registers = 64 * 64 // 128  # accumulator registers of each of the 128 threads
    assert wide.count("st.global.b64") - plain.count("st.global.b64") == registers // 2
    assert wide.count("st.global.b32") - plain.count("st.global.b32") == registers // 2
    # Each element of D and of the output `pre` is stored by itself.
    assert narrow.count("st.global.b16") == 2 * registers
    assert narrow.count("st.global.b32") == registers


def test_d_is_stored_by_tma_beside_other_outputs():
    graph = compiled(several, CASES[0]).lowered
    stores = {op.destination for op in graph.control.of_kind(StoreFragment)}
    assert "D.shared" in stores
    assert "D" not in stores


def test_types_that_gpus_do_not_store_are_refused():
    @ep.epilogue(exact=ep.output(dtype="f64"))
    def wide(acc: Any) -> Any:
        return acc, acc

    for target in ("sm_80", "sm_90a"):
        with pytest.raises(
            CodegenError, match=r"output exact .* type f64, which GPU kernels do not"
        ):
            compiled(wide, Case(target, PERSISTENT, (128, 128, 64), {}, {}))


def test_a_call_passes_the_addresses_of_all_outputs(fake_driver: FakeDriver):
    kernel, fake_driver.arguments = compiled(two_types, CASES[0]), 8
    a, b = matrix(256, 128, 1 << 30), matrix(128, 512, 2 << 30)
    out, pre = matrix(256, 512, 3 << 30), replace(matrix(256, 512, 4 << 30), dtype="f32")
    assert kernel(a, b, out=out, pre=pre) == (out, pre)
    (launch,) = fake_driver.launches
    assert {3 << 30, 4 << 30} <= set(launch.values)
    # An array that is not aligned to pairs needs another program, which stores single elements.
    apart = replace(pre, pointer=pre.pointer + 4)
    assert kernel(a, b, out=out, pre=apart) == (out, apart)
    aligned, single = fake_driver.loaded
    assert "st.global.b64" in aligned
    assert "st.global.b64" not in single


@pytest.mark.parametrize(
    ("pre", "message"),
    [
        (matrix(256, 512, 4 << 30), "pre holds bf16, but the kernel takes f32"),
        (replace(matrix(256, 256, 4 << 30), dtype="f32"), r"pre has the shape \(256, 256\)"),
        (replace(matrix(256, 512, 3 << 30), dtype="f32"), "'out' overlaps pre"),
        (replace(matrix(256, 512, (1 << 30) + 256), dtype="f32"), "'pre' overlaps a"),
    ],
    ids=["type", "shape", "d", "a"],
)
def test_a_call_refuses_wrong_arrays(fake_driver: FakeDriver, pre: TensorView, message: str):
    kernel = compiled(two_types, CASES[0])
    a, b = matrix(256, 128, 1 << 30), matrix(128, 512, 2 << 30)
    good = replace(matrix(256, 512, 4 << 30), dtype="f32")
    # A valid call comes first, so that the wrong calls find a cached one.
    kernel(a, b, out=matrix(256, 512, 3 << 30), pre=good)
    with pytest.raises(LaunchError, match=message):
        kernel(a, b, out=matrix(256, 512, 3 << 30), pre=pre)
    assert len(fake_driver.launches) == 1


@ep.epilogue(scale=ep.operand("n", "f32"), other=ep.output(dtype="u8"))
def quantized(acc: Any, scale: Any) -> Any:
    x = acc / scale
    return ep.quantize(x), ep.quantize(x, to="u8")


@quick_cases(1)
@pytest.mark.parametrize("case", [CASES[0], CASES[5], CASES[8], CASES[18], CASES[20]], ids=str)
def test_quantized_outputs_assemble(case: Case):
    kernel = compiled(quantized, case)
    assert kernel.graph.tensor("D").dtype == "i8"
    assert kernel.instructions == ("wgmma" if case.target == "sm_90a" else "mma.sync")
    for variant in (kernel.variant(), kernel.variant(2)):
        program, report = kernel.program(variant).assembled()
        assert_clean(report)
        ptx = program.ptx
        assert ptx.count("cvt.rni.sat.s8.f32") == ptx.count("cvt.rni.sat.u8.f32") > 0
        # An approximate quotient near a tie could be rounded to the wrong integer.
        assert "div.full" not in ptx
        assert "div.rn.f32" in ptx
