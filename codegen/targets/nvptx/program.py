"""From a scheduled graph to PTX, for one architecture and one vector width."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from llvmlite import ir

from codegen.architectures import Variant, Vectors, architecture_of, emitter_of
from codegen.emit.llvm import optimize, ptx_machine
from codegen.targets.nvptx.sm_80.emit import CudaWalker
from codegen.toolchain import PtxasReport, assemble
from coordgraph import CodegenError, KernelGraph, PassError
from coordgraph.control.asynchronous import AwaitEarlierLaunch, DescribeMatrix
from coordgraph.control.lowered import ReduceFragment
from passes import Pass

__all__ = ["WIDEST", "CudaProgram", "Vectors"]

WIDEST = Vectors()
VECTOR_REDUCTIONS, WRITTEN_MAPS = 81, 83
"""The versions of PTX that first add vectors in memory, and write maps (PTX ISA, "red",
"tensormap.replace")."""
MOST_BYTES_IN_FLIGHT, LEAST_BYTES_IN_FLIGHT = 32, 4


@dataclass(frozen=True)
class CudaProgram:
    """A kernel for `architecture` whose tensors move by `vectors` elements.

    Args:
        graph: a scheduled graph.
        instructions: the lowering of the architecture, `mma.sync` or `wgmma`; by default the last,
            which takes tensors of any alignment.
        reads_c: launches may ask for C; a lowering may gain where they do not.
        watchdog: let a kernel that waits too long trap instead of hanging.
        lowering: options of the lowering, as its pass, where not by default.
    """

    graph: KernelGraph
    architecture: str
    vectors: Vectors = WIDEST
    instructions: str = ""
    reads_c: bool = True
    watchdog: bool = False
    bytes_in_flight: int = MOST_BYTES_IN_FLIGHT
    lowering: Pass | None = None

    @cached_property
    def lowered(self) -> KernelGraph:
        """The graph of one workitem's work."""
        try:
            return self.chosen(self.graph).verify()
        except PassError as error:
            raise CodegenError(f"{self.architecture}: {error}") from error

    @property
    def chosen(self) -> Pass:
        """The pass that lowers."""
        found = architecture_of(self.architecture).lowering(self.instructions)
        options = self.lowering
        if options is None or type(options) is not found.kind:
            options = found.options(self.architecture)
        variant = Variant(self.vectors, found.instructions, self.reads_c)
        return found.configured(options, variant)

    def why_not(self) -> str | None:
        """Why the graph cannot be lowered this way, or None."""
        return self.chosen.why_not(self.graph)

    @cached_property
    def walker(self) -> CudaWalker:
        """Holds the argument list, threads and shared memory, once `module` is built."""
        found = architecture_of(self.architecture).lowering(self.instructions)
        return emitter_of(found.instructions)(
            self.lowered, watchdog=self.watchdog, bytes_in_flight=self.bytes_in_flight
        )

    def leaner(self) -> CudaProgram | None:
        """The same with half as many loads under way in the epilogue, or None at the end."""
        if self.bytes_in_flight <= LEAST_BYTES_IN_FLIGHT:
            return None
        return replace(self, bytes_in_flight=self.bytes_in_flight // 2)

    @cached_property
    def module(self) -> ir.Module:
        """The LLVM module."""
        return self.walker.build()

    @cached_property
    def llvm_ir(self) -> str:
        """LLVM IR before optimisation."""
        return str(self.module)

    @cached_property
    def ptx(self) -> str:
        """The PTX that the driver assembles."""
        control, least = self.lowered.control, 0
        if any(op.form == "vector" for op in control.of_kind(ReduceFragment)):
            least = VECTOR_REDUCTIONS
        if control.of_kind(DescribeMatrix):
            least = WRITTEN_MAPS
        machine = ptx_machine(self.architecture, least)
        return machine.emit_assembly(optimize(self.module, machine, vectorize=False, unroll=False))

    def report(self) -> PtxasReport:
        """What ptxas says of it: registers, spills, warnings, cubin (needs ptxas)."""
        return assemble(self.ptx, architecture_of(self.architecture).assembled_as)

    def assembled(self) -> tuple[CudaProgram, PtxasReport]:
        """This program or the first leaner one that ptxas assembles without a spill; its report.

        Where none does, the leanest (needs ptxas).
        """
        program, report = self, self.report()
        while report.spill_stores and (leaner := program.leaner()) is not None:
            program, report = leaner, leaner.report()
        return program, report

    @property
    def cluster(self) -> int:
        """CUDA's workgroups for each workgroup of the schedule."""
        return self.walker.cluster

    @property
    def overlaps(self) -> bool:
        """The code itself waits for earlier launches, so it may begin before they end."""
        return bool(self.lowered.control.of_kind(AwaitEarlierLaunch))

    @property
    def threads(self) -> int:
        """Workitems of a workgroup."""
        return self.walker.threads

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a workgroup."""
        return self.walker.shared_bytes
