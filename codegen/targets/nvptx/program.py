"""`CudaProgram`: compiles a scheduled graph to PTX, for one architecture and one lowering."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from codegen.architectures import Variant, Vectors, architecture_of, emitter_of
from coordgraph import CodegenError, KernelGraph, PassError
from coordgraph.collection import collection_paused
from coordgraph.control.asynchronous import AwaitEarlierLaunch, DescribeMatrix
from coordgraph.control.lowered import MultiplyFragments, ReduceFragment
from coordgraph.elements import dtype
from coordgraph.foreign_graphs import faults_named
from passes import Pass

# LLVM and the code generator are imported inside methods: a cached kernel does not need them.
if TYPE_CHECKING:
    from llvmlite import ir

    from codegen.targets.nvptx.sm_80.emit import CudaWalker
    from codegen.toolchain import PtxasReport

__all__ = ["WIDEST", "CudaProgram", "Vectors"]

WIDEST = Vectors()
"""The access widths of a program that accesses every tensor 16 bytes at a time."""
VECTOR_REDUCTIONS, SMALL_CONVERSIONS, WRITTEN_MAPS, SMALL_PRODUCTS = 81, 81, 83, 84
"""PTX versions, times ten (PTX ISA): the first versions with `red` for vectors, with conversions of
8-bit floats on sm_89, with `tensormap.replace`, and with `mma.sync` of 8-bit floats."""
MOST_BYTES_IN_FLIGHT = 32
"""The most bytes of operands that a thread's epilogue loads before it uses them."""


