"""Random edits of a graph through `KernelGraph.edit`, with values of the right types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from random import Random
from typing import Any

from sympy import Expr, Integer
from sympy.logic.boolalg import Boolean

from coordgraph import KernelGraph
from coordgraph.control.operations import Operation
from coordgraph.coordinates.edges import EDGES
from coordgraph.integers import floor_div, floor_mod, maximum, minimum
from coordgraph.kernel import KernelEditor

__all__ = ["edited"]

SIZES = (0, 1, 2, 3, -1, 2**31, 2**63, 10**30)


def edited(graph: KernelGraph, draw: Random) -> KernelGraph:
    """The graph after one to three random edits."""
    with graph.edit("edited") as e:
        for _ in range(draw.choice((1, 1, 2, 3))):
            draw.choice(_EDITS)(e, draw)
    return e.graph


def _value(e: KernelEditor, draw: Random) -> Any:
    """A random expression in the parameters of the graph."""
    symbols = [p.symbol for p in e.parameters.items] or [Integer(1)]
    a, b = draw.choice(symbols), draw.choice([*symbols, *map(Integer, SIZES[:5])])
    forms = (a, b, a + b, a * b, a - b, Integer(draw.choice(SIZES)))
    functions = (floor_div, floor_mod, minimum, maximum)
    return draw.choice((*forms, draw.choice(functions)(a, b if b != 0 else 1)))


def _resize(e: KernelEditor, draw: Random) -> None:
    dimension = draw.choice([*e.snapshot()])
    e.coordinates.replace(replace(dimension, size=_value(e, draw)))


def _disconnect(e: KernelEditor, draw: Random) -> None:
    if edges := e.snapshot().edges:
        e.coordinates.disconnect(draw.choice(edges))


def _connect(e: KernelEditor, draw: Random) -> None:
    """Connect a random edge to other dimensions, or replace it by an edge of another class."""
    found = e.snapshot()
    if not found.edges:
        return
    edge = draw.choice(found.edges)
    names = [d.id for d in found]

    def operands(given: Sequence[str]) -> tuple[str, ...]:
        changed = list(given)
        match draw.randrange(3):
            case 0:
                draw.shuffle(changed)
            case 1:
                changed[draw.randrange(len(changed))] = draw.choice(names)
            case _:
                changed.append(draw.choice(names))
        return tuple(changed)

    side = draw.choice(("upstream", "downstream"))
    new = replace(edge, **{side: operands(getattr(edge, side))})
    if draw.random() < 0.3:
        alike = [k for k in EDGES.values() if {f.name for f in fields(k)} == _names(edge)]
        kind = draw.choice(alike)
        new = kind(**{f.name: getattr(new, f.name) for f in fields(kind)})
    if draw.random() < 0.8:
        e.coordinates.disconnect(edge)
    e.coordinates.connect(new)


def _names(record: Any) -> set[str]:
    return {f.name for f in fields(record)}


def _remove(e: KernelEditor, draw: Random) -> None:
    dimension = draw.choice([*e.snapshot()])
    for edge in e.snapshot().edges:
        if dimension.id in (*edge.upstream, *edge.downstream):
            e.coordinates.disconnect(edge)
    e.coordinates.remove(dimension)


def _parameter(e: KernelEditor, draw: Random) -> None:
    known = [p.name for p in e.parameters.items]
    name = draw.choice([*known, "fresh", "workgroup", "A", ""])
    e.parameter(name, _value(e, draw), minimum=draw.choice((0, 1, -5, 2**40)))


def _assume(e: KernelEditor, draw: Random) -> None:
    e.assume(_value(e, draw), draw.choice((0, -1, 5, 2**31, 2**70)))


def _tensors(e: KernelEditor, draw: Random) -> None:
    tensors = list(e.tensors)
    at = draw.randrange(len(tensors))
    match draw.randrange(5):
        case 0:
            del tensors[at]
        case 1:
            tensors.append(tensors[at])
        case 2:
            draw.shuffle(tensors)
        case 3:
            tensors[at] = replace(tensors[at], dtype=draw.choice(("f32", "bf16", "i8", "i32")))
        case _:
            shape = list(tensors[at].shape) or [Integer(1)]
            shape[draw.randrange(len(shape))] = _value(e, draw)
            tensors[at] = replace(tensors[at], shape=tuple(shape))
    e.tensors = tuple(tensors)


def _level(e: KernelEditor, draw: Random) -> None:
    e.level = draw.choice(("problem", "scheduled", "lowered", ""))


def _control(e: KernelEditor, draw: Random) -> None:
    """Drop, repeat, move or change an operation of the control graph."""
    chosen = draw.choice([*e.control.operations][1:] or [e.control.root])
    kind = draw.randrange(5)

    def rewritten(op: Operation) -> tuple[Operation, ...]:
        if op is chosen and kind == 0:
            return ()
        inside = {name: body(getattr(op, name)) for name in op.BODIES}
        made = replace(op, **inside) if inside else op
        if op is not chosen:
            return (made,)
        if kind == 1:
            return (made, made)
        if kind == 2 and op.BODIES:
            return inside[op.BODIES[0]]
        return (_changed(made, e, draw),)

    def body(ops: Sequence[Operation]) -> tuple[Operation, ...]:
        return tuple(new for op in ops for new in rewritten(op))

    root = e.control.root
    e.kernel(*body(root.body), workgroup=root.workgroup)


def _changed(op: Operation, e: KernelEditor, draw: Random) -> Operation:
    names = [d.id for d in e.snapshot()]
    new: dict[str, Any] = {}
    for field in fields(op):
        value = getattr(op, field.name)
        if field.name in op.BODIES or draw.random() < 0.5:
            continue
        if isinstance(value, Expr):
            new[field.name] = draw.choice((value + 1, value - 1, _value(e, draw)))
        elif isinstance(value, Boolean):
            new[field.name] = ~value
        elif isinstance(value, str) and value:
            new[field.name] = draw.choice(names)
        elif isinstance(value, tuple) and value and all(isinstance(v, str) for v in value):
            new[field.name] = tuple(draw.sample(value, len(value)))
    return replace(op, **new)


_EDITS = (
    *(_resize, _resize, _disconnect, _connect, _connect, _remove, _parameter, _assume),
    *(_tensors, _tensors, _level, _control, _control, _control),
)
