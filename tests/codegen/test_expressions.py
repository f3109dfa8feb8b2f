"""Index expressions compiled for the host compute what `evaluate` computes.

Random expressions over symbols of all widths go through LLVM to machine code. The tests cover the
widths that are chosen from ranges, signed and unsigned division, shifts, and magic numbers.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llvmlite import ir
from sympy import Abs, And, Eq, Expr, Ge, Gt, Integer, Le, Lt, Ne, Not, Or, Symbol, sympify
from sympy.core.basic import Basic
from sympy.logic.boolalg import Boolean

from codegen.emit.arguments import Magic
from codegen.emit.expressions import Bounds, Expressions
from codegen.emit.llvm import host_machine, optimize
from coordgraph import CodegenError
from coordgraph.integers import (
    FloorDiv,
    FloorMod,
    Ranges,
    bit_xor,
    evaluate,
    floor_div,
    floor_mod,
    index_symbol,
    maximum,
    minimum,
    select,
    size_symbol,
    to_text,
)
from tests.support.sampling import quick_cases

I64 = ir.IntType(64)
LARGEST = 2**31 - 1
# N and G are launch arguments of 31 and of few bits; X and J are indices less than N and G; W needs
# 64 bits; S and T are signed. RANGES has their bounds.
N, G = size_symbol("n"), size_symbol("g")
X, J, W = index_symbol("i"), index_symbol("j"), index_symbol("w")
S, T = Symbol("s", integer=True), Symbol("t", integer=True)
SYMBOLS = (N, G, X, J, W, S, T)
UNIFORM = {N, G}
RANGES = (
    Ranges()
    .with_bounds(N, 1, (LARGEST,))
    .with_bounds(G, 1, (1024,))
    .with_index(X, N)
    .with_index(J, G)
    .with_bounds(W, 0, (2**40,))
    .with_bounds(S, -40, (40,))
    .with_bounds(T, -(2**31), (LARGEST,))
)
NARROW = {s for s in SYMBOLS if RANGES.fits(s, 32)}
Values = dict[Symbol, int]


@st.composite
def valuations(draw: st.DrawFn) -> Values:
    def some(low: int, high: int) -> int:
        near = [x for x in (low, low + 1, high - 1, high) if low <= x <= high]
        return draw(st.one_of(st.integers(low, high), st.sampled_from(near)))

    n, g = some(1, LARGEST), some(1, 1024)
    return {
        N: n,
        G: g,
        X: some(0, n - 1),
        J: some(0, g - 1),
        W: some(0, 2**40),
        S: some(-40, 40),
        T: some(-(2**31), LARGEST),
    }


def conditions(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Basic]:
    relations = st.builds(
        lambda make, a, b: make(a, b), st.sampled_from((Lt, Le, Gt, Ge, Eq, Ne)), children, children
    )
    return st.one_of(
        relations,
        st.builds(And, relations, relations),
        st.builds(Or, relations, relations),
        st.builds(lambda a, b: Not(And(a, b)), relations, relations),
    )


def _extended(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    divisors = st.sampled_from((N, G, N * G, N + G, *map(Integer, (2, 3, 7, 8, 32, 1000, 4096))))
    return st.one_of(
        st.builds(operator.add, children, children),
        st.builds(operator.sub, children, children),
        st.builds(operator.mul, children, children),
        st.builds(operator.mul, children, st.sampled_from((2, 8, 127, -1)).map(Integer)),
        st.builds(floor_div, children, divisors),
        st.builds(floor_mod, children, divisors),
        st.builds(bit_xor, children, children),
        st.builds(minimum, children, children),
        st.builds(maximum, children, children),
        st.builds(select, conditions(children), children, children),
    )


leaves = st.one_of(st.sampled_from(SYMBOLS), st.integers(-9, 70000).map(Integer))
expressions = st.recursive(leaves, _extended, max_leaves=8)


@dataclass
class Printer:
    """Compiles expressions to a function from values of symbols to the expressions' values."""

    widest: bool
    magic: bool = True

    def function(self, exprs: list[Basic], divisors: list[Expr]) -> ir.Module:
        module = ir.Module("expressions")
        kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(), ir.PointerType()])
        function = ir.Function(module, kind, "numbers")
        b = ir.IRBuilder(function.append_basic_block("entry"))
        inputs, outputs = function.args
        values: dict[Symbol, Any] = {}
        given: dict[str, ir.Value] = {}
        names = [*SYMBOLS, *(f"{name}{i}" for i in range(len(divisors)) for name in ("m", "s"))]
        for number, name in enumerate(names):
            at = b.gep(inputs, [ir.Constant(I64, number)], source_etype=I64)
            value = b.load(at, typ=I64)
            if isinstance(name, str):
                given[name] = value
            else:
                narrow = name in NARROW and not self.widest
                values[name] = b.trunc(value, ir.IntType(32)) if narrow else value

        def magic(divisor: Expr) -> Magic | None:
            if not self.magic or divisor not in divisors:
                return None
            number = divisors.index(divisor)
            return Magic(divisor, f"m{number}", f"s{number}")

        printer = Expressions(b, values, magic, given, Bounds(), widest=self.widest)
        for number, expr in enumerate(exprs):
            if isinstance(expr, Expr):
                value = printer.number(expr, RANGES)
                value = printer.widen(value, 64, expr, RANGES)
            else:
                assert isinstance(expr, Boolean)
                value = printer.condition(expr, RANGES)
                value = ir.Constant(ir.IntType(1), value) if isinstance(value, bool) else value
                value = b.zext(value, I64)
            b.store(value, b.gep(outputs, [ir.Constant(I64, number)], source_etype=I64))
        b.ret_void()
        return module

    @contextmanager
    def compiled(self, exprs: list[Basic]) -> Iterator[Callable[[Values], list[int]]]:
        divisors = uniform_divisors(exprs)
        machine = host_machine()
        module = self.function(exprs, divisors)
        module.triple = machine.triple
        parsed = optimize(module, machine, vectorize=False, unroll=False)
        engine = llvm.create_mcjit_compiler(parsed, machine)
        engine.finalize_object()
        address = engine.get_function_address("numbers")
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)

        def numbers(values: Values) -> list[int]:
            given = [values[s] for s in SYMBOLS]
            for divisor in divisors:
                given += Magic.numbers(evaluate(divisor, values))
            inputs = (ctypes.c_int64 * len(given))(*given)
            outputs = (ctypes.c_int64 * len(exprs))()
            call(ctypes.addressof(inputs), ctypes.addressof(outputs))
            return list(outputs)

        yield numbers


