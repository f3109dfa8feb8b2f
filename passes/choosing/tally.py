"""Tallies: the work of one workgroup of a scheduled graph, as expressions of its parameters.

`tally` walks the control graph once, with a symbol for the workgroup's number, and adds up
iterations, stored tiles, and partial sums sent and received. It depends on control operations only,
not on particular schedules: loop bounds, steps and conditions are those in the graph.

Every value gets a name (`Definitions`), so that expressions stay small and each is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import cast

from sympy import Expr, Integer, Lt, S, Symbol
from sympy.core.basic import Basic
from sympy.logic.boolalg import Boolean

from coordgraph import KernelGraph, PassError
from coordgraph.control.operations import (
    AccumulatePartial,
    Assign,
    Body,
    CollectPartial,
    For,
    If,
    Inside,
    Kernel,
    Locate,
    MultiplyAccumulate,
    Operation,
    ReceivePartial,
    Scope,
    SendPartial,
    SetCoordinate,
    StoreTile,
    accumulates,
)
from coordgraph.integers import IntegerFunction, ceil_div, index_symbol, maximum, select

__all__ = ["NEVER", "Definitions", "Doublings", "Tally", "tally"]

NEVER = Integer(-(2**40))
"""Stands for minus infinity: the maximum of no values."""
MOST_ACCUMULATORS = 2
"""Largest number of tile shapes in a kernel that can be counted: macro tiles and small tiles."""


class Doublings(IntegerFunction):
    """How often `a` must be doubled to reach `b`: the passes of a loop whose step is its index."""


@dataclass(frozen=True)
class Tally:
    """The work of one workgroup. Quantities of successive operations are added; PEAKS are maxima.

    Attributes:
        iterations, small_iterations: multiplications of a macro tile, and of a small tile, by
            one step of k.
        ends, small_ends: output tiles stored, whole or in part.
        streamed: iterations in accumulation loops that may cover a part of a tile.
        sends: partial sums sent.
        receives: partial sums received.
        shortest: iterations of the shortest part of a tile, negated.
        first_turn, last_turn: the lowest (negated) and the highest turn received, in a `turnstile`
            reduction.
    """

    iterations: Expr = S.Zero
    small_iterations: Expr = S.Zero
    ends: Expr = S.Zero
    small_ends: Expr = S.Zero
    streamed: Expr = S.Zero
    sends: Expr = S.Zero
    receives: Expr = S.Zero
    shortest: Expr = NEVER
    first_turn: Expr = NEVER
    last_turn: Expr = NEVER

    def items(self) -> Iterable[tuple[str, Expr]]:
        """The quantities by name."""
        return ((f.name, cast(Expr, getattr(self, f.name))) for f in fields(self))


PEAKS = frozenset({"shortest", "first_turn", "last_turn"})
"""Quantities of which a sequence of operations has the maximum rather than the sum."""


class Definitions:
    """Named values, each an expression of the inputs and of earlier names."""

    def __init__(self) -> None:
        self.values: dict[Symbol, Expr] = {}
        self._names: dict[Expr, Symbol] = {}
        self._reads: dict[Symbol, frozenset[Symbol]] = {}

    def name(self, value: Expr) -> Expr:
        """The symbol that names a value; a number or a symbol is returned as it is."""
        if isinstance(value, Integer | Symbol):
            return value
        if value not in self._names:
            symbol = Symbol(f"v{len(self.values)}", integer=True)
            self._names[value], self.values[symbol] = symbol, value
            self._reads[symbol] = self.reads(value)
        return self._names[value]

    def reads(self, value: Basic) -> frozenset[Symbol]:
        """The inputs that a value depends on."""
        symbols = cast(set[Symbol], value.free_symbols)
        return frozenset[Symbol]().union(*(self._reads.get(s, {s}) for s in symbols))

    def needed(self, roots: Iterable[Expr]) -> dict[Symbol, Expr]:
        """The definitions that the roots depend on, in order."""
        wanted = {symbol for root in roots for symbol in root.free_symbols}
        for symbol, value in reversed(self.values.items()):
            if symbol in wanted:
                wanted |= value.free_symbols
        return {symbol: value for symbol, value in self.values.items() if symbol in wanted}


def _larger(a: Expr, b: Expr) -> Expr:
    """The maximum of two peaks, either of which may be NEVER."""
    return b if a == NEVER else a if b == NEVER else maximum(a, b)


def _when(condition: Boolean, peak: Expr) -> Expr:
    return NEVER if peak == NEVER else select(condition, peak, NEVER)


Values = dict[Symbol, Expr]
"""Values of the graph's symbols, as names in `Definitions`."""


