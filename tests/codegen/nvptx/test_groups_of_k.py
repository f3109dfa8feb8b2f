"""Kernels for groups along k assemble and check their arguments; needs no GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import pytest
from sympy import Eq, Expr
from sympy.logic.boolalg import And, Boolean

import codegen
from codegen.targets.nvptx import CudaKernel
from codegen.targets.nvptx.facts import Facts
from codegen.targets.nvptx.program import CudaProgram, Vectors
from coordgraph import CodegenError, Gemm, KernelGraph, LaunchError, PassError
from coordgraph.control.asynchronous import (
    CommitMultiplies,
    CopyBox,
    FenceShared,
    MultiplyShared,
    StoreBox,
    WaitBarrier,
)
from coordgraph.control.lowered import Barrier, CopyElements, FillElements, Tabulate
from coordgraph.control.operations import Body, For, If, Inside, Locate, Operation
from coordgraph.integers import index_symbol, load
from passes import Pipeline
from passes.lowering import LowerToHopper
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.support.ptxas import HAS_WHEEL, assert_clean
from tests.support.sampling import chosen, cover, quick_cases

WIDE, PAIRS = Vectors(8, 8, 8), Vectors(8, 8, 2)
WHOLE, PERSISTENT = "data-parallel", "data-parallel{persistent=true}"
ATOMIC = "stream-k{reduction=atomic}"
LAST, TURNS = "stream-k{owner=last}", "stream-k{owner=last,reduction=turnstile}"
SCATTER, TWO_TILE = "stream-k{reduction=scatter}", "two-tile-stream-k"
LAYOUTS = ("nn", "nt", "tn", "tt")
A_AT, B_AT, D_AT, OFFSETS_AT, C_AT = (i << 28 for i in (1, 2, 3, 4, 5))
needs_ptxas = pytest.mark.skipif(not HAS_WHEEL, reason="there is no ptxas for this platform")
Tile = tuple[int, int, int]


def gemm_of(layout: str, **more: Any) -> Gemm:
    a, b = (side == "t" for side in layout)
    return Gemm("bf16", transpose_a=a, transpose_b=b, grouped=True, group_axis="k", **more)


@cache
def graph(schedule: str, tile: Tile, layout: str = "tn") -> KernelGraph:
    return Pipeline.parse(schedule)(gemm_of(layout).graph(tile))


@cache
def program(
    schedule: str,
    tile: Tile,
    layout: str = "tn",
    lowering: LowerToHopper | None = None,
    vectors: Vectors = PAIRS,
    reads_c: bool = True,
) -> CudaProgram:
    target = "sm_80" if lowering is None else "sm_90a"
    return CudaProgram(
        graph(schedule, tile, layout),
        target,
        vectors,
        instructions="wgmma" if lowering is not None else "mma.sync",
        reads_c=reads_c,
        lowering=lowering,
    )


# Tests that assemble kernels with ptxas.


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize(
    ("schedule", "layout", "vectors"),
    cover(
        0,
        product((WHOLE, LAST, SCATTER, TWO_TILE), LAYOUTS, (PAIRS, Vectors(1, 1, 1))),
        lambda case: ("scatter" in case[0], case[2]),
    ),
    ids=str,
)
def test_sm_80_assembles(schedule: str, layout: str, vectors: Vectors):
    assert_clean(program(schedule, (128, 128, 32), layout, vectors=vectors).report())


HOPPER: tuple[tuple[Tile, LowerToHopper, str], ...] = (
    ((128, 256, 64), LowerToHopper(), PERSISTENT),
    ((128, 256, 64), LowerToHopper(), SCATTER),
    ((64, 128, 64), LowerToHopper(), "two-tile-stream-k{reduction=scatter}"),
    ((64, 256, 64), LowerToHopper(consumers="pingpong"), LAST),
    ((128, 128, 64), LowerToHopper(), ATOMIC),
    ((256, 128, 64), LowerToHopper(cluster_m=2), TURNS),
    ((48, 128, 64), LowerToHopper(), LAST),
    ((64, 64, 256), LowerToHopper(cluster_k=4), PERSISTENT),
)
MORE: tuple[tuple[Tile, LowerToHopper, str], ...] = (
    ((128, 256, 64), LowerToHopper(), WHOLE),
    ((128, 256, 64), LowerToHopper(), TWO_TILE),
    ((128, 256, 64), LowerToHopper(), TURNS),
    ((128, 256, 64), LowerToHopper(cluster_n=2), LAST),
    ((256, 128, 64), LowerToHopper(cluster_m=2), SCATTER),
    ((256, 128, 64), LowerToHopper(cluster_m=2, consumers="pingpong"), LAST),
    ((128, 128, 64), LowerToHopper(consumers="pingpong"), TURNS),
    ((128, 160, 64), LowerToHopper(), LAST),
    ((128, 48, 64), LowerToHopper(), TURNS),
    ((192, 160, 64), LowerToHopper(), LAST),
    ((16, 128, 128), LowerToHopper(cluster_k=2), LAST),
    ((64, 256, 128), LowerToHopper(consumers="pingpong"), LAST),
)


@pytest.mark.slow
@needs_ptxas
@pytest.mark.parametrize(
    ("tile", "lowering", "schedule", "reads_c"),
    chosen(
        [(*HOPPER[2], True), (*HOPPER[3], False)],
        [(*case, reads_c) for case in (*HOPPER, *MORE) for reads_c in (False, True)],
    ),
    ids=str,
)
def test_hopper_assembles(tile: Tile, lowering: LowerToHopper, schedule: str, reads_c: bool):
    made = program(schedule, tile, lowering=lowering, vectors=WIDE, reads_c=reads_c)
    assert_clean(made.assembled()[1])


# Tests of lowered graphs.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "vectors"),
    chosen((("nt", PAIRS),), product(LAYOUTS, [PAIRS, Vectors(2, 4, 2)])),
    ids=str,
)
def test_sm_80_copies_elements_where_groups_part_a_contiguous_axis(layout: str, vectors: Vectors):
    """On sm_80, single elements are copied if groups divide the contiguous axis.

    A group may then begin at any element. If groups divide the strided axis, all elements of a
    vector have the same k, so they lie in one group.
    """
    made = program(LAST, (128, 128, 32), layout, vectors=vectors)
    copies = made.lowered.control.of_kind(CopyElements)
    widths = {op.source: op.width for op in copies if op.asynchronous}
    assert widths == {
        "A": vectors.a if layout[0] == "t" else 1,
        "B": vectors.b if layout[1] == "n" else 1,
    }
    assert not made.lowered.control.of_kind(FillElements)
    if vectors is PAIRS:
        assert ("cp.async.cg" in made.ptx) == (layout != "nt")


def test_groups_along_m_are_copied_as_before():
    rows = Pipeline.parse(LAST)(Gemm("bf16", grouped=True).graph((128, 128, 32)))
    made = CudaProgram(rows, "sm_80", PAIRS)
    widths = {op.source: op.width for op in made.lowered.control.of_kind(CopyElements)}
    assert widths == {"A": 8, "B": 8}


def operations(body: Body) -> list[Operation]:
    return [inner for op in body for inner in op.walk()]


def main_loops(lowered: KernelGraph) -> list[For]:
    """The loops over k tiles in which consumer warpgroups multiply."""
    return [
        op
        for op in lowered.control.operations
        if isinstance(op, For) and any(isinstance(inner, CommitMultiplies) for inner in op.body)
    ]


@quick_cases(2)
@pytest.mark.parametrize(
    ("tile", "lowering", "schedule"), chosen(HOPPER, (*HOPPER, *MORE)), ids=str
)
def test_zeros_behind_the_end_in_the_last_k_tile_alone(
    tile: Tile, lowering: LowerToHopper, schedule: str
):
    """Threads zero the elements past a group's end, in the group's last k tile only.

    The zeros are stored to the k tile of A and to that of B, after TMA has loaded the k tile and
    before wgmma reads it.
    """
    lowered = program(schedule, tile, lowering=lowering, vectors=WIDE).lowered
    loops = main_loops(lowered)
    assert loops
    every = 0
    for loop in loops:
        tail, *others = (op for op in loop.body if isinstance(op, If) and fills(op))
        assert not others
        kinds = [type(op) for op in loop.body]
        assert kinds.index(WaitBarrier) < loop.body.index(tail)
        multiplies = next(i for i, op in enumerate(loop.body) if has(op, MultiplyShared))
        assert loop.body.index(tail) < multiplies
        # The branch that stores zeros is taken only in the last iteration.
        assert tail.condition == Eq(loop.symbol, loop.stop - 1)
        assert not tail.orelse
        (located,) = tail.body
        assert isinstance(located, Locate)
        assert located.dims == ("A.tile.1", "B.tile.0")
        # The branch inside compares the k tile with the end of the group.
        (cut,) = located.body
        assert isinstance(cut, If)
        assert cut.body == ()
        group = index_symbol("group")
        end = load(index_symbol("offsets"), group + 1)
        assert isinstance(cut.condition, And)
        assert all(part.has(end) for part in cut.condition.args)
        assert numbers(cut.condition) == {"A.tile.1", "B.tile.0"}
        # A fence and a barrier make the stores of all threads visible to wgmma.
        *filling, fence, barrier = cut.orelse
        assert isinstance(fence, FenceShared)
        assert isinstance(barrier, Barrier)
        assert [op.destination for op in fills(*filling)] == ["A.shared", "B.shared"]
        for part, axis in zip(filling, ("A.1", "B.0"), strict=True):
            (inside,) = (op for op in operations((part,)) if isinstance(op, Inside))
            assert (inside.dims, inside.body) == ((axis,), ())
            assert fills(*inside.orelse)
        every += len(fills(tail))
    # `FillElements` also clears slots of atomic sums after they are read; those operations are
    # excluded.
    stages = [op for op in lowered.control.of_kind(FillElements) if op.destination != "partials"]
    assert len(stages) == every


def fills(*body: Operation) -> list[FillElements]:
    return [op for op in operations(body) if isinstance(op, FillElements)]


def has(op: Operation, kind: type[Operation]) -> bool:
    return any(isinstance(inner, kind) for inner in op.walk())


def numbers(condition: Boolean) -> set[str]:
    """Names of the tile numbers (such as `A.tile.1`) that a condition reads."""
    return {str(symbol) for symbol in condition.free_symbols if ".tile." in str(symbol)}


def test_who_waits_for_whose_zeros():
    """After zeros are stored, all warpgroups of a tile meet at one barrier.

    Each ping-pong warpgroup has a barrier of its own.
    """

    def barrier(tile: Tile, lowering: LowerToHopper) -> Barrier:
        lowered = program(PERSISTENT, tile, lowering=lowering, vectors=WIDE).lowered
        (loop,) = main_loops(lowered)
        found = [op for op in operations(loop.body) if isinstance(op, Barrier)]
        assert len(found) == 1
        return found[0]

    together = barrier((128, 256, 64), LowerToHopper())
    assert together.workitems == 256
    assert not names(together.identifier)
    turns = barrier((64, 256, 64), LowerToHopper(consumers="pingpong"))
    assert turns.workitems == 128
    assert names(turns.identifier), "both would meet at one barrier"


@quick_cases(1)
@pytest.mark.parametrize(("rows", "whole"), [(48, False), (64, True)])
def test_only_existing_chunks_are_zeroed(rows: int, whole: bool):
    """Threads zero only 16-byte chunks that the tile has, past the end of a group along k.

    Two warpgroups zero 256 chunks in a pass. 48 rows of 64 elements are 384 chunks, so the second
    pass needs a condition; if the last pass is full, no condition is emitted.
    """
    made = program(PERSISTENT, (rows, 256, 64), lowering=LowerToHopper(), vectors=WIDE)
    store = r'br i1 (%\S+), label %"A\.tail\.pass\.body\.else\.if"'
    found = re.search(store, made.llvm_ir)
    assert (found is None) == whole
    if found is not None:
        assert re.search(rf"{found[1]} = icmp slt i32 %\S+, {rows * 64 // 8}\n", made.llvm_ir)


def names(value: Expr | int) -> set[str]:
    return {str(symbol) for symbol in getattr(value, "free_symbols", ())}


@pytest.mark.parametrize("kind", ["one", "batch", "rows"])
def test_other_problems_have_no_tails(kind: str):
    """Kernels for problems without groups along k store no zeros to shared memory.

    Past the end of k TMA reads outside the tensor, which gives zeros.
    """
    more: dict[str, Any] = {"one": {}, "batch": {"batched": True}, "rows": {"grouped": True}}[kind]
    problem = Gemm("bf16", transpose_b=True, **more).graph((128, 256, 64))
    lowered = LowerToHopper()(Pipeline.parse(PERSISTENT)(problem))
    assert main_loops(lowered)
    assert not lowered.control.of_kind(FillElements)
    assert not [d.id for d in lowered.coordinates if ".tail." in d.id]


def test_boxes():
    """With groups along k, TMA loads A and B as one matrix each, which all groups share.

    D is a batch with a matrix for each group, so TMA stores all of its boxes, and threads none.
    """
    made = program(PERSISTENT, (128, 256, 64), lowering=LowerToHopper(), vectors=WIDE)
    control = made.lowered.control
    sources = {op.tensor: op.source for op in control.of_kind(CopyBox)}
    assert sources == {"A": ("A.0", "A.1"), "B": ("B.1", "B.0")}
    (store,) = control.of_kind(StoreBox)
    assert store.destination == ("D.1", "D.0", "group")
    assert not control.of_kind(CopyElements)
    assert len(control.of_kind(Tabulate)) == 1
    assert made.ptx.index("griddepcontrol.wait") < made.ptx.index("ld.global")


@pytest.mark.slow
@pytest.mark.parametrize("layout", chosen(("nt",), LAYOUTS))
def test_which_layouts_tma_loads(layout: str):
    """TMA cannot load a layout in which groups divide the contiguous axis.

    A box could then begin at any element, but TMA needs addresses aligned to 16 bytes.
    """
    along = {"nn": "A", "nt": "A and B", "tt": "B"}.get(layout)
    made = codegen.compile(graph(LAST, (128, 128, 64), layout), "sm_90a")
    assert ("wgmma" in made.ptx) == ("cp.async.bulk.tensor" in made.ptx) == (along is None)
    assert ("mma.sync" in made.ptx) == (along is not None)
    if along is None:
        return
    why = f"along k, which is contiguous in {along}, and .* give A as its transpose"
    with pytest.raises(PassError, match=why):
        LowerToHopper()(graph(LAST, (128, 128, 64), layout))
    with pytest.raises(CodegenError, match=why):
        codegen.compile(graph(LAST, (128, 128, 64), layout), "sm_90a", lowering=LowerToHopper())


@pytest.mark.slow
def test_tables_are_not_read_along_k():
    """A kernel reads the tables of groups once for each tile, not in the loop over k."""
    for schedule in (PERSISTENT, LAST):
        ptx = program(schedule, (128, 128, 32)).ptx
        blocks = re.split(r"^\$L__BB\w+:", ptx, flags=re.M)
        for text in (text for text in blocks if "mma.sync" in text):
            assert "ld.global" not in text
            assert "ld.shared.b32" not in text


def test_what_the_host_need_not_know():
    facts = Facts.of(program(LAST, (128, 128, 32)))
    assert {"tiles_k", "share"} <= facts.parameters.deferred
    for value in (*facts.scalars, *facts.divisors, facts.grid):
        assert facts.parameters.known_to_host(value)
    assert Facts.from_json(facts.to_json()) == facts


# Tests of calls of a kernel on a fake CUDA driver.


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A temporary disk cache of compiled kernels, which the tests of this file share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COORDGRAPH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def kernel(schedule: str, target: str, layout: str = "tn", tile: Tile = (128, 128, 64)) -> Any:
    made = codegen.compile(graph(schedule, tile, layout), target)
    assert isinstance(made, CudaKernel)
    return made


def matrices(count: int, rows: int, columns: int, at: int) -> Any:
    strides = (rows * columns, columns, 1)
    return matrix(0, 0, at, shape=(count, rows, columns), strides=strides)


def offsets(groups: int, **changes: Any) -> Any:
    fields: dict[str, Any] = {"shape": (groups + 1,), "strides": (1,), "dtype": "i32", **changes}
    return matrix(0, 0, OFFSETS_AT, **fields)


def test_a_call(fake_driver: FakeDriver):
    """A kernel for groups along k accepts any k, and any number of groups."""
    made = kernel(PERSISTENT, "sm_90a")
    fake_driver.arguments = made.ptx[: made.ptx.index(")\n.")].count(".param")
    a, b, d = matrix(1003, 128, A_AT), matrix(1003, 256, B_AT), matrices(7, 128, 256, D_AT)
    assert made(a, b, out=d, offsets=offsets(7)) is d
    made(a, b, out=d, offsets=offsets(7))
    first, again = fake_driver.launches
    assert first.grid == again.grid == (132, 1, 1)
    assert first.values[:5] == (A_AT, B_AT, 0, D_AT, OFFSETS_AT)
    of_a, of_b, of_d = fake_driver.encoded
    assert (of_a.shape, of_a.box) == ((1003, 128), (64, 64))
    assert (of_b.shape, of_b.box) == ((1003, 256), (64, 64))
    assert (of_d.shape, of_d.box) == ((7, 128, 256), (64, 64, 1))
    # Another number of groups needs a D of another shape, but runs the same kernel.
    made(a, b, out=matrices(9, 128, 256, D_AT), offsets=offsets(9))
    assert len(fake_driver.loaded) == 1
    c = matrices(7, 128, 256, C_AT)
    made(a, b, c, d, beta=1.0, offsets=offsets(7))
    assert fake_driver.launches[-1].values[2] == C_AT


def test_calls_that_are_refused(fake_driver: FakeDriver):
    made = kernel(PERSISTENT, "sm_90a")
    a, b, d = matrix(1003, 128, A_AT), matrix(1003, 256, B_AT), matrices(7, 128, 256, D_AT)
    for changes, why in (
        ({"offsets": offsets(6)}, "out is 7x128x256, but 6x128x256 is needed"),
        ({"offsets": None}, "offsets are missing"),
        ({"offsets": offsets(7, dtype="f32")}, "offsets holds f32"),
        (
            {"offsets": offsets(512), "out": matrices(512, 128, 256, D_AT)},
            "groups = 512 is outside",
        ),
        ({"out": matrix(128, 256, D_AT)}, "out has shape 128x256; groups x m x n is needed"),
        ({"out": matrices(7, 128, 256, OFFSETS_AT)}, "'out' overlaps offsets"),
        (
            {"c": matrix(128, 256, C_AT), "beta": 1.0},
            "c has shape 128x256; groups x m x n is needed",
        ),
        (
            {"c": matrices(6, 128, 256, C_AT), "beta": 1.0},
            "c is 6x128x256, but 7x128x256 is needed",
        ),
        ({"b": matrices(7, 1003, 256, B_AT)}, "b has shape 7x1003x256; a matrix is needed"),
        ({"a": matrix(1000, 128, A_AT)}, "k would be 1000 and 1003"),
    ):
        call: dict[str, Any] = {"a": a, "b": b, "out": d, "offsets": offsets(7), **changes}
        with pytest.raises(LaunchError, match=why):
            made(**call)
    assert not fake_driver.launches
