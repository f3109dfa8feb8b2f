"""The check `tensors`: a graph declares each tensor of its problem exactly once.

The tensors' shapes must be those that `Gemm.graph` declares for the problem, because kernel calls
check arrays against these shapes, and reference results are computed from them. The element types
of workspaces are checked, too, and the launch parameters that say whether optional tensors are
read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from sympy import Basic

from coordgraph.frontend import Gemm
from coordgraph.gemm import GemmProblem, read_of
from coordgraph.integers import to_text
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role, Tensor
from coordgraph.tilings import macro_tile

__all__ = ["problems_of_tensors"]

KEPT = 64
"""Number of problems whose tensors are kept in an LRU cache."""
ANY_TILE = (1 << 16, 1 << 16, 1 << 16)
"""Extents (m, n, k) of a macro tile, in elements, for problems whose tensors do not depend on the
tile. With these extents, the number of tiles is in bounds for every problem."""


def problems_of_tensors(graph: KernelGraph) -> Iterator[str]:
    """Messages about tensors that are missing, declared twice, or differ from the problem's.

    An optional tensor without its launch parameter `read_NAME` gives a message, too.
    """
    for name, count in Counter(t.name for t in graph.tensors).items():
        if count > 1:
            yield f"there are {count} tensors '{name}'; rename all but one of them"
    # Only an output that reduces rows has a shape that depends on the tile.
    reduces = bool(graph.gemm.row_reductions)
    sums = graph.gemm.sums
    columns = sums * macro_tile(graph.coordinates)[1] if reduces else ANY_TILE[1]
    wanted = {tensor.name: tensor for tensor in _tensors_of(graph.gemm, columns)}
    found = {tensor.name: tensor for tensor in graph.tensors}
    for name, tensor in wanted.items():
        if name not in found:
            yield f"there is no tensor '{name}'; declare {_text(tensor)}"
        elif found[name] != tensor and _text(found[name]) == _text(tensor):
            yield from _other_ranges(graph, found[name], tensor)
        elif found[name] != tensor:
            yield f"{_text(found[name])} does not fit the problem; declare {_text(tensor)}"
    for name, tensor in found.items():
        kind = _element_type(tensor.role, graph.gemm)
        if kind not in (None, tensor.dtype):
            yield (
                f"the tensor '{name}' has the role '{tensor.role.value}' and elements of type "
                f"{tensor.dtype}; declare it with elements of type {kind}"
            )
        if name not in wanted and not tensor.role.workspace:
            yield (
                f"the problem has no tensor '{name}', but its role is '{tensor.role.value}'; "
                "remove it, or declare it as a workspace"
            )
    for name, operand in graph.gemm.operands.items():
        if operand.optional and read_of(name) not in graph.parameters:
            read = read_of(name)
            yield (
                f"the optional tensor {name} needs the parameter {read}, which is 1 in launches "
                f"that read {name}; add `param {read} in 0..1`"
            )


def _element_type(role: Role, gemm: GemmProblem) -> str | None:
    """The element type that a workspace with this role must have; None for other tensors."""
    if role in (Role.FLAGS, Role.COUNTERS, Role.MAPS, Role.TIMELINE):
        # flags, counters, TMA descriptors and timeline records are arrays of 32-bit words
        return "i32"
    return gemm.accumulator if role in (Role.PARTIALS, Role.SUMS) else None


def _other_ranges(graph: KernelGraph, found: Tensor, wanted: Tensor) -> Iterator[str]:
    """Messages about parameters in a declared tensor's shape or strides that have a wrong range.

    The range of such a parameter includes 0 or negative values, which the problem excludes.

    Args:
        graph: the graph.
        found: the tensor that the graph declares.
        wanted: the tensor that the problem needs; its shape has parameters of the same names.
    """
    names = {str(symbol) for symbol in _symbols(found) - _symbols(wanted)}
    for p in graph.parameters.items:
        if p.name in names:
            least = "negative" if p.minimum < 0 else "0"
            yield (
                f"tensor {found.name}: {p.name} may be {least}, because the parameter has the "
                f"range {p.minimum}..{p.maximum}; declare param {p.name} in 1..{max(p.maximum, 1)}"
            )


def _symbols(tensor: Tensor) -> set[Basic]:
    values = (*tensor.shape, *(tensor.strides or ()))
    return {symbol for value in values for symbol in value.free_symbols}


@lru_cache(KEPT)
def _tensors_of(gemm: GemmProblem, columns: int) -> tuple[Tensor, ...]:
    """The tensors that `Gemm.graph` declares for a problem and macro tiles of `columns` columns."""
    return Gemm.of(gemm).graph((ANY_TILE[0], columns, ANY_TILE[2])).tensors


def _text(tensor: Tensor) -> str:
    shape = ", ".join(map(to_text, tensor.shape))
    strides = ""
    if tensor.strides is not None:
        strides = f" strides [{', '.join(map(to_text, tensor.strides))}]"
    return f"tensor {tensor.name} {tensor.dtype} [{shape}] {tensor.role.value}{strides}"
