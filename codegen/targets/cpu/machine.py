"""Detects the CPU that this process runs on: vector registers, fused multiply-add, f16 support."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from codegen.emit.llvm import host_machine
from coordgraph import CodegenError, KernelGraph
from passes.lowering.host import LowerToHost
from passes.timeline import with_timeline

__all__ = ["Host", "host", "lower"]


@dataclass(frozen=True)
class Host:
    """The properties of a CPU on which lowering and code generation depend.

    Attributes:
        triple: LLVM's target triple, such as `x86_64-unknown-linux-gnu`.
        vector_bits: number of bits of a vector register.
        registers: how many vector registers the CPU has.
        fused: whether the CPU has fused multiply-add instructions.
        half: whether the CPU converts between f16 and f32.
    """

    triple: str
    vector_bits: int
    registers: int
    fused: bool
    half: bool


@cache
def host() -> Host:
    """The properties of the CPU that this process runs on."""
    triple = host_machine().triple
    machine = triple.partition("-")[0]
    features = llvm.get_host_cpu_features()
    if machine in ("x86_64", "i386", "i686"):
        wide, medium = bool(features.get("avx512f")), bool(features.get("avx"))
        bits, registers = (512, 32) if wide else (256 if medium else 128, 16)
        return Host(triple, bits, registers, bool(features.get("fma")), bool(features.get("f16c")))
    if machine in ("aarch64", "arm64"):
        return Host(triple, 128, 32, fused=True, half=True)
    return Host(triple, 128, 16, fused=False, half=False)


def lower(graph: KernelGraph, timeline: int = 0) -> KernelGraph:
    """Lower a scheduled graph for the CPU that this process runs on.

    Args:
        graph: the scheduled graph.
        timeline: how many timeline records a workgroup keeps; 0 for a kernel without a timeline.

    Raises:
        CodegenError: a tensor has the type f16, and the CPU cannot convert f16.
    """
    gemm, here = graph.gemm, host()
    if "f16" in (gemm.dtype, gemm.out_dtype) and not here.half:
        raise CodegenError(
            f"this processor ({here.triple}) cannot convert f16; use dtype='bf16' or 'f32'"
        )
    lowering = LowerToHost(here.vector_bits, here.registers, here.fused)
    return with_timeline(lowering, timeline)(graph)
