"""Partial sums move between the workgroups of a Hopper kernel without loss or conflict.

Partial sums move through global memory in a fix-up, and through shared memory in a cluster that
divides k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
import pytest
from sympy import Basic, Integer

from coordgraph.control.asynchronous import (
    Advance,
    ArriveBarrier,
    CopyRun,
    Counter,
    InitBarrier,
    StoreBox,
    WaitBarrier,
)
from coordgraph.control.lowered import (
    AccumulateFragment,
    ApplyFragment,
    Barrier,
    ClearFlag,
    FillElements,
    RaiseFlag,
    ReduceFragment,
    SignalFlag,
    StoreFragment,
    WaitFlag,
)
from coordgraph.control.operations import Body, For, If, SetCoordinate
from coordgraph.control.resolve import Node
from coordgraph.coordinates.dimensions import Shared
from coordgraph.integers import floor_div, index_symbol
from passes import DataParallel, HybridStreamK, Pass, SplitK, StreamK, TwoTileStreamK
from tests.codegen.nvptx.configurations import ALONE, Configuration, boxed
from tests.codegen.nvptx.hopper import Lowered, lowered, mesh, with_warp
from tests.codegen.nvptx.isa import Array
from tests.support.sampling import quick_cases

STREAM, LAST = StreamK(), StreamK(owner="last")
PIECES = (
    boxed((256, 256, 64), (2, 1, 1), schedule=STREAM),
    boxed((256, 256, 64), (1, 2, 1), schedule=LAST),
    boxed((256, 256, 64), (2, 4, 1), schedule=LAST),
    boxed((512, 160, 64), (4, 1, 1), schedule=TwoTileStreamK(owner="last", first="dp")),
    boxed((128, 144, 64), schedule=TwoTileStreamK()),
    boxed((128, 208, 64), (2, 1, 1), schedule=LAST),
    boxed((64, 64, 64), schedule=LAST),
    boxed((16, 128, 64), schedule=STREAM),
    boxed((64, 64, 512), (1, 1, 8), schedule=LAST),
    boxed((64, 256, 64), schedule=LAST, consumers="pingpong"),
    boxed((256, 128, 64), (2, 1, 1), schedule=STREAM, consumers="pingpong"),
)
SUMS = (
    boxed((16, 128, 128), (1, 1, 2)),
    boxed((64, 128, 256), (1, 1, 4), schedule=STREAM),
    boxed((64, 64, 512), (1, 1, 8), schedule=DataParallel(persistent=True)),
)
TURNS = (
    boxed((256, 256, 64), (2, 1, 1), schedule=StreamK(reduction="turnstile")),
    boxed((128, 256, 64), schedule=HybridStreamK(owner="last", reduction="turnstile")),
    boxed((256, 128, 64), (1, 2, 1), "nn", SplitK(splits=3, owner="first")),
    boxed((64, 128, 128), (1, 1, 2), schedule=SplitK(splits=4)),
)
ADDED = (
    boxed((256, 256, 64), (2, 1, 1), schedule=StreamK(reduction="atomic")),
    boxed((128, 144, 64), schedule=HybridStreamK(reduction="atomic")),
    boxed((64, 128, 128), (1, 1, 2), schedule=SplitK(splits=4, reduction="atomic")),
    boxed((64, 256, 64), schedule=StreamK(owner="last", reduction="atomic"), consumers="pingpong"),
)
every_piece = pytest.mark.parametrize("configuration", PIECES, ids=str)
every_sum = pytest.mark.parametrize("configuration", SUMS, ids=str)
SLOTS = "partial.slot"


def places(
    this: Lowered, node: Node, dim: str, ranks: int, turn: int = 0, **more: Array | int
) -> Array:
    """The index along `dim` of the element that each register accesses.

    The result is an array by rank, thread and register number. `turn` selects one of the ping-pong
    warpgroups; `more` gives values of further indices.
    """
    op = node.op
    assert isinstance(op, StoreFragment | AccumulateFragment | ReduceFragment)
    assert (op.fragment, op.registers, op.width) == ("acc", ("piece.vector",), 4)
    assert node.place(dim).guard == True  # noqa: E712 - of SymPy
    at = mesh(
        cluster_rank=ranks,
        workitem=128 * this.team,
        piece_vector=this.size("piece.vector"),
        element=4,
    )
    at["workitem"] = at["workitem"] + 128 * this.team * turn
    at |= {name.replace("_", "."): np.asarray(value) for name, value in more.items()}
    found = this.place(node, dim, at) + at["element"]
    shape = (ranks, 128 * this.team, this.size("piece.vector") * 4)
    return np.broadcast_to(found, (*shape[:2], shape[2] // 4, 4)).reshape(shape)


def owners(this: Lowered) -> int:
    """Number of CTAs of a cluster that send partial sums: all, or one if the cluster divides k."""
    return 1 if this.configuration.cluster[2] > 1 else this.ranks


def in_steps(this: Lowered, copies: Sequence[Node]) -> list[tuple[range, int]]:
    """The steps of a fix-up, as pairs (range of steps, vector accesses of a thread in each step).

    All full steps are one entry; a shorter last step, if any, is another. Also checks that each
    operation in `copies` copies what the warpgroups of one tile access in a step.
    """
    total, most = this.size("piece.vector"), this.size("fixup.place")
    assert this.size("fixup.step") == -(-total // most), "as few steps as there are"
    whole, left = divmod(total, most)
    found = [(range(whole), most), *([(range(whole, whole + 1), left)] if left else [])]
    counts = [copy.op.count for copy in copies if isinstance(copy.op, CopyRun)]
    assert counts == [vectors * 128 * this.team * 4 for _, vectors in found]
    return found


def by_turns(nodes: Sequence[Node], every: int) -> list[list[Node]]:
    """Divide the operations into lists of `every` consecutive ones.

    The kernel's code receives partial sums at several points of the program; each list has the
    operations of one point.
    """
    return [list(nodes[first : first + every]) for first in range(0, len(nodes), every)]


def received(
    this: Lowered, copies: Sequence[Node], reads: Sequence[Node], turn: int, slot: int
) -> Array:
    """The element of the partial sums that each register gets, by rank, thread and register number.

    TMA loads contiguous partial sums from the workspace slot number `slot` into a stage, from which
    the consumers load their registers. `turn` selects one of the ping-pong warpgroups.
    """
    ranks, found = owners(this), list[Array]()
    for copy, read, (steps, vectors) in zip(copies, reads, in_steps(this, copies), strict=True):
        assert isinstance(copy.op, CopyRun)
        assert isinstance(read.op, AccumulateFragment)
        assert (read.op.registers, read.op.width) == (("fixup.step", "fixup.place"), 4)
        for step in steps:
            at = {"partial.slot": np.array(slot), "fixup.step": np.array(step)}
            at["ring.step"] = np.array(5 + step)
            ranked = at | mesh(cluster_rank=ranks, workitem=1, fixup_place=1, element=1)
            source = this.place(copy, "partials", ranked)
            begin = this.place(copy, "fixup.shared", at)
            everyone = at | mesh(
                cluster_rank=ranks, workitem=128 * this.team, fixup_place=vectors, element=4
            )
            everyone["workitem"] = everyone["workitem"] + 128 * this.team * turn
            inside = this.place(read, "fixup.shared", everyone) + everyone["element"] - begin
            assert inside.min() == 0
            assert inside.max() == copy.op.count - 1
            shape = (ranks, 128 * this.team, vectors, 4)
            found.append(np.broadcast_to(source + inside, shape).reshape(*shape[:2], -1))
    return np.concatenate(found, axis=2)


@quick_cases(1)
@every_piece
def test_a_partial_is_all_registers_once(configuration: Configuration):
    """The map from (vector, thread, element) to an index in a workspace slot is a bijection.

    A receiver's register gets the element that the register of the same number and thread of the
    sender stored.
    """
    this = lowered(configuration)
    rows, columns, _ = configuration.tile
    size = rows * columns
    assert this.size("piece.vector") * 4 == this.registers
    sends = this.nodes(StoreFragment, destination="partials")
    copies = this.nodes(CopyRun, source="partials")
    reads = this.nodes(AccumulateFragment, source="fixup.shared")
    assert sends
    assert copies
    assert reads
    turns = range(this.turns)
    for slot, node, turn in product((0, 3), sends, turns):
        sent = places(this, node, "partials", owners(this), turn, workgroup=slot)
        assert np.array_equal(np.sort(sent.ravel()), np.arange(size) + slot * size)
        every = 1 + (this.size("piece.vector") % this.size("fixup.place") > 0)
        for copied, read, its in product(by_turns(copies, every), by_turns(reads, every), turns):
            assert (received(this, copied, read, its, slot) == sent).all()


@quick_cases(2)
@pytest.mark.parametrize("configuration", ADDED, ids=str)
def test_sums_are_cleared_where_pieces_are_added(configuration: Configuration):
    """The thread that adds an element to an atomic sum also reads that element and clears it.

    The thread uses the same register for all three accesses, and no element of the slot is left
    out.
    """
    this = lowered(configuration)
    rows, columns, _ = configuration.tile
    (add,), clears = this.nodes(ReduceFragment), this.nodes(FillElements)
    copies, reads = this.nodes(CopyRun), this.nodes(AccumulateFragment, source="fixup.shared")
    for turn in range(this.turns):
        added = places(this, add, "partials", owners(this), turn, partial_slot=3, slot=3)
        assert np.array_equal(np.sort(added.ravel()), np.arange(rows * columns) + 3 * added.size)
        assert (received(this, copies, reads, turn, 3) == added).all()
        cleared = list[Array]()
        for clear, (steps, vectors) in zip(clears, in_steps(this, copies), strict=True):
            assert isinstance(clear.op, FillElements)
            assert (clear.op.destination, clear.op.width) == ("partials", 4)
            at = mesh(
                cluster_rank=owners(this),
                workitem=128 * this.team,
                fixup_step=len(steps),
                fixup_place=vectors,
                element=4,
            )
            at["workitem"] = at["workitem"] + 128 * this.team * turn
            at["fixup.step"] = at["fixup.step"] + steps.start
            here = this.place(clear, "partials", at | {"partial.slot": np.array(3)})
            cleared.append((here + at["element"]).reshape(*added.shape[:2], -1))
        assert np.array_equal(np.concatenate(cleared, axis=2), added)


@quick_cases(3)
@pytest.mark.parametrize("configuration", [*PIECES, *TURNS, *ADDED], ids=str)
def test_runs_of_partials_fit_in_their_stages(configuration: Configuration):
    """Each bulk copy of partial sums fits in a stage of one operand.

    The copy's address in shared memory is the begin of a stage, and a multiple of 16 bytes.
    """
    this = lowered(configuration)
    coordinates = this.graph.coordinates
    shared = coordinates["fixup.shared"]
    assert isinstance(shared, Shared)
    stages, home = this.size("stage"), coordinates[shared.within]
    stage_bytes = home.fixed_size * 2 // stages
    for node in this.nodes(CopyRun):
        assert isinstance(node.op, CopyRun)
        assert node.op.count * 4 <= stage_bytes
        for step in range(2 * stages):
            first = this.place(node, shared.id, {"ring.step": np.array(step)})
            assert first * 4 == step % stages * stage_bytes
            assert first % 4 == 0


@quick_cases(8)
@pytest.mark.parametrize(
    "configuration",
    [c for c in (*PIECES, *TURNS, *SUMS, *ADDED) if c.consumers == "cooperative"],
    ids=str,
)
def test_roles_take_the_same_steps(configuration: Configuration):
    """Producer and consumers advance to the next pipeline stage in the same loops and branches.

    Ping-pong kernels are tested on the simulated GPU instead: a consumer skips the stages of the
    other consumer by adding to its counter, so its loops differ from the producer's.
    """
    this = lowered(configuration)
    made, used = (skeleton(op.body) for op in this.operations(Counter) if op.dim == "ring.step")
    assert made == used
    assert "Advance" in str(made)


def skeleton(body: Body) -> tuple[object, ...]:
    """The nested loops and branches of `body` in which the ring of stages advances, as tuples."""
    found: list[object] = []
    for op in body:
        if isinstance(op, Advance) and op.dim == "ring.step":
            found.append(("Advance", op.by))
        inner, other = (skeleton(getattr(op, name, ())) for name in ("body", "orelse"))
        if not (inner or other):
            continue
        details = op.details if isinstance(op, For | If | SetCoordinate) else {}
        here = (type(op).__name__, str(details), inner, other)
        found += [here] if details else inner + other
    return tuple(found)


@every_piece
def test_accesses_of_a_warp_lie_side_by_side(configuration: Configuration):
    this = lowered(configuration)
    for node in this.nodes(StoreFragment, destination="partials"):
        at = {
            "cluster.rank": np.array(0),
            "workitem": np.arange(32),
            "piece.vector": np.array(1),
        }
        first = this.place(node, "partials", at)
        assert (np.diff(first) == 4).all()


@every_piece
def test_there_is_a_flag_for_every_slot_and_rank(configuration: Configuration):
    this = lowered(configuration)
    ranks = owners(this)
    (flags,) = (t for t in this.graph.tensors if t.name == "flags")
    (size,) = (flags.elements.subs(s, 4) for s in flags.elements.free_symbols)
    assert size == 4 * ranks
    assert this.graph.coordinates.size("flags") == flags.elements
    at = mesh(slot=4, cluster_rank=ranks)
    for kind, name in ((SignalFlag, "workgroup"), (WaitFlag, SLOTS), (ClearFlag, SLOTS)):
        nodes = this.nodes(kind)
        assert nodes
        for node in nodes:
            found = this.place(node, "flags", {**at, name: at["slot"]})
            assert sorted(np.broadcast_to(found, (4, ranks)).ravel()) == list(range(4 * ranks))
            assert node.place("flags").guard == True  # noqa: E712 - of SymPy


@pytest.mark.parametrize("configuration", [*PIECES, *SUMS, *ADDED], ids=str)
def test_all_who_hold_a_product_meet_between_the_data_and_what_says_it_is_there(
    configuration: Configuration,
):
    this = lowered(configuration)
    single = floor_div(index_symbol("workitem"), 128) + 2
    meet = Barrier(Integer(1) if this.turns == 1 else single, 128 * this.team)
    kinds = (StoreFragment, SignalFlag, ReduceFragment, RaiseFlag, ArriveBarrier)
    if configuration.cluster[2] > 1:
        kinds = (*kinds, AccumulateFragment)
    found: set[tuple[type, type]] = set()
    for node in this.everything:
        for siblings in (node.body, node.orelse):
            for before, here, after in zip(siblings, siblings[1:], siblings[2:], strict=False):
                if here.op == meet:
                    ones = {type(n.op) for n in before.walk() if isinstance(n.op, kinds)}
                    others = {type(n.op) for n in after.walk() if isinstance(n.op, kinds)}
                    found |= {*product(ones, others)}
    expected: set[tuple[type, type]] = set()
    if configuration in ADDED:
        expected |= {(ReduceFragment, RaiseFlag)}
    elif not isinstance(configuration.schedule[0], DataParallel):
        expected |= {(StoreFragment, SignalFlag)}
    if configuration.cluster[2] > 1:
        expected |= {(StoreFragment, ArriveBarrier), (AccumulateFragment, ArriveBarrier)}
    assert found == expected


def allowed(this: Lowered, node: Node, **at: int) -> bool:
    """Whether an operation is executed at the given indices.

    Only branches whose condition depends on these indices alone are tested; others count as taken.
    """
    values = with_warp({name.replace("_", "."): np.array(value) for name, value in at.items()})

    def known(condition: Basic | None) -> bool:
        return condition is not None and {s.name for s in condition.free_symbols} <= {*values}  # type: ignore[attr-defined]

    for branch in this.nodes(If):
        assert branch.condition is not None
        if not known(branch.condition):
            continue
        holds = bool(this.values(branch.condition, values))
        if any(node is n for child in branch.body for n in child.walk()) and not holds:
            return False
        if any(node is n for child in branch.orelse for n in child.walk()) and holds:
            return False
    return True


def who(this: Lowered, node: Node) -> set[int]:
    """The ranks of the CTAs in the cluster that execute an operation."""
    return {rank for rank in range(this.ranks) if allowed(this, node, cluster_rank=rank)}


@every_sum
def test_the_first_workgroup_adds_what_the_others_send(configuration: Configuration):
    this = lowered(configuration)
    senders = this.ranks - 1
    (send,) = this.nodes(StoreFragment, destination="sum.shared")[:1]
    (receive,) = this.nodes(AccumulateFragment, source="sum.shared")[:1]
    assert send.op.rank == 0  # type: ignore[attr-defined]
    assert who(this, send) == {*range(1, this.ranks)}
    assert who(this, receive) == {0}
    (setting,) = this.nodes(SetCoordinate, dim="sum.sender")[:1]
    assert setting.value is not None
    sender = this.values(setting.value, mesh(cluster_rank=this.ranks))
    sent = places(this, send, "sum.shared", this.ranks, sum_sender=sender.reshape(-1, 1, 1, 1))[1:]
    assert np.array_equal(np.sort(sent.ravel()), np.arange(this.size("sum.shared")))
    for sender in range(senders):
        read = places(this, receive, "sum.shared", 1, sum_sender=sender)
        assert (read[0] == sent[sender]).all()


@every_sum
def test_what_follows_a_sum_is_for_the_first_workgroup(configuration: Configuration):
    this = lowered(configuration)
    after = [
        *this.nodes(StoreBox),
        *this.nodes(ApplyFragment, sources=("C",)),
        *this.nodes(StoreFragment, destination="partials"),
        *this.nodes(AccumulateFragment, source="fixup.shared"),
        *this.nodes(CopyRun),
        *this.nodes(SignalFlag),
        *this.nodes(WaitFlag),
    ]
    assert after
    assert all(who(this, node) == {0} for node in after)


def arrivals(this: Lowered, barrier: str) -> Iterator[tuple[int, int, bool]]:
    """Each arrival at an mbarrier of a cluster while its CTAs exchange one partial sum.

    An arrival is (rank of the CTA that arrives, rank of the CTA whose mbarrier it is, True if the
    arriving thread's earlier stores become visible to other CTAs).
    """
    (node,) = this.nodes(ArriveBarrier, barrier=barrier)[:1]
    op = node.op
    assert isinstance(op, ArriveBarrier)
    assert op.rank is not None
    for rank in range(this.ranks):
        for thread in range(128 * this.consumers):
            if allowed(this, node, cluster_rank=rank, workitem=thread):
                to = this.values(node.scope.resolve(op.rank), {"workitem": np.array(thread)})
                yield rank, int(to), op.publish


@quick_cases(1)
@every_sum
def test_the_barriers_of_a_sum_count_who_arrives(configuration: Configuration):
    this = lowered(configuration)
    others = range(1, this.ranks)
    assert sorted(arrivals(this, "sum.stored")) == [(rank, 0, True) for rank in others]
    assert sorted(arrivals(this, "sum.read")) == [(0, rank, False) for rank in others]
    counts = {op.barrier: op.arrivals for op in this.operations(InitBarrier)}
    assert counts["sum.stored"] == len(others)
    assert counts["sum.read"] == 1
    stored, read = (
        this.nodes(WaitBarrier, barrier=f"sum.{name}")[0] for name in ("stored", "read")
    )
    assert (who(this, stored), who(this, read)) == ({0}, {*others})
    assert stored.op.cluster  # type: ignore[attr-defined]
    assert read.op.before  # type: ignore[attr-defined]
    for node in (stored, read):
        for number in range(5):
            assert this.place(node, "sum.phase", {"sum.number": np.array(number)}) == number % 2


@pytest.mark.parametrize("schedule", [DataParallel(), STREAM], ids=str)
def test_nothing_is_summed_where_k_is_not_divided(schedule: Pass):
    this = lowered(boxed((128, 128, 64), ALONE, schedule=schedule))
    assert "sum.shared" not in this.graph.coordinates
    assert all(op.barrier.startswith("barrier.") for op in this.operations(InitBarrier))
