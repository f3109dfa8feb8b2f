"""Dynamic loops on GPUs: one thread takes a ticket, which the other threads read.

A ticket is the value of a counter in device memory, and says which output tile is next. The thread
takes the ticket after the main loop of a tile, and stores it after the epilogue, so that the
latency of the atomic increment overlaps with the epilogue. If the thread took the ticket earlier,
it would reserve a tile that another workgroup might be free to begin sooner.

Tickets are stored alternately in two words of shared memory, so that one barrier in each iteration
suffices: a word is written again only after the barrier of the next iteration, and at that barrier
no thread still reads the word.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Integer

from coordgraph import KernelGraph
from coordgraph.control.asynchronous import Advance, Counter
from coordgraph.control.lowered import Barrier
from coordgraph.control.operations import Body, Operation, accumulates
from coordgraph.control.tickets import (
    DynamicFor,
    FetchTicket,
    PassTicket,
    ReadTicket,
    TakeTicket,
)
from coordgraph.coordinates.dimensions import Linear, Shared
from coordgraph.coordinates.edges import Flatten, PassThrough
from coordgraph.coordinates.graph import CoordinateEditor
from passes.lowering.control import leader

__all__ = [
    "SHARED",
    "TICKET",
    "fetched",
    "no_dynamic_loop",
    "passed_by_barrier",
    "taken_by",
    "without_ticket",
]

TICKET, SHARED, TURN = "ticket", "ticket.shared", "ticket.turn"
"""TICKET: the register in which the thread that takes tickets (numbers of output tiles) keeps
one. SHARED: the dimension of the shared memory through which that thread passes tickets to the
other threads. TURN: the dimension that numbers the tickets of a workgroup."""
SLOTS = 2
"""Number of words of shared memory that hold tickets (numbers of output tiles) alternately."""


def taken_by(graph: KernelGraph) -> TakeTicket | None:
    """The operation by which workgroups take output tiles; None if there is no dynamic loop."""
    return next(iter(graph.control.of_kind(TakeTicket)), None)


def no_dynamic_loop(graph: KernelGraph) -> str | None:
    """Why a GPU cannot execute the graph's dynamic loop, or None if it can (or there is none).

    The ticket (number of the next output tile) is taken after a main loop, so there must be one
    main loop for every ticket.
    """
    for loop in graph.control.of_kind(DynamicFor):
        count = sum(accumulates(op) for op in loop.walk())
        if count != 1:
            return (
                f"the dynamic loop over {loop.dim} has {count} main loops, and GPU kernels need "
                "exactly one, after which they take the next ticket; put one accumulation loop in "
                "its body"
            )
    return None


def fetched(take: TakeTicket | None) -> Body:
    """The operation by which a thread takes a tile number from a counter; () if `take` is None."""
    return () if take is None else (FetchTicket(TICKET, take.counter, take.count),)


def without_ticket(loop: DynamicFor) -> tuple[Body, TakeTicket]:
    """(body of a dynamic loop without its `TakeTicket` operation, this `TakeTicket`)."""
    (take,) = (op for op in loop.body if isinstance(op, TakeTicket))
    return tuple(op for op in loop.body if op is not take), take


def passed_by_barrier(c: CoordinateEditor, loop: DynamicFor) -> Operation:
    """Lower a dynamic loop for a workgroup whose threads all execute it.

    The body must already contain the `FetchTicket` of the workgroup's first thread. The edges are
    `round, slot --Flatten--> turn` and `shared --PassThrough--> slot`.

    Args:
        c: the coordinate graph under construction.
        loop: the loop; all operations in its body but the `TakeTicket` are lowered already.
    """
    body, take = without_ticket(loop)
    c.add(Linear(TURN, note="running number of a ticket"))
    c.add(Linear("ticket.round"))
    c.add(Linear("ticket.slot", Integer(SLOTS)))
    c.connect(Flatten(("ticket.round", "ticket.slot"), TURN))
    c.add(Shared(SHARED, Integer(SLOTS), element="i32", note="tickets"))
    c.connect(PassThrough(SHARED, "ticket.slot"))
    passed = (
        leader(PassTicket(TICKET, SHARED)),
        Barrier(),
        ReadTicket(take.dim, SHARED, TURN, take.first),
        Advance(TURN),
    )
    return Counter(TURN, (replace(loop, body=(*body, *passed)),))
