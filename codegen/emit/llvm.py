"""LLVM through llvmlite: target machines for GPUs and the host CPU, optimisation of modules."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm
from llvmlite import ir

from coordgraph import CodegenError
from passes.lowering.architectures import architecture_of

__all__ = ["host_machine", "optimize", "ptx_machine"]

NO_LAYOUT = 'target datalayout = ""'

OLDEST_PTX = ".version 3.2"
"""The PTX version that LLVM emits for an unknown processor: too old for sm_50 and later."""


@cache
def _initialize() -> None:
    # Use 32-bit addresses for shared memory, which saves one register per address.
    llvm.set_option("coordgraph", "--nvptx-short-ptr")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


def optimize(
    module: ir.Module | str,
    machine: llvm.TargetMachine,
    *,
    vectorize: bool,
    unroll: bool,
    level: int = 3,
) -> llvm.ModuleRef:
    """Parse a module or its text, set the machine's data layout, verify and optimise it.

    Args:
        module: an llvmlite module, or LLVM IR as text.
        machine: the target machine.
        vectorize: whether to run LLVM's loop and SLP vectorisers.
        unroll: whether to run LLVM's loop unrolling.
        level: LLVM's optimisation level, 0 to 3.
    """
    _initialize()
    layout = f'target datalayout = "{machine.target_data}"'
    parsed = llvm.parse_assembly(str(module).replace(NO_LAYOUT, layout, 1))
    parsed.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = vectorize
    options.slp_vectorization = vectorize
    options.loop_unrolling = unroll
    llvm.create_pass_builder(machine, options).getModulePassManager().run(
        parsed, llvm.create_pass_builder(machine, options)
    )
    return parsed


def ptx_machine(architecture: str, least: int = 0) -> llvm.TargetMachine:
    """LLVM's NVPTX target machine for an architecture such as sm_90a.

    Args:
        architecture: the name of the GPU architecture.
        least: the PTX ISA version that the code's instructions need, times 10 (80 for 8.0). The
            module's version is the higher of `least` and the version that the architecture needs.
    """
    _initialize()
    found = architecture_of(architecture)
    version = max(found.ptx, least)
    if not _is_known(found.assembled_as):
        raise CodegenError(
            f"{architecture}: LLVM {'.'.join(map(str, llvm.llvm_version_info))} knows no GPU "
            f"'{found.assembled_as}'; register the architecture with isa= the name of a GPU that "
            "LLVM knows, such as isa='sm_86'"
        )
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    return target.create_target_machine(cpu=found.assembled_as, features=f"+ptx{version}", opt=3)


@cache
def _is_known(processor: str) -> bool:
    """Whether LLVM's NVPTX back end knows a processor.

    The check is needed because LLVM ends the process if a kernel is compiled for an unknown
    processor. An empty module can be compiled: for an unknown processor its PTX version is
    `OLDEST_PTX`, for every supported processor a later one.
    """
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    empty = llvm.parse_assembly('target triple = "nvptx64-nvidia-cuda"')
    text = target.create_target_machine(cpu=processor).emit_assembly(empty)
    return OLDEST_PTX not in text.splitlines()


def host_machine(level: int = 3) -> llvm.TargetMachine:
    """LLVM's target machine for the CPU of this process, with all of its features enabled.

    Args:
        level: the optimisation level of code generation, 0 to 3.
    """
    _initialize()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=level,
        reloc="default",
        codemodel="jitdefault",
        jit=True,
    )
