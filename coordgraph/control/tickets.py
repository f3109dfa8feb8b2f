"""Dynamic loops: workgroups take the indices of a loop from a counter in device memory.

A *ticket* is the value that a counter had before an atomic increment, so every ticket is given once
and the tickets of a launch are 0, 1, 2 and so on, in the order in which workgroups take them. A
dynamic loop gives each workgroup its own number as its first index; each further index is a ticket
plus the number of workgroups. With `stop` indices in all, every index 0 to `stop - 1` is then
executed once, in whatever order tickets are taken:

- An index below the number of workgroups is the first index of the workgroup with that number.
- A further index i comes from the ticket i - w, where w is the number of workgroups. Every
  workgroup takes tickets until its index is `stop` or more, so the ticket of each index below
  `stop` is taken, and the workgroup that takes a ticket executes the ticket's index.

A workgroup takes one ticket for each index that it executes. So a launch takes exactly `stop`
tickets, and the last of these increments sets the counter back to 0 (PTX `atom.inc`), for the next
launch.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Symbol, sympify

from coordgraph.control.operations import Body, Operation
from coordgraph.integers import index_symbol

__all__ = [
    "DynamicFor",
    "FetchTicket",
    "PassTicket",
    "ReadTicket",
    "TakeTicket",
    "following",
    "next_value",
    "not_reset",
]


def following(dim: str) -> Symbol:
    """The symbol of the next index of a dynamic loop over `dim`, which `TakeTicket` computes."""
    return index_symbol(f"{dim}.following")


def next_value(ticket: int, count: int) -> int:
    """The value to which taking a ticket sets a counter: one more, or 0 after the last ticket.

    PTX `atom.inc` does the same.

    Args:
        ticket: the value of the counter before.
        count: the number of tickets of a launch.
    """
    return 0 if ticket >= count - 1 else ticket + 1


def not_reset(tensor: str, offset: int, value: int) -> str:
    """The error message for a ticket counter in `tensor` that a launch leaves at `value`, not 0."""
    return (
        f"counter {tensor}[{offset}] is {value} at the end, and must be 0 for the next launch; "
        "correct TakeTicket.count"
    )


@dataclass(frozen=True)
class DynamicFor(Operation):
    """The loop `for (dim = start; dim < stop; dim = following)`, with indices from a counter.

    One `TakeTicket` of the same dimension, directly in the body, computes `following` from an
    atomic counter. In a lowered graph for a GPU, a `ReadTicket` computes `following`.

    Args:
        dim: the dimension whose index is the loop index.
        start: the first index of a workgroup: the workgroup's number.
        stop: the exclusive end; evaluated once.
        body: the operations of an iteration.
    """

    dim: str
    start: Expr
    stop: Expr
    body: Body = ()

    BODIES = ("body",)
    ROLES = ("dim",)

    def __post_init__(self) -> None:
        for name in ("start", "stop"):
            object.__setattr__(self, name, sympify(getattr(self, name)))

    @property
    def symbol(self) -> Symbol:
        """The symbol of the loop index in expressions."""
        return index_symbol(self.dim)


@dataclass(frozen=True)
class TakeTicket(Operation):
    """Take a ticket: the next index of the enclosing `DynamicFor` over `dim` is `first` + ticket.

    The ticket is the value of a counter before this operation increments it atomically. The
    increment wraps around: the counter has the values 0 to `count - 1`, then 0 again.

    Args:
        dim: the dimension of the enclosing `DynamicFor`.
        counter: the dimension whose index selects the counter, in a tensor of counters.
        first: the index for ticket 0: the number of workgroups.
        count: the number of tickets that a launch takes: the number of indices of the loop.
    """

    dim: str
    counter: str
    first: Expr
    count: Expr

    ROLES = ("dim", "counter")

    def __post_init__(self) -> None:
        for name in ("first", "count"):
            object.__setattr__(self, name, sympify(getattr(self, name)))


@dataclass(frozen=True)
class FetchTicket(Operation):
    """Take a ticket from a counter and keep it in a register, until `PassTicket` stores it.

    One thread executes the operation, and does not wait for the ticket, so the latency of the
    atomic increment overlaps with the operations up to `PassTicket`.

    Args:
        ticket: the name of the register.
        counter: the dimension whose index selects the counter, in a tensor of counters.
        count: the number of tickets that a launch takes. The increment wraps around: the counter
            has the values 0 to `count - 1`, then 0 again.
    """

    ticket: str
    counter: str
    count: Expr

    ROLES = ("counter",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", sympify(self.count))


@dataclass(frozen=True)
class PassTicket(Operation):
    """Write to shared memory, for other threads, the ticket that `FetchTicket` took.

    Args:
        ticket: the name of the register that holds the ticket.
        destination: the dimension of shared memory whose index selects the word to write.
        rank: the rank in the cluster of the workgroup whose shared memory is written; None for the
            executing workgroup.
    """

    ticket: str
    destination: str
    rank: Expr | None = None

    ROLES = ("destination",)

    def __post_init__(self) -> None:
        if self.rank is not None:
            object.__setattr__(self, "rank", sympify(self.rank))


@dataclass(frozen=True)
class ReadTicket(Operation):
    """Read a ticket: the next index of the enclosing `DynamicFor` over `dim` is `first` + ticket.

    All threads that execute the loop execute the operation.

    Args:
        dim: the dimension of the enclosing `DynamicFor`.
        source: the dimension of shared memory whose index selects the word with the ticket.
        turn: the dimension that numbers the tickets that this workgroup takes, from 0.
        first: the index for ticket 0: the number of workgroups.
    """

    dim: str
    source: str
    turn: str
    first: Expr

    ROLES = ("dim", "source", "turn")

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", sympify(self.first))
