"""The order in which workgroups of a launch must send and receive partial sums.

The order is partial (happens-before), and holds under every interleaving of the workgroups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import networkx

from coordgraph.interpreter.tracing import OutputTile, Receive, Send, Trace

__all__ = ["Order", "happens_before"]

Message = Send | Receive
Partial = tuple[int, int, OutputTile]
"""Type of a partial sum: its slot, its turn (how many partial sums were sent to the slot before
it), and its output tile."""
Node = tuple[int, int]
"""Type of a send or receive: the workgroup, and the position among the workgroup's messages."""


class Order:
    """A graph of a launch's sends and receives; arcs lead to messages that must come later.

    Args:
        graph: the arcs between messages; a node's attribute `event` is the message.
        nodes: the node of every message, by the Python `id` of the message.
    """

    def __init__(self, graph: networkx.DiGraph[Node], nodes: dict[int, Node]) -> None:
        self.graph, self._nodes = graph, nodes

    def before(self, events: Iterable[Message], last: Message) -> bool:
        """Whether all sends and receives `events` must come before the send or receive `last`."""
        earlier = networkx.ancestors(self.graph, self._nodes[id(last)])
        return all(self._nodes[id(event)] in earlier for event in events)

    def cycle(self) -> tuple[Message, ...]:
        """The sends and receives of partial sums that form a cycle, each ordered before the next.

        () if the order has no cycle.
        """
        try:
            arcs = networkx.find_cycle(self.graph)
        except networkx.NetworkXNoCycle:
            return ()
        return tuple(self.graph.nodes[arc[0]]["event"] for arc in arcs)


def happens_before(found: Trace) -> Order:
    """Order sends and receives: by program order in each workgroup, sends before receives.

    A receive comes after all sends of the received partial sum: those with the receive's output
    tile, slot and turn (how many partial sums were sent to the slot before).
    """
    graph: networkx.DiGraph[Node] = networkx.DiGraph()
    nodes: dict[int, Node] = {}
    sends: dict[Partial, list[Node]] = defaultdict(list)
    receives: list[tuple[Partial, Node]] = []
    for workgroup, events in enumerate(found.workgroups):
        messages = [event for event in events if isinstance(event, Message)]
        for position, event in enumerate(messages):
            node = workgroup, position
            nodes[id(event)] = node
            graph.add_node(node, event=event)
            if position:
                graph.add_edge((workgroup, position - 1), node)
            if isinstance(event, Send):
                sends[event.slot, event.turn, event.tile].append(node)
            else:
                receives.append(((event.slot, event.turn, event.tile), node))
    for message, node in receives:
        graph.add_edges_from((sent, node) for sent in sends[message])
    return Order(graph, nodes)
