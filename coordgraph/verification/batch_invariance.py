"""The check `batch-invariance`: a row of D has the same bits in every batch.

A sum of floating-point numbers depends on the order of its additions. A kernel is *batch invariant*
if the order in which it adds the products of an element of D depends on n and k only: not on m, on
the row, on the product of a batch, or on the number of workgroups (He et al., Defeating
Nondeterminism in LLM Inference, Thinking Machines Lab, 2025).

If the epilogue reduces rows of D, the number of columns that a macro tile reduces must be one, too.

The order in a scheduled graph is the sequence of segments of k, each summed by one workgroup, and
the order in which the sums of segments are added (the fold). The order inside a k tile is that of
the multiply instruction, which the graph does not have yet when it is scheduled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, cast

from sympy import Expr, Symbol

from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    CollectPartial,
    Epilogue,
    InitAccumulator,
    MultiplyAccumulate,
    ReceivePartial,
    SendPartial,
)
from coordgraph.coordinates.dimensions import MacroTileNumber
from coordgraph.elements import dtype
from coordgraph.errors import CoordGraphError
from coordgraph.interpreter.program import Program
from coordgraph.interpreter.steps import Branch, Loop, Step, Work
from coordgraph.interpreter.tracing import OutputTile
from coordgraph.interpreter.walking import Budget
from coordgraph.kernel import KernelGraph
from coordgraph.tilings import macro_tile
from coordgraph.verification.evidence import Evidence
from coordgraph.verification.launch import Launch
from coordgraph.verification.launch_candidates import launch_of
from coordgraph.verification.launch_traces import MOST_STEPS
from coordgraph.verification.named import Finding, enumerated, named_check
from coordgraph.verification.summation_orders import Sum, Term, Unordered, summation_orders
from coordgraph.verification.verdicts import Counterexample, Outcome

__all__ = ["NAME", "batch_invariance", "depth_of_whole_sums"]

NAME = "batch-invariance"
"""The name of the check of batch invariance, for `KernelGraph.check`."""

EXCHANGES = (SendPartial, ReceivePartial, AddPartial, AccumulatePartial, CollectPartial)
"""Operations by which workgroups exchange partial sums. In a graph with such an operation, an
element of D may be the sum of the results of several loops over k."""
PINNED = ("n", "k")
"""The launch arguments on which the order of a sum may depend."""
DEPTHS = {"default": (1, 3, 8, 5), "all": (1, 2, 3, 4, 5, 7, 8, 12, 16)}
"""For each level of `KernelGraph.check`: the numbers of k tiles for which launches are compared.
Launches are compared only with launches that have equally many k tiles."""
ROWS = {"default": ((1, 1), (1, 3), (2, 5), (3, 4)), "all": (*product((1, 2, 3, 5), range(1, 9)),)}
"""For each level of `KernelGraph.check`: pairs (number of tiles along m, number of workgroups). One
launch is made for each pair, and the orders of the sums in these launches are compared."""
COLUMNS = 2
"""Number of tiles along n of the launches that are compared."""
MOST_LOOPS = 1 << 15
"""Largest number of loop iterations, over all workgroups, of a launch that is compared with other
launches; a launch with more is left out."""
Key = tuple[Any, ...]
"""Type of the values on which the order of a sum may depend: (n, k). In a grouped product whose
groups have their own k, the second value is the k of the group."""


@named_check(
    NAME,
    "The products of an element of D are added in an order that depends on n and k only: not on m, "
    "the row, the other products of a batch, or the number of workgroups. Outputs that reduce rows "
    "reduce equally many columns in every tile.",
)
def batch_invariance(evidence: Evidence) -> Finding:
    """The check `batch-invariance`: the order of additions must not depend on m or on other rows.

    If the epilogue reduces rows of D, each tile reduces its own columns of a row, so the bits of
    the result depend on the number of columns of a tile. The finding states this number: a graph
    for another m gives the same bits only if its tiles have as many columns.
    """
    found = _order_of_sums(evidence)
    if not evidence.graph.gemm.row_reductions or found.outcome is Outcome.REFUTED:
        return found
    columns = sorted({tiling.summed[1] for tiling in evidence.graph.tilings})
    if len(columns) > 1:
        problem = (
            f"tiles have {' or '.join(map(str, columns))} columns, so that rows of D are reduced "
            "in different orders"
        )
        return Finding(Outcome.REFUTED, "symbolic", counterexamples=(Counterexample(problem),))
    rows = f"rows of D are reduced by tiles of {columns[0]} columns, for any m"
    return found._replace(detail=f"{found.detail}; {rows}")


def _order_of_sums(evidence: Evidence) -> Finding:
    """Prove that each sum is one loop over k, else compare launches.

    The launches that are compared have equal n and k, but different m and numbers of workgroups. If
    the caller of the check gives sizes, all launches have the n and k of these sizes.
    """
    if not dtype(evidence.graph.gemm.accumulator).is_float:
        return Finding(Outcome.PROVED, "symbolic", "sums of integers are exact in every order")
    if (depth := depth_of_whole_sums(evidence.program)) is not None:
        detail = f"one workgroup adds the k tiles 0..{depth} - 1 of a tile, in this order"
        return Finding(Outcome.PROVED, "symbolic", detail)
    examined = _examined(evidence)
    finding = enumerated(
        [launch for launch, _ in examined],
        "segments of k, and the order of their additions,",
        _counterexamples(evidence, examined),
    )
    if finding.outcome is Outcome.HOLDS:
        orders = {str(t) for _, found in examined for terms in found.values() for t in terms}
        shown = max(orders, key=len)
        finding = finding._replace(detail=f"{finding.detail}, such as {shown}")
    return finding


def depth_of_whole_sums(code: Program) -> Expr | None:
    """Prove that each sum is one loop over all k tiles, and return the number of these k tiles.

    Returns None if that is not proved: if workgroups exchange partial sums, if a loop does not run
    over all k tiles in ascending order, or if the number of k tiles depends on more than n and k.
    """
    if any(next(code.work(kind), None) is not None for kind in EXCHANGES):
        return None
    found = {*_depths(code, code.steps)}
    if len(found) != 1 or None in found:
        return None
    (depth,) = found
    assert depth is not None
    return depth if _depends(code.graph, depth) <= {*PINNED} else None


def _depths(code: Program, steps: tuple[Step, ...]) -> Iterator[Expr | None]:
    """Yield the number of k tiles of an output tile, once for each main loop in `steps`.

    Yields None for a loop that is not proved to add all k tiles of the output tile to an
    accumulator that is zero before the loop.
    """
    zeroed: set[str] = set()
    open_: set[str] = set()
    for step in steps:
        if isinstance(step, Work):
            op = step.node.op
            if isinstance(op, InitAccumulator):
                zeroed.add(op.accumulator)
            elif isinstance(op, Epilogue):
                open_.discard(op.accumulator)
            elif isinstance(op, MultiplyAccumulate):
                yield None  # `op` multiplies outside a loop over consecutive k tiles
        elif isinstance(step, Loop) and step.accumulation is not None:
            op = step.accumulation.node.op
            assert isinstance(op, MultiplyAccumulate)
            whole = op.accumulator in zeroed
            zeroed.discard(op.accumulator)
            open_.add(op.accumulator)
            yield _whole_depth(code, step, step.accumulation) if whole else None
        elif isinstance(step, Branch):
            yield from _depths(code, step.body)
            yield from _depths(code, step.orelse)
        else:
            yield from _depths(code, step.body)
    if open_:
        yield None  # `steps` has a main loop without a following epilogue for its accumulator


def _whole_depth(code: Program, loop: Loop, work: Work) -> Expr | None:
    """The number of k tiles of an output tile if `loop` runs over all of them, else None."""
    start, stop = (cast(Expr, root) for root in loop.bounds.roots)
    values = work.multiplied.values
    place = len(values) // 2 - 1
    first = values[place].xreplace({loop.symbol: start})
    dimension = code.graph.coordinates[work.factors[place]]
    assert isinstance(dimension, MacroTileNumber)
    whole = dimension.size is not None and stop - start == dimension.size
    return dimension.size if whole and first == 0 else None


def _depends(graph: KernelGraph, value: Expr) -> set[str]:
    """The names of the launch arguments and tables on which an expression depends."""
    definitions = {p.symbol: p.value for p in graph.parameters.items}
    names: set[str] = set()
    left: set[Any] = {*value.free_symbols}
    seen: set[Any] = set()
    while left:
        symbol = left.pop()
        seen.add(symbol)
        definition = definitions.get(symbol) if isinstance(symbol, Symbol) else None
        if definition is None:
            names.add(str(symbol))
        else:
            left |= definition.free_symbols - seen
    return names


def _examined(evidence: Evidence) -> list[tuple[Launch, dict[OutputTile, tuple[Term, ...]]]]:
    """List (launch, its output tiles with the terms of each) for every launch that is compared.

    A term says in which order the products of an output tile are added. A tile has several terms if
    several workgroups each apply the epilogue to a share of the tile's rows.
    """
    code, parameters = evidence.program, evidence.graph.parameters
    least = {p.name: 0 for p in parameters.given if p.minimum == 0}
    found: list[tuple[Launch, dict[OutputTile, tuple[Term, ...]]]] = []
    for launch in _launches(evidence):
        try:
            values = parameters.launch({**least, **launch.values}, launch.tables)
            orders = summation_orders(code, values, MOST_STEPS, Budget(MOST_LOOPS))
        except CoordGraphError:
            # This launch is not compared: it is too large, the graph does not allow it, or it shows
            # a fault that other checks report.
            continue
        if orders:
            found.append((launch, orders))
    return found


def _launches(evidence: Evidence) -> Iterator[Launch]:
    """Yield launches to compare: for each n and k, several m and several numbers of workgroups."""
    graph = evidence.graph
    if not evidence.chosen:
        for launch in evidence.launches:
            yield from _varied(graph, launch)
        return
    shape = macro_tile(graph.coordinates)
    level = "all" if len(evidence.limits.schedulers) > 1 else "default"
    seen: set[str] = set()
    for number, depth in enumerate(DEPTHS[level]):
        for rows, workgroups in ROWS[level]:
            launch = launch_of(graph, shape, (rows, COLUMNS, depth, workgroups), number)
            if str(launch) not in seen:
                seen.add(str(launch))
                yield launch


def _varied(graph: KernelGraph, launch: Launch) -> Iterator[Launch]:
    """Yield `launch`, then launches that differ from it in m or in the number of workgroups."""
    yield launch
    rows, _, _ = macro_tile(graph.coordinates)
    ranges = {p.name: (p.minimum, p.maximum) for p in graph.parameters.given}
    for name, values in (("m", (1, rows, 2 * rows + 1)), ("workgroups", (1, 2, 3, 5, 8))):
        for value in values:
            if name in launch.values and ranges[name][0] <= value <= ranges[name][1]:
                yield replace(launch, values={**launch.values, name: value})


def _counterexamples(
    evidence: Evidence, examined: list[tuple[Launch, dict[OutputTile, tuple[Term, ...]]]]
) -> Iterator[Counterexample]:
    """Yield one counterexample, or none if the examined launches show no fault.

    The counterexample is a sum whose order differs from run to run, or a pair of output tiles with
    equal n and k whose sums have different orders.
    """
    first: dict[Key, tuple[Launch, OutputTile, Term]] = {}
    for launch, orders in examined:
        for tile, terms in orders.items():
            for term in terms:
                if loose := _unordered(term):
                    yield Counterexample(
                        "partial sums are added atomically, so their order differs from run to "
                        f"run: {loose}",
                        launch,
                        (),
                        tile,
                    )
                    return
                key = _key(evidence, launch, tile)
                before = first.setdefault(key, (launch, tile, term))
                if before[2] != term:
                    yield _difference(before, launch, tile, term)
                    return


def _difference(
    before: tuple[Launch, OutputTile, Term], launch: Launch, tile: OutputTile, term: Term
) -> Counterexample:
    """The counterexample for two output tiles of equal n and k whose orders of additions differ.

    Args:
        before: (launch, number of the output tile, order of its additions) of the first tile.
        launch, tile, term: launch, number of the output tile and order of additions of the second
            tile.
    """
    other, place, order = before
    return Counterexample(
        f"the sum is {term}; with {other} it is {order} in output tile {place}",
        launch,
        (),
        tile,
    )


def _unordered(term: Term) -> str:
    """The text of the first `Unordered` part (added atomically) of a symbolic sum; '' if none."""
    if isinstance(term, Unordered):
        return str(term)
    if isinstance(term, Sum):
        return next(filter(None, map(_unordered, term.terms)), "")
    return "" if term.start is None else _unordered(term.start)


def _key(evidence: Evidence, launch: Launch, tile: OutputTile) -> Key:
    """(n, k): the values on which the order of the sums of an output tile may depend.

    If groups have their own k, the second value is the k of the tile's group, in elements.
    """
    values: Mapping[str, int] = launch.values
    pinned = tuple(values.get(name) for name in PINNED)
    if not launch.tables or not evidence.graph.gemm.ragged("k"):
        return pinned
    borders = launch.tables[evidence.graph.gemm.offsets("k")]
    return (*pinned[:1], borders[tile[0] + 1] - borders[tile[0]])
