"""`Tally` derives the work counts of a workgroup from a scheduled graph, as expressions.

`tally` walks the control graph once, with a symbol for the number of the workgroup, and adds up
iterations, stored tiles, and partial sums that are sent and received. Loop bounds, steps and
conditions are read from the graph, so `tally` works for any schedule.

Every value gets a name (`Definitions`), so that expressions stay small and each value is computed
only once.
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
from coordgraph.control.tickets import DynamicFor
from coordgraph.integers import IntegerFunction, ceil_div, index_symbol, maximum, select

__all__ = ["NEVER", "Definitions", "Doublings", "Tally", "tally"]

NEVER = Integer(-(2**40))
"""Stands for minus infinity: the maximum of an empty set."""
MOST_ACCUMULATORS = 2
"""Largest number of tile shapes (one accumulator each) of a kernel whose work can be counted: macro
tiles and small tiles. A kernel with more raises `PassError`."""


class Doublings(IntegerFunction):
    """Number of doublings of `a` to reach `b`: the iterations of `for (i = a; i < b; i += i)`."""


@dataclass(frozen=True)
class Tally:
    """The work of one workgroup, as expressions.

    Attributes:
        iterations, small_iterations: numbers of main loop iterations on macro tiles, and on small
            tiles (see `HeterogeneousTiles`).
        ends, small_ends: numbers of macro tiles and of small tiles that the workgroup stores, whole
            or in part.
        streamed: number of iterations in loops that may compute only a part of a tile's iterations.
        sends: number of partial sums that the workgroup sends.
        receives: number of partial sums that the workgroup receives.
        shortest: number of iterations of the shortest segment that the workgroup computes, negated
            because the fields in `PEAKS` are maxima.
        first_turn, last_turn: the lowest number, negated, and the highest number of a piece that
            the workgroup receives in a `turnstile` reduction, which numbers the pieces (partial
            sums) of each tile.
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
        """The name and the expression of each field."""
        return ((f.name, cast(Expr, getattr(self, f.name))) for f in fields(self))


PEAKS = frozenset({"shortest", "first_turn", "last_turn"})
"""Fields of `Tally` (the work counts of a workgroup) that are maxima over operations. The other
fields of `Tally` are sums over operations."""


class Definitions:
    """Named values: each is an expression of the inputs and of names that were defined earlier."""

    def __init__(self) -> None:
        self.values: dict[Symbol, Expr] = {}
        self._names: dict[Expr, Symbol] = {}
        self._reads: dict[Symbol, frozenset[Symbol]] = {}

    def name(self, value: Expr) -> Expr:
        """The symbol that names a value, defined if the value is new.

        Numbers and symbols need no name and are returned unchanged.
        """
        if isinstance(value, Integer | Symbol):
            return value
        if value not in self._names:
            symbol = Symbol(f"v{len(self.values)}", integer=True)
            self._names[value], self.values[symbol] = symbol, value
            self._reads[symbol] = self.reads(value)
        return self._names[value]

    def reads(self, value: Basic) -> frozenset[Symbol]:
        """The inputs on which a value depends, directly or through named values."""
        symbols = cast(set[Symbol], value.free_symbols)
        return frozenset[Symbol]().union(*(self._reads.get(s, {s}) for s in symbols))

    def needed(self, roots: Iterable[Expr]) -> dict[Symbol, Expr]:
        """The definitions on which `roots` depend, each after the definitions that it reads."""
        wanted = {symbol for root in roots for symbol in root.free_symbols}
        for symbol, value in reversed(self.values.items()):
            if symbol in wanted:
                wanted |= value.free_symbols
        return {symbol: value for symbol, value in self.values.items() if symbol in wanted}


def _larger(a: Expr, b: Expr) -> Expr:
    """The maximum of two values, either of which may be NEVER (no value)."""
    return b if a == NEVER else a if b == NEVER else maximum(a, b)


def _when(condition: Boolean, peak: Expr) -> Expr:
    """`peak` if a condition holds, else NEVER (minus infinity), which changes no maximum."""
    return NEVER if peak == NEVER else select(condition, peak, NEVER)


Values = dict[Symbol, Expr]
"""Type: a dict of the symbols that an operation can read (loop indices, assignments), with the
names of their values; see `Definitions`."""


