"""Code generation for CPUs other than this one: with narrower vectors, without fused multiply-add
or f16, and of another architecture.
"""

from __future__ import annotations

from dataclasses import replace

import llvmlite.binding as llvm
import pytest

from codegen.emit.llvm import host_machine, optimize
from codegen.targets.cpu import HostKernel, machine
from codegen.targets.cpu.emit import HostWalker
from coordgraph import CodegenError, Gemm
from passes import DataParallel, StreamK
from passes.lowering import LowerToHost
from tests.codegen.cpu.kernels import TILE, Problem
from tests.support.sampling import quick_cases

HOSTS = [(64, 16, True), (128, 16, False), (128, 32, True), (256, 16, True), (512, 32, True)]


@quick_cases(4)
@pytest.mark.parametrize(("bits", "registers", "fused"), HOSTS)
def test_any_width_of_vectors(
    bits: int, registers: int, fused: bool, monkeypatch: pytest.MonkeyPatch
):
    other = replace(machine.host(), vector_bits=bits, registers=registers, fused=fused)
    monkeypatch.setattr(machine, "host", lambda: other)
    code = HostKernel(DataParallel()(Gemm("f32").graph(TILE)))
    assert ("llvm.fma" in code.llvm_ir) == fused
    for m, n, k in ((1, 1, 1), (25, 95, 61)):
        Problem(code, m, n, k, 1.0, 1.0).check()


def test_f16_needs_instructions(monkeypatch: pytest.MonkeyPatch):
    other = replace(machine.host(), half=False)
    monkeypatch.setattr(machine, "host", lambda: other)
    for gemm in (Gemm("f16"), Gemm("f32", "f16")):
        with pytest.raises(CodegenError, match="f16"):
            HostKernel(StreamK()(gemm.graph(TILE)))


@pytest.mark.slow
def test_code_for_aarch64():
    """Code for AArch64 waits by a hint instruction, and multiplies by vector instructions."""
    host_machine()  # this call initialises LLVM's targets
    triple = "aarch64-unknown-linux-gnu"
    there = llvm.Target.from_triple(triple).create_target_machine(cpu="generic", opt=3)
    graph = LowerToHost(128, 32)(StreamK()(Gemm("f16").graph(TILE)))
    module = HostWalker(graph, triple).build()
    assembly = there.emit_assembly(optimize(module, there, vectorize=True, unroll=True))
    for instruction in ("yield", "fmla", "fcvt"):
        assert instruction in assembly
    assert "__" not in assembly.replace("__aarch64_", "")
