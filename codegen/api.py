"""`compile`: compiles a scheduled graph for a target, and returns a kernel to call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from codegen.kernel import Kernel
from codegen.nvtx_ranges import ranged, wanted
from codegen.verified import checks_library_graphs, ensure_verified
from coordgraph import CodegenError, KernelGraph
from coordgraph.collection import collection_paused
from coordgraph.elements import WARP_MMA, dtype
from coordgraph.foreign_graphs import faults_named
from coordgraph.integers import to_text
from coordgraph.library_graphs import is_made_by_library
from coordgraph.validation import a_type
from passes import Pass
from passes.lowering.architectures import names

if TYPE_CHECKING:
    from codegen.targets.nvptx import CudaKernel

__all__ = ["TARGETS", "compile", "native_target"]

KernelT = TypeVar("KernelT", bound=Kernel)


class _Targets(Sequence[str]):
    """The names of all targets, read from the registry of architectures at every use."""

    def __getitem__(self, place: Any) -> Any:
        return ("interpreter", "cpu", *names(), "native")[place]

    def __len__(self) -> int:
        return len(self[:])

    def __repr__(self) -> str:
        return repr(self[:])


TARGETS: Sequence[str] = _Targets()
"""The names of all targets of `compile`, including architectures that are registered later."""


def native_target(graph: KernelGraph) -> str:
    """The best target on this machine: the architecture of GPU 0, or `cpu`.

    The result is `cpu` if there is no GPU, or if no `mma.sync` instruction multiplies the type of
    A.
    """
    from codegen.targets.nvptx.driver import device, unavailable

    if dtype(graph.gemm.dtype).instruction(WARP_MMA) and unavailable() is None:
        return device(0).architecture
    return "cpu"


def compile(
    graph: KernelGraph,
    target: str = "native",
    *,
    debug: bool = False,
    lowering: Pass | None = None,
    instructions: str | None = None,
    verify: bool | None = None,
    timeline: bool | int = False,
    nvtx: bool | None = None,
) -> Kernel:
    """Compile a scheduled graph to a kernel for a target.

    On an architecture with several lowerings, such as sm_90a, the fastest lowering that accepts the
    graph is used. `kernel.instruction_family` names the instructions of that lowering, and
    `kernel.lowering_notes` says why faster lowerings refused the graph.

    Args:
        graph: a graph from `Gemm.graph()` to which a schedule pass was applied.
        target: `interpreter`, `cpu`, an NVIDIA architecture (`sm_80` and later), or `native`.
        debug: whether GPU kernels that wait too long trap instead of hanging, and CPU kernels check
            every index and end the launch with a LaunchError if it is outside its tensor.
        lowering: a lowering pass of the architecture with options, such as
            `LowerToHopper(cluster_m=2)`, in place of the default. If tensors lack the alignment
            that this lowering needs (for `LowerToHopper`, addresses and rows that are multiples of
            16 bytes), the kernel uses a more general lowering for them.
        instructions: the matrix instructions that the kernel must use, such as `wgmma` or
            `mma.sync`. `compile` raises an error if they cannot multiply the graph's types or
            tiles, and a call of the kernel raises one if they cannot multiply its tensors. With
            None, the kernel falls back to the instructions of the next lowering.
        verify: whether to check the graph with `graph.check()` before its first build. A graph that
            was checked before is not checked again: the cache on disk records the check. True
            checks every graph. None also checks the graph, unless only passes of this library made
            the graph and one of these holds: the target is `interpreter`; the target is a GPU, and
            the cache on disk has the kernel; or the environment variable COORDGRAPH_VERIFY is 0.
            False does not check: a kernel of a wrong graph may compute a wrong product, wait for
            ever or corrupt memory. Unless `verify` is False, a CPU kernel of a graph that other
            code than this library's passes made also checks every index, until one launch with the
            same sizes has ended without an error.
        timeline: whether the kernel records when its workgroups begin to multiply, wait and so on,
            which `kernel.timeline(a, b)` returns. Each role of a workgroup (its producer or a
            consumer) keeps 1024 records, or `timeline` records if that is a number, and counts
            further ones without keeping them.
        nvtx: whether each call is an NVTX range, which Nsight Systems shows; needs the package
            nvtx. None reads the environment variable COORDGRAPH_NVTX.

    Raises:
        VerifyError: the graph is not scheduled, is malformed, or a check refutes it.
        CodegenError: `graph` is no KernelGraph; the target is unknown or not available on this
            machine; or the target, or `lowering`, cannot run the graph.
    """
    named = graph if isinstance(graph, KernelGraph) else None
    with collection_paused(), faults_named("compiling the graph", named):
        _check_arguments(graph, target)
        if verify is not False:
            ensure_verified(graph, always=verify is True)
        if target == "native":
            target = native_target(graph)
        if instructions is not None and (not isinstance(instructions, str) or not instructions):
            raise CodegenError(
                f"instructions = {instructions!r} is no name of instructions; leave it out, or "
                "give a name such as 'wgmma'"
            )
        records = _records(timeline, target)
        if target.startswith("sm_"):
            return _kind(_cuda_kernel(records), nvtx)(
                graph,
                target,
                debug=debug,
                lowering=lowering,
                instructions=instructions,
                timeline=records,
                verify=checks_library_graphs(verify),
            )
        if lowering is not None:
            raise CodegenError(
                f"lowering = {lowering} is for NVIDIA GPUs, but the target is '{target}'; leave "
                "lowering out, or choose a target such as 'sm_80'"
            )
        if instructions is not None:
            raise CodegenError(
                f"instructions='{instructions}' is for NVIDIA GPUs, but the target is '{target}'; "
                "leave it out"
            )
        graph.verify()
        if target == "interpreter":
            from codegen.targets.interpreter import InterpretedKernel

            return _kind(InterpretedKernel, nvtx)(graph)
        if target == "cpu":
            from codegen.targets.cpu import HostKernel
            from codegen.targets.cpu.recording import RecordingHostKernel

            foreign = verify is not False and not is_made_by_library(graph)
            if checks_library_graphs(verify):
                ensure_verified(graph, always=True)
            return _kind(RecordingHostKernel if records else HostKernel, nvtx)(
                graph, debug=debug, watched=foreign, timeline=records
            )
        raise CodegenError(f"unknown target '{target}'; choose one of: {', '.join(TARGETS)}")


def _kind(kind: type[KernelT], nvtx: bool | None) -> type[KernelT]:
    """The kernel class to use: `kind`, or a subclass whose calls are NVTX ranges."""
    return ranged(kind) if wanted(nvtx) else kind


def _cuda_kernel(records: int) -> type[CudaKernel]:
    """The kernel class for NVIDIA GPUs: if `records` is not 0, the class that records timelines."""
    if records:
        from codegen.targets.nvptx.recording import RecordingKernel

        return RecordingKernel
    from codegen.targets.nvptx import CudaKernel

    return CudaKernel


def _records(timeline: bool | int, target: str) -> int:
    """How many timeline records each role of a workgroup keeps; 0 without a timeline.

    The roles are the producer and the consumers.

    Raises:
        CodegenError: `timeline` is neither True, False nor a positive integer, or kernels for the
            target cannot record a timeline.
    """
    if not isinstance(timeline, int) or timeline < 0:
        raise CodegenError(
            f"timeline = {timeline!r} is neither True nor False nor a number of records; give one "
            "of these, such as 1024"
        )
    if timeline and target == "interpreter":
        raise CodegenError(
            "timeline=True needs a clock, which the target 'interpreter' does not have; choose "
            "'cpu' or a GPU"
        )
    if timeline is not True:
        return int(timeline)
    from passes.timeline import MOST_RECORDS

    return MOST_RECORDS


def _check_arguments(graph: KernelGraph, target: str) -> None:
    """Check the types of the arguments of `compile`, and that the graph is scheduled.

    Raises:
        VerifyError: no schedule has been applied to the graph.
        CodegenError: an argument has a wrong type, the graph is lowered already, or the size of its
            grid depends on data in device memory.
    """
    if not isinstance(graph, KernelGraph):
        raise CodegenError(
            f"graph is {a_type(graph)}, not a KernelGraph; pass a graph to which a schedule was "
            "applied, such as StreamK()(Gemm('bf16').graph())"
        )
    if not isinstance(target, str):
        raise CodegenError(
            f"target = {target!r} is no name of a target; choose one of: {', '.join(TARGETS)}"
        )
    graph.workgroup  # noqa: B018 - raises an error with advice if no schedule was applied
    if graph.level != "scheduled":
        raise CodegenError(
            f"the graph has the level '{graph.level}'; pass the scheduled graph, because "
            "codegen.compile lowers it itself"
        )
    grid = graph.workgroup.size
    if grid is not None and not graph.parameters.known_to_host(grid):
        raise CodegenError(
            f"the size of the grid, {to_text(grid)}, depends on data in device memory, which the "
            "host cannot read at a launch; choose a schedule with a fixed number of workgroups"
        )
