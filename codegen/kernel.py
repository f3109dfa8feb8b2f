"""What every compiled kernel offers, whatever its target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from coordgraph import CodegenError, KernelGraph
from coordgraph.control.resolve import Node, resolve
from coordgraph.integers import to_text

__all__ = ["IndexExpression", "Kernel", "index_expressions"]


@dataclass(frozen=True)
class IndexExpression:
    """An index that the code computes, and the condition under which it is not padding."""

    operation: str
    coordinate: str
    index: str
    guard: str

    def __str__(self) -> str:
        where = "" if self.guard == "true" else f"   if {self.guard}"
        return f"{self.operation}: {self.coordinate} = {self.index}{where}"


def index_expressions(nodes: tuple[Node, ...]) -> list[IndexExpression]:
    """Every index of a resolved graph, once, in order: each is a path through the coordinates."""
    found: dict[IndexExpression, None] = {}
    for root in nodes:
        for node in root.walk():
            for name, index, guard in node.index_expressions():
                text = IndexExpression(node.op.kind, name, to_text(index), to_text(guard))
                found.setdefault(text)
    return list(found)


class Kernel(ABC):
    """A compiled GEMM: call it with A, B and, if wanted, C and the output.

    Args of a call:
        a, b: A (m x k) and B (k x n), or their transposes where the graph says so. Of a batch all
            have one axis more, the first; of groups along m B has it, of groups along k C and D. Of
            a list of products (groups along mnk) A, B, C and D are vectors with the matrices of all
            one after another, as `codegen.lists` packs them.
        c: C (m x n), or None; needed where beta is not zero, not read where it is.
        out: where D goes (m x n), or None for a new tensor of the kind of `a`; of a list of
            products it must be given.
        alpha, beta: scalars of the epilogue.
        workgroups: where the graph leaves it open.
        offsets: of a grouped kernel, where each group begins along m or k, and where the last ends
            (i32); of a list of products along m, n and k (3 x (groups + 1)).
        operands: those of the epilogue, by name, where the graph has one of its own: arrays, and
            numbers for scalars. Then c, alpha and beta are for epilogues that name them.

    Raises:
        LaunchError: shapes, types, memory or parameters do not fit; nothing was launched.
    """

    def __init__(self, graph: KernelGraph, target: str) -> None:
        self.graph = graph
        self.target = target

    @abstractmethod
    def __call__(
        self,
        a: Any,
        b: Any,
        c: Any = None,
        out: Any = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Any = None,
        *,
        workgroups: int | None = None,
        offsets: Any = None,
        **operands: Any,
    ) -> Any:
        """Compute D."""

    @property
    def lowered(self) -> KernelGraph:
        """The graph that the code was generated from."""
        return self.graph

    @property
    def index_expressions(self) -> list[IndexExpression]:
        """Every index that the code computes."""
        graph = self.lowered
        return index_expressions(resolve(graph.control.root.body, graph.scope()))

    @property
    def instruction_family(self) -> str:
        """The instructions that multiply and copy, such as `wgmma + TMA`; '' where not known."""
        return ""

    @property
    def from_cache(self) -> bool:
        """Whether the code was read from the cache on disk."""
        return False

    @property
    def build_steps(self) -> str:
        """The steps that made the code and that reported times of compilation include."""
        return "nothing to compile"

    @property
    def llvm_ir(self) -> str:
        """The LLVM IR before optimisation."""
        raise CodegenError(f"the target '{self.target}' makes no LLVM IR")

    @property
    def ptx(self) -> str:
        """The PTX."""
        raise CodegenError(f"the target '{self.target}' makes no PTX; compile for 'sm_80' or later")

    def __repr__(self) -> str:
        gemm, how = self.graph.gemm, ", ".join(self.graph.log) or "unscheduled"
        family = f" ({self.instruction_family})" if self.instruction_family else ""
        kinds = f"{gemm.dtype} -> {gemm.out_dtype}"
        return f"<{type(self).__name__} {self.target}{family}: {kinds}, {how}>"
