"""Find dimensions that two graphs have under different names, and rename dimensions of a graph.

Dimensions that have the same name in both graphs are taken to be the same. Each other dimension
gets a *colour* from its class, its size, its fields and the operations that use it. Each round adds
the colours of the dimensions on its edges (colour refinement, also called the Weisfeiler-Leman
algorithm). Dimensions with equal colours are paired.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from sympy.core.basic import Basic

from coordgraph.control.graph import ControlGraph
from coordgraph.control.operations import Kernel, Operation
from coordgraph.coordinates.dimensions import Dimension, Shared
from coordgraph.coordinates.edges import Edge
from coordgraph.coordinates.graph import CoordinateGraph
from coordgraph.integers import index_symbol
from coordgraph.kernel import KernelGraph

__all__ = ["find_renamed", "renamed"]

ROUNDS = 6
"""Number of rounds of colour refinement: the distance, in edges, at which a difference between the
graphs still distinguishes dimensions."""
Colour = Any
"""Type of a dimension's colour: dimensions with equal colours cannot be distinguished."""


def find_renamed(before: KernelGraph, after: KernelGraph) -> dict[str, str]:
    """For each dimension that the two graphs have under different ids: old id to new id."""
    both = {d.id for d in before.coordinates} & {d.id for d in after.coordinates}
    left = [d.id for d in before.coordinates if d.id not in both]
    right = [d.id for d in after.coordinates if d.id not in both]
    found: dict[str, str] = {}
    # Start with many rounds of colour refinement, which distinguish most dimensions. Fewer rounds
    # also match dimensions whose neighbours in the two graphs differ.
    for rounds in range(ROUNDS, 0, -1):
        if not left or not right:
            break
        names: dict[str, Colour] = {name: name for name in both}
        first = _colours(before, names | {a: b for a, b in found.items()}, rounds)
        second = _colours(after, names | {b: b for b in found.values()}, rounds)
        pairs = dict(_pairs(left, right, first, second))
        found |= pairs
        left = [name for name in left if name not in pairs]
        right = [name for name in right if name not in pairs.values()]
    return found


def _pairs(
    left: Iterable[str],
    right: Iterable[str],
    first: Mapping[str, Colour],
    second: Mapping[str, Colour],
) -> Iterator[tuple[str, str]]:
    """Pairs (left, right) of dimensions that colour refinement does not distinguish.

    Several dimensions of one colour are paired in the order of `left` and `right`.
    """
    there: defaultdict[Colour, list[str]] = defaultdict(list)
    for name in right:
        there[second[name]].append(name)
    counts = Counter(first[name] for name in left)
    for name in left:
        colour = first[name]
        if counts[colour] == len(there[colour]) or name not in there:
            candidates = there[colour]
            if counts[colour] and candidates:
                yield name, candidates.pop(0)
                counts[colour] -= 1


def _colours(graph: KernelGraph, named: Mapping[str, Colour], rounds: int) -> dict[str, Colour]:
    """The colours of all dimensions after `rounds` rounds of colour refinement.

    Dimensions in `named` keep the colours to which `named` maps them.
    """
    coordinates = graph.coordinates
    colours = {d.id: named.get(d.id, _kind(d)) for d in coordinates}
    free = [d.id for d in coordinates if d.id not in named]
    uses: defaultdict[str, list[Colour]] = defaultdict(list)
    for op in graph.control.operations:
        for role, bound in op.bindings.items():
            for position, name in enumerate(bound):
                uses[name].append((op.kind, role, position))
    for name in free:
        colours[name] = hash((colours[name], tuple(sorted(uses[name]))))
    for _ in range(rounds):
        latest = dict(colours)
        for name in free:
            around = sorted(
                hash(
                    (
                        edge.kind,
                        tuple(map(str, edge.details.values())),
                        tuple((n == name, colours[n]) for n in edge.upstream),
                        tuple((n == name, colours[n]) for n in edge.downstream),
                    )
                )
                for edge in (*coordinates.edges_above(name), *coordinates.edges_below(name))
            )
            latest[name] = hash((colours[name], tuple(around)))
        colours = latest
    return colours


def _kind(d: Dimension) -> Colour:
    details = {name: value for name, value in d.details.items() if name != "within"}
    return d.kind, str(d.size), d.note, tuple(details.items())


def renamed(graph: KernelGraph, names: Mapping[str, str]) -> KernelGraph:
    """The graph with renamed dimensions, in all its records; `names` maps old ids to new ids."""
    if not names:
        return graph
    symbols = {index_symbol(old): index_symbol(new) for old, new in names.items()}

    def put_in(value: Any) -> Any:
        if isinstance(value, Basic):
            return value.xreplace(symbols)
        return tuple(map(put_in, value)) if isinstance(value, tuple) else value

    def name_of(value: Any) -> Any:
        if isinstance(value, str):
            return names.get(value, value)
        return tuple(map(name_of, value))

    def dimension(d: Dimension) -> Dimension:
        d = replace(d, id=name_of(d.id))
        return replace(d, within=name_of(d.within)) if isinstance(d, Shared) else d

    def edge(e: Edge) -> Edge:
        details = {name: put_in(value) for name, value in e.details.items()}
        return replace(e, upstream=name_of(e.upstream), downstream=name_of(e.downstream), **details)

    def operation(op: Operation) -> Operation:
        changed: dict[str, Any] = {}
        for spec in fields(op):
            value = getattr(op, spec.name)
            if spec.name in op.BODIES:
                changed[spec.name] = tuple(map(operation, value))
            else:
                changed[spec.name] = name_of(value) if spec.name in op.ROLES else put_in(value)
        return replace(op, **changed)

    coordinates = CoordinateGraph(
        map(dimension, graph.coordinates), map(edge, graph.coordinates.edges)
    )
    root = operation(graph.control.root)
    assert isinstance(root, Kernel)
    return replace(graph, coordinates=coordinates, control=ControlGraph(root))
