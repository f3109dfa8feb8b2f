"""`Ranges` objects with equal facts share one prover and its cache of bounds."""

import gc
import pickle
from weakref import ref

import pytest
from sympy import Expr, Symbol

from coordgraph.integers import Bounds, Ranges, elimination, index_symbol, provers, size_symbol
from coordgraph.integers.polynomials import add, to_polynomial

n, m = size_symbol("n"), size_symbol("m")
i, j = index_symbol("i"), index_symbol("j")


def stated(symbol: Symbol = i, size: Expr = n, limit: int = 99) -> Ranges:
    return Ranges().with_fact(n * m, limit).with_index(symbol, size)


def test_equal_statements_share_a_prover() -> None:
    first, second = stated(), stated()
    assert first is not second
    assert first._prover is second._prover
    assert first.with_index(j, 4)._prover is second.with_index(j, 4)._prover
    turned = Ranges().with_index(j, 4).with_index(i, 8)
    assert turned._prover is not Ranges().with_index(i, 8).with_index(j, 4)._prover, "scopes differ"


def test_an_inner_prover_forgets_a_definition() -> None:
    defined = stated().with_definition(j, n + m)
    kept, forgotten = defined.with_upper(j, 9), defined.with_value(j, n)
    assert kept._prover is not forgotten._prover
    assert kept.prove_nonnegative(j - n - m)
    assert not forgotten.prove_nonnegative(j - n - m)
    assert forgotten.prove_nonnegative(n - j)
    assert kept.about(i) is forgotten.about(i) is defined.about(i)


def test_bounds_are_pickled_without_their_hash() -> None:
    bounds = Bounds((n,), (m + 1, n * m))
    copied = pickle.loads(pickle.dumps(bounds))
    assert copied == bounds
    assert hash(copied) == hash(bounds)
    assert copied.symbols == {n, m}
    _, arguments = bounds.__reduce__()
    assert arguments == (bounds.lowers, bounds.uppers), "hashes differ between processes"


def test_other_statements_have_a_prover_of_their_own() -> None:
    table = Symbol("table")
    found = [
        stated(),
        stated(j),
        stated(size=m),
        stated(limit=98),
        stated().with_definition(j, n),
        stated().with_guard(n < m),
        stated().with_table(table, 7),
        stated().with_table(table, 8),
        stated().with_table(table, 7, from_zero=True),
        stated().with_table(table, 7, step=None),
        stated().with_index(j, 4),
        stated().with_bounds(j, 1, (4,)),
    ]
    assert len({id(known._prover) for known in found}) == len(found)


def test_a_circular_prover_is_not_shared() -> None:
    def circular() -> Ranges:
        return Ranges().with_bounds(i, 0, (j,)).with_upper(j, i)

    first = circular()
    assert first._prover is circular()._prover
    assert first.interval(i) == (0, None)
    assert first._prover.circular
    assert first._prover is not circular()._prover
    assert not stated()._prover.circular


def test_a_product_of_many_atoms_is_given_up() -> None:
    """A product of d symbols, each rewritten as its lower bound plus a rest, has 2**d terms.

    The prover gives up instead of expanding 2**60 terms.
    """
    atoms = [index_symbol(f"x{number}") for number in range(60)]
    ranges, product = Ranges(), n * m
    for atom in atoms:
        ranges = ranges.with_bounds(atom, 1, (2,))
        product *= atom
    assert not ranges.prove_nonnegative(product - n - 1)


@pytest.mark.parametrize("most", [elimination.MOST_TERMS, 1])
def test_a_search_ends_at_its_limit_of_terms(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elimination, "MOST_TERMS", most)
    # The fact contains `most`, so that each case has a prover (and cache) of its own.
    ranges = Ranges().with_index(i, n).with_index(j, m).with_fact(n * m, 10_000 + most)
    assert ranges.prove_nonnegative(10_000 + most - (i * m + j)) == (most > 1)


def test_searches_share_the_steps_of_polynomials() -> None:
    """Polynomials that differ only in the constant term share a node of the prover's search.

    The node is shared even if one polynomial is proved in an outer scope and the other in an inner
    one.
    """
    ranges = Ranges().with_index(i, n).with_fact(n * m, 98_765)
    inner, p = ranges.with_index(j, m), to_polynomial(i * m - n)
    node, constant = inner._prover.search_node(add(p, {(): 7}), ())
    assert (node.polynomial, constant) == (p, 7)
    assert ranges._prover.search_node(p, ()) == (node, 0)
    assert node.prover is ranges._prover
    assert list(node.steps(0)) == list(node.steps(7))
    guarded, _ = inner._prover.search_node(p, (to_polynomial(j - 2),))
    assert guarded.prover is inner._prover
    assert guarded is not node


def test_one_collection_frees_nested_provers() -> None:
    """Provers are parts of cycles; the cache of provers must not keep the outer ones alive."""
    size = size_symbol("freed")
    ranges = Ranges().with_fact(size * m, 99)
    for depth in range(6):
        ranges = ranges.with_index(index_symbol(f"freed{depth}"), size)
        assert ranges.prove_nonnegative(size - index_symbol(f"freed{depth}") - 1)
    found = [ref(prover) for prover in (ranges._prover, *ranges._prover._outers)]
    assert len(found) >= 6
    del ranges
    provers._kept.clear()
    gc.collect()
    assert not any(prover() for prover in found)
