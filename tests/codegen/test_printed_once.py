"""An index expression is compiled once and its LLVM value reused while its symbols keep their
values.
"""

from __future__ import annotations

from llvmlite import ir
from sympy import Expr

from codegen.emit.expressions import Bounds, Expressions
from coordgraph.integers import Ranges, floor_div, index_symbol

I32 = ir.IntType(32)
X, STEP = index_symbol("x"), index_symbol("step")
RANGES = Ranges().with_index(X, 100).with_index(STEP, 4)
VALUE: Expr = floor_div(X, 8) + 3 * STEP


def printer() -> tuple[Expressions, ir.Function]:
    function = ir.Function(ir.Module(), ir.FunctionType(ir.VoidType(), [I32, I32]), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    values = {X: function.args[0], STEP: 0}
    return Expressions(builder, values, lambda _: None, {}, Bounds()), function


def instructions(function: ir.Function) -> int:
    return len(function.entry_basic_block.instructions)


def test_the_same_numbers_give_the_same_value():
    expressions, function = printer()
    first = expressions.number(VALUE, RANGES)
    printed = instructions(function)
    assert expressions.number(VALUE, RANGES.with_index(index_symbol("other"), 2)) is first
    assert expressions.condition(VALUE < 7, RANGES) is expressions.condition(VALUE < 7, RANGES)
    assert instructions(function) == printed + 1


def test_other_numbers_share_what_does_not_depend_on_them():
    expressions, function = printer()
    first = expressions.number(VALUE, RANGES)
    printed = instructions(function)
    expressions.values[STEP] = 1
    assert expressions.number(VALUE, RANGES) is not first
    assert instructions(function) == printed + 1
    expressions.values[X] = function.args[1]
    expressions.number(VALUE, RANGES)
    assert instructions(function) == printed + 3


def test_a_counter_is_read_anew():
    expressions, _ = printer()
    expressions.values[STEP] = expressions.builder.alloca(I32)
    assert expressions.number(VALUE, RANGES) is not expressions.number(VALUE, RANGES)
