"""Every schedule computes lists of products (each with its own m, n and k) correctly."""

from __future__ import annotations

from functools import cache
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordgraph import (
    Gemm,
    KernelGraph,
    LaunchError,
    from_json,
    parse,
)
from coordgraph.coordinates.edges import Concatenate, Diagonal
from coordgraph.integers import index_symbol, load
from coordgraph.interpreter import SCHEDULERS, Trace, interpret, trace
from coordgraph.interpreter.schedulers import Shuffled
from coordgraph.products import tile_plane
from coordgraph.progress import wait_direction
from passes import Pipeline, StreamK
from passes.schedules.partly_streamed import PartlyStreamed
from tests.passes.schedules import STREAMS, TILE, schedule, symbolic
from tests.support.lists import Sizes, drawn, ends_of, views
from tests.support.sampling import chosen, cover, kinds, quick_cases, words

PARTLY = (
    "two-tile-stream-k",
    "two-tile-stream-k{owner=last,reduction=tree}",
    "two-tile-stream-k{reduction=scatter}",
    "two-tile-stream-k{reduction=atomic}",
    "hybrid-stream-k{owner=last}",
    "hybrid-stream-k{least=3}",
    "hybrid-stream-k{owner=last,reduction=turnstile}",
)
PERSISTENT = "data-parallel{persistent=true}"
SORTED = tuple(
    f"longest-first,{name}"
    for name in (PERSISTENT, "stream-k{owner=last,reduction=turnstile}", "two-tile-stream-k")
)
EVERY = (PERSISTENT, *STREAMS, *PARTLY, *SORTED)
LAYOUTS = ("nn", "nt", "tn", "tt")
CORNERS: dict[str, list[Sizes]] = {
    "one element": [(1, 1, 1)],
    "whole tiles": [(8, 4, 12), (4, 8, 4)],
    "no rows between others": [(5, 9, 9), (0, 3, 4), (3, 2, 7)],
    "no columns between others": [(5, 9, 9), (3, 0, 4), (3, 2, 7)],
    "no k at the ends": [(3, 5, 0), (9, 2, 5), (6, 1, 0)],
    "nothing at the ends": [(0, 0, 0), (4, 9, 5), (0, 7, 3)],
    "all empty": [(0, 4, 4), (5, 0, 3), (0, 0, 0)],
    "one empty": [(0, 0, 0)],
    "without rows, but wide and deep": [(3, 0, 9), (0, 9, 30)],
    "without columns, but high and deep": [(9, 0, 30)],
    "no k at all": [(5, 6, 0), (1, 9, 0)],
    "one large, others small": [(1, 1, 1), (14, 13, 40), (2, 1, 3), (1, 5, 2)],
    "deep, wide and high": [(1, 1, 60), (1, 30, 2), (30, 1, 2)],
}


@cache
def graph(name: str, layout: str = "nn") -> KernelGraph:
    a, b = (side == "t" for side in layout)
    return Pipeline.parse(name)(
        Gemm("f32", grouped=True, group_axis="mnk", transpose_a=a, transpose_b=b).graph(TILE)
    )


