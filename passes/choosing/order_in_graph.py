"""`why_not`: checks from a plan's scheduled graph whether the plan adds along k in a given order.

This module imports the checks of graphs, so it is imported only for batch-invariant products.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from coordgraph import CoordGraphError, Gemm, KernelGraph
from coordgraph.interpreter.program import program
from coordgraph.verification.batch_invariance import NAME, depth_of_whole_sums
from coordgraph.verification.launch_candidates import launch_of
from coordgraph.verification.summation_orders import Products, Sum, Term, summation_orders
from passes.choosing.plan import Plan
from passes.choosing.summation_order import SummationOrder
from passes.pipeline import Pipeline

__all__ = ["why_not"]


def why_not(order: SummationOrder, plan: Plan, problem: Gemm) -> str | None:
    """Why a plan does not add along k, or reduce rows of D, in the order `order`; None if it does.

    Args:
        order: the order of additions along k, and of reductions of rows.
        plan: the plan; its schedule may be any schedule, not only `SplitK`.
        problem: the problem, with values for n and k.

    Raises:
        PassError, VerifyError, ParseError: the plan cannot be applied to the problem.
    """
    tile = plan.tile[2]
    if plan.cluster[2] > 1:
        return (
            "the CTAs of the plan's clusters divide k; a plan for this product must add in this "
            f"order: {order}"
        )
    if order.rows is not None and (refusal := order.rows.why_not(order.instructions, plan)):
        return refusal
    if problem.k is None or -(-problem.k // tile) * tile != order.depth:
        return (
            f"the plan's k tiles of {tile} elements do not end at {order.depth}, the end of the "
            f"required order of additions ({order}); choose another extent of k tiles"
        )
    found = _order_in_graph(plan.pipeline, plan.tile, replace(problem, m=None, n=None))
    if isinstance(found, str):
        return found
    if found != _term(order, tile):
        return (
            f"the plan has k tiles of {tile} elements, and it adds {found}; a plan for this "
            f"product must add in this order: {order}"
        )
    return None


def _term(order: SummationOrder, tile: int) -> Term | None:
    """Convert an order of additions to a symbolic sum over k tiles of `tile` elements.

    Returns None if a segment of the order begins or ends inside a k tile.
    """
    if any(border % tile for border in order.borders):
        return None
    found: Term | None = None
    for first, end in pairwise(border // tile for border in order.borders):
        part = Products(((first, end),))
        found = part if found is None else Sum.of(found, part)
    return found


@lru_cache(maxsize=1024)
def _order_in_graph(pipeline: str, tile: tuple[int, int, int], problem: Gemm) -> Term | str:
    """The symbolic sum that shows in which order a scheduled problem adds its k tiles.

    If the additions have no fixed order, or the order cannot be derived, the result is the reason
    as text.

    Args:
        pipeline: the text of the passes that schedule the problem.
        tile: elements of the macro tile along m, n and k.
        problem: the problem, with a value for k but none for m and n.
    """
    graph = Pipeline.parse(pipeline)(replace(problem, k=None).graph(tile), verify="outside")
    assert problem.k is not None
    tiles = -(-problem.k // tile[2])
    if depth_of_whole_sums(program(graph)) is not None:
        return Products(((0, tiles),))
    if (refusal := _refusal(graph)) is not None:
        return refusal
    launch = launch_of(graph, tile, (1, 1, tiles, 1), 0)
    least = {p.name: 0 for p in graph.parameters.given if p.minimum == 0}
    try:
        values = graph.parameters.launch({**least, **launch.values}, launch.tables)
        orders = {t for ts in summation_orders(program(graph), values).values() for t in ts}
    except CoordGraphError as error:
        return f"its order of additions cannot be derived: {error}"
    return orders.pop() if len(orders) == 1 else "its sums have different orders"


def _refusal(graph: KernelGraph) -> str | None:
    """Text with a counterexample to the batch invariance of a graph; None if none is found."""
    verdict = graph.check(checks=(NAME,))[NAME]
    if verdict.refuted:
        return f"it is not batch invariant: {verdict.counterexamples[0]}"
    return None
