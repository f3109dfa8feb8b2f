"""Tickets (loop indices from a shared counter) of a traced launch, taken in workgroup order.

Which workgroup executes an index of a dynamic loop differs from run to run. A trace shows the order
in which all workgroups are equally fast: the first round of tickets goes to the workgroups in the
order of their numbers, then the second round, and so on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from coordgraph.control.tickets import next_value, not_reset
from coordgraph.interpreter.events import Event
from coordgraph.interpreter.formulas import Environment
from coordgraph.interpreter.steps import Work
from coordgraph.tensors import Role

__all__ = ["Tickets", "execute_in_turn"]


class Tickets:
    """Counters from which a traced launch takes loop indices (tickets); each starts at 0."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, int], int] = {}

    def take(self, work: Work, env: Environment) -> None:
        """Take a ticket for the `TakeTicket` operation of `work`, and set the loop's next index."""
        user = work.workspace(Role.COUNTERS)
        (offset,), (first, count) = work.offset(user)(env), work.ticket(env)
        ticket = self._counters.get((user.tensor, offset), 0)
        env[work.following] = first + ticket
        self._counters[user.tensor, offset] = next_value(ticket, count)

    def problems(self) -> Iterator[str]:
        """An error message for each ticket counter that is not 0 after the launch."""
        for (tensor, offset), value in self._counters.items():
            if value:
                yield not_reset(tensor, offset, value)


def execute_in_turn(walks: Iterable[Iterator[Event]]) -> None:
    """Execute workgroups in turn: each takes one loop index (ticket), then the next one continues.

    Each of `walks` executes one workgroup, and yields an event before the workgroup takes a ticket.
    Workgroups that take no ticket run one after another.
    """
    waiting = deque(walk for walk in walks if next(walk, None) is not None)
    while waiting:
        walk = waiting.popleft()
        if next(walk, None) is not None:
            waiting.append(walk)
