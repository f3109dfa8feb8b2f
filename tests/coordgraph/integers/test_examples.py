"""Examples of values inside ranges: they obey every statement, and only save searches."""

import pytest
from sympy import Expr, Lt, Symbol

from coordgraph.integers import (
    Ranges,
    ceil_div,
    evaluate,
    floor_div,
    floor_mod,
    index_symbol,
    load,
    size_symbol,
)
from coordgraph.integers.examples import CHOICES, Example
from coordgraph.integers.polynomials import atom_of, to_polynomial
from coordgraph.integers.proofs import Prover, _Search  # pyright: ignore[reportPrivateUsage]

M, TILES, GRID, SHARE = map(size_symbol, ("m", "tiles", "grid", "share"))
WORKGROUP, LOOP = map(index_symbol, ("workgroup", "loop"))
SIZES = (
    Ranges()
    .with_bounds(M, 1, (100_000,))
    .with_bounds(TILES, 1, (1000,))
    .with_bounds(GRID, 1, (500,))
    .with_definitions({TILES: ceil_div(M, 128), SHARE: ceil_div(TILES, GRID)})
    .with_fact(TILES * GRID, 300_000)
)
KERNEL = SIZES.with_index(WORKGROUP, GRID).with_bounds(LOOP, 0, (SHARE - 1,))
TABLED = KERNEL.with_table(index_symbol("offsets"), M)


def examples(ranges: Ranges) -> tuple[Example, ...]:
    return ranges._prover.examples  # pyright: ignore[reportPrivateUsage]


def value(example: Example, expr: Expr) -> int:
    found = example.of(to_polynomial(expr))
    assert found is not None
    return found


@pytest.mark.parametrize("ranges", [SIZES, KERNEL, KERNEL.with_guard(Lt(LOOP + 1, SHARE))])
def test_examples_obey_every_statement(ranges: Ranges):
    found = examples(ranges)
    assert {example.choice for example in found} <= {*CHOICES}
    assert found
    for example in found:
        values: dict[Symbol, int] = {s: value(example, s) for s in (M, TILES, GRID, SHARE)}
        for symbol, known in ranges.bounds.items():
            values[symbol] = value(example, symbol)
            assert all(evaluate(low, values) <= values[symbol] for low in known.lowers)
            assert all(values[symbol] <= evaluate(high, values) for high in known.uppers)
        for symbol, expr in ranges.definitions.items():
            assert values[symbol] == evaluate(expr, values)
        assert all(evaluate(expr, values) <= most for expr, most in ranges.facts)
        assert all(evaluate(guard, values) for guard in ranges.guards)


def test_examples_differ():
    assert len({value(example, WORKGROUP) for example in examples(KERNEL)}) > 1
    assert len({value(example, M) for example in examples(KERNEL)}) > 1


def test_contradictory_statements_have_no_example():
    assert not examples(SIZES.with_fact(M, 0))
    assert not examples(SIZES.with_guard(Lt(M, TILES)))
    assert not examples(KERNEL.with_index(LOOP, floor_div(GRID, 1000)))


def test_an_entry_of_a_table_has_no_value():
    for example in examples(TABLED):
        assert example.at(atom_of(load(index_symbol("offsets"), WORKGROUP))) is None


def test_a_false_inequality_starts_no_search(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise AssertionError("a search was started")

    for symbol in (M, TILES, GRID, SHARE, WORKGROUP, LOOP):
        KERNEL.interval(symbol)  # searches for the numeric bounds of symbols
    monkeypatch.setattr(_Search, "steps", fail)
    assert not KERNEL.prove_less(WORKGROUP * SHARE + LOOP, TILES)
    assert not KERNEL.prove_nonnegative(floor_mod(M, 128) - 1)
    with pytest.raises(AssertionError, match="a search"):
        KERNEL.prove_nonnegative(GRID * SHARE - TILES)


@pytest.mark.parametrize(
    "expr",
    [
        GRID - 1 - WORKGROUP,
        SHARE - 1 - LOOP,
        128 * TILES - M,
        GRID * SHARE - TILES,
        GRID * SHARE - 1 - WORKGROUP * SHARE - LOOP,
        TILES - WORKGROUP,
        floor_div(M, 128) - 1,
        TILES - floor_div(M, 128),
        LOOP - WORKGROUP,
    ],
    ids=str,
)
def test_proofs_and_bounds_do_not_depend_on_examples(expr: Expr, monkeypatch: pytest.MonkeyPatch):
    with_examples = KERNEL._prover  # pyright: ignore[reportPrivateUsage]
    parts = (with_examples.facts, KERNEL.definitions, with_examples.guards)
    bounds = {
        symbol: (tuple(map(to_polynomial, b.lowers)), tuple(map(to_polynomial, b.uppers)))
        for symbol, b in KERNEL.bounds.items()
    }
    p = to_polynomial(expr)
    found = with_examples.at_least_zero(p), with_examples.minimum(p), with_examples.maximum(p)
    without = Prover(bounds, *parts)
    monkeypatch.setattr(without, "examples", ())
    assert found == (without.at_least_zero(p), without.minimum(p), without.maximum(p))
