"""Kernels add in the order that `summation_orders` derives from their graphs, bit for bit.

Elements of A and B are integers whose products are exact in f32 and whose sums are not. So another
order of additions gives other bits, and it does not matter whether multiply-adds are fused.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import codegen
from codegen.kernel import Kernel
from coordgraph import Gemm, KernelGraph
from coordgraph.interpreter.program import program
from coordgraph.tilings import macro_tile
from coordgraph.verification.summation_orders import Products, Sum, Term, summation_orders
from passes import Pipeline
from tests.passes.schedules import SCHEDULES
from tests.support.sampling import chosen, quick_cases

EXACT = [name for name in SCHEDULES if "atomic" not in name]
"""Schedules with one order of additions in every run."""
TARGETS = {"cpu": (8, 8, 4), "interpreter": (4, 4, 1)}
"""Macro tile (m, n, k) for each target.

The interpreter sums a k tile by BLAS, in an unknown order, so its k tiles have one element.
"""


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(m + 10 * n + 100 * k)
    a, b = (random.integers(1, 1 << 11, s) * random.choice([-1, 1], s) for s in ((m, k), (k, n)))
    return a.astype(np.float32), b.astype(np.float32)


def value(term: Term, products: np.ndarray, tile: int) -> np.ndarray:
    """The sum of `products` over k, added in f32 in the order that `term` describes.

    Args:
        term: the order of additions: k tiles that are added one after another, or a sum of two
            such terms.
        products: the products a·b to add, as an array whose first axis is k.
        tile: number of elements of a k tile.
    """
    if isinstance(term, Sum):
        one, other = (value(each, products, tile) for each in term.terms)
        return one + other
    assert isinstance(term, Products)
    total = np.zeros(products.shape[1:], np.float32)
    if term.start is not None:
        total = value(term.start, products, tile)
    for first, end in term.ranges:
        for each in products[first * tile : end * tile]:
            total = total + each
    return total


def expected(graph: KernelGraph, a: np.ndarray, b: np.ndarray, workgroups: int) -> np.ndarray:
    """D, computed with NumPy by additions in the order that is derived from the graph."""
    (m, k), n = a.shape, b.shape[1]
    given = {"m": m, "n": n, "k": k, "workgroups": workgroups, "read_c": 0}
    known = {p.name for p in graph.parameters.given}
    values = graph.parameters.launch({x: v for x, v in given.items() if x in known}, {})
    d = np.full((m, n), np.nan, np.float32)
    (rows, columns), step = graph.tilings.unit, macro_tile(graph.coordinates)[2]
    most = [max(tiling.shape[axis] for tiling in graph.tilings) for axis in (0, 1)]
    for (at_m, at_n), terms in summation_orders(program(graph), values).items():
        assert len({*terms}) == 1
        # (at_m, at_n) counts output tiles of the smallest shape; for a larger tile, it is the first
        # small tile inside. Small tiles with their own epilogues come later, and overwrite their
        # part of D.
        here = np.s_[at_m * rows : at_m * rows + most[0], at_n * columns : at_n * columns + most[1]]
        products = a.T[:, here[0], None] * b[:, None, here[1]]
        d[here] = value(terms[0], products, step)
    return d


@cache
def kernel(name: str, target: str) -> Kernel:
    graph = Pipeline.parse(name)(Gemm("f32").graph(TARGETS[target]), verify="structure")
    return codegen.compile(graph, target)


CASES = [*product(EXACT, TARGETS)]
SAMPLE = [
    ("data-parallel{persistent=true}", "cpu"),
    ("split-k{splits=3}", "cpu"),
    ("stream-k{owner=last}", "cpu"),
    ("stream-k{reduction=scatter}", "interpreter"),
    ("stream-k{k_order=interleaved}", "interpreter"),
    ("stream-k{reduction=tree}", "interpreter"),
]


@quick_cases(1)
@pytest.mark.parametrize(("name", "target"), chosen(SAMPLE, CASES))
@settings(max_examples=6, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 12), st.integers(1, 40)),
    workgroups=st.integers(1, 7),
)
def test_bits_are_those_of_the_derived_order(
    name: str, target: str, sizes: tuple[int, int, int], workgroups: int
):
    run = kernel(name, target)
    a, b = operands(*sizes)
    options: dict[str, Any] = {}
    if any(p.name == "workgroups" for p in run.graph.parameters.given):
        options["workgroups"] = workgroups
    found = run(a, b, **options)
    want = expected(run.graph, a, b, workgroups)
    assert np.array_equal(found, want), str(np.argwhere(found != want)[:3])


def test_another_order_gives_other_bits():
    a, b = operands(8, 8, 64)
    d = {}
    for name in ("data-parallel", "split-k{splits=3}", "split-k{splits=4}"):
        d[name] = kernel(name, "cpu")(a, b).tobytes()
    assert len({*d.values()}) == 3