def tiles_of(sizes: list[Sizes]) -> list[tuple[int, ...]]:
    """For each group, its numbers of tiles along m, n and k.

    Along n and k a group has at least one tile; if the extent is 0, this tile is padding (k = 0
    gives zeros). If no group has output tiles, the last group has one of padding, because no count
    may be 0.
    """
    found: list[tuple[int, ...]] = []
    for m, n, k in sizes:
        given = (m, max(1, n), max(1, k * min(1, m) * min(1, n)))
        found.append(tuple(-(-extent // tile) for extent, tile in zip(given, TILE, strict=True)))
    if not any(map(prod, found)):
        found[-1] = (1, 1, 1)
    return found


def tables_of(sizes: list[Sizes]) -> dict[str, np.ndarray]:
    return dict(zip(("m_offsets", "n_offsets", "k_offsets"), ends_of(sizes), strict=True))


def record_of(name: str, sizes: list[Sizes], workgroups: int) -> Trace:
    tables = {name: [*map(int, row)] for name, row in tables_of(sizes).items()}
    made, large = graph(name), 10**6
    elements = dict.fromkeys(("elements_a", "elements_b", "elements_d"), large)
    values = {**elements, "workgroups": workgroups, "groups": len(sizes)}
    return trace(made, values, tables)


def whole(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Random integers from -4 to 4, whose f32 sums are exact in any order."""
    return random.integers(-4, 5, shape).astype(np.float32)


def check(
    made: KernelGraph,
    sizes: list[Sizes],
    workgroups: int,
    *,
    bad: frozenset[int] = frozenset(),
    **options: Any,
) -> None:
    """Compare the interpreter's D with NumPy; only the elements of the matrices may be written.

    Elements between rows are NaN, and the products `bad` (by number) contain NaN and infinity.
    """
    random, gemm = np.random.default_rng(len(sizes)), made.gemm
    a, left = views([(k, m) if gemm.transpose_a else (m, k) for m, _, k in sizes])
    b, right = views([(n, k) if gemm.transpose_b else (k, n) for _, n, k in sizes])
    c, added = views([(m, n) for m, n, _ in sizes])
    wanted, products = views([(m, n) for m, n, _ in sizes])
    exists, inside = views([(m, n) for m, n, _ in sizes], np.bool_, fill=False)
    for group, (x, y, z, d, mask) in enumerate(
        zip(left, right, added, products, inside, strict=True)
    ):
        x[...], y[...], z[...], mask[...] = (
            whole(random, *x.shape), whole(random, *y.shape), whole(random, *z.shape), True
        )  # fmt: skip
        d[...] = 3 * z + 2 * ((x.T if gemm.transpose_a else x) @ (y.T if gemm.transpose_b else y))
        if group in bad:
            x[...], y[...] = np.nan, np.inf
            if x.size and y.size:
                d[...] = np.nan
    found = interpret(
        made,
        a,
        b,
        c,
        alpha=2,
        beta=3,
        parameters={"workgroups": workgroups},
        tables=tables_of(sizes),
        **options,
    )
    assert np.array_equal(found.written, exists)
    assert np.array_equal(found.d[exists], wanted[exists], equal_nan=True)


extents = st.one_of(st.integers(0, 3), st.integers(0, 2 * TILE[0] + 1))
lists = st.lists(
    st.tuples(extents, extents, st.one_of(st.just(0), st.integers(0, 4 * TILE[2] + 1))),
    min_size=1,
    max_size=6,
)


# Tests of traces: which workgroup computes which k tiles.


@quick_cases(1)
@pytest.mark.parametrize("name", cover(0, EVERY, kinds))
def test_every_iteration_once_and_every_tile_ends_once(name: str):
    def on(sizes: list[Sizes], workgroups: int):
        found, shapes = record_of(name, sizes, workgroups), tiles_of(sizes)
        assert found.problems() == ()
        assert found.shapes == tuple(shapes)
        assert found.depths == tuple(depth for *_, depth in shapes)
        assert found.useful == sum(map(prod, shapes)) == sum(found.iterations)
        assert not any(segment.padding for segment in found.segments)
        for segment in found.segments:
            assert segment.depth == found.depth(segment.tile) == shapes[segment.tile[0]][-1]
        ended = {end.tile for end in found.epilogues}
        assert len(ended) == sum(m * n for m, n, _ in shapes)

    for sizes in CORNERS.values():
        for workgroups in (1, 3, 40):
            on(sizes, workgroups)
    settings(max_examples=6)(given(lists, st.integers(1, 30))(on))()


@quick_cases(2)
@pytest.mark.parametrize("name", cover(0, STREAMS, words))
def test_streams_balance_across_groups(name: str):
    """Stream-K gives all busy workgroups equally many iterations, except the last of them.

    This holds for any extents of the products.
    """
    sizes, (stream,) = [(9, 3, 50), (0, 9, 9), (1, 1, 3), (20, 7, 9)], Pipeline.parse(name).passes
    assert isinstance(stream, StreamK)
    for workgroups in (1, 7, 16, 200):
        found = record_of(name, sizes, workgroups)
        share = max(stream.least, -(-found.useful // workgroups))
        counts = sorted(found.iterations, reverse=True)
        busy = -(-found.useful // share)
        assert counts[: busy - 1] == [share] * (busy - 1)
        assert sum(counts[:busy]) == found.useful
        assert len(found.idle) == workgroups - busy
    shared = record_of(name, sizes, 7)
    assert any(len({s.tile[0] for s in shared.of(w)}) > 1 for w in range(7)), "of several groups"
    assert any(s.role == "middle" for s in record_of(name, sizes, 50).segments)


@settings(max_examples=20)
@given(lists, st.integers(1, 14))
@example(CORNERS["all empty"], 5)
@example(CORNERS["without rows, but wide and deep"], 5)
@example(CORNERS["one large, others small"], 3)
def test_whole_tiles_go_around(sizes: list[Sizes], workgroups: int):
    """Tiles of all groups, row-major in each group, are assigned round-robin to the workgroups."""
    found, shapes = record_of(PERSISTENT, sizes, workgroups), enumerate(tiles_of(sizes))
    tiles = [(g, i, j) for g, (m, n, _) in shapes for i in range(m) for j in range(n)]
    for workgroup in range(workgroups):
        assert [s.tile for s in found.of(workgroup)] == tiles[workgroup::workgroups]
    assert {s.role for s in found.segments} == {"whole"}


@pytest.mark.slow
@pytest.mark.parametrize("name", cover(0, PARTLY, kinds))
def test_waves_of_whole_tiles_and_a_stream_of_the_others(name: str):
    """The iterations of the first (Stream-K) tiles are divided evenly among workgroups.

    Only the last workgroup may have fewer. Each of the other tiles is computed by one workgroup.
    """

    @given(lists, st.integers(1, 14))
    @settings(max_examples=8)
    @example(CORNERS["one large, others small"], 5)
    @example(CORNERS["all empty"], 3)
    # As many tiles as workgroups.
    @example([(9, 7, 5), (0, 1, 1), (4, 9, 30)], 9)
    # Fewer tiles than workgroups.
    @example([(3, 2, 9)], 40)
    def on(sizes: list[Sizes], workgroups: int):
        found, (partly,) = record_of(name, sizes, workgroups), Pipeline.parse(name).passes
        assert isinstance(partly, PartlyStreamed)
        shapes = enumerate(tiles_of(sizes))
        tiles = [(g, i, j) for g, (m, n, _) in shapes for i in range(m) for j in range(n)]
        waves, rest = divmod(len(tiles), workgroups)
        if rest and name.startswith("two-tile"):
            waves = max(0, waves - 1)
        shared = len(tiles) - waves * workgroups
        streamed = sum(found.depth(tile) for tile in tiles[:shared])
        share = max(partly.least, -(-streamed // workgroups))
        for workgroup in range(workgroups):
            own = found.of(workgroup)
            mine = [s for s in own if s.tile in tiles[:shared]]
            assert sum(s.k_count for s in mine) == min(max(0, streamed - share * workgroup), share)
            whole_ones = [s for s in own if s not in mine]
            assert [s.tile for s in whole_ones] == tiles[shared + workgroup :: workgroups]
            assert {s.role for s in whole_ones} <= {"whole"}

    on()


@quick_cases(2)
@pytest.mark.parametrize("name", cover(0, [*STREAMS[:9], PARTLY[0]], kinds))
def test_waiting_does_not_depend_on_groups(name: str):
    assert wait_direction(graph(name)) == wait_direction(symbolic(str(schedule(name))))


# Tests of the interpreter's results.


@quick_cases(1)
@pytest.mark.parametrize("name", cover(0, EVERY, kinds))
def test_lists_give_the_reference(name: str):
    @given(lists, st.integers(1, 30), st.sampled_from(sorted(SCHEDULERS)))
    @settings(max_examples=4)
    @example(CORNERS["all empty"], 2, "in-order")
    @example(CORNERS["without rows, but wide and deep"], 3, "in-order")
    @example(CORNERS["without columns, but high and deep"], 3, "in-order")
    @example(CORNERS["no k at the ends"], 5, "starve-signallers")
    @example(CORNERS["nothing at the ends"], 4, "reversed")
    @example(CORNERS["one large, others small"], 23, "waiters-first")
    @example(CORNERS["deep, wide and high"], 9, "shuffled")
    def on(sizes: list[Sizes], workgroups: int, kind: str):
        check(graph(name), sizes, workgroups, schedule=SCHEDULERS[kind]())

    on()


@quick_cases(1)
@pytest.mark.parametrize(
    ("name", "layout"),
    cover(0, product(EVERY, LAYOUTS), lambda case: (case[0].partition("{")[0], case[1])),
)
def test_every_layout(name: str, layout: str):
    made = graph(name, layout)
    for seed, sizes in enumerate(CORNERS.values()):
        check(made, sizes, 5, schedule=Shuffled(seed))


@quick_cases(1)
@pytest.mark.parametrize(
    "name",
    chosen(
        (STREAMS[3], STREAMS[8], PARTLY[0]), [PERSISTENT, *STREAMS[1:9:2], STREAMS[8], PARTLY[0]]
    ),
)
def test_what_is_no_number_stays_in_its_group(name: str):
    @given(lists, st.integers(1, 12), st.frozensets(st.integers(0, 5)))
    @settings(max_examples=8)
    @example([(3, 3, 3), (3, 3, 3), (3, 3, 3)], 2, frozenset({1}))
    @example([(3, 9, 4), (2, 2, 0), (1, 7, 5)], 5, frozenset({0, 1}))
    def on(sizes: list[Sizes], workgroups: int, bad: frozenset[int]):
        check(graph(name), sizes, workgroups, bad=bad, schedule=Shuffled(workgroups))

    on()


def test_as_many_groups_as_there_may_be():
    random = np.random.default_rng(0)
    sizes = drawn(random, 64, 7)
    check(graph("stream-k{owner=last}"), sizes, 9)
    with pytest.raises(LaunchError, match=r"groups = 65 is outside 1\.\.64"):
        check(graph("stream-k{owner=last}"), [*sizes, (1, 1, 1)], 9)


def test_vectors_that_are_too_short():
    """Vectors A, B, C or D that are too short for the matrices are refused before any computation.

    The required length is known from the offsets.
    """
    made, sizes = graph("stream-k"), [(3, 9, 5), (2, 2, 2)]
    tables, long = tables_of(sizes), {"A": 40, "B": 96, "D": 64}
    full = {name: np.zeros(size, np.float32) for name, size in long.items()}
    given = {"workgroups": 2, "elements_d": 64}
    interpret(made, full["A"], full["B"], parameters=given, tables=tables)
    for a, b, d, table in ((39, 96, 64, "a"), (40, 95, 64, "b"), (40, 96, 63, "d")):
        values = {"workgroups": 2, "elements_d": d}
        with pytest.raises(LaunchError, match=f"{table}_starts"):
            interpret(made, full["A"][:a], full["B"][:b], parameters=values, tables=tables)


# Graphs for lists of products survive conversion to text and JSON; bounds of tables are proved.


@quick_cases(2)
@pytest.mark.parametrize(
    ("name", "layout"),
    cover(0, product(EVERY, ("nn", "tt")), lambda case: (case[0].partition("{")[0], case[1])),
)
def test_written_forms(name: str, layout: str):
    made = graph(name, layout)
    assert parse(made.text()) == made
    assert from_json(made.json()) == made
    assert parse(made.text()).gemm == made.gemm
    assert "Diagonal" in made.mermaid()
    assert made.pseudocode()


def test_the_problem_itself():
    problem = Gemm("f32", grouped=True, group_axis="mnk", transpose_a=True).graph(TILE)
    assert parse(problem.text()) == problem
    assert from_json(problem.json()) == problem
    assert [d.id for d in problem.dangling] == ["group", "A.tile.0", "B.tile.1"]
    assert [d.size for d in tile_plane(problem)] == [None, None]
    blocks = {e.upstream[0]: e for e in problem.coordinates.edges if isinstance(e, Diagonal)}
    assert {name: (e.table, e.rows, e.columns, e.step) for name, e in blocks.items()} == {
        "A": ("a_starts", "k_offsets", "m_offsets", 8),
        "B": ("b_starts", "k_offsets", "n_offsets", 8),
        "C": ("d_starts", "m_offsets", "n_offsets", 8),
        "D": ("d_starts", "m_offsets", "n_offsets", 8),
    }


def test_tiles_and_iterations_follow_one_another():
    tiles = ("m_tile_starts", "n_tile_starts")
    for name, table, extents in (
        (PERSISTENT, "output_tiles_before", tiles),
        ("stream-k", "iterations_before", (*tiles, "k_tile_starts")),
    ):
        (blocks,) = (e for e in graph(name).coordinates.edges if isinstance(e, Concatenate))
        assert (blocks.table, blocks.extents) == (table, extents)
        assert blocks.upstream[0] == "group"


def test_what_is_known_of_the_tables():
    """A group's tile columns and k tiles are proved to be at least 1, so no divisor is 0."""
    ranges, group = graph("stream-k").parameters.ranges(), index_symbol("group")
    for table, least in (("m_tile_starts", 0), ("n_tile_starts", 1), ("k_tile_starts", 1)):
        entries = index_symbol(table)
        length = load(entries, group + 1) - load(entries, group)
        assert ranges.prove_nonnegative(length - least)
        assert not ranges.prove_nonnegative(length - least - 1)


def test_what_is_worked_out_of_offsets():
    known = graph("stream-k").parameters.launch(
        {
            "elements_a": 200, "elements_b": 200, "elements_d": 200,
            "groups": 3, "read_c": 0, "workgroups": 5,
        },
        {"m_offsets": [0, 5, 5, 6], "n_offsets": [0, 9, 11, 12], "k_offsets": [0, 3, 12, 12]},
    )  # fmt: skip
    assert known["m_tile_starts"] == (0, 2, 2, 3)
    assert known["n_tile_starts"] == (0, 3, 4, 5)
    # The second group has no rows, and the third has k = 0: each has one k tile of padding.
    assert known["k_tile_starts"] == (0, 1, 2, 3)
    assert known["output_tiles_before"] == (0, 6, 6, 7)
    assert known["iterations_before"] == (0, 6, 6, 7)
    assert known["a_starts"] == (0, 5 * 8, 5 * 8, 5 * 8)
    assert known["b_starts"] == (0, 3 * 16, 3 * 16 + 9 * 8, 3 * 16 + 9 * 8)
    assert known["d_starts"] == (0, 5 * 16, 5 * 16, 5 * 16 + 8)
    assert (known["all_output_tiles"], known["all_iterations"], known["share"]) == (7, 7, 2)
