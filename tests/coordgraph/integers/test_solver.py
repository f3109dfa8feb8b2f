"""Quotient and remainder identities with constants, checked for all integers by a solver."""

from itertools import product

import pytest
from sympy import Expr

from coordgraph.integers import Ranges, floor_div, floor_mod, index_symbol, simplify
from coordgraph.integers.functions import FloorDiv, FloorMod

x, y = index_symbol("x"), index_symbol("y")
EXPRESSIONS = [
    make(inner, b)
    for make, (a, b) in product((floor_div, floor_mod), ((4, 8), (8, 4), (6, 4), (12, 3)))
    for inner in (
        floor_mod(x, a),
        floor_div(x, a),
        a * x + y,
        a * x - 3,
        floor_mod(x, a) * 2 + y,
        4 * x + floor_mod(y, a),
    )
]


@pytest.mark.parametrize("expr", EXPRESSIONS, ids=str)
def test_a_solver_finds_no_difference(expr: Expr) -> None:
    z3 = pytest.importorskip("z3")
    names = {x: z3.Int("x"), y: z3.Int("y")}

    def translated(e: Expr) -> object:
        if e in names:
            return names[e]
        if e.is_Integer:
            return z3.IntVal(int(e))
        args = [translated(a) for a in e.args]
        if isinstance(e, FloorDiv):
            return args[0] / args[1]  # z3's quotient is rounded down for a positive divisor
        if isinstance(e, FloorMod):
            return args[0] % args[1]
        result = args[0]
        for arg in args[1:]:
            result = result + arg if e.is_Add else result * arg
        return result

    solver = z3.Solver()
    solver.add(*(name >= 0 for name in names.values()))
    solver.add(translated(expr) != translated(simplify(expr, Ranges())))
    assert solver.check() == z3.unsat
