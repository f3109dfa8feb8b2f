"""Proofs that index values fit the 32 or 64 bits in which kernels hold them.

Kernels compute an index with 32 bits only if its bounds are proved to fit, else with 64, and
addresses always with 64. The widths of some values do not depend on their bounds:

- workgroup numbers, entries of tables, and flags have 32 bits;
- a loop whose index fits 32 bits adds its step to the index in 32-bit arithmetic;
- every other value has 64 bits at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, product
from typing import cast

from sympy import Expr, Integer
from sympy.core.basic import Basic
from sympy.core.relational import Relational

from coordgraph.control.operations import AccumulatePartial, CollectPartial, Operation, SendPartial
from coordgraph.control.resolve import Node
from coordgraph.errors import CoordGraphError
from coordgraph.integers import (
    IntegerFunction,
    Ranges,
    evaluate,
    nodes_of,
    symbols_of,
    tables_in,
    to_text,
)
from coordgraph.interpreter.program import Program
from coordgraph.kernel import KernelGraph
from coordgraph.parameters import LARGEST_INDEX
from coordgraph.verification.index_proofs import IndexProofs
from coordgraph.verification.launch import Launch
from coordgraph.verification.verdicts import Counterexample

__all__ = ["Width", "too_wide", "widths"]

LARGEST = {32: LARGEST_INDEX, 64: 2**63 - 1}
"""For each number of bits of an integer: the largest signed value."""
TRIED = (31, 28, 24, 20, 16)
"""Exponents of powers of two. To find a launch in which a value does not fit its bits, each launch
argument is set to its smallest value, its largest value, and these powers of two."""
MOST_LAUNCHES = 400
"""Largest number of launches that are tried to find one in which a value does not fit."""


@dataclass(frozen=True)
class Width:
    """A value that kernels compute, and the number of bits in which they hold it.

    Args:
        what: a phrase for the value in error messages.
        value: the value, as an expression.
        bits: the number of bits, 32 or 64.
        proved: whether the value is proved to fit.
    """

    what: str
    value: Expr
    bits: int
    proved: bool


def widths(graph: KernelGraph, program: Program, proofs: IndexProofs) -> Iterator[Width]:
    """The values of a scheduled graph that kernels hold in a fixed number of bits.

    Args:
        graph: the graph.
        program: the graph as the interpreter executes it.
        proofs: proofs about the graph's indices.
    """
    known = graph.parameters.ranges()

    def width(what: str, value: Expr, bits: int, ranges: Ranges) -> Width:
        limit = Integer(LARGEST[bits])
        bounds = proofs.bounds(ranges)
        fits = ranges.fits(value, bits) or (
            bounds.at_least_zero(value) and bounds.at_most(value, limit)
        )
        return Width(what, value, bits, fits)

    size = graph.workgroup.size
    if size is not None:
        yield width("the number of workgroups", size, 32, known)
    for table in graph.parameters.tables:
        yield width(f"the largest entry of {table.name}", table.maximum, 32, known)
    for work in program.work(Operation):
        op, ranges = work.node.op, work.node.scope.ranges
        if isinstance(op, SendPartial | AccumulatePartial | CollectPartial):
            counts = work.raised if isinstance(op, SendPartial) else work.senders
            for value in counts.roots:
                yield width(f"the flag of {op.kind}", cast(Expr, value), 32, ranges)
    seen: set[tuple[int, Basic]] = set()
    for root in program.nodes:
        for node in root.walk():
            yield from _loop(node, proofs)
            for value in _operands(node):
                key = id(node.scope.ranges.about(value)), value
                if key not in seen:
                    seen.add(key)
                    yield width(to_text(value), value, 64, node.scope.ranges)


def too_wide(graph: KernelGraph, width: Width) -> Counterexample | None:
    """A launch in which a value does not fit its bits, as a counterexample; None if none is found.

    The launch arguments are within the graph's bounds. The result is None for a value that reads a
    table.
    """
    parameters = graph.parameters
    if tables_in(width.value):
        return None
    relevant = symbols_of(width.value)
    for parameter in reversed(parameters.items):
        if parameter.symbol in relevant and parameter.value is not None:
            relevant |= symbols_of(parameter.value)
    choices = [
        sorted(
            {p.minimum, p.maximum, *(1 << n for n in TRIED if p.minimum <= 1 << n <= p.maximum)}
            if p.symbol in relevant
            else {p.minimum},
            reverse=True,
        )
        for p in parameters.given
    ]
    names = [p.name for p in parameters.given]
    for values in islice(product(*choices), MOST_LAUNCHES):
        given = dict(zip(names, values, strict=True))
        with suppress(CoordGraphError, ArithmeticError, LookupError, TypeError):
            found = int(evaluate(width.value, parameters.evaluate(given)))
            if found > LARGEST[width.bits]:
                shown = {name: value for name, value in given.items() if value}
                return Counterexample(
                    f"{width.what} is {found}, which needs more than {width.bits} bits; "
                    f"assume {to_text(width.value)} <= {LARGEST[width.bits]}",
                    Launch(shown),
                )
    return None


def _loop(node: Node, proofs: IndexProofs) -> Iterator[Width]:
    """Yield a `Width` for the index after a loop's last step, if the loop index has 32 bits.

    Yield nothing if the step is 1.
    """
    if node.loop is None or node.loop.step == 1 or not node.body:
        return
    ranges, symbol = node.body[0].scope.ranges, node.loop.symbol
    if not ranges.fits(symbol, 32):
        return
    scope = node.body[0].scope
    step, following = scope.expand(node.loop.step), symbol + scope.expand(node.loop.step)
    limit = Integer(LARGEST_INDEX)
    proved = ranges.fits(step, 32) and proofs.bounds(ranges).at_most(following, limit)
    yield Width(f"the index {symbol} after its last step", following, 32, proved)


def _operands(node: Node) -> Iterator[Expr]:
    """Yield the values whose overflow would change a result of the node's operation.

    These values are the whole expressions, and the operands of divisions, comparisons and the like.
    Operands of sums and products may overflow: arithmetic is modulo 2^64, so a sum or product that
    itself fits is right.
    """
    loop = node.loop
    roots = (
        *((loop.start, loop.stop) if loop is not None else ()),
        *(v for v in (node.condition, node.value, *node.values) if v is not None),
    )
    for root in roots:
        if isinstance(root, Expr):
            yield root
        for part in nodes_of(root, IntegerFunction, Relational):
            yield from (a for a in part.args if isinstance(a, Expr) and not a.is_Atom)
