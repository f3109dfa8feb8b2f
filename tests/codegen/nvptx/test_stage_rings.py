"""On sm_80, every accumulation loop has its own stage ring, indexed by the loop's index."""

from __future__ import annotations

import pytest

from coordgraph import Gemm, KernelGraph
from coordgraph.control.lowered import LoadFragment
from coordgraph.control.resolve import resolve
from coordgraph.coordinates.dimensions import Linear
from coordgraph.integers import index_symbol, to_text
from examples.ragged_split_k import RaggedSplitK
from passes import DataParallel, HeterogeneousTiles, Pass, StreamK, TwoTileStreamK
from passes.lowering import LowerToTensorCores


def lowered(step: Pass, **gemm: object) -> KernelGraph:
    graph = Gemm("bf16", **gemm).graph((64, 64, 32))  # type: ignore[arg-type]
    return LowerToTensorCores("sm_80")(step(graph))


def stages(graph: KernelGraph) -> set[str]:
    """The expressions of the stage index in loads of fragments from shared memory, as text."""
    roots = resolve(graph.control.root.body, graph.scope())
    nodes = [node for root in roots for node in root.walk()]
    loads = [node for node in nodes if isinstance(node.op, LoadFragment)]
    assert loads
    return {to_text(node.scope.reverse("stage").values[0]) for node in loads}


def test_loops_over_k_and_over_a_part_of_k_have_a_ring_each():
    """A loop over all of k and a loop over a part of k have a stage ring each.

    Whole tiles loop over `k_tile`, and tiles that several workgroups compute over `for_k`, which is
    a part of `k_tile`.
    """
    graph = lowered(RaggedSplitK())
    count = graph.coordinates["stage"].fixed_size
    assert stages(graph) == {f"k_tile.step % {count}", f"for_k % {count}"}
    # The stage does not depend on which part of a tile's k a workgroup computes.
    assert index_symbol("piece") not in graph.expressions


@pytest.mark.parametrize(
    ("step", "loops"),
    [
        (DataParallel(), {"k_tile"}),
        (StreamK(), {"for_k"}),
        (TwoTileStreamK(), {"for_k"}),
        (HeterogeneousTiles(small_m=32), {"k_tile"}),
    ],
    ids=str,
)
def test_a_loop_counts_its_own_ring_where_no_other_leads_to_it(step: Pass, loops: set[str]):
    graph = lowered(step)
    count = graph.coordinates["stage"].fixed_size
    assert stages(graph) == {f"{loop} % {count}" for loop in loops}
    assert not [d.id for d in graph.coordinates if d.id.endswith(".step")]


def test_two_loops_that_do_not_lead_to_each_other_need_no_counter():
    """Loops over two unrelated k dimensions need no common stage counter.

    In groups of different k, the loop over Stream-K tiles has the index `for_k`, and the loop over
    whole tiles `dp.k`.
    """
    graph = lowered(TwoTileStreamK(), grouped=True, group_axis="k")
    count = graph.coordinates["stage"].fixed_size
    assert stages(graph) == {f"for_k % {count}", f"dp.k % {count}"}
    assert len([d for d in graph.coordinates.of_kind(Linear) if "stage.round" in d.id]) == 2
