"""Every schedule gives right results for groups along k, whose k is known only at launch."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordgraph import Gemm, KernelGraph, from_json, parse
from coordgraph.control.operations import Assign
from coordgraph.coordinates.edges import Concatenate, Ragged
from coordgraph.integers import index_symbol, load, to_text
from coordgraph.interpreter import SCHEDULERS, Trace, interpret, trace
from coordgraph.interpreter.schedulers import Shuffled
from coordgraph.progress import wait_direction
from passes import (
    Pipeline,
    StreamK,
    TwoTileStreamK,
)
from passes.schedules.partly_streamed import PartlyStreamed
from tests.passes.schedules import ORDERS, STREAMS, TILE, schedule, symbolic
from tests.support.sampling import chosen, cover, kinds, quick_cases, words

PARTLY = (
    "two-tile-stream-k",
    "two-tile-stream-k{owner=last,reduction=tree}",
    "two-tile-stream-k{reduction=scatter}",
    "hybrid-stream-k{owner=last}",
    "hybrid-stream-k{least=3}",
    "hybrid-stream-k{owner=last,reduction=turnstile}",
    "two-tile-stream-k{reduction=atomic}",
)
WHOLE = ("data-parallel", "data-parallel{persistent=true}")
EVERY = (*WHOLE, *STREAMS, *PARTLY)
M, N = 9, 7
"""m and n of the test problem; D has 3 x 2 output tiles of the macro tile `TILE`."""
NAN, INF = np.float32("nan"), np.float32("inf")


@cache
def graph(name: str, order: str = "plain", **gemm: Any) -> KernelGraph:
    problem = Gemm("f32", grouped=True, group_axis="k", **gemm).graph(TILE)
    return Pipeline([*ORDERS[order], *Pipeline.parse(name).passes])(problem)


def whole(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Random integers from -4 to 4, whose f32 sums are exact in any order."""
    return random.integers(-4, 5, shape).astype(np.float32)


def given_of(made: KernelGraph, **values: int) -> dict[str, int]:
    return {name: value for name, value in values.items() if name in made.parameters}


