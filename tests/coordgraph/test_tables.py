"""Tables are checked for the lengths and the orders that edges and operations of a graph need."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Expr, Integer

import codegen
from coordgraph import EvaluationError, Gemm, KernelGraph, LaunchError, VerifyError, parse
from coordgraph.coordinates import check_laws
from coordgraph.coordinates.edges import Permute, Ragged, Sizes
from coordgraph.errors import NoEntry
from coordgraph.integers import index_symbol, load
from coordgraph.interpreter import interpret
from coordgraph.tables import SORTS, Table, TableNeed, place_of, tabulate
from passes import Pipeline
from tests.coordgraph.coordinates.strategies import STRATEGIES, Case, table_of
from tests.support.lists import ends_of
from tests.support.sampling import quick_cases

LIST = Gemm("f32", grouped=True, group_axis="mnk")
GRAPH: KernelGraph = Pipeline.parse("longest-first,stream-k{workgroups=5}")(
    LIST.graph((16, 16, 16))
)
TEXT = GRAPH.text()
PERMUTE, CONCATENATE = "group -> rank table=order", "-> global table=iterations_before"
RAGGED, DIAGONAL = "A.0 -> group, A.row table=m_offsets", "A.0, A.1 table=a_starts"
READS = "reads=(load(m_offsets, group), "
SUM = "sums (load(m_tile_starts, output_tiles_before.at + 1)"


def edited(before: str, after: str) -> KernelGraph:
    assert TEXT.count(before) == 1
    return parse(TEXT.replace(before, after))


def replaced(before: str, name: str) -> tuple[str, str]:
    """(old text, new text): a replacement in a graph's text, by which a test plants a fault.

    The old text `before` is the line of an edge; in the new one the edge reads the table `name`.
    """
    return before, f"{before.rpartition('=')[0]}={name}"


FIRST, BORDERS = "Assign name=k_first value=(", "table a_starts"
EDITS = {
    "an operation reads past the end of a table": (
        (FIRST, "Assign name=k_first value=load(m_offsets, groups + 1000000) + ("),
        r"reads load\(m_offsets, groups \+ 1000000\), but the table 'm_offsets' has only "
        r"groups \+ 1 entries; correct the position or the length",
    ),
    "an operation reads before the beginning of a table": (
        (FIRST, "Assign name=k_first value=load(m_offsets, -1) + ("),
        r"reads load\(m_offsets, -1\), but the table 'm_offsets' has only",
    ),
    "a negative number of entries is searched": (
        (FIRST, "Assign name=k_first value=search(m_offsets, groups - 5, 3) + ("),
        r"search\(m_offsets, groups - 5, 3\): .* search between 0 and all of them",
    ),
    "a table's length depends on another table": (
        (BORDERS, f'table extra [tiles_m + 1] <= 9 sums 1 ""\n{BORDERS}'),
        "table 'extra' reads 'tiles_m', which is not a parameter that the host knows",
    ),
    "a table's maximum depends on another table": (
        (BORDERS, f'table extra [groups + 1] <= tiles_m sums 1 ""\n{BORDERS}'),
        "table 'extra' reads 'tiles_m', which is not a parameter that the host knows",
    ),
    "a table's step reads a dimension": (
        (BORDERS, f'table extra [groups + 1] <= 9 sums workgroup ""\n{BORDERS}'),
        "table 'extra' reads 'workgroup', which is not a parameter that the host knows",
    ),
    "a table's step reads another table's position": (
        (BORDERS, f'table extra [groups + 1] <= 9 sums b_starts.at ""\n{BORDERS}'),
        r"table 'extra' reads 'b_starts\.at', which is not a parameter that the host knows",
    ),
    "Permute by a table of sums": (
        replaced(PERMUTE, "m_tile_starts"),
        r"Permute\(group -> rank\): the table 'm_tile_starts' must be a permutation, but "
        "it has the rule 'sums'; name a table with the rule 'sorts'",
    ),
    "Permute by a table that the caller gives": (
        replaced(PERMUTE, "m_offsets"),
        "'m_offsets' must be a permutation, but it is given by the caller",
    ),
    "Concatenate by a permutation": (
        replaced(CONCATENATE, "order"),
        r"Concatenate\(.* -> global\): the entries of the table 'order' must be non-decreasing, "
        "but it has the rule 'sorts'; name a table that the caller gives",
    ),
    "extents of Concatenate by a permutation": (
        ("extents=(m_tile_starts", "extents=(order"),
        "the entries of the table 'order' must be non-decreasing",
    ),
    "Ragged by a permutation": (
        replaced(RAGGED, "order"),
        r"Ragged\(A.0 -> group, A.row\): the entries of the table 'order' must be non-decreasing",
    ),
    "Diagonal by a permutation": (
        replaced(DIAGONAL, "order"),
        r"Diagonal\(A -> group, A.0, A.1\): the entries of the table 'order' must be non-decr",
    ),
    "rows of Diagonal by a permutation": (
        (f"{DIAGONAL} rows=m_offsets", f"{DIAGONAL} rows=order"),
        "the entries of the table 'order' must be non-decreasing",
    ),
    "an operation searches a permutation": (
        (READS, f"{READS}search(order, groups, group), "),
        r"search\(order, groups, group\): the entries of the table 'order' must be non-decreasing",
    ),
    "a search covers more entries than the table has": (
        (READS, f"{READS}search(m_offsets, groups + 2, group), "),
        "the table 'm_offsets' has groups . 1 entries, and the search covers groups . 2; search",
    ),
    "an operation reads a parameter as a table": (
        (READS, f"{READS}load(groups, group), "),
        r"load\(groups, group\): there is no table 'groups'",
    ),
    "Ragged by an unknown table": (
        replaced(RAGGED, "nope"),
        r"Ragged\(A.0 -> group, A.row\): there is no table 'nope'; the kernel has m_offsets",
    ),
    "Ragged without a table": (
        (RAGGED, RAGGED.partition(" table")[0]),
        r"Ragged\(A.0 -> group, A.row\): it names no table; the kernel has m_offsets",
    ),
    "Concatenate by an unknown table": (
        replaced(CONCATENATE, "nope"),
        r"Concatenate\(.*\): there is no table 'nope'",
    ),
    "extents of Concatenate by an unknown table": (
        ("extents=(m_tile_starts", "extents=(nope"),
        "no table 'nope'",
    ),
    "Permute by an unknown table": (
        replaced(PERMUTE, "nope"),
        r"Permute\(group -> rank\): there is no table 'nope'",
    ),
    "inverse of Permute by an unknown table": (
        (PERMUTE, f"{PERMUTE} inverse=nope"),
        r"Permute\(group -> rank\): there is no table 'nope'",
    ),
    "inverse of Permute by a table that is not the inverse": (
        (PERMUTE, f"{PERMUTE} inverse=order"),
        "'order' is not declared as the inverse of 'order'; name a table with the rule 'sorts' and "
        r"the step groups - load\(order, place\) - 1",
    ),
    "Concatenate by a table that may not begin with 0": (
        replaced(CONCATENATE, "m_offsets"),
        "the table 'm_offsets' must begin with 0, but the caller gives its entries",
    ),
    "a permutation with an entry too few": (
        ("table order [groups]", "table order [groups - 1]"),
        r"Permute.*: the table 'order' must have groups entries, but it has groups - 1; correct",
    ),
    "a permutation's length by another parameter": (
        ("table order [groups]", "table order [min(groups, elements_a)]"),
        "the table 'order' must have groups entries",
    ),
    "starts of blocks with an entry too few": (
        ("table a_starts [groups + 1]", "table a_starts [groups]"),
        r"Diagonal.*: the table 'a_starts' must have groups . 1 entries, but it has groups;",
    ),
    "a table longer than the table that it reads": (
        ("table output_tiles_before [groups + 1]", "table output_tiles_before [groups + 2]"),
        r"table 'output_tiles_before' reads load\(m_tile_starts, groups . 1\), but the table "
        "'m_tile_starts' has only groups . 1 entries; correct the position or the length",
    ),
    "a parameter reads past the end of a table": (
        ("max(1, load(m_tile_starts, groups))", "max(1, load(m_tile_starts, groups + 1))"),
        r"parameter 'tiles_m' reads load\(m_tile_starts, groups . 1\), but the table 'm_tile_st",
    ),
    "a table reads a later table": (
        (SUM, SUM.replace("m_tile_starts", "d_starts")),
        "table 'output_tiles_before' reads 'd_starts', which is not a table declared before it",
    ),
    "a permutation with a wrong maximum": (
        ("<= groups - 1 sorts", "<= groups - 3 sorts"),
        "its declared maximum is groups - 3; declare the maximum groups - 1",
    ),
}


@quick_cases(5)
@pytest.mark.parametrize("name", EDITS)
def test_what_does_not_verify(name: str):
    edit, why = EDITS[name]
    graph = edited(*edit)
    with pytest.raises(VerifyError, match=why):
        graph.verify()
    with pytest.raises(VerifyError, match=why):
        codegen.compile(graph, target="cpu")


def test_two_tables_of_a_name():
    with GRAPH.edit() as e:
        e.table(GRAPH.parameters.tables[0])
    with pytest.raises(VerifyError, match="there are two tables 'm_offsets'"):
        e.graph.verify()


def test_a_guarded_entry_may_be_behind_the_end():
    step = "(load(k_tile_starts, iterations_before.at + 1)"
    guarded = "select(iterations_before.at < elements_a, load(m_tile_starts, groups + 1), 1)*"
    edited(f"sums {step}", f"sums {guarded}{step}").verify()


INVERSE = 'table seat [groups] <= groups - 1 sorts {} "where a group is"\ntable m_tile_starts'


def with_inverse(step: str) -> KernelGraph:
    text = TEXT.replace(PERMUTE, f"{PERMUTE} inverse=seat")
    return parse(text.replace("table m_tile_starts", INVERSE.format(step), 1))


def test_an_inverse_is_declared_by_its_step():
    graph = with_inverse("groups - 1 - load(order, seat.at)").verify()
    ends = ends_of([(16, 16, k) for k in (16, 64, 0, 32)])
    names: list[str] = ["m_offsets", "n_offsets", "k_offsets"]
    tables = {name: list(map(int, row)) for name, row in zip(names, ends, strict=True)}
    elements = dict.fromkeys(("elements_a", "elements_b", "elements_d"), 10**6)
    found = tabulate(graph.parameters.tables, tables, {"groups": 4, **elements})
    assert found["order"] == (1, 3, 0, 2)
    assert [found["seat"][group] for group in found["order"]] == [0, 1, 2, 3]
    for step in ("load(order, seat.at)", "seat.at - load(order, seat.at)", "seat.at"):
        with pytest.raises(VerifyError, match="'seat' is not declared as the inverse of 'order'"):
            with_inverse(step).verify()


@given(st.permutations(range(5)))
def test_sorting_by_an_order_turns_it_round(entries: list[int]):
    size, order = index_symbol("n"), index_symbol("order")
    seat = Table("seat", size, size - 1, size - 1 - load(order, place_of("seat")), rule=SORTS)
    assert seat.inverts(Table("order", size, size - 1))
    steps = [5 - 1 - entry for entry in entries]
    found = sorted(range(5), key=lambda i: -steps[i])
    assert [entries[i] for i in found] == [0, 1, 2, 3, 4]


ROWS = 48
OF_D = {"elements_d": 5 * ROWS * 16}


def arrays() -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """([A, B], offsets by table name) of five products with different k."""
    sizes = [(ROWS, 16, k) for k in (16, 64, 8, 32, 16)]
    names = ("m_offsets", "n_offsets", "k_offsets")
    offsets = [np.array(ends, np.int32) for ends in ends_of(sizes)]
    depth = sum(k for *_, k in sizes)
    operands = [np.ones(extent * depth, np.float32) for extent in (ROWS, 16)]
    return operands, dict(zip(names, offsets, strict=True))


def test_the_arrays_fit():
    operands, tables = arrays()
    found = interpret(GRAPH, *operands, parameters=OF_D, tables=tables)
    assert sorted({*found.d.tolist()}) == [8, 16, 32, 64]


def test_indices_read_what_is_not_there():
    """`interpret` detects reads outside a table, also in a graph that was not verified."""
    graph = edited(*replaced(PERMUTE, "m_tile_starts"))
    operands, tables = arrays()
    why = r"outside a table: entry 7 is read from a table that has 6 entries; .* call .* verify\(\)"
    with pytest.raises(EvaluationError, match=why):
        interpret(graph, *operands, parameters=OF_D, tables=tables)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            EDITS["a permutation with an entry too few"][0],
            "at position 4 reads outside an earlier table: entry 4 is read from a table that has 4",
        ),
        (
            EDITS["a parameter reads past the end of a table"][0],
            r"tiles_m = .*: entry 6 is read from a table that has 6 entries; give a table with",
        ),
        (EDITS["a permutation with a wrong maximum"][0], r"order\[\d\] = 4 is larger than 2"),
    ],
)
def test_launches_of_tables_that_do_not_fit(edit: tuple[str, str], why: str):
    operands, tables = arrays()
    elements = dict.fromkeys(("elements_a", "elements_b", "elements_d"), 10**6)
    graph, given_ = edited(*edit), {"groups": 5, "read_c": 0, **elements}
    with pytest.raises(LaunchError, match=why):
        graph.parameters.launch(given_, {name: list(map(int, t)) for name, t in tables.items()})
    with pytest.raises(LaunchError, match=why):
        interpret(graph, *operands, parameters=OF_D, tables=tables)


def test_an_order_has_its_bounds_checked():
    size = index_symbol("n")
    order = Table("order", size, size - 3, index_symbol("order.at"), rule=SORTS)
    assert list(order.problems(GRAPH.parameters.ranges()))
    with pytest.raises(LaunchError, match=r"order\[0\] = 4 is larger than 2"):
        tabulate((order,), {}, {"n": 5})
    with pytest.raises(LaunchError, match="order has 4 entries, but the kernel needs 5"):
        order.checked((3, 0, 1, 2), {"n": 5})
    right = replace(order, maximum=size - 1)
    assert not list(right.problems(GRAPH.parameters.ranges()))
    assert tabulate((right,), {}, {"n": 5}) == {"order": (4, 3, 2, 1, 0)}


def test_no_entry_is_an_error_of_lookup_too():
    assert issubclass(NoEntry, IndexError)
    assert issubclass(NoEntry, EvaluationError)


READING = [name for name in STRATEGIES if name in ("Ragged", "Concatenate", "Diagonal", "Permute")]


@settings(max_examples=60)
@given(st.sampled_from(READING).flatmap(lambda name: STRATEGIES[name]()))
def test_edges_need_what_they_have(case: Case):
    """The tables of a valid random edge have the length and the order that `table_needs` states."""
    edge, above, below = case
    sizes = Sizes(tuple(map(Integer, above)), tuple(map(Integer, below)))
    tables, needs = table_of(edge), edge.table_needs(sizes)
    assert {need.table for need in needs} == set(tables)
    for need in needs:
        entries = tables[need.table]
        assert need.length == len(entries)
        assert sorted(entries) == list(range(len(entries)) if need.rule == SORTS else entries)
        assert entries[0] == 0 or not need.from_zero


@dataclass(frozen=True)
class Silent(Ragged):
    """A faulty edge: like `Ragged`, but `table_needs` does not list the table that it reads."""

    laws = Ragged.laws

    def table_needs(self, sizes: Sizes) -> tuple[TableNeed, ...]:
        return ()


def test_an_edge_that_does_not_say_what_it_reads():
    sizes, tables = {"i": 3, "g": 2, "o": 3}, {"t": (0, 1, 3)}
    check_laws(Ragged("i", ("g", "o"), "t"), sizes, tables)
    with pytest.raises(VerifyError, match="read the table 't', which table_needs does not list"):
        check_laws(Silent("i", ("g", "o"), "t"), sizes, tables)


def test_sizes_that_are_not_known_ask_for_no_length():
    n: Expr = index_symbol("n")
    (need,) = Permute("i", "o", "t").table_needs(Sizes((None,), (n,)))
    assert (need.length, need.rule) == (n, SORTS)
    (need,) = Permute("i", "o", "t").table_needs(Sizes((None,), (None,)))
    assert need.length is None
    (need,) = Ragged("i", ("g", "o"), "t").table_needs(Sizes((n,), (None, None)))
    table = Table("t", n, n)
    assert not list(need.unmet({"t": table}, GRAPH.parameters.ranges()))
