"""For batches and groups of rows, every schedule has a correct trace and a correct result."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordgraph import (
    EvaluationError,
    Gemm,
    KernelGraph,
    LaunchError,
    PassError,
    VerifyError,
    from_json,
    parse,
)
from coordgraph.coordinates.edges import Edge, Ragged
from coordgraph.interpreter import SCHEDULERS, Trace, interpret, trace
from coordgraph.interpreter.schedulers import Shuffled
from coordgraph.progress import wait_direction
from passes import DataParallel, Pipeline, Rasterize, Reorder, SplitK, StreamK
from tests.passes.schedules import (
    ORDERS,
    SCHEDULES,
    TILE,
    schedule,
    symbolic,
)
from tests.support.sampling import chosen, cover, kinds, quick_cases, words

GROUPED = [
    name
    for name in SCHEDULES
    if name != "data-parallel" and not name.startswith(("split-k", "heterogeneous"))
]
"""Schedules for groups of rows: the host does not know the number of tiles, only the grid."""
N, K = 7, 10


@cache
def graph(name: str, order: str = "plain", **gemm: Any) -> KernelGraph:
    return Pipeline([*ORDERS[order], schedule(name)])(Gemm("f32", **gemm).graph(TILE))


def whole(random: np.random.Generator, *shape: int) -> np.ndarray:
    """Random integers from -4 to 4, whose f32 sums are exact in any order."""
    return random.integers(-4, 5, shape).astype(np.float32)


def given_of(made: KernelGraph, **values: int) -> dict[str, int]:
    return {name: value for name, value in values.items() if name in made.parameters}


def offsets_of(sizes: list[int], first: int = 0) -> np.ndarray:
    return np.cumsum([first, *sizes]).astype(np.int32)


def record_of(name: str, sizes: list[int], workgroups: int, order: str = "plain") -> Trace:
    made = graph(name, order, grouped=True)
    values = given_of(made, m=max(1, sum(sizes)), n=N, k=K, workgroups=workgroups)
    offsets = [int(x) for x in offsets_of(sizes)]
    return trace(made, {**values, "groups": len(sizes)}, {"offsets": offsets})


def check_groups(
    made: KernelGraph, sizes: list[int], workgroups: int, first: int = 0, **options: Any
) -> np.ndarray:
    """Compare the interpreter's D with NumPy, and return D.

    `first` is the row at which the first group begins; rows of D outside the groups must stay
    unwritten.
    """
    random, gemm = np.random.default_rng(len(sizes)), made.gemm
    offsets, spare = offsets_of(sizes, first), 3
    rows = int(offsets[-1]) + spare
    a, c, b = whole(random, rows, K), whole(random, rows, N), whole(random, len(sizes), K, N)
    given_b = np.ascontiguousarray(b.swapaxes(1, 2)) if gemm.transpose_b else b
    d = interpret(
        made,
        a,
        given_b,
        c,
        alpha=2,
        beta=3,
        parameters=given_of(made, workgroups=workgroups),
        tables={"offsets": offsets},
        **options,
    ).d
    for group, (begin, end) in enumerate(pairwise(map(int, offsets))):
        wanted = 2 * (a[begin:end] @ b[group]) + 3 * c[begin:end]
        assert np.array_equal(d[begin:end], wanted), group
    assert np.isnan(d[: offsets[0]]).all()
    assert np.isnan(d[offsets[-1] :]).all()
    return d


group_sizes = st.lists(st.integers(0, 2 * TILE[0] + 1), min_size=1, max_size=6)


@pytest.mark.parametrize("name", cover(0, SCHEDULES, words))
def test_groups_are_for_grids_that_are_given(name: str):
    given_grid = "workgroups" in symbolic(name).parameters
    counted = name.startswith(("heterogeneous", "split-k"))
    assert (name in GROUPED) == (given_grid and not counted)


@quick_cases(1)
@pytest.mark.parametrize(
    ("name", "order"),
    cover(
        0,
        product(GROUPED, ("plain", "swap-group", "bands", "hilbert", "grouped")),
        kinds,
    ),
)
def test_every_iteration_once_and_every_tile_ends_once(name: str, order: str):
    @given(group_sizes, st.integers(1, 12))
    @settings(max_examples=5)
    @example([0], 3)
    @example([0, 0, 0], 2)
    @example([4, 0, 8, 0], 3)
    @example([1, 1, 1, 1, 1], 4)
    def on(sizes: list[int], workgroups: int):
        found = record_of(name, sizes, workgroups, order)
        assert not found.problems()
        # There is at least one tile, which is padding if all groups are empty.
        tiles = max(1, sum(-(-size // TILE[0]) for size in sizes))
        assert found.tiles == (tiles, -(-N // TILE[1]), -(-K // TILE[2]))
        assert len({end.tile for end in found.epilogues}) == found.tiles[0] * found.tiles[1]

    on()


def test_streams_balance_across_groups():
    """Stream-K divides iterations evenly, although groups have 0 to 50 rows.

    No workgroup has more than the average number of iterations, rounded up.
    """
    sizes = [1, 50, 0, 3, 17, 2, 0, 29]
    found = record_of("stream-k", sizes, 7)
    total = found.tiles[0] * found.tiles[1] * found.tiles[2]
    assert sum(found.iterations) == total
    assert max(found.iterations) == -(-total // 7)
    assert len({segment.tile for segment in found.of(0)}) > 1


@quick_cases(2)
@pytest.mark.parametrize("name", cover(0, GROUPED, kinds))
def test_groups_give_the_reference(name: str):
    @given(group_sizes, st.integers(1, 9), st.integers(0, 3), st.sampled_from(sorted(SCHEDULERS)))
    @settings(max_examples=5)
    @example([0, 0], 2, 0, "in-order")
    @example([5, 0, 4, 0, 9], 4, 2, "reversed")
    def on(sizes: list[int], workgroups: int, first: int, kind: str):
        check_groups(
            graph(name, grouped=True), sizes, workgroups, first, schedule=SCHEDULERS[kind]()
        )

    on()


@quick_cases(1)
@pytest.mark.parametrize("order", chosen(("swap-group", "morton"), ORDERS))
def test_groups_in_every_order_of_visits(order: str):
    made = graph("two-tile-stream-k{owner=last}", order, grouped=True, transpose_b=True)
    check_groups(made, [5, 0, 1, 13, 4], 3, schedule=Shuffled(1))


@quick_cases(3)
@pytest.mark.parametrize("name", cover(0, SCHEDULES, kinds))
def test_batches(name: str):
    @given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(1, 8))
    @settings(max_examples=5)
    def on(batches: int, m: int, n: int, workgroups: int):
        made = graph(name, batched=True)
        values = given_of(made, m=m, n=n, k=K, batches=batches, workgroups=workgroups)
        found = trace(made, values)
        assert not found.problems()
        assert found.tiles[0] == batches
        random = np.random.default_rng(m * n)
        a, b, c = (whole(random, batches, *shape) for shape in ((m, K), (K, n), (m, n)))
        open_grid = given_of(made, workgroups=workgroups)
        d = interpret(made, a, b, c, alpha=2, beta=3, parameters=open_grid).d
        assert np.array_equal(d, 2 * (a @ b) + 3 * c)

    on()


def test_matrices_of_a_batch_may_coincide_or_lie_apart():
    made, random = graph("stream-k", batched=True), np.random.default_rng(0)
    a, b = whole(random, 6, 9, K), whole(random, 1, K, N)
    shared, parameters = np.broadcast_to(b, (3, K, N)), {"workgroups": 4}
    assert shared.strides[0] == 0
    for some in (a[:3], a[::2], a[::-2]):
        assert np.array_equal(interpret(made, some, shared, parameters=parameters).d, some @ b[0])


@quick_cases(1)
@pytest.mark.parametrize(
    ("name", "gemm"),
    cover(
        0,
        product(
            (
                "stream-k{reduction=turnstile}",
                "stream-k{reduction=atomic}",
                "two-tile-stream-k{owner=last,reduction=tree}",
            ),
            ({"batched": True}, {"grouped": True, "transpose_b": True}),
        ),
        words,
    ),
)
def test_written_forms(name: str, gemm: dict[str, bool]):
    made = graph(name, "bands", **gemm)
    assert parse(made.text()) == made
    assert from_json(made.json()) == made
    assert "search(" in made.pseudocode() or not made.gemm.grouped


def test_what_is_deferred():
    """Parameters that depend on the number of tiles get their values at launch, from the offsets.

    The sizes m, n and k do not determine these parameters, but do determine the grid and the
    workspace.
    """
    made = graph("two-tile-stream-k", grouped=True)
    parameters = made.parameters
    assert parameters.deferred == {"tiles_m", "dp_waves", "sk_tiles", "share"}
    sizes = {"m": 100, "n": N, "k": K, "groups": 3, "read_c": 0, "workgroups": 5}
    values = parameters.evaluate(sizes)
    assert not parameters.deferred & values.keys()
    known = parameters.launch(sizes, {"offsets": [0, 9, 9, 21]})
    assert known["tile_starts"] == (0, 3, 3, 6)
    assert (known["tiles_m"], known["dp_waves"], known["sk_tiles"]) == (6, 1, 7)


@quick_cases(2)
@pytest.mark.parametrize("name", cover(0, GROUPED, kinds))
def test_waiting_does_not_depend_on_groups(name: str):
    assert wait_direction(graph(name, grouped=True)) == wait_direction(graph(name))


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        (
            [0, 5, 4, 9],
            r"offsets\[2\] = 4 is less than offsets\[1\] = 5; entries must be non-decreasing",
        ),
        ([-1, 5, 7, 9], r"offsets\[0\] = -1 is negative"),
        ([0, 5, 7, 21], r"offsets\[3\] = 21 is larger than 20"),
        ([0, 5, 7], "offsets is|offsets has"),
    ],
)
def test_tables_that_are_not_as_declared(offsets: list[int], why: str):
    made = graph("stream-k", grouped=True)
    a, b = np.zeros((20, K), np.float32), np.zeros((3, K, N), np.float32)
    with pytest.raises(LaunchError, match=why):
        interpret(
            made,
            a,
            b,
            parameters={"workgroups": 2},
            tables={"offsets": np.array(offsets, np.int32)},
        )


def test_tables_that_are_missing_or_unknown():
    made = graph("stream-k", grouped=True)
    a, b = np.zeros((20, K), np.float32), np.zeros((3, K, N), np.float32)
    with pytest.raises(LaunchError, match="offsets is a table of this graph, and is missing"):
        interpret(made, a, b, parameters={"workgroups": 2})
    offsets = np.array([0, 1, 2, 3], np.int32)
    with pytest.raises(LaunchError, match="borders is not a table of this graph"):
        interpret(made, a, b, tables={"offsets": offsets, "borders": offsets})
    with pytest.raises(LaunchError, match="offsets has elements of type int64"):
        interpret(made, a, b, tables={"offsets": offsets.astype(np.int64)})


def test_a_row_of_no_group_that_is_written_is_found(monkeypatch: pytest.MonkeyPatch):
    """The interpreter refuses a kernel that stores rows of D that are beyond the last group.

    The last tile has such rows, and `Ragged` without its guard does not exclude them.
    """
    # The interpreter caches programs of graphs, so no other test may have a graph of this tile.
    made = DataParallel(persistent=True)(Gemm("f32", grouped=True).graph((4, 4, 3)))
    monkeypatch.setattr(Ragged, "guard", Edge.guard)
    why = r"21 elements of D are written though they belong to no product, the first at \(9, 0\)"
    with pytest.raises(EvaluationError, match=why):
        check_groups(made, [4, 5], 2)


def test_a_tensor_without_a_path_to_its_rows_is_refused():
    made = graph("data-parallel{persistent=true}", grouped=True)
    bent = parse(made.text().replace("edge Ragged D.0 -> group, D.row table=offsets\n", ""))
    with pytest.raises(EvaluationError):
        check_groups(bent, [5, 4], 2)


def test_the_host_checks_assumptions_for_every_table():
    """A launch is refused if some group offsets within its m rows could make an index too large.

    The host cannot read the offsets, which are in device memory, so it assumes the worst.
    """
    made = graph("stream-k", grouped=True)
    sizes = {"n": 1, "groups": 1, "read_c": 0, "workgroups": 1}
    made.parameters.evaluate({**sizes, "m": 4, "k": 2**31 // 2 - 8})
    with pytest.raises(LaunchError, match=r"can be .* allows at most"):
        made.parameters.evaluate({**sizes, "m": 2**20, "k": 2**20})


def test_refusals():
    problem = Gemm("f32", grouped=True).graph(TILE)
    with pytest.raises(PassError, match=r"known only on the device, .* set persistent=true"):
        DataParallel()(problem)
    with pytest.raises(PassError, match=r"known only on the device, .* use stream-k"):
        SplitK(splits=2)(problem)
    with pytest.raises(VerifyError, match="batched or grouped, not both"):
        Gemm(batched=True, grouped=True)
    with pytest.raises(VerifyError, match=r"m = 1073741825 must be in 1\.\.1073741824"):
        Gemm(grouped=True, m=2**30 + 1)
    with pytest.raises(VerifyError, match="groups are rows of A"):
        Gemm(grouped=True, transpose_a=True)
    ordered = Reorder(group=2)(Gemm("f32", batched=True).graph(TILE))
    with pytest.raises(PassError, match="nothing to swap"):
        Reorder(swap=True)(ordered)
    with pytest.raises(PassError, match="needs separate tile numbers for rows and columns"):
        Rasterize(width=2)(Rasterize(width=2)(Gemm("f32", batched=True).graph(TILE)))
    with pytest.raises(PassError, match="a schedule has tied this graph"):
        StreamK()(StreamK()(problem))


@pytest.mark.slow
@pytest.mark.parametrize("order", ["reorder{group=5}", "grouped{groups=3}"])
def test_a_grid_that_is_rounded_up_fits_its_bits(order: str):
    """The checks accept a grid that a tile order rounds up to more workgroups than tiles."""
    problem = Gemm("f32", batched=True).graph(TILE)
    found = Pipeline.parse(f"{order},data-parallel")(problem).check()
    assert not found.refuted, found