class _Walk:
    def __init__(self, graph: KernelGraph, depth: Expr, definitions: Definitions) -> None:
        self.graph = graph
        self.depth = depth
        self.definitions = definitions
        self.accumulators = [t.accumulator for t in graph.tilings]
        if len(self.accumulators) > MOST_ACCUMULATORS:
            raise PassError(f"tiles of {len(self.accumulators)} shapes cannot be counted")

    def value(self, expr: Expr, scope: Values) -> Expr:
        return self.definitions.name(cast(Expr, expr.xreplace(scope)))

    def both(self, one: Tally, other: Tally) -> Tally:
        """The tally of two operations in sequence."""
        name = self.definitions.name
        pairs = zip(one.items(), other.items(), strict=True)
        return Tally(
            **{key: name(_larger(a, b) if key in PEAKS else a + b) for (key, a), (_, b) in pairs}
        )

    def either(self, condition: Boolean, one: Tally, other: Tally) -> Tally:
        """The tally `one` if the condition holds, else `other`."""
        name = self.definitions.name
        pairs = zip(one.items(), other.items(), strict=True)
        return Tally(**{key: name(select(condition, a, b)) for (key, a), (_, b) in pairs})

    def times(self, passes: Expr, one: Tally) -> Tally:
        """The tally of `passes` repetitions."""
        name, some = self.definitions.name, Lt(0, passes)
        return Tally(
            **{key: name(_when(some, a) if key in PEAKS else passes * a) for key, a in one.items()}
        )

    def body(self, body: Body, scope: Values) -> Tally:
        found = Tally()
        for op in body:
            if isinstance(op, Assign):
                scope[op.symbol] = self.value(op.value, scope)
            else:
                found = self.both(found, self.operation(op, scope))
        return found

    def operation(self, op: Operation, scope: Values) -> Tally:
        match op:
            case Kernel() | Scope():
                return self.body(op.body, dict(scope))
            case For() if accumulates(op):
                return self.accumulation(op, scope)
            case For():
                return self.loop(op, scope)
            case If():
                condition = cast(Boolean, op.condition.xreplace(scope))
                branches = (self.body(b, dict(scope)) for b in (op.body, op.orelse))
                return self.either(condition, *branches)
            case SetCoordinate():
                value = self.value(op.value, scope)
                return self.body(op.body, {**scope, self.symbol(op.dim): value})
            case StoreTile():
                small = op.accumulator != self.accumulators[0]
                return Tally(small_ends=S.One) if small else Tally(ends=S.One)
            case SendPartial():
                return Tally(sends=S.One)
            case ReceivePartial():
                return self.received(op.turn, scope)
            case AccumulatePartial() | CollectPartial():
                raise PassError("partial sums are added in no order: no cost is known of that")
            case Inside() | Locate():
                raise PassError(f"{op.kind} depends on where tiles lie: it cannot be counted")
            case _:
                return Tally()

    def symbol(self, dim: str) -> Symbol:
        return self.graph.coordinates.symbol(dim)

    def received(self, turn: str, scope: Values) -> Tally:
        if not turn:
            return Tally(receives=S.One)
        number = scope[self.symbol(turn)]
        return Tally(receives=S.One, first_turn=-number, last_turn=number)

    def accumulation(self, op: For, scope: Values) -> Tally:
        """The tally of an accumulation loop: a loop over k tiles."""
        (accumulator,) = {x.accumulator for x in op.body if isinstance(x, MultiplyAccumulate)}
        length, step = (self.value(x, scope) for x in (op.stop - op.start, op.step))
        count = self.definitions.name(ceil_div(length, step))
        if accumulator != self.accumulators[0]:
            return Tally(small_iterations=count)
        if count == self.depth:
            return Tally(iterations=count)
        shortest = self.definitions.name(select(Lt(count, self.depth), -count, NEVER))
        return Tally(iterations=count, streamed=count, shortest=shortest)

    def loop(self, op: For, scope: Values) -> Tally:
        """The tally of a loop other than an accumulation loop."""
        name, index = self.definitions.name, self.symbol(op.dim)
        start, stop = self.value(op.start, scope), self.value(op.stop, scope)
        unknown = Symbol(f"{op.dim}'", integer=True)  # the index of any pass
        one = self.body(op.body, {**scope, index: unknown})
        step = self.value(op.step, {**scope, index: unknown})
        if not any(isinstance(x, MultiplyAccumulate) for x in op.walk()):
            # A loop over parts of one tile: all parts together store it once.
            ended = {key: getattr(one, key) for key in ("ends", "small_ends")}
            finished = {key: name(select(Lt(0, count), 1, 0)) for key, count in ended.items()}
            one = replace(one, **finished)
        else:
            finished = {}
        reads = self.definitions.reads
        varies = any(unknown in reads(value) for _, value in one.items())
        if not varies and (unknown not in reads(step) or step == unknown):
            # Subtract the graph's own expressions, so that common terms of start and stop cancel.
            length = self.value(op.stop - op.start, scope)
            doubled = cast(Expr, Doublings(start, stop))
            passes = doubled if step == unknown else ceil_div(length, step)
            return replace(self.times(name(maximum(passes, S.Zero)), one), **finished)

        return self.three_passes(op, scope, start, stop)

    def three_passes(self, op: For, scope: Values, start: Expr, stop: Expr) -> Tally:
        """The tally of a loop whose first and last pass may differ from those between.

        The first pass may begin, and the last one end, inside a tile. The passes between are
        assumed to be alike, which `passes.choosing.enumeration` checks on examples.
        """
        name, index = self.definitions.name, self.symbol(op.dim)

        def one_pass(at: Expr) -> Tally:
            return self.body(op.body, {**scope, index: at})

        def step_at(at: Expr) -> Expr:
            return name(maximum(self.value(op.step, {**scope, index: at}), S.One))

        second = name(start + step_at(start))
        step = step_at(second)
        between = name(maximum(ceil_div(stop - second, step) - 1, S.Zero))
        last = name(second + between * step)
        first = self.either(Lt(start, stop), one_pass(start), Tally())
        middle = self.times(between, one_pass(second))
        end = self.either(Lt(second, stop), one_pass(last), Tally())
        return self.both(self.both(first, middle), end)


def tally(
    graph: KernelGraph, depth: Expr, known: Mapping[Symbol, Expr], definitions: Definitions
) -> Tally:
    """The work of the workgroup with the number `index_symbol("workgroup")`.

    Args:
        graph: a graph at the level "scheduled".
        depth: k tiles of an output tile.
        known: values of launch arguments and parameters; other parameters are computed.
        definitions: names of values; those that the walk needs are added.

    Raises:
        PassError: the graph has an operation that cannot be counted.
    """
    scope = dict(known)
    for parameter in graph.parameters.items:
        if parameter.value is not None and parameter.symbol not in scope:
            scope[parameter.symbol] = definitions.name(cast(Expr, parameter.value.xreplace(scope)))
    scope[graph.coordinates.symbol("workgroup")] = index_symbol("workgroup")
    return _Walk(graph, depth, definitions).body(graph.control.root.body, scope)
