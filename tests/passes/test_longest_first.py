"""`longest-first`: groups by descending number of k tiles, checked on traces and tables."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordgraph import Gemm, KernelGraph, PassError, VerifyError
from coordgraph.control.operations import Assign, For
from coordgraph.coordinates.edges import Permute
from coordgraph.integers import index_symbol, load
from coordgraph.interpreter import interpret, trace
from coordgraph.products import product_order
from coordgraph.tables import SORTS, Table, tabulate
from passes import LongestFirst, Pipeline, Rasterize
from tests.passes.schedules import TILE
from tests.support.sampling import cover, quick_cases

PERSISTENT = "data-parallel{persistent=true}"
OF_DEPTH = Gemm("f32", grouped=True, group_axis="k")
LIST = Gemm("f32", grouped=True, group_axis="mnk")


def offsets_of(extents: list[int]) -> list[int]:
    return [0, *np.cumsum(extents).tolist()]


def of_depths(text: str, depths: list[int], workgroups: int):
    """The trace of the pipeline `text` for groups of 2 x 3 output tiles, `depths` k tiles deep."""
    graph: KernelGraph = Pipeline.parse(text)(OF_DEPTH.graph(TILE))
    m, n, k = TILE
    tables = {"offsets": offsets_of([k * depth for depth in depths])}
    k_all = max(tables["offsets"][-1], 1)
    values = {"m": 2 * m, "n": 3 * n, "k": k_all, "groups": len(depths), "workgroups": workgroups}
    return trace(graph, values, tables)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.integers(1, 8))
def test_deep_tiles_come_first(depths: list[int], workgroups: int):
    found = of_depths(f"longest-first,{PERSISTENT}", depths, workgroups)
    assert found.problems() == ()
    assert found.depths == tuple(depths)
    taken = [[segment.tile[0] for segment in found.of(w)] for w in range(workgroups)]
    waves = max(map(len, taken))
    order = [row[wave] for wave in range(waves) for row in taken if wave < len(row)]
    assert order == sorted(order, key=lambda group: (-depths[group], group))
    # A workgroup has no more iterations than any workgroup with a lower number. The largest and the
    # smallest number of iterations differ by at most the k tiles of the largest group.
    counts = found.iterations
    assert list(counts) == sorted(counts, reverse=True)
    assert max(counts) - min(counts) <= max(depths)


def test_what_it_is_for():
    """Sorting groups by k balances the workgroups.

    In the given order, some workgroups get two tiles with large k, and others get two with small k.
    In the sorted order, every workgroup gets one tile of each kind.
    """
    depths = [9, 1, 9, 1]
    before = of_depths(PERSISTENT, depths, 12).iterations
    after = of_depths(f"longest-first,{PERSISTENT}", depths, 12).iterations
    assert max(before) == 9 + 9
    assert max(after) == 9 + 1
    assert sum(before) == sum(after)


@quick_cases(1)
@pytest.mark.parametrize(
    ("name", "order"),
    cover(
        0,
        product(
            (PERSISTENT, "stream-k{owner=last}", "two-tile-stream-k"),
            ("longest-first", "longest-first,rasterize{width=2}"),
        ),
    ),
)
def test_groups_along_k_by_numbers(name: str, order: str):
    depths = [5, 0, 40, 17, 3]
    graph = Pipeline.parse(f"{order},{name}")(OF_DEPTH.graph(TILE))
    random, ends = np.random.default_rng(0), offsets_of(depths)
    a = random.integers(-4, 5, (11, ends[-1])).astype(np.float32)
    b = random.integers(-4, 5, (ends[-1], 9)).astype(np.float32)
    offsets = {"offsets": np.array(ends, np.int32)}
    found = interpret(graph, a, b, parameters={"workgroups": 5}, tables=offsets)
    wanted = [a[:, i:j] @ b[i:j] for i, j in pairwise(ends)]
    assert np.array_equal(found.d, np.stack(wanted))


def test_what_it_rewrites():
    """`longest-first` renumbers tiles in the new order of groups; element offsets stay the same."""
    before = LIST.graph(TILE)
    after = LongestFirst()(before)
    assert [d.id for d in before.dangling] == ["group", "A.tile.0", "B.tile.1"]
    assert [d.id for d in after.dangling] == ["rank", "A.tile.0", "B.tile.1"]
    assert product_order(after) == Permute("group", "rank", "order")
    tables = {t.name: t for t in after.parameters.tables}
    assert [*tables].index("order") < [*tables].index("m_tile_starts")
    by_rank = load(index_symbol("order"), tables["m_tile_starts"].place)
    assert by_rank in (tables["m_tile_starts"].step or by_rank).atoms(type(by_rank))
    for name in ("a_starts", "iterations_before", "output_tiles_before"):
        (known,) = (t for t in before.parameters.tables if t.name == name)
        assert tables[name] == known
    (loop,) = after.control.of_kind(For)
    starts, rank = index_symbol("k_tile_starts"), index_symbol("rank")
    assert loop.stop == load(starts, rank + 1) - load(starts, rank)


@pytest.mark.parametrize(
    ("gemm", "text", "why"),
    [
        (Gemm("f32"), "longest-first", "all output tiles have equally many k tiles"),
        (Gemm("f32", batched=True), "longest-first", "all output tiles have equally many k tiles"),
        (Gemm("f32", grouped=True), "longest-first", "all output tiles have equally many k tiles"),
        (LIST, "longest-first,longest-first", "in the order of their k already"),
        (LIST, f"{PERSISTENT},longest-first", "cannot start"),
    ],
)
def test_refusals(gemm: Gemm, text: str, why: str):
    with pytest.raises(PassError, match=why):
        Pipeline.parse(text)(gemm.graph(TILE))
    assert LongestFirst().refusal(OF_DEPTH.graph(TILE)) is None


def test_orders_of_one_grid_go_before_or_behind():
    for steps in ((LongestFirst(), Rasterize(width=2)), (Rasterize(width=2), LongestFirst())):
        graph = Pipeline(steps)(OF_DEPTH.graph(TILE))
        assert [d.id for d in graph.dangling] == ["rank", "tile.raster"]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=70))
def test_a_table_that_sorts(values: list[int]):
    """A table with the rule `SORTS` lists indices by descending value of its expression `step`.

    Indices with equal values stay in ascending order.
    """
    size, given_ = index_symbol("count"), index_symbol("given")
    first = Table("given", size, size * 0 + 300)
    place = Table("order", size, size - 1, load(given_, index_symbol("order.at")), rule=SORTS)
    rising = np.cumsum(values).tolist()
    found = tabulate((first, place), {"given": rising}, {"count": len(values)})["order"]
    assert sorted(found) == list(range(len(values)))
    assert list(found) == sorted(found, key=lambda i: (-rising[i], i))


def test_names_of_dimensions_are_not_assigned():
    graph = LongestFirst()(LIST.graph(TILE))
    with graph.edit() as e:
        e.kernel(Assign("rank", index_symbol("groups") * 0), *graph.control.root.body)
    with pytest.raises(VerifyError, match="'rank' is a dimension"):
        e.graph.verify()
