"""Reduce-scatter with mma.sync: a share of a tile is a pair of registers in every thread.

Kernels assemble without a register spill.
"""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Symbol

from codegen.targets.nvptx.facts import Facts
from coordgraph import Gemm
from coordgraph.control.lowered import AccumulateFragment, SignalFlag, StoreFragment, TakeFlag
from coordgraph.control.resolve import Node, resolve
from coordgraph.integers import compile_function
from passes import HybridStreamK, SplitK, StreamK, TwoTileStreamK
from passes.choosing import Plan
from passes.kit.reduce_scatter import END, PEER, SHARE
from passes.kit.tile_work import main_loops
from passes.lowering.share_lowering import BATCHES
from passes.lowering.sm_80.fragments import REGISTERS
from tests.codegen.nvptx.configurations import Configuration
from tests.codegen.nvptx.hopper import mesh
from tests.codegen.nvptx.isa import Array
from tests.codegen.nvptx.test_assembly import check
from tests.support.sampling import chosen, quick_cases

STREAM, SPLIT = StreamK(reduction="scatter"), SplitK(splits=4, reduction="scatter")
TWO_TILE, HYBRID = TwoTileStreamK(reduction="scatter"), HybridStreamK(reduction="scatter")
KERNELS = (
    Configuration((128, 128, 32), (STREAM,), architecture="sm_80"),
    Configuration((64, 64, 64), (SPLIT,), "tn", ("f16", "f32"), architecture="sm_80"),
    Configuration((96, 96, 48), (TWO_TILE,), "nt", architecture="sm_86"),
    Configuration((128, 256, 64), (HYBRID,), "tt", architecture="sm_80"),
)


@quick_cases(1)
@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("configuration", chosen(KERNELS[:2], KERNELS), ids=str)
def test_it_is_assembled(configuration: Configuration):
    check(configuration)
    assert Facts.of(configuration.program).together


@pytest.mark.parametrize("configuration", [KERNELS[0], KERNELS[3]], ids=str)
def test_a_share_is_read_where_it_was_sent(configuration: Configuration):
    """In a reduce-scatter, workgroups add partial sums to the elements that they were sent for.

    A register reads from the workspace slot what another workgroup sent for the register's element
    of D, and then stores to that element.
    """
    graph = configuration.program.lowered
    roots = resolve(graph.control.root.body, graph.scope())
    nodes = [node for root in roots for node in root.walk()]
    size = {name: graph.coordinates[name].fixed_size for name in (*REGISTERS, "workitem", SHARE)}
    (send,) = (n for n in nodes if is_store(n, "partials"))
    reads = [n for n in nodes if isinstance(n.op, AccumulateFragment) and n.op.source == "partials"]
    whole, *_ = (n for n in nodes if is_store(n, "D") and SHARE not in n.scope.known)
    (share,) = (n for n in nodes if is_store(n, "D") and SHARE in n.scope.known)
    # Kernels with two main loops, such as those of hybrid Stream-K, have no batches of 32 peers.
    assert len(reads) == (len(BATCHES) if len(main_loops(configuration.graph)) == 1 else 1)
    names = send.op.bindings["registers"]
    assert names == REGISTERS
    counts = [size[name] for name in names]
    shares = size[SHARE]
    assert shares == np.prod(counts)
    at = mesh(workitem=size["workitem"], fixup_share=shares)
    split = dict(zip(names, np.unravel_index(at[SHARE], counts), strict=True))
    here = at | {PEER: np.array(3), END: np.array(1), "workgroup": np.array(3)}
    sent = values(send, "partials", here | split)
    elements = configuration.tile[0] * configuration.tile[1]
    assert np.array_equal(np.sort(sent.ravel()), np.arange(elements // 2) * 2 + sent.min())
    for read in reads:
        assert (values(read, "partials", here) == sent).all()
    for axis in ("D.index.0", "D.index.1"):
        assert (values(share, axis, here) == values(whole, axis, here | split)).all()


def is_store(node: Node, to: str) -> bool:
    return isinstance(node.op, StoreFragment) and node.op.destination == to


def values(node: Node, dim: str, at: dict[str, Array]) -> Array:
    wanted = node.place(dim).values[0]
    symbols = sorted((s for s in wanted.free_symbols if isinstance(s, Symbol)), key=str)
    (found,) = compile_function([wanted], symbols)(*(at[s.name] for s in symbols))
    return np.broadcast_to(found, np.broadcast_shapes(*(np.shape(x) for x in at.values())))


@pytest.mark.parametrize("configuration", KERNELS[:2], ids=str)
def test_flags_are_raised_and_taken_once(configuration: Configuration):
    control = configuration.program.lowered.control
    (raised,), (taken,) = control.of_kind(SignalFlag), control.of_kind(TakeFlag)
    assert (raised.flag, str(raised.readers), taken.flag) == ("flags", "peers", "flags")


@pytest.mark.parametrize(
    "text",
    [
        "256x256x64@c2x1 stream-k{reduction=scatter} on 64",
        "128x128x64 split-k{splits=16,reduction=scatter}",
        "128x256x64 two-tile-stream-k{first=dp,reduction=scatter} on 132",
    ],
)
def test_a_plan_names_it(text: str):
    plan = Plan.parse(text)
    assert str(plan) == text
    assert plan.why_not(Gemm("bf16", transpose_b=True)) is None
    lowered = plan.lowering(plan.graph(Gemm("bf16", transpose_b=True)))
    assert lowered.control.of_kind(TakeFlag)