@dataclass(frozen=True)
class CudaProgram:
    """One of the programs of a CUDA kernel: a scheduled graph, compiled by one lowering.

    Args:
        graph: a scheduled graph.
        architecture: the architecture to compile for, such as `sm_90a`.
        vectors: how many elements of each tensor one access moves.
        instructions: the name of the lowering, `mma.sync` or `wgmma`; '' means the architecture's
            last lowering, which takes tensors of any alignment.
        reads_c: whether launches may pass C. Without C, larger tiles may fit in registers.
        watchdog: whether the kernel traps, instead of hanging, when a wait takes too long.
        bytes_in_flight: how many bytes of operands a thread's epilogue loads before it uses them;
            more bytes take more registers.
        lowering: the lowering pass with options; None means the default options.
        timeline: how many timeline records each role of a workgroup (the producer, or a consumer)
            keeps; 0 for a kernel without a timeline.
    """

    graph: KernelGraph
    architecture: str
    vectors: Vectors = WIDEST
    instructions: str = ""
    reads_c: bool = True
    watchdog: bool = False
    bytes_in_flight: int = MOST_BYTES_IN_FLIGHT
    lowering: Pass | None = None
    timeline: int = 0

    @cached_property
    def lowered(self) -> KernelGraph:
        """The lowered graph; its operations are those that each thread executes.

        Raises:
            CodegenError: the lowering refuses the graph.
        """
        try:
            if not self.timeline:
                return self.chosen(self.graph).verify()
            from passes.timeline import with_timeline

            return with_timeline(self.chosen, self.timeline)(self.graph).verify()
        except PassError as error:
            raise CodegenError(
                f"no kernel for {self.architecture} can be compiled from this graph: {error}"
            ) from error

    @property
    def chosen(self) -> Pass:
        """The lowering pass that compiles this program, with values for all of its options."""
        found = architecture_of(self.architecture).lowering(self.instructions)
        options = self.lowering
        if options is None or type(options) is not found.kind:
            options = found.options(self.architecture)
        variant = Variant(self.vectors, found.instructions, self.reads_c)
        return found.configured(options, variant)

    def why_not(self) -> str | None:
        """Why the lowering refuses the graph, or None if it accepts the graph."""
        return self.chosen.kept_why_not(self.graph)

    @cached_property
    def walker(self) -> CudaWalker:
        """The object that generates the LLVM module; `module` completes its list of arguments."""
        found = architecture_of(self.architecture).lowering(self.instructions)
        return emitter_of(found.instructions)(
            self.lowered, watchdog=self.watchdog, bytes_in_flight=self.bytes_in_flight
        )

    def settled(self) -> CudaProgram:
        """A copy that keeps only the PTX; whatever else was computed is computed again if needed.

        The lowered graph and the LLVM module are many times as large as the PTX.
        """
        copied = replace(self)
        if "ptx" in vars(self):
            vars(copied)["ptx"] = self.ptx
        return copied

    def leaner(self) -> CudaProgram | None:
        """A copy with half of `bytes_in_flight`; None if this program has the minimum.

        Fewer bytes of operands in flight take fewer registers. The code of a program with the
        minimum also prevents ptxas from delaying arithmetic.
        """
        from codegen.targets.nvptx.sm_80.fragment_walker import LEAST_BYTES_IN_FLIGHT

        if self.bytes_in_flight <= LEAST_BYTES_IN_FLIGHT:
            return None
        return replace(self, bytes_in_flight=self.bytes_in_flight // 2)

    @cached_property
    def module(self) -> ir.Module:
        """The LLVM module of the kernel."""
        return self.walker.build()

    @cached_property
    def llvm_ir(self) -> str:
        """The kernel's LLVM IR before optimisation."""
        return str(self.module)

    @cached_property
    def ptx(self) -> str:
        """The kernel's PTX, which the CUDA driver assembles when it loads the kernel."""
        with collection_paused(), faults_named("generating PTX", self.graph):
            return self._compiled(self.module)

    @cached_property
    def located_ptx(self) -> tuple[tuple[str, int], ...]:
        """The lines of the PTX, each with the number of the operation it was generated from.

        An operation's number is its position in preorder; 0 stands for the kernel itself. The
        instructions are the same as in `ptx`.
        """
        from codegen.emit.operation_lines import OperationLines, operation_of_lines

        found = architecture_of(self.architecture).lowering(self.instructions)
        walker = emitter_of(found.instructions)(
            self.lowered, watchdog=self.watchdog, bytes_in_flight=self.bytes_in_flight
        )
        walker.lines = OperationLines(walker.nodes)
        return tuple(operation_of_lines(self._compiled(walker.build())))

    def _compiled(self, module: ir.Module) -> str:
        from codegen.emit.llvm import optimize, ptx_machine

        machine = ptx_machine(self.architecture, self._least_ptx)
        return machine.emit_assembly(optimize(module, machine, vectorize=False, unroll=False))

    @property
    def _least_ptx(self) -> int:
        """The PTX version, times ten, that the kernel's instructions need; 0 for any version."""
        control, gemm = self.lowered.control, self.graph.gemm
        steps = gemm.epilogue.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype).steps
        multiplies = dtype(gemm.dtype).is_small_float and control.of_kind(MultiplyFragments)
        needs = (
            (any(op.form == "vector" for op in control.of_kind(ReduceFragment)), VECTOR_REDUCTIONS),
            (any(x != "bool" and dtype(x).is_small_float for x in steps), SMALL_CONVERSIONS),
            (control.of_kind(DescribeMatrix), WRITTEN_MAPS),
            (multiplies, SMALL_PRODUCTS),
        )
        return max((version for needed, version in needs if needed), default=0)

    def report(self) -> PtxasReport:
        """Assemble the PTX by ptxas; report registers, register spills, warnings and the cubin.

        Raises:
            ToolNotFound: ptxas is not installed.
            AssemblyError: ptxas rejects the PTX.
        """
        from codegen.toolchain import assemble

        return assemble(self.ptx, architecture_of(self.architecture).assembled_as)

    def assembled(self) -> tuple[CudaProgram, PtxasReport]:
        """Reduce the bytes in flight until ptxas reports no register spill.

        Returns:
            The first program without a register spill, or, if all programs spill, the program with
            the fewest bytes in flight; and the report of that program.

        Raises:
            ToolNotFound: ptxas is not installed.
            AssemblyError: ptxas rejects the PTX.
        """
        program, report = self, self.report()
        while report.spill_stores and (leaner := program.leaner()) is not None:
            program, report = leaner, leaner.report()
        return program, report

    @property
    def cluster(self) -> int:
        """How many CTAs a cluster has; a workgroup of the schedule is a cluster."""
        return self.walker.cluster

    @property
    def overlaps(self) -> bool:
        """Whether the kernel itself waits for earlier launches, so it may start before they end."""
        return bool(self.lowered.control.of_kind(AwaitEarlierLaunch))

    @property
    def threads(self) -> int:
        """How many threads a CTA has."""
        return self.walker.threads

    @property
    def shared_bytes(self) -> int:
        """The size in bytes of the dynamic shared memory of a CTA."""
        return self.walker.shared_bytes