class _Walk:
    """Walks a control graph, and computes the work counts of its operations for one workgroup.

    Args:
        graph: the scheduled graph.
        depth: the number of k tiles of an output tile.
        definitions: the expressions that have a name so far; expressions of the graph are added.
    """

    def __init__(self, graph: KernelGraph, depth: Expr, definitions: Definitions) -> None:
        self.graph = graph
        self.depth = depth
        self.definitions = definitions
        self.accumulators = [t.accumulator for t in graph.tilings]
        if len(self.accumulators) > MOST_ACCUMULATORS:
            raise PassError(
                f"the schedule uses tiles of {len(self.accumulators)} shapes, too many to count "
                f"its work; use at most {MOST_ACCUMULATORS} shapes"
            )

    def value(self, expr: Expr, scope: Values) -> Expr:
        """Define a named value for `expr`, with the values in `scope` substituted; return its name.

        `scope` has the values of loop indices and assignments where an operation runs.
        """
        return self.definitions.name(cast(Expr, expr.xreplace(scope)))

    def both(self, one: Tally, other: Tally) -> Tally:
        """Work counts of two operations together, if one runs after the other."""
        name = self.definitions.name
        pairs = zip(one.items(), other.items(), strict=True)
        return Tally(
            **{key: name(_larger(a, b) if key in PEAKS else a + b) for (key, a), (_, b) in pairs}
        )

    def either(self, condition: Boolean, one: Tally, other: Tally) -> Tally:
        """Work counts that equal `one` if a condition holds, else `other`."""
        name = self.definitions.name
        pairs = zip(one.items(), other.items(), strict=True)
        return Tally(**{key: name(select(condition, a, b)) for (key, a), (_, b) in pairs})

    def times(self, passes: Expr, one: Tally) -> Tally:
        """Work counts of a loop with `passes` iterations, each of which has the counts `one`."""
        name, some = self.definitions.name, Lt(0, passes)
        return Tally(
            **{key: name(_when(some, a) if key in PEAKS else passes * a) for key, a in one.items()}
        )

    def body(self, body: Body, scope: Values) -> Tally:
        """Work counts of a list of operations; an `Assign` among them adds its value to `scope`."""
        found = Tally()
        for op in body:
            if isinstance(op, Assign):
                scope[op.symbol] = self.value(op.value, scope)
            else:
                found = self.both(found, self.operation(op, scope))
        return found

    def operation(self, op: Operation, scope: Values) -> Tally:
        """Work counts of one operation, given the values `scope` that are known where it runs."""
        match op:
            case Kernel() | Scope():
                return self.body(op.body, dict(scope))
            case For() if accumulates(op):
                return self.accumulation(op, scope)
            case For():
                return self.loop(op, scope)
            case DynamicFor():
                # Workgroups are assumed to be equally fast, so that they take output tiles in turn.
                size = self.graph.workgroup.size
                assert size is not None
                return self.loop(For(op.dim, op.start, op.stop, size, op.body), scope)
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
                raise PassError(
                    "partial sums are added by atomic additions, whose cost is not modelled; use "
                    "another reduction"
                )
            case Inside() | Locate():
                raise PassError(
                    f"{op.kind} depends on the positions of tiles, so the work of a workgroup "
                    "cannot be counted; choose another schedule"
                )
            case _:
                return Tally()

    def symbol(self, dim: str) -> Symbol:
        """The symbol for the index of the dimension `dim`."""
        return self.graph.coordinates.symbol(dim)

    def received(self, turn: str, scope: Values) -> Tally:
        """Work counts of receiving a partial sum.

        Args:
            turn: the coordinate that numbers the partial sums of a tile, in a `turnstile`
                reduction; '' in other reductions.
            scope: the values that are known where the operation runs.
        """
        if not turn:
            return Tally(receives=S.One)
        number = scope[self.symbol(turn)]
        return Tally(receives=S.One, first_turn=-number, last_turn=number)

    def accumulation(self, op: For, scope: Values) -> Tally:
        """Work counts of a main loop, over all k tiles of an output tile or some of them."""
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
        """Work counts of a loop that is not a main loop over k tiles."""
        name, index = self.definitions.name, self.symbol(op.dim)
        start, stop = self.value(op.start, scope), self.value(op.stop, scope)
        unknown = Symbol(f"{op.dim}'", integer=True)  # the index of an arbitrary loop iteration
        one = self.body(op.body, {**scope, index: unknown})
        step = self.value(op.step, {**scope, index: unknown})
        if not any(isinstance(x, MultiplyAccumulate) for x in op.walk()):
            # This loop runs over the shares of one tile (`scatter`): all shares together store the
            # tile once.
            ended = {key: getattr(one, key) for key in ("ends", "small_ends")}
            finished = {key: name(select(Lt(0, count), 1, 0)) for key, count in ended.items()}
            one = replace(one, **finished)
        else:
            finished = {}
        reads = self.definitions.reads
        varies = any(unknown in reads(value) for _, value in one.items())
        if not varies and (unknown not in reads(step) or step == unknown):
            # Subtract start from stop before `value` replaces both by symbols that name them, so
            # that common terms cancel.
            length = self.value(op.stop - op.start, scope)
            doubled = cast(Expr, Doublings(start, stop))
            passes = doubled if step == unknown else ceil_div(length, step)
            return replace(self.times(name(maximum(passes, S.Zero)), one), **finished)

        return self.three_passes(op, scope, start, stop)

    def three_passes(self, op: For, scope: Values, start: Expr, stop: Expr) -> Tally:
        """Work counts of a loop whose first and last iterations may differ from the others.

        The first iteration may begin inside a tile, and the last one may end inside a tile. The
        other iterations are assumed to be alike; `passes.choosing.enumeration` checks this
        assumption on examples.
        """
        name, index = self.definitions.name, self.symbol(op.dim)

        def one_pass(at: Expr) -> Tally:
            """Work counts of the loop iteration with the index `at`."""
            return self.body(op.body, {**scope, index: at})

        def step_at(at: Expr) -> Expr:
            """The increment of the loop index after the iteration with the index `at`."""
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
    """The work of the workgroup whose number is the symbol `index_symbol("workgroup")`.

    Args:
        graph: a graph with a schedule.
        depth: number of k tiles of an output tile.
        known: values of launch arguments and parameters; parameters without a value here are
            computed from the graph.
        definitions: the expressions that have a name so far; expressions of the graph are added.

    Raises:
        PassError: the graph has an operation whose work cannot be counted.
    """
    scope = dict(known)
    for parameter in graph.parameters.items:
        if parameter.value is not None and parameter.symbol not in scope:
            scope[parameter.symbol] = definitions.name(cast(Expr, parameter.value.xreplace(scope)))
    scope[graph.workgroup.symbol] = index_symbol("workgroup")
    return _Walk(graph, depth, definitions).body(graph.control.root.body, scope)
