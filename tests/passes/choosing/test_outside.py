"""The cost model counts and chooses schedules defined outside the library like the library's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Integer

import codegen
from coordgraph import Gemm, KernelGraph
from coordgraph.control.operations import For
from coordgraph.coordinates.dimensions import ForLoop, Workgroup
from coordgraph.coordinates.edges import PassThrough
from coordgraph.integers import floor_div
from passes import PASSES, HybridStreamK, Pass, Pipeline, SplitK, StreamK, TileWork, TwoTileStreamK
from passes.choosing import Plan, choices, constants_of, rank
from passes.choosing.counting import COUNTED_TILE
from passes.choosing.enumeration import enumerated, walked
from passes.choosing.known_schedules import counter_of
from passes.choosing.model import Counts
from passes.choosing.plan_table import Table
from passes.schedules.heterogeneous_tiles import HeterogeneousTiles
from passes.schedules.partly_streamed import PartlyStreamed

H200 = constants_of("NVIDIA H200")
RAGGED = Gemm("bf16", m=3456, n=3200, k=16384, transpose_b=True)
"""A problem whose last wave is partly filled, whatever the macro tile is."""


@dataclass(frozen=True)
class RaggedWave(PartlyStreamed):
    """A schedule that divides along k only the tiles of the last wave, if it is partly filled."""

    def whole_waves(self, tiles: Expr, workgroups: Expr) -> Expr:
        return floor_div(tiles, workgroups)

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        return (cls(owner="last"), cls(owner="last", reduction="atomic"))

    def suits(self, tiles: Any, depth: Any, workgroups: Any) -> Any:
        return (tiles > workgroups) & (tiles % workgroups != 0)


@dataclass(frozen=True)
class OwnSplitK(SplitK):
    """A split-k schedule whose `variants` lists its options that `matmul` may choose."""

    @classmethod
    def variants(cls, tile: tuple[int, int, int]) -> tuple[Pass, ...]:
        return tuple(cls(splits=splits, reduction="peers") for splits in (2, 4))


@dataclass(frozen=True)
class Rows(Pass):
    """A schedule: each workgroup computes one row of output tiles, in a loop over the columns."""

    establishes = ("scheduled",)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        work, (m, n) = TileWork.of(graph), graph.dangling
        assert m.size is not None
        assert n.size is not None
        with graph.edit(str(self)) as e:
            e.level = "scheduled"
            c = e.coordinates
            c.add(Workgroup("workgroup", m.size))
            c.add(ForLoop("column", n.size, name="Column"))
            c.connect(PassThrough(m.id, "workgroup"))
            c.connect(PassThrough(n.id, "column"))
            loop = For("column", Integer(0), n.size, body=work.whole())
            e.kernel(loop, workgroup="workgroup")
        return e.graph


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch):
    """A function that registers pass classes under given names until the test ends."""

    def register(**kinds: type[Pass]) -> None:
        for name, kind in kinds.items():
            text = name.replace("_", "-")
            monkeypatch.setattr(kind, "name", text, raising=False)
            monkeypatch.setitem(PASSES, text, kind)

    return register


def test_a_schedule_from_outside_is_chosen(registered: Any, monkeypatch: pytest.MonkeyPatch):
    """A schedule defined outside the library is chosen if it has the best predicted time.

    The library's similar schedules list no variants here, so they are no candidates.
    """
    for kind in (StreamK, TwoTileStreamK, HybridStreamK, HeterogeneousTiles):
        monkeypatch.setattr(kind, "variants", classmethod(lambda cls, tile: ()))
    before = rank(RAGGED, H200)[0]
    assert before.plan.schedule.name == "data-parallel"
    registered(ragged_wave=RaggedWave)
    after = rank(RAGGED, H200)[0]
    assert after.plan.schedule == RaggedWave(owner="last")
    assert after.seconds < before.seconds
    works = [
        Counts(Table.of([(RAGGED, choice.plan)]), H200).work.iterations[0]
        * np.prod(choice.plan.tile)
        / np.prod(choice.plan.cluster)
        for choice in (after, before)
    ]
    assert works[0] < works[1]
    # The chosen plan can be printed and parsed, lowered, and shown by `codegen.explain`.
    assert Plan.parse(str(after.plan)) == after.plan
    open_ = Gemm("bf16", transpose_b=True)
    assert after.plan.lowering.why_not(after.plan.graph(open_)) is None
    found = codegen.explain(3456, 3200, 16384, device="NVIDIA H200", transpose_b=True)
    assert "ragged-wave" in str(found)


def test_sums_that_differ_from_run_to_run_are_never_chosen(registered: Any):
    registered(ragged_wave=RaggedWave)
    assert counter_of(RaggedWave(owner="last")) is not None
    assert counter_of(RaggedWave(owner="last", reduction="atomic")) is None
    own = {c.plan.pipeline for c in choices(RAGGED, H200) if "ragged-wave" in c.plan.pipeline}
    assert own
    assert not any("atomic" in pipeline for pipeline in own)


def test_split_k_is_judged_where_it_is_declared(registered: Any):
    problem = Gemm("bf16", m=512, n=512, k=32768, transpose_b=True)
    own = [choice.plan.pipeline for choice in choices(problem, H200)]
    assert not any("split-k{splits=2" in pipeline for pipeline in own)
    registered(own_split_k=OwnSplitK)
    found = [c for c in choices(problem, H200) if c.plan.schedule.name == "own-split-k"]
    assert {c.plan.schedule.splits for c in found} == {2, 4}  # type: ignore[attr-defined]
    assert all(c.plan.workgroups is None for c in found)
    assert all(np.isfinite(c.seconds) and c.terms["fixup"] > 0 for c in found)
    for choice in found[:3]:
        work = Counts(Table.of([(problem, choice.plan)]), H200).work
        splits = choice.plan.schedule.splits  # type: ignore[attr-defined]
        assert work.iterations[0] == -(-work.depth[0] // splits)


def test_a_schedule_may_treat_rows_and_columns_differently(registered: Any):
    registered(rows=Rows)
    counter = counter_of(Rows())
    assert counter is not None
    assert counter.inputs == ("tiles_m", "tiles_n", "depth", "workgroups")
    graph = Rows()(Gemm("f32").graph(COUNTED_TILE))
    for sizes in ((3, 5, 7, 2), (5, 3, 2, 9)):
        counts = counter.count(*(np.array([float(size)]) for size in sizes))
        for name, number in enumerated(walked(graph, *sizes), counter):
            assert getattr(counts, name)[0] == number
    problem = Gemm("bf16", m=1280, n=640, k=1024)
    table = Table.of([(problem, Plan((128, 128, 64), pipeline="rows"))])
    assert Counts(table, H200).work.iterations[0] == 5 * 16


def test_what_cannot_be_counted_is_not_chosen(registered: Any):
    """A schedule whose work cannot be counted is never chosen, but a caller can still apply it."""
    registered(rows=Rows)
    text = "128x128x64 two-tile-stream-k{waves=contiguous}"
    problem = Gemm("bf16", m=1280, n=640, k=1024)
    assert not PASSES["two-tile-stream-k"](waves="contiguous").neighbours  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="the cost model does not know"):
        Table.of([(problem, Plan.parse(text))])
    assert Pipeline.parse("rows")(Gemm("bf16").graph((64, 64, 32))).level == "scheduled"
