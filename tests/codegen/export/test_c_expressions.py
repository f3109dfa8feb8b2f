"""C code for index expressions computes the values that Python computes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import And, Eq, Ge, Integer, Lt, Not, Or

from codegen.export.c_expressions import c_expression, c_name
from codegen.export.templates import filled
from coordgraph import CodegenError
from coordgraph.integers import (
    bit_xor,
    evaluate,
    floor_div,
    floor_mod,
    index_symbol,
    load,
    maximum,
    minimum,
    select,
    size_symbol,
)
from tests.codegen.export.compiled import compile_c

X, J, N, T = index_symbol("i"), index_symbol("j.2"), size_symbol("n"), size_symbol("tile")
CASES = (
    X + 3 * J - N,
    -X * J + 7,
    floor_div(X - 5 * J, N),
    floor_mod(X - 5 * J, N),
    floor_div(N * T * N + 63, T) * floor_mod(J, T),
    minimum(X, minimum(J, N - 3)) - maximum(-X, J),
    bit_xor(X, J) + bit_xor(X + 1, 6),
    select(Or(Lt(X, J), And(Ge(N, 3), Not(Eq(X, T)))), X * X, -J),
    select(Not(Lt(X, J)), floor_div(X, T), bit_xor(J, 3)) * 5000000000 - N,
    Integer(-3),
)
"""Expressions of every kind of node that parameters, grids and shapes may have."""
SYMBOLS = (X, J, N, T)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """A library with a function `case_NUMBER` for each expression of `CASES`."""
    folder = tmp_path_factory.mktemp("expressions")
    template = filled("kernel.c.in", **dict.fromkeys(_words("kernel.c.in"), ""))
    start, end = template.index("typedef __int128"), template.index("/* x / d is")
    members = "".join(f"long long {c_name(s.name)}; " for s in SYMBOLS)
    lines = ["#include <stdint.h>", template[start:end], f"typedef struct {{ {members}}} values;"]
    for number, expr in enumerate(CASES):
        body = c_expression(expr, "(wide)v->")
        lines.append(f"long long case_{number}(const values *v) {{ (void)v; return {body}; }}")
    source = folder / "cases.c"
    source.write_text("\n".join(lines) + "\n")
    compile_c("-shared", "-fPIC", "-Wno-unused-function", source, "-o", folder / "cases.so")
    return ctypes.CDLL(str(folder / "cases.so"))


def _words(template: str) -> list[str]:
    from importlib.resources import files
    from string import Template

    text = (files("codegen.export.templates") / template).read_text("utf-8")
    return Template(text).get_identifiers()


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(*[st.integers(0, 2**20)] * 2, *[st.integers(1, 2**20)] * 2)
    | st.tuples(*[st.integers(0, 9)] * 2, *[st.integers(1, 9)] * 2)
)
def test_values_are_those_of_the_interpreter(
    compiled: ctypes.CDLL, point: tuple[int, int, int, int]
):
    values = (ctypes.c_longlong * len(SYMBOLS))(*point)
    known = dict(zip(SYMBOLS, point, strict=True))
    for number, expr in enumerate(CASES):
        function = getattr(compiled, f"case_{number}")
        function.restype = ctypes.c_longlong
        assert function(values) == evaluate(expr, known), (expr, known)


def test_a_constant_over_64_bits_is_refused():
    with pytest.raises(CodegenError, match="does not fit 64 bits"):
        c_expression(X + 2**63)


def test_reads_of_tables_are_refused():
    with pytest.raises(CodegenError, match="reads a table in device memory"):
        c_expression(load(index_symbol("offsets"), X))


def test_words_of_c_are_no_names():
    assert c_name("A.map") == "A_map"
    assert c_name("double") == "double_"


def test_sources_of_templates_are_complete(tmp_path: Path):
    """Filling a template is an error if the value of a placeholder is missing."""
    with pytest.raises(KeyError):
        filled("kernel.h.in", name="gemm")
    assert not list(tmp_path.iterdir())
