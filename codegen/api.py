"""`compile`: a scheduled graph and a target make a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codegen.kernel import Kernel
from coordgraph import CodegenError, KernelGraph
from coordgraph.elements import WARP_MMA, dtype
from coordgraph.integers import to_text
from passes import Pass
from passes.lowering.architectures import names

__all__ = ["TARGETS", "compile", "native_target"]


class _Targets(Sequence[str]):
    """The names of all targets; architectures that are registered later are among them."""

    def __getitem__(self, place: Any) -> Any:
        return ("interpreter", "cpu", *names(), "native")[place]

    def __len__(self) -> int:
        return len(self[:])

    def __repr__(self) -> str:
        return repr(self[:])


TARGETS: Sequence[str] = _Targets()


def native_target(graph: KernelGraph) -> str:
    """The best target here: the GPU where there is one that multiplies this type, else the CPU."""
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
) -> Kernel:
    """Compile a scheduled graph.

    On architectures with several lowerings, as sm_90a, the best one that takes the graph is used.
    `kernel.instruction_family` names it, `kernel.lowering_notes` says why a better one declined.

    Args:
        graph: what a schedule pass made of `Gemm.graph()`.
        target: `interpreter`, `cpu`, an NVIDIA architecture (`sm_80` and up), or `native`.
        debug: let GPU kernels that wait too long trap instead of hanging.
        lowering: options of a lowering of a GPU's architecture, as `LowerToHopper(cluster_m=2)`, in
            place of the default. Tensors that are not aligned as it needs, and for `LowerToHopper`
            those are rows or addresses that are no multiples of 16 bytes, are served by other code.
        instructions: the instructions that must multiply, such as `wgmma` or `mma.sync`. A graph
            that they cannot multiply is refused here, tensors that they cannot at the call; without
            this argument both fall back to the next lowering.

    Raises:
        VerifyError: the graph is not scheduled, or broken.
        CodegenError: it is no graph; the target is unknown, is not here, or cannot do what the
            graph or the lowering asks for.
    """
    if not isinstance(graph, KernelGraph):
        raise CodegenError(
            f"graph = {graph!r} is no KernelGraph; compile takes what a schedule made of "
            "Gemm(…).graph(…), as StreamK()(Gemm('bf16').graph())"
        )
    if not isinstance(target, str):
        raise CodegenError(f"target = {target!r} is no name; there are {', '.join(TARGETS)}")
    graph.workgroup  # noqa: B018 - says what to do where no schedule was applied
    if graph.level != "scheduled":
        raise CodegenError("compile takes a scheduled graph and lowers it itself")
    grid = graph.workgroup.size
    if grid is not None and not graph.parameters.known_to_host(grid):
        raise CodegenError(f"the grid, {to_text(grid)}, is data that the host does not know")
    if target == "native":
        target = native_target(graph)
    if instructions is not None and (not isinstance(instructions, str) or not instructions):
        raise CodegenError(f"instructions = {instructions!r} is no name, such as 'wgmma'")
    if target.startswith("sm_"):
        from codegen.targets.nvptx import CudaKernel

        return CudaKernel(graph, target, debug=debug, lowering=lowering, instructions=instructions)
    if lowering is not None:
        raise CodegenError(f"a lowering is for NVIDIA GPUs; '{target}' has its own")
    if instructions is not None:
        raise CodegenError(
            f"instructions='{instructions}' is for NVIDIA GPUs; leave it out for '{target}'"
        )
    graph.verify()
    if target == "interpreter":
        from codegen.targets.interpreter import InterpretedKernel

        return InterpretedKernel(graph)
    if target == "cpu":
        from codegen.targets.cpu import HostKernel

        return HostKernel(graph)
    raise CodegenError(f"unknown target '{target}'; there are {', '.join(TARGETS)}")