def depths_of(sizes: list[int]) -> tuple[int, ...]:
    """Number of k tiles of each group; for k = 0 one k tile of padding, which gives zeros."""
    return tuple(max(1, -(-size // TILE[2])) for size in sizes)


def record_of(
    name: str, sizes: list[int], workgroups: int, order: str = "plain", m: int = M, n: int = N
) -> Trace:
    made = graph(name, order)
    values = given_of(made, m=m, n=n, k=max(1, sum(sizes)), workgroups=workgroups)
    offsets = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return trace(made, {**values, "groups": len(sizes)}, {"offsets": offsets})


def check(
    made: KernelGraph,
    sizes: list[int],
    workgroups: int,
    first: int = 0,
    spare: int = 0,
    *,
    m: int = M,
    n: int = N,
    bad: frozenset[int] = frozenset(),
    **options: Any,
) -> None:
    """Compare the interpreter's D with NumPy; `sizes` has each group's number of indices along k.

    Before the groups there are `first` further indices along k, after them `spare`. There, and in
    the groups with the numbers `bad`, A and B contain NaN and infinity.
    """
    random, gemm, groups = np.random.default_rng(len(sizes)), made.gemm, len(sizes)
    offsets = np.cumsum([first, *sizes]).astype(np.int32)
    k = max(1, int(offsets[-1]) + spare)
    a, b, c = whole(random, m, k), whole(random, k, n), whole(random, groups, m, n)
    wanted = 3 * c
    for group, (begin, end) in enumerate(pairwise(map(int, offsets))):
        if group in bad:
            a[:, begin:end], b[begin:end] = NAN, INF
            wanted[group] = wanted[group] if begin == end else NAN
        else:
            wanted[group] += 2 * (a[:, begin:end] @ b[begin:end])
    for outside in (slice(0, first), slice(int(offsets[-1]), k)):
        a[:, outside], b[outside] = INF, NAN
    found = interpret(
        made,
        np.ascontiguousarray(a.T) if gemm.transpose_a else a,
        np.ascontiguousarray(b.T) if gemm.transpose_b else b,
        c,
        alpha=2,
        beta=3,
        parameters=given_of(made, workgroups=workgroups),
        tables={"offsets": offsets},
        **options,
    ).d
    assert np.array_equal(found, wanted, equal_nan=True)


group_sizes = st.lists(st.integers(0, 3 * TILE[2] + 1), min_size=1, max_size=6)
orders = ("plain", "swap-group", "bands", "hilbert", "grouped", "bands-grouped")


# Tests of traces: which workgroup computes which k tiles.


@quick_cases(1)
@pytest.mark.parametrize(
    ("name", "order"),
    cover(0, product(EVERY, orders), kinds),
)
def test_every_iteration_once_and_every_tile_ends_once(name: str, order: str):
    @given(group_sizes, st.integers(1, 30))
    @settings(max_examples=4)
    @example([0], 3)
    @example([0, 0, 0], 2)
    @example([4, 0, 8, 0], 3)
    @example([1, 1, 1, 1, 1], 40)
    @example([5, 0, 13, 1], 1)
    def on(sizes: list[int], workgroups: int):
        found, depths = record_of(name, sizes, workgroups, order), depths_of(sizes)
        assert not found.problems()
        assert found.depths == depths
        assert found.tiles == (len(sizes), 3, 2, sum(depths))
        assert found.useful == 3 * 2 * sum(depths) == sum(found.iterations)
        assert not any(segment.padding for segment in found.segments)
        for segment in found.segments:
            assert segment.depth == found.depth(segment.tile) == depths[segment.tile[0]]
        assert len({end.tile for end in found.epilogues}) == len(sizes) * 3 * 2

    on()


@quick_cases(1)
@pytest.mark.parametrize("name", cover(0, STREAMS, words))
def test_streams_balance_across_groups(name: str):
    """Stream-K gives all busy workgroups equally many iterations, except the last of them.

    Groups have different k, and some have k = 0.
    """
    sizes, (stream,) = [1, 50, 0, 3, 17, 2, 0, 29], Pipeline.parse(name).passes
    assert isinstance(stream, StreamK)
    for workgroups in (1, 7, 16, 200):
        found = record_of(name, sizes, workgroups)
        share = max(stream.least, -(-found.useful // workgroups))
        counts = sorted(found.iterations, reverse=True)
        busy = -(-found.useful // share)
        assert counts[: busy - 1] == [share] * (busy - 1)
        assert sum(counts[:busy]) == found.useful
        assert len(found.idle) == workgroups - busy
        used = found.useful / (share * workgroups)
        assert found.utilisation == pytest.approx(used)
    shared = record_of(name, sizes, 7)
    assert any(len({s.tile[0] for s in shared.of(w)}) > 1 for w in range(7)), "of several groups"
    assert any(s.role == "middle" for s in record_of(name, sizes, 50).segments)


def test_whole_tiles_do_not_balance():
    """With whole tiles, a workgroup's iterations depend on its groups' k; Stream-K balances
    better.
    """
    sizes = [1, 50, 0, 3, 17, 2, 0, 29]
    one, stream = (record_of(name, sizes, 7) for name in (WHOLE[1], STREAMS[0]))
    assert one.useful == stream.useful
    assert max(one.iterations) > max(stream.iterations)
    assert one.utilisation < stream.utilisation
    assert {segment.role for segment in one.segments} == {"whole"}


@quick_cases(1)
@pytest.mark.parametrize("name", cover(0, PARTLY, kinds))
def test_waves_of_whole_tiles_and_a_stream_of_the_others(name: str):
    """The iterations of the first (Stream-K) tiles are divided evenly among workgroups.

    Only the last workgroup may have fewer. Each of the other tiles is computed by one workgroup.
    """

    @given(group_sizes, st.integers(1, 14))
    @settings(max_examples=8)
    @example([9, 0, 5, 40], 5)
    # As many tiles as workgroups.
    @example([9, 0, 5, 40], 24)
    # Fewer tiles than workgroups.
    @example([9, 0], 40)
    def on(sizes: list[int], workgroups: int):
        found, (partly,) = record_of(name, sizes, workgroups), Pipeline.parse(name).passes
        assert isinstance(partly, PartlyStreamed)
        tiles = list(product(range(len(sizes)), range(3), range(2)))
        waves, rest = divmod(len(tiles), workgroups)
        if rest and isinstance(partly, TwoTileStreamK):
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


def test_depths_of_a_record():
    found = record_of("stream-k", [9, 0, 4], 3)
    assert (found.depths, found.tiles, found.useful) == ((3, 1, 1), (3, 3, 2, 5), 30)
    assert [found.depth((group, 0, 0)) for group in range(3)] == [3, 1, 1]
    one = record_of("stream-k", [9], 3)
    assert (one.depths, one.tiles, one.useful) == ((3,), (1, 3, 2, 3), 18)
    rows = trace(
        StreamK()(Gemm("f32", grouped=True).graph(TILE)),
        {"m": 9, "n": 7, "k": 12, "groups": 2, "workgroups": 2},
        {"offsets": [0, 3, 9]},
    )
    assert (rows.depths, rows.depth((1, 0, 0)), rows.useful) == ((), 3, 3 * 2 * 3)


@pytest.mark.parametrize("name", ["stream-k{owner=first}", "stream-k{owner=last}"])
def test_a_record_that_is_wrong_about_depths_is_found(name: str):
    """`Trace.problems` reports k tiles that a trace lacks, and k tiles that do not exist."""
    made = graph(name)
    values = {"m": 4, "n": 4, "k": 20, "groups": 2, "workgroups": 2}
    right = trace(made, values, {"offsets": [0, 12, 20]})
    assert not right.problems()
    for depths, why in (
        ((3, 3), "2..2 of output tile (1, 0, 0) are left out"),
        ((2, 2), "(0, 0, 0) do not exist"),
    ):
        shapes = tuple((*right.tiles[1:3], depth) for depth in depths)
        wrong = Trace(right.workgroups, right.tiles, right.slots, shapes)
        assert [problem for problem in wrong.problems() if why in problem]


# Tests of the interpreter's results.


@quick_cases(1)
@pytest.mark.parametrize("name", cover(0, EVERY, kinds))
def test_groups_give_the_reference(name: str):
    @given(
        group_sizes,
        st.integers(1, 30),
        st.integers(0, 5),
        st.integers(0, 5),
        st.sampled_from(sorted(SCHEDULERS)),
    )
    @settings(max_examples=4)
    @example([0, 0], 2, 0, 0, "in-order")
    @example([0], 1, 3, 0, "shuffled")
    @example([7], 5, 1, 2, "starve-signallers")
    @example([5, 0, 4, 0, 9], 4, 2, 1, "reversed")
    @example([0, 13, 1], 40, 0, 3, "waiters-first")
    def on(sizes: list[int], workgroups: int, first: int, spare: int, kind: str):
        made = graph(name)
        check(made, sizes, workgroups, first, spare, schedule=SCHEDULERS[kind]())

    on()


@quick_cases(1)
@pytest.mark.parametrize(
    "name", cover(0, [*WHOLE[1:], *STREAMS[1:7:2], PARTLY[0], PARTLY[3]], kinds)
)
def test_what_is_no_number_stays_in_its_group(name: str):
    @given(group_sizes, st.integers(1, 12), st.frozensets(st.integers(0, 5)))
    @settings(max_examples=6)
    @example([3, 3, 3], 2, frozenset({1}))
    @example([3, 0, 5, 4], 5, frozenset({0, 1, 3}))
    def on(sizes: list[int], workgroups: int, bad: frozenset[int]):
        check(graph(name), sizes, workgroups, 1, 1, bad=bad, schedule=Shuffled(workgroups))

    on()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "layout"),
    chosen(
        (("hilbert", "nt"), ("bands-grouped", "tn")),
        product(ORDERS, ("nn", "nt", "tn", "tt")),
    ),
)
def test_every_order_of_visits_and_layout(order: str, layout: str):
    turned = {"transpose_a": layout[0] == "t", "transpose_b": layout[1] == "t"}
    made = graph("stream-k{owner=last,reduction=tree}", order, **turned)
    check(made, [5, 0, 1, 13, 4], 5, 2, 1, bad=frozenset({3}), schedule=Shuffled(1))


@pytest.mark.slow
@settings(max_examples=6)
@given(st.integers(1, 13), st.integers(1, 13), group_sizes, st.integers(1, 9))
def test_ragged_tiles(m: int, n: int, sizes: list[int], workgroups: int):
    made = graph("stream-k{owner=last}", "bands")
    check(made, sizes, workgroups, m=m, n=n, schedule=Shuffled(m))


@pytest.mark.slow
@settings(max_examples=4)
@given(group_sizes.filter(any), st.integers(1, 9))
def test_numbers_for_sizes(sizes: list[int], workgroups: int):
    """A graph with fixed m, n and k still reads the offsets of the groups at every launch."""
    made = graph("stream-k{reduction=turnstile}", m=M, n=N, k=sum(sizes))
    check(made, sizes, workgroups)


# Tests of text forms and pseudocode, and of the bounds of tables that proofs use.


@quick_cases(2)
@pytest.mark.parametrize(
    ("name", "order"),
    cover(
        0,
        product(EVERY, ("plain", "bands-grouped")),
        lambda case: (case[0].partition("{")[0], case[1]),
    ),
)
def test_written_forms(name: str, order: str):
    made = graph(name, order, transpose_a=True)
    assert parse(made.text()) == made
    assert from_json(made.json()) == made
    assert parse(made.text()).gemm == made.gemm


def test_the_problem_itself():
    problem = Gemm("f32", grouped=True, group_axis="k").graph(TILE)
    assert parse(problem.text()) == problem
    assert [d.id for d in problem.dangling] == ["group", "A.tile.0", "B.tile.1"]
    tables = {e.table for e in problem.coordinates.edges if isinstance(e, Ragged)}
    assert tables == {"offsets", "tile_starts"}


@pytest.mark.parametrize("name", cover(0, STREAMS, words))
def test_which_group_is_looked_up_once_in_a_segment(name: str):
    """A segment's group is searched for once; other expressions use the symbol `group`.

    The only other search is in the loop over segments, to find where the next segment begins.
    """
    made = graph(name)
    walks = 2 if "scatter" in name else 1
    lines = made.pseudocode().splitlines()
    found = [line.strip() for line in lines if "search(" in line]
    located = [line for line in found if line.startswith("uint group = ")]
    assert len(located) == walks
    assert all(line.count("search(") == 1 for line in located)
    others = [line for line in found if line not in located]
    assert all(line.startswith(("for (", "uint for_tile = ")) for line in others)
    assert len(others) == (2 if "last" in name else walks)
    # The dividend is proved non-negative, so the remainder is a plain `%`, as of unsigned integers.
    (first,) = {op.value for op in made.control.of_kind(Assign) if op.name == "k_first"}
    begin, length = (
        "load(tile_starts, group)",
        "(load(tile_starts, group + 1) - load(tile_starts, group))",
    )
    assert to_text(first) == f"(share*workgroup - {begin}*tiles_m*tiles_n + for_tile) % {length}"
    (blocks,) = (e for e in made.coordinates.edges if isinstance(e, Concatenate))
    assert blocks.downstream == ("global",)
    assert blocks.upstream[0] == "group"
    assert blocks.upstream[-1] == "k_tile"
    assert len(blocks.upstream) == 4


def test_what_is_known_of_the_tables():
    """Each group along k has at least one k tile; groups of rows may have no tile."""
    group = index_symbol("group")
    rows = Gemm("f32", grouped=True).graph(TILE)
    for made, least in ((graph("stream-k"), 1), (rows, 0)):
        ranges = made.parameters.ranges()
        for table, step in (("tile_starts", least), ("offsets", 0)):
            entries = index_symbol(table)
            length = load(entries, group + 1) - load(entries, group)
            assert ranges.prove_nonnegative(length - step)
            assert not ranges.prove_nonnegative(length - step - 1)


def test_what_is_deferred():
    """The parameters `tiles_k` and `share` get their values at launch, from the offsets of groups.

    The sizes m, n and k alone do not determine these parameters.
    """
    made = graph("stream-k")
    parameters = made.parameters
    assert parameters.deferred == {"tiles_k", "share"}
    sizes = {"m": M, "n": N, "k": 100, "groups": 3, "read_c": 0, "workgroups": 5}
    assert not parameters.deferred & parameters.evaluate(sizes).keys()
    known = parameters.launch(sizes, {"offsets": [0, 9, 9, 21]})
    assert known["tile_starts"] == (0, 3, 4, 7)
    assert (known["tiles_k"], known["share"]) == (7, 9)
    assert graph("data-parallel").parameters.deferred == {"tiles_k"}


@quick_cases(1)
@pytest.mark.parametrize("name", cover(0, [*STREAMS[:7], PARTLY[0]], kinds))
def test_waiting_does_not_depend_on_groups(name: str):
    assert wait_direction(graph(name)) == wait_direction(symbolic(str(schedule(name))))
