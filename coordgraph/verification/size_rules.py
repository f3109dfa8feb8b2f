"""The check `sizes`: the sizes of dimensions and tensors satisfy the rule of every edge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

from sympy import Eq, Expr
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.dimensions import User
from coordgraph.coordinates.rules import proves
from coordgraph.errors import CoordGraphError
from coordgraph.integers import equal, evaluate, tables_in, to_text
from coordgraph.kernel import KernelGraph
from coordgraph.verification.evidence import Evidence
from coordgraph.verification.launch import Launch
from coordgraph.verification.named import SHOWN, Finding, named_check
from coordgraph.verification.size_borders import broken_rules
from coordgraph.verification.verdicts import Counterexample, Outcome
from coordgraph.verification.zero_divisions import zero_divisions

__all__ = ["sizes"]


@named_check(
    "sizes",
    "The sizes of the dimensions of every edge obey the edge's size rule, and the dimension of "
    "every tensor is as large as the tensor. No parameter divides by 0.",
)
def sizes(evidence: Evidence) -> Finding:
    """The check `sizes`: prove each size rule from the ranges of parameters, or evaluate it.

    Rules without a proof are evaluated in the examined launches, and for launch arguments near the
    constants in the graph's formulas.
    """
    graph = evidence.graph
    ranges = graph.parameters.ranges(definitions=True)
    rules = [*_rules(graph)]
    undecided = [(what, rule) for what, rule in rules if not proves(rule, ranges)]
    counterexamples = [*zero_divisions(graph)] if evidence.chosen else list[Counterexample]()
    for launch in evidence.launches:
        counterexamples += _broken(graph, undecided, launch)
    if evidence.chosen and not counterexamples:
        for number, values in broken_rules(graph, [rule for _, rule in undecided]):
            counterexamples += _broken(graph, [undecided[number]], Launch(values))
    if counterexamples:
        first = {found.problem: found for found in reversed(counterexamples)}
        kept = tuple(reversed(first.values()))[:SHOWN]
        return Finding(Outcome.REFUTED, "enumeration", "", kept)
    proved = f"{len(rules) - len(undecided)} rules proved"
    if not undecided:
        return Finding(Outcome.PROVED, "edge laws", proved)
    if not evidence.launches:
        return Finding(Outcome.UNKNOWN, "edge laws", f"{proved}, {len(undecided)} undecided")
    count = len(evidence.launches)
    detail = (
        f"{proved}, {len(undecided)} evaluated in {count} {'launch' if count == 1 else 'launches'}"
    )
    method = "edge laws, enumeration"
    return Finding(Outcome.HOLDS, method, detail, launches=evidence.launches)


def _rules(graph: KernelGraph) -> Iterator[tuple[str, Boolean]]:
    """Yield (text of an edge or tensor, condition that its sizes must satisfy)."""
    coordinates = graph.coordinates
    for edge in coordinates.edges:
        for rule in edge.size_rule(coordinates.sizes(edge)):
            # Skip rules that read tables. If a dimension's size is a table entry, the edge of a
            # correct schedule may cover only part of the dimension, so that its rule is false.
            # The check `cover` examines such edges.
            if not tables_in(cast(Expr, rule)):
                yield str(edge), rule
    known = {t.name: t for t in graph.tensors}
    for user in coordinates.of_kind(User):
        if user.size is not None and user.tensor in known:
            yield f"tensor {user.tensor}", equal(user.size, known[user.tensor].elements)


def _broken(
    graph: KernelGraph, rules: list[tuple[str, Boolean]], launch: Launch
) -> Iterator[Counterexample]:
    """Yield a counterexample for each size rule that is false in a launch.

    If the launch has no tables, no rule may read a table.
    """
    given = {p.name: launch.values.get(p.name, 0) for p in graph.parameters.given}
    with suppress(CoordGraphError, ArithmeticError, LookupError):
        known = graph.parameters
        # if the launch has no tables, the caller passes only rules that read no table
        missing = known.tables and not launch.tables
        values = known.evaluate(given) if missing else known.launch(given, launch.tables)
        for what, rule in rules:
            if not evaluate(rule, values):
                yield Counterexample(_described(graph, what, rule, values), launch)


def _described(graph: KernelGraph, what: str, rule: Boolean, values: dict[str, Any]) -> str:
    """The error message for a size rule that is false in a launch; for a tensor, with its shape.

    Args:
        graph: the graph.
        what: the text of the edge or tensor that the rule belongs to, as in `_rules`.
        rule: the condition on sizes that is false.
        values: the launch parameters and tables, by name.
    """
    for user in graph.coordinates.of_kind(User):
        if what == f"tensor {user.tensor}" and user.size is not None:
            tensor, size = graph.tensor(user.tensor), int(evaluate(user.size, values))
            shape = tuple(int(evaluate(extent, values)) for extent in tensor.shape)
            if min(shape, default=1) < 1:
                return f"{what} has the shape {shape}; make every extent at least 1"
            if size != (count := int(evaluate(tensor.elements, values))):
                return (
                    f"{what} has the shape {shape}, {_elements(count)}, but the dimension "
                    f"'{user.id}' has {_elements(size)}; make them equal"
                )
    return f"{what}: the rule {to_text(rule)} does not hold{_sides(rule, values)}"


def _elements(count: int) -> str:
    return f"{count} element{'' if count == 1 else 's'}"


def _sides(rule: Boolean, values: dict[str, Any]) -> str:
    """The values of both sides of a comparison, as text."""
    if len(rule.args) != 2:
        return ""
    left, right = (
        int(evaluate(side, values)) if isinstance(side, Expr) else side for side in rule.args
    )
    relation = "=" if isinstance(rule, Eq) else "and"
    return f": {left} {relation} {right}"
