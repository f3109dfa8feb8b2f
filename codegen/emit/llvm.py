"""LLVM through llvmlite: from a module to assembly, for GPUs and for the host."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm
from llvmlite import ir

from passes.lowering.architectures import architecture_of

__all__ = ["host_machine", "optimize", "ptx_machine"]

NO_LAYOUT = 'target datalayout = ""'


@cache
def _initialize() -> None:
    # Shared memory is addressed with 32 bits, which saves a register for every address.
    llvm.set_option("coordgraph", "--nvptx-short-ptr")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


def optimize(
    module: ir.Module | str, machine: llvm.TargetMachine, *, vectorize: bool, unroll: bool
) -> llvm.ModuleRef:
    """Parse a module or its text, laid out for the machine, verify it and run LLVM's -O3."""
    _initialize()
    layout = f'target datalayout = "{machine.target_data}"'
    parsed = llvm.parse_assembly(str(module).replace(NO_LAYOUT, layout, 1))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = vectorize
    options.slp_vectorization = vectorize
    options.loop_unrolling = unroll
    llvm.create_pass_builder(machine, options).getModulePassManager().run(
        parsed, llvm.create_pass_builder(machine, options)
    )
    return parsed


def ptx_machine(architecture: str, least: int = 0) -> llvm.TargetMachine:
    """The NVPTX machine of an architecture; the PTX version is the lowest that knows it.

    Or `least`, where the code has instructions that only that knows.
    """
    _initialize()
    found = architecture_of(architecture)
    version = max(found.ptx, least)
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return target.create_target_machine(cpu=found.assembled_as, features=f"+ptx{version}", opt=3)


def host_machine() -> llvm.TargetMachine:
    """The machine that this process runs on, with all of its features."""
    _initialize()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="default",
        codemodel="jitdefault",
        jit=True,
    )
