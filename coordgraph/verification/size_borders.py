"""Search for launch arguments that violate a size rule, near the constants in a graph's formulas.

The launches that checks trace are small. A wrong rule such as `64 >= m` holds in all small
launches, and is false only for m above 64, a constant of the graph. Rules are cheap to evaluate, so
they are evaluated for many more launch arguments than are traced: for small values, and for values
near the constants in the rules and in the definitions of parameters, near products of two such
constants, and near powers of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from sympy import Expr, Integer, Symbol
from sympy.logic.boolalg import Boolean

from coordgraph.errors import CoordGraphError
from coordgraph.integers import compile_function, symbols_of, tables_in
from coordgraph.kernel import KernelGraph
from coordgraph.parameters import Parameter

__all__ = ["broken_rules"]

SMALL = range(1, 10)
"""Small values of every launch argument with which the search for a broken size rule begins."""
BASES = (1, 6, 1000)
"""While one launch argument is varied to find a broken size rule, all other launch arguments have
one of these values."""
POWERS = tuple(1 << bits for bits in (5, 7, 9, 12, 16, 20, 24, 30))
"""Powers of two near which values of launch arguments are tried to find a broken size rule."""
MOST_VALUES = 64
"""The largest number of values of one launch argument with which size rules are tested; further
values are left out."""


def broken_rules(
    graph: KernelGraph, rules: Sequence[Boolean]
) -> Iterator[tuple[int, Mapping[str, int]]]:
    """Yield the position of each rule that is false for tried launch arguments, and the arguments.

    Each rule is yielded at most once. Rules that depend on tables are skipped.

    Args:
        graph: a scheduled graph.
        rules: conditions on sizes.
    """
    parameters = graph.parameters
    host = [p for p in parameters.items if p.name not in parameters.deferred]
    known = {p.symbol for p in host}
    numbered = [
        (number, rule)
        for number, rule in enumerate(rules)
        if symbols_of(rule) <= known and not tables_in(rule)
    ]
    if not numbered:
        return
    definitions = {p.symbol: p.value for p in host if p.value is not None}
    used, formulas = _closure([rule for _, rule in numbered], definitions)
    # To test the size rules, only parameters that the rules read are computed. If a rule is false,
    # all parameters are computed, and the launch is skipped if one of them has no valid value.
    needed = [p for p in host if p.symbol in used]
    evaluate = _Evaluation(needed)
    conditions = compile_function([rule for _, rule in numbered], [p.symbol for p in needed])
    given = [p for p in needed if p.value is None]
    found: set[int] = set()
    for arguments in _arguments(given, _borders(formulas)):
        values = evaluate(arguments)
        if values is None:
            continue
        try:
            holds = conditions(*values)
        except (CoordGraphError, ArithmeticError):
            continue
        for (number, _), true in zip(numbered, holds, strict=True):
            if not true and number not in found:
                launch = {p.name: arguments.get(p.name, p.minimum) for p in parameters.given}
                try:
                    parameters.evaluate(launch)
                except (CoordGraphError, ArithmeticError):
                    continue
                found.add(number)
                yield number, launch


class _Evaluation:
    """Computes parameters from launch arguments.

    Args:
        needed: the parameters to compute, each after the parameters that its definition reads.
    """

    def __init__(self, needed: Sequence[Parameter]) -> None:
        symbols: list[Symbol] = [p.symbol for p in needed]
        self._needed = needed
        self._steps: list[Callable[..., tuple[int, ...]] | None] = [
            None if p.value is None else compile_function([p.value], symbols[:i])
            for i, p in enumerate(needed)
        ]

    def __call__(self, arguments: Mapping[str, int]) -> list[int] | None:
        """The values of the parameters; None if one is out of bounds or a divisor is 0."""
        values: list[int] = []
        for p, step in zip(self._needed, self._steps, strict=True):
            try:
                value = arguments[p.name] if step is None else step(*values)[0]
            except (CoordGraphError, ArithmeticError):
                return None
            if not p.minimum <= value <= p.maximum:
                return None
            values.append(value)
        return values


def _closure(
    rules: Sequence[Boolean], definitions: Mapping[Symbol, Expr]
) -> tuple[set[Symbol], list[Expr | Boolean]]:
    """The symbols on which rules depend, directly or through the definitions of other symbols.

    Returns:
        The symbols; and a list of the rules, followed by the definitions of those symbols.
    """
    used: set[Symbol] = set()
    formulas: list[Expr | Boolean] = [*rules]
    left = {s for rule in rules for s in symbols_of(rule)}
    while left:
        symbol = left.pop()
        used.add(symbol)
        if symbol in definitions:
            formulas.append(definitions[symbol])
            left |= symbols_of(definitions[symbol]) - used
    return used, formulas


def _borders(formulas: Sequence[Expr | Boolean]) -> list[int]:
    """Values of launch arguments near which a size rule may become false, to be tried.

    They are the constants in `formulas`, products of two of these constants, and `POWERS`.
    """
    constants = {abs(int(c)) for formula in formulas for c in formula.atoms(Integer)} - {0, 1}
    pairs = {a * b for a, b in product(sorted(constants)[:8], repeat=2)}
    return sorted(constants | pairs) + [power for power in POWERS if power not in constants]


def _arguments(given: Sequence[Parameter], borders: Sequence[int]) -> Iterator[dict[str, int]]:
    """Yield launch arguments with which size rules are tested.

    All arguments, or all but one, have the same value, which is moved into the parameter's range.

    Args:
        given: the parameters that are launch arguments.
        borders: values near which a size rule may become false.
    """
    values = dict.fromkeys([*SMALL, *(b + by for b in borders for by in (0, 1, -1))])
    tried = [*values][:MOST_VALUES]
    for base in BASES:
        for varied in given:
            for value in tried:
                if varied.minimum <= value <= varied.maximum:
                    found = {p.name: min(max(base, p.minimum), p.maximum) for p in given}
                    yield found | {varied.name: value}
    for value in tried:
        yield {p.name: min(max(value, p.minimum), p.maximum) for p in given}