def uniform_divisors(exprs: list[Basic]) -> list[Expr]:
    """The divisors in `exprs` that are not constant and depend on launch arguments alone."""
    found = {d.args[1] for e in exprs for d in e.atoms(FloorDiv, FloorMod)}
    uniform = (d for d in found if d.free_symbols and d.free_symbols <= UNIFORM)
    return sorted((d for d in uniform if isinstance(d, Expr)), key=str)


def representable(exprs: list[Basic], values: Values) -> bool:
    """Whether all subexpressions fit in 64 bits, which the compiled code requires."""
    nodes = {node for expr in exprs for node in _nodes(expr)}
    return all(-(2**62) < evaluate(node, values) < 2**62 for node in nodes)


def _nodes(expr: Basic) -> Iterator[Basic]:
    yield expr
    for arg in expr.args:
        yield from _nodes(arg)


@quick_cases(1)
@pytest.mark.parametrize(("widest", "magic"), [(False, True), (False, False), (True, False)])
@settings(max_examples=15)
@given(
    st.lists(st.one_of(expressions, conditions(expressions)), min_size=1, max_size=8),
    st.lists(valuations(), min_size=1, max_size=12),
)
def test_the_machine_computes_what_the_expression_means(
    widest: bool, magic: bool, exprs: list[Basic], samples: list[Values]
):
    exprs = [sympify(e) for e in exprs]
    samples = [values for values in samples if representable(exprs, values)]
    assume(samples)
    with Printer(widest, magic).compiled(exprs) as numbers:
        for values in samples:
            wanted = [int(evaluate(e, values)) for e in exprs]
            found = numbers(values)
            assert found == wanted, ([to_text(e) for e in exprs], values)


TRICKY: tuple[Expr, ...] = (
    # The intermediate value exceeds 32 bits, the result does not.
    floor_div(N * X, N),
    floor_mod(W, N),
    floor_mod(minimum(W, Integer(100)), G),
    floor_mod(minimum(W, X), N),
    floor_div(minimum(W, X), G),
    select(Lt(W, 5), W, Integer(3)) + N,
    # Quotients of negative numbers are rounded down.
    floor_div(S, G),
    floor_mod(S, G),
    floor_div(T, Integer(8)),
    floor_mod(T, Integer(8)),
    floor_div(S * N, Integer(1000)),
    # Values near the limits of 32-bit integers.
    G**3,
    N**2 * G,
    N + X,
    N * G,
    N * 128 + X,
    T - 1,
    -T,
    maximum(T, N) + 1,
    bit_xor(X, Integer(1)),
    bit_xor(T, S),
    floor_div(X, G * Integer(4)),
    floor_mod(X, G + Integer(1)),
    # The dividend has 32 bits, the divisor 64.
    floor_div(X, N * Integer(32)),
    floor_mod(X, N * Integer(32)),
    floor_div(X, N * G),
)
EDGES: tuple[Values, ...] = tuple(
    {N: n, G: g, X: i, J: 0, W: w, S: s, T: t}
    for n, i in ((LARGEST, LARGEST - 1), (1, 0), (65536, 65535), (LARGEST - 1, 0))
    for g in (1, 3, 1024)
    for w in (0, 2**32, 2**40, 2**31)
    for s, t in ((-40, -(2**31)), (40, LARGEST), (-1, -1), (0, 0))
)


@quick_cases(21)
@pytest.mark.parametrize("widest", [False, True])
@pytest.mark.parametrize("expr", TRICKY, ids=to_text)
def test_tricky_expressions_at_the_edges(expr: Expr, widest: bool):
    with Printer(widest).compiled([expr]) as numbers:
        for values in EDGES:
            if representable([expr], values):
                assert numbers(values) == [evaluate(expr, values)], values


def test_narrow_arithmetic_is_used_where_it_is_proved_to_fit():
    small, large = Printer(False).function([J * 4 + 3], []), Printer(False).function([N * 4], [])
    assert "mul nuw nsw i32" in str(small)
    assert "mul nuw nsw i64" in str(large)
    assert "i32" not in str(Printer(True).function([J * 4 + 3], []))


def test_a_division_by_a_launch_argument_has_no_division():
    with_magic = str(Printer(False).function([floor_div(X, G)], [G]))
    assert "div" not in with_magic
    assert "lshr i64" in with_magic
    # 32·N may need 64 bits.
    assert "div" not in str(Printer(False).function([floor_div(X, N * 32)], [N * 32]))
    assert "udiv i32" in str(Printer(False, magic=False).function([floor_div(X, G)], []))


def test_what_cannot_be_printed_is_refused():
    with pytest.raises(CodegenError, match="no code can be generated for Abs"):
        Printer(False).function([Abs(S)], [])
    with pytest.raises(CodegenError, match="the symbol 'unknown' has no value"):
        Printer(False).function([index_symbol("unknown") + 1], [])
