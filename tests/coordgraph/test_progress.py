"""`wait_direction`, whether workgroups wait for lower numbers, is `mixed` if nothing is proved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sympy import Integer

from coordgraph import Gemm, KernelGraph
from coordgraph.control.operations import (
    For,
    Operation,
    ReceivePartial,
    SendPartial,
    SetCoordinate,
)
from coordgraph.coordinates.edges import Join, PassThrough
from coordgraph.integers import index_symbol
from coordgraph.progress import wait_direction
from passes import StreamK

SLOT = "partial.slot"
WORKGROUP = index_symbol("workgroup")


def streamed(owner: str = "first") -> KernelGraph:
    return StreamK(workgroups=6, owner=owner)(Gemm("f32").graph())


def receiving(graph: KernelGraph, start: object, stop: object) -> KernelGraph:
    """The graph, with the loop that receives partial sums running from `start` to `stop`."""

    def change(op: object) -> object:
        if isinstance(op, For) and op.dim == SLOT:
            return For(SLOT, start, stop, body=(ReceivePartial(SLOT),))
        return op

    with graph.edit("changed") as e:
        e.control = e.control.rewrite(change)
    return e.graph


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (WORKGROUP + 1, Integer(6), "higher"),
        (WORKGROUP + 3, WORKGROUP + 5, "higher"),
        (Integer(0), WORKGROUP, "lower"),
        (WORKGROUP, Integer(6), "mixed"),
        (Integer(0), WORKGROUP + 1, "mixed"),
        (Integer(0), Integer(6), "mixed"),
    ],
)
def test_bounds_of_the_slots(start: object, stop: object, expected: str):
    assert wait_direction(receiving(streamed(), start, stop)) == expected


def test_a_slot_that_does_not_lead_back_to_its_sender_proves_nothing():
    graph = streamed()
    with graph.edit("untied") as e:
        e.coordinates.disconnect(PassThrough(SLOT, "sk.workgroup"))
    assert wait_direction(graph) == "higher"
    assert wait_direction(e.graph) == "mixed"


def test_a_slot_that_leads_back_to_another_proves_nothing():
    """If workgroups send to slots of other workgroups, nothing is proved about who waits for whom.

    Workgroup w sends to slot w + 1, which belongs to workgroup w + 1 according to the graph.
    """
    graph = streamed()

    def change(op: Operation) -> Operation:
        beside = SetCoordinate(SLOT, WORKGROUP + 1, (op,))
        return beside if isinstance(op, SendPartial) else op

    with graph.edit("shifted") as e:
        e.control = e.control.rewrite(change)
    assert wait_direction(e.graph) == "mixed"


def test_a_turn_that_does_not_lead_back_to_its_sender_proves_nothing():
    """If an edge gives a wrong sender, nothing is proved about who waits for whom.

    In a turnstile reduction the edge from (slot, turn) gives the workgroup that adds to the slot
    at that turn. If it does, workgroups wait only for workgroups with lower numbers.
    """
    graph = StreamK(owner="last", reduction="turnstile")(Gemm("f32").graph())
    edge = Join((SLOT, "partial.turn"), "sk.workgroup", (Integer(1), Integer(1)))
    with graph.edit("elsewhere") as e:
        e.coordinates.disconnect(edge)
        e.coordinates.connect(replace(edge, strides=(Integer(1), Integer(2))))
    assert wait_direction(graph) == "lower"
    assert wait_direction(e.graph) == "mixed"


def test_waits_in_both_directions_are_mixed():
    graph = streamed()
    lower = For(SLOT, Integer(0), WORKGROUP, body=(ReceivePartial(SLOT),))
    with graph.edit("both") as e:
        e.control = e.control.rewrite(
            lambda op: (op, lower) if isinstance(op, For) and op.dim == SLOT else op
        )
    assert wait_direction(e.graph) == "mixed"
