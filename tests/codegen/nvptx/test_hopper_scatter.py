"""Reduce-scatter on Hopper: workgroups store each share of a tile once, after the right waits.

Shares are the equal parts into which a reduce-scatter divides a tile.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from sympy import Integer

from codegen.targets.nvptx.facts import Facts
from coordgraph import Gemm, KernelGraph, PassError
from coordgraph.control.graph import Rewrite
from coordgraph.control.lowered import (
    AccumulateFragment,
    Barrier,
    SignalFlag,
    StoreFragment,
    TakeFlag,
    ZeroFragment,
)
from coordgraph.control.operations import For, If, Operation, SetCoordinate
from coordgraph.control.resolve import Node
from passes import HybridStreamK, Pipeline, SplitK, StreamK, TwoTileStreamK
from passes.kit.reduce_scatter import END, PEER, SHARE
from passes.lowering import LowerToHopper
from passes.lowering.share_lowering import BATCHES
from tests.codegen.nvptx.configurations import LAYOUTS, Configuration, boxed
from tests.codegen.nvptx.hopper import Lowered, lowered, mesh
from tests.codegen.nvptx.hopper_machine import Deadlock, Hopper
from tests.codegen.nvptx.isa import Array
from tests.codegen.nvptx.test_assembly import check
from tests.codegen.nvptx.test_hopper_pieces import owners, places
from tests.codegen.nvptx.test_hopper_turns import PROBLEMS, broken, play
from tests.support.sampling import chosen, cover, quick_cases, words

STREAM, SPLIT = StreamK(reduction="scatter"), SplitK(splits=4, reduction="scatter")
TWO_TILE = TwoTileStreamK(first="dp", reduction="scatter")
INTERLEAVED = StreamK(reduction="scatter", k_order="interleaved")
HYBRID = HybridStreamK(reduction="scatter")
KERNELS = (
    *(boxed((256, 256, 64), (2, 1, 1), layout, STREAM) for layout in LAYOUTS),
    boxed((256, 256, 64), (1, 2, 1), "tn", SPLIT),
    boxed((128, 128, 64), layout="nn", schedule=STREAM),
    boxed((64, 128, 64), layout="tt", schedule=SPLIT),
    boxed((256, 144, 64), (2, 1, 1), "nt", STREAM),
    boxed((128, 256, 64), schedule=TWO_TILE),
    boxed((128, 448, 64), (1, 2, 1), "nt", INTERLEAVED),
    boxed((128, 128, 64), layout="nn", schedule=INTERLEAVED),
    boxed((128, 128, 64), layout="tn", schedule=HYBRID, types=("f16", "f32")),
    boxed((16, 256, 64), layout="nn", schedule=SPLIT),
    boxed((64, 128, 128), (1, 1, 2), "nt", STREAM),
    boxed((128, 128, 64), layout="tn", schedule=STREAM, vector=1, types=("bf16", "f16")),
)
SLOW = tuple(
    boxed(tile, cluster, layout, schedule)
    for tile, cluster in (
        ((256, 256, 64), (1, 2, 1)),
        ((128, 128, 64), (1, 1, 1)),
        ((64, 128, 64), (1, 1, 1)),
        ((256, 144, 64), (2, 1, 1)),
        ((512, 144, 64), (2, 1, 1)),
        ((512, 160, 64), (2, 1, 1)),
    )
    for layout in LAYOUTS
    for schedule in (STREAM, SPLIT)
)
FROM_REGISTERS = (
    boxed((256, 256, 64), (2, 1, 1), schedule=STREAM, vector=2),
    boxed((128, 512, 64), (1, 2, 1), schedule=STREAM, vector=1),
    boxed((128, 128, 64), schedule=STREAM, vector=2),
    boxed((64, 128, 64), schedule=STREAM, vector=2),
    boxed((64, 256, 64), schedule=STREAM, vector=1),
    boxed((256, 144, 64), (2, 1, 1), schedule=STREAM, vector=2),
    boxed((16, 128, 64), schedule=STREAM, vector=1),
    boxed((64, 128, 128), (1, 1, 2), schedule=STREAM, vector=2),
)
"""Reduce-scatter configurations in which threads store D from registers, not by TMA. Threads store
whole tiles, and shares of the tiles that several workgroups compute.
"""


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(
    "configuration",
    chosen(KERNELS[5:12:4], [*KERNELS, *SLOW]),
    ids=str,
)
def test_it_is_assembled(configuration: Configuration):
    check(configuration)


@pytest.mark.parametrize(
    "configuration", chosen(KERNELS[5:12:4], [*KERNELS[::4], KERNELS[5], KERNELS[9]]), ids=str
)
def test_flags_count_readers(configuration: Configuration):
    """A flag is set to the number of readers by a release store; an acquire atomic of each reader
    subtracts one.
    """
    text = configuration.program.ptx
    (raised,) = re.findall(r"st\.release\.gpu\.global\.u32 \[%rd\d+\], (\S+);", text)
    assert raised.startswith("%r")
    (taken,) = re.findall(r"ld\.acquire\.gpu\.global\.u32 v, \[(%rd\d+)\]; setp\.eq\.u32", text)
    assert f"red.relaxed.gpu.global.add.u32 [{taken}], 0xffffffff;" in text
    # Other workgroups store the partial sums in the same launch, so they must not be loaded by the
    # non-coherent path.
    assert "ld.global.nc" not in text
    assert Facts.of(configuration.program).together


@quick_cases(2)
@pytest.mark.parametrize("configuration", FROM_REGISTERS, ids=str)
def test_a_share_is_read_where_it_was_sent_and_stored_where_it_belongs(
    configuration: Configuration,
):
    """Partial sums are read where the sender stored them, and their sum goes to the right element.
    """
    this = lowered(configuration)
    (send,) = this.nodes(StoreFragment, destination="partials")
    whole, shared = (
        [n for n in this.nodes(StoreFragment, destination="D") if (SHARE in n.scope.known) == of]
        for of in (False, True)
    )
    assert len(whole) == len(shared) == 1
    reads = this.nodes(AccumulateFragment, source="partials")
    assert len(reads) == len(BATCHES)
    size = configuration.tile[0] * configuration.tile[1]
    shares = this.size(SHARE)
    assert shares * 4 == this.registers
    for peer, end in ((0, 1), (3, 0)):
        slot = 2 * peer + end
        sent = places(this, send, "partials", owners(this), workgroup=peer, **{END: end})
        assert np.array_equal(np.sort(sent.ravel()), np.arange(size) + slot * size)
        at = mesh(
            cluster_rank=owners(this), workitem=128 * this.team, fixup_share=shares, element=4
        )
        known = {PEER: np.array(peer), END: np.array(end)}
        for read in reads:
            assert read.op.registers == ()  # type: ignore[attr-defined]
            found = this.place(read, "partials", at | known) + at["element"]
            assert (
                np.broadcast_to(found, (*sent.shape[:2], shares, 4)).reshape(sent.shape) == sent
            ).all()
    assert (stored(this, shared[0], shares) == stored(this, whole[0], None)).all()


def stored(this: Lowered, node: Node, shares: int | None) -> Array:
    """The element of the tile that each register is stored to, for all threads of all
    workgroups.
    """
    assert isinstance(node.op, StoreFragment)
    ranks, workitems, accesses = owners(this), 128 * this.team, this.registers // 4
    at = mesh(cluster_rank=ranks, workitem=workitems, part=accesses, acc_half=2, acc_pair=2)
    part = at.pop("part")
    if shares is None:
        names = ("acc.m", "acc.p", "acc.n")
        sizes = [this.size(name) for name in names]
        at |= dict(zip(names, np.unravel_index(part, sizes), strict=True))
    else:
        at |= {SHARE: part}
    shape = (ranks, workitems, accesses, 2, 2)
    row, column = (np.broadcast_to(this.place(node, f"D.index.{a}", at), shape) for a in (0, 1))
    if node.op.width == 2:
        column = column + at["acc.pair"]
    found = this.element(row, column)
    # Each element of the tile occurs once.
    assert np.array_equal(np.sort(found.ravel()), np.arange(found.size))
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 66, 131])
def test_batches_take_every_peer_once_and_in_order(count: int):
    """Partial sums are received in batches that contain every sending workgroup once, in order.

    Batches have the sizes in `BATCHES`, large ones first, as long as more peers are left than a
    small batch has. A condition leaves out the peers that a batch lacks.
    """
    this = lowered(FROM_REGISTERS[2])
    (finish,) = this.nodes(For, dim=SHARE)
    batches = [
        n for n in finish.body if isinstance(n.op, For) and n.op.dim.startswith("partial.batch")
    ]
    assert len(batches) == len(BATCHES)
    low, found, sizes = 5, list[int](), list[int]()
    for node, width in zip(batches, BATCHES, strict=True):
        assert node.loop is not None
        known = {"low": np.array(low), "peers": np.array(count)}
        start, stop = (int(this.values(x, known)) for x in (node.loop.start, node.loop.stop))
        (there,) = {n for n in node.walk() if isinstance(n.op, If)}
        (setting,) = {
            n for n in node.walk() if isinstance(n.op, SetCoordinate) and n.op.dim == PEER
        }
        assert setting.value is not None
        assert there.condition is not None
        for first in range(start, stop, int(node.loop.step)):
            at = {node.loop.symbol.name: np.array(first)}
            before = len(found)
            for peer in range(width):
                at[f"partial.batch.{width}.peer"] = np.array(peer)
                if bool(this.values(there.condition, known | at)):
                    found.append(int(this.values(setting.value, known | at)))
            sizes.append(len(found) - before)
    assert found == list(range(low, low + count))
    assert len(sizes) == (count + 15) // 32 + (0 < count % 32 <= 16)


@pytest.mark.parametrize("configuration", KERNELS[:1], ids=str)
def test_loads_of_a_batch_do_not_wait_for_each_other(configuration: Configuration):
    """The 32 or 16 loads of a batch follow each other without a branch or fence between them.

    A load of a peer that the batch lacks is not executed.
    """
    text = configuration.program.ptx
    load = re.compile(r"@p ld\.global\.v2\.b64 \{[^}]*\}, \[[^]]*\];")
    between = re.compile(r"\bbra\b|fence\.|membar|^\$L", re.MULTILINE)
    runs, last = [0], None
    for found in load.finditer(text):
        apart = last is None or between.search(text, last, found.start())
        runs = [*runs, 1] if apart else [*runs[:-1], runs[-1] + 1]
        last = found.end()
    assert runs[1:] == list(BATCHES)


# The following tests run kernels on a simulated GPU, with warps in many random orders.

STREAMS = (
    "stream-k{reduction=scatter}",
    "two-tile-stream-k{reduction=scatter}",
    "two-tile-stream-k{first=dp,reduction=scatter}",
    "hybrid-stream-k{reduction=scatter}",
    "split-k{splits=3,reduction=scatter}",
)
SHAPES = {"one warpgroup": (64, 128), "two": (256, 128)}
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2))


@cache
def scattered(
    schedule: str, shape: str = "two", cluster: tuple[int, int] = (1, 1), vector: int = 8
) -> KernelGraph:
    rows, columns = SHAPES[shape]
    tile = (rows * cluster[0], columns * cluster[1], 64)
    lowering = LowerToHopper(stages=2, cluster_m=cluster[0], cluster_n=cluster[1], vector=vector)
    return lowering(Pipeline.parse(schedule)(Gemm("bf16", transpose_b=True).graph(tile)))


def finished(machine: Hopper) -> Counter[int]:
    """For each workgroup, the number of shares (parts of tiles) that it has completed."""
    found: Counter[int] = Counter()
    for (number, _, _), count in machine.finished.items():
        found[number] += count
    return found


@quick_cases(2)
@pytest.mark.parametrize(
    ("schedule", "problem", "shape"), cover(8, product(STREAMS, PROBLEMS, SHAPES), words)
)
def test_every_share_is_finished_once(schedule: str, problem: str, shape: str):
    machine = play(scattered(schedule, shape), PROBLEMS[problem])
    assert machine.team == 1 + (shape == "two")


@quick_cases(1)
@pytest.mark.parametrize(
    ("schedule", "cluster", "seed"),
    cover(0, product(STREAMS[:1] + STREAMS[4:], CLUSTERS, range(8)), lambda case: case[:2]),
)
def test_clusters_in_every_order(schedule: str, cluster: tuple[int, int], seed: int):
    for problem in ("items of a workgroup even and odd", "one tile in many pieces"):
        play(scattered(schedule, "two", cluster, 2 if seed % 2 else 8), PROBLEMS[problem], seed)


def test_all_who_have_a_piece_finish_shares():
    """Five workgroups that compute one tile complete 7, 7, 6, 6 and 6 of its 32 shares.

    Shares are the equal parts into which a reduce-scatter divides a tile.
    """
    graph = scattered(STREAMS[0])
    shares = graph.coordinates[SHARE].fixed_size
    machine = play(graph, (1, 1, 20, 5))
    assert finished(machine) == {w: 2 * len(range(w, shares, 5)) for w in range(5)}


def test_all_must_be_there():
    sizes = {"m": 256, "n": 128, "k": 64 * 20, "workgroups": 5}
    machine = Hopper(scattered(STREAMS[0]), sizes, resident=4, seed=0)
    with pytest.raises(Deadlock):
        machine.run()


def few_readers(op: Operation) -> Operation:
    return replace(op, readers=op.readers - 1) if isinstance(op, SignalFlag) else op


def no_barrier_after(kind: type[Operation]) -> Rewrite:
    """A rewrite that plants a fault: it removes the first barrier after a `kind` operation."""

    def change(op: Operation) -> Operation:
        for name in op.BODIES:
            body = getattr(op, name)
            for here, (before, after) in enumerate(pairwise(body)):
                inside = any(isinstance(inner, kind) for inner in before.walk())
                if inside and isinstance(after, Barrier):
                    return replace(op, **{name: (*body[: here + 1], *body[here + 2 :])})
        return op

    return change


def not_the_first(op: Operation) -> Operation:
    """Plant a fault: a workgroup does not wait for the first partial sum that it reads."""
    if not isinstance(op, For) or op.dim != "partial.first":
        return op
    return replace(op, start=op.start + 1)


def other_shares(op: Operation) -> Operation:
    return replace(op, start=op.start + 1) if isinstance(op, For) and op.dim == SHARE else op


def one_end(op: Operation) -> Operation:
    """Plant a fault: a workgroup stores its partial sums of two tiles to one workspace slot."""
    end = isinstance(op, SetCoordinate) and op.dim == END
    return replace(op, value=Integer(0)) if end else op


@quick_cases(2)
@pytest.mark.parametrize(
    "change",
    [
        few_readers,
        no_barrier_after(StoreFragment),
        no_barrier_after(TakeFlag),
        not_the_first,
        other_shares,
        one_end,
    ],
)
def test_the_machine_sees_what_is_broken(change: Rewrite):
    graph = broken(scattered(STREAMS[0]), change)

    def many() -> None:
        for seed, problem in product(range(6), ("one tile in many pieces", "longer than the ring")):
            play(graph, PROBLEMS[problem], seed)

    with pytest.raises(AssertionError):
        many()


def test_those_who_take_turns_are_refused():
    graph = StreamK(reduction="scatter")(Gemm("bf16").graph((64, 128, 64)))
    with pytest.raises(PassError, match=r"choose consumers=cooperative or another reduction"):
        LowerToHopper(consumers="pingpong")(graph)


@pytest.mark.parametrize(
    ("reduction", "grouped", "zeroed"),
    [("peers", True, 0), ("scatter", False, 1), ("scatter", True, 2)],
)
def test_accumulators_are_zeroed_only_if_ptxas_needs_it(reduction: Any, grouped: bool, zeroed: int):
    """In a reduce-scatter, a share's accumulator is zeroed before partial sums are added to it.

    A tile's accumulator is not zeroed, since its first wgmma overwrites it. Only in the
    reduce-scatter of a grouped product it is zeroed, because ptxas would else serialise wgmma.
    """
    gemm = Gemm("bf16", transpose_b=True, grouped=grouped)
    graph = StreamK(reduction=reduction)(gemm.graph((128, 128, 64)))
    assert len(LowerToHopper()(graph).control.of_kind(ZeroFragment)) == zeroed
