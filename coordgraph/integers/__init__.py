"""Index arithmetic: exact integer expressions, proofs about their values, and their text form."""

from coordgraph.integers.evaluate import compile_function, evaluate
from coordgraph.integers.functions import (
    BitXor,
    FloorDiv,
    FloorMod,
    IntegerFunction,
    IntegerLike,
    Maximum,
    Minimum,
    Select,
    at_least,
    bit_xor,
    ceil_div,
    equal,
    floor_div,
    floor_mod,
    index_symbol,
    less,
    maximum,
    minimum,
    operands,
    select,
    size_symbol,
)
from coordgraph.integers.parsing import ExpressionSyntaxError, parse_expression
from coordgraph.integers.polynomials import nodes_of, symbols_of
from coordgraph.integers.ranges import Ranges
from coordgraph.integers.simplify import simplify
from coordgraph.integers.stated_bounds import Bounds
from coordgraph.integers.tables import Load, Search, load, search, tables_in
from coordgraph.integers.text import to_text

__all__ = [
    "BitXor",
    "Bounds",
    "ExpressionSyntaxError",
    "FloorDiv",
    "FloorMod",
    "IntegerFunction",
    "IntegerLike",
    "Load",
    "Maximum",
    "Minimum",
    "Ranges",
    "Search",
    "Select",
    "at_least",
    "bit_xor",
    "ceil_div",
    "compile_function",
    "equal",
    "evaluate",
    "floor_div",
    "floor_mod",
    "index_symbol",
    "less",
    "load",
    "maximum",
    "minimum",
    "nodes_of",
    "operands",
    "parse_expression",
    "search",
    "select",
    "simplify",
    "size_symbol",
    "symbols_of",
    "tables_in",
    "to_text",
]
