"""`accepting`: find the fastest lowering of an architecture that accepts a scheduled graph."""

from __future__ import annotations

from typing import Any

from coordgraph import KernelGraph, PassError
from coordgraph.elements import DTYPES, dtype
from passes.lowering.architectures import Alignment, Lowering, Vectors, architecture_of
from passes.lowering.multiplying import too_old

__all__ = ["accepting", "check_elements"]


def check_elements(graph: KernelGraph, architecture: str) -> None:
    """Raise an error if no lowering of an architecture multiplies the type of A and B.

    Args:
        graph: a graph at any level.
        architecture: the architecture's name, such as `sm_90a`.

    Raises:
        PassError: no lowering multiplies the element type; the message names the element types that
            kernels for the architecture multiply.
        CodegenError: the architecture is unknown.
    """
    machine = architecture_of(architecture)
    families = [lowering.instructions for lowering in machine.lowerings]
    every = [d for d in DTYPES.values() if any(map(d.instruction, families))]
    known = [d.name for d in every if not too_old(d, machine)]
    kind = dtype(graph.gemm.dtype)
    if kind in every and (why := too_old(kind, machine)):
        raise PassError(why)
    if kind not in every:
        *others, last = known
        raise PassError(
            f"kernels for {architecture} multiply {', '.join(others)} and {last}, not {kind}; "
            "choose one of these types for A and B"
        )


def accepting(
    graph: KernelGraph, architecture: str, *, reads_c: bool = False, **options: Any
) -> tuple[Lowering, tuple[str, ...]]:
    """Find the fastest lowering that accepts a graph, without applying it.

    The tensors are assumed to be aligned to 16 bytes. The second result has, for each faster
    lowering, a sentence with the reason why that lowering refuses the graph.

    Args:
        graph: a scheduled graph.
        architecture: the architecture's name, such as `sm_90a`.
        reads_c: whether the kernel adds C; kernels with large tiles have no registers for elements
            of C.
        options: options that the lowering pass must have, such as `cluster_m=2`.

    Raises:
        PassError: no lowering of the architecture multiplies the element type, or none accepts the
            graph; the message gives each lowering's reason.
        CodegenError: the architecture is unknown.
    """
    check_elements(graph, architecture)
    alignment, reasons = Alignment(Vectors.widest(graph.gemm)), list[str]()
    for lowering in architecture_of(architecture).lowerings:
        if not lowering.has(*options):
            missing = ", ".join(name for name in options if not lowering.has(name))
            reasons.append(f"{lowering.family} has no {missing}")
            continue
        variant = lowering.variant(alignment, reads_c=reads_c)
        made = lowering.configured(lowering.options(architecture, **options), variant)
        if (reason := made.why_not(graph)) is None:
            return lowering, tuple(reasons)
        reasons.append(f"{lowering.family} refuses: {reason}")
    raise PassError(f"no lowering to {architecture} accepts the graph: {'; '.join(reasons)}")
