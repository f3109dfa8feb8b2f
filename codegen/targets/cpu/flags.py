"""Emit operations on flags and counters of tickets on the CPU.

A flag says that a workspace slot holds a partial sum.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from llvmlite import ir

from codegen.targets.cpu.guards import GuardedWalker
from coordgraph.control import lowered as ops
from coordgraph.control.resolve import Node
from coordgraph.control.tickets import TakeTicket

__all__ = ["FlagWalker"]

I32 = ir.IntType(32)


class FlagWalker(GuardedWalker):
    """Emits a CPU kernel's operations on flags of workspace slots, and on counters of tickets."""

    @abstractmethod
    def _address(self, node: Node, dim: str, width: int = 1) -> tuple[ir.Value, Any]:
        """A pointer to the first of `width` elements that `node` accesses along `dim`, and a guard.

        The guard is false if these elements are padding.
        """

    def emit_SignalFlag(self, node: Node, op: ops.SignalFlag) -> None:
        """Emit a store that raises a flag, with release semantics for all earlier stores."""
        self._set_flag(node, op.flag, self.raised(node, op.turn, op.readers))

    def emit_RaiseFlag(self, node: Node, op: ops.RaiseFlag) -> None:
        """Emit an atomic addition of 1 to a flag, with release semantics.

        All additions form one release sequence (C11), so a wait acquires the stores of all senders.
        """
        address, _ = self._address(node, op.flag)
        self.builder.atomic_rmw("add", address, ir.Constant(I32, 1), "release")

    def emit_WaitFlag(self, node: Node, op: ops.WaitFlag) -> None:
        """Emit a loop that polls a flag until it is raised, with acquire semantics."""
        address, _ = self._address(node, op.flag)
        self.spin(node, op.flag, address, self.raised(node, op.turn, op.senders))

    def emit_TakeFlag(self, node: Node, op: ops.TakeFlag) -> None:
        """Emit a loop that polls a flag until it is not 0, and then subtracts 1 from the flag."""
        address, _ = self._address(node, op.flag)
        self.spin(node, op.flag, address, crowded=True)
        # Relaxed ordering suffices: the subtraction continues the sender's release sequence (C11),
        # so later readers of the flag still acquire the sender's stores.
        self.builder.atomic_rmw("sub", address, ir.Constant(I32, 1), "monotonic")

    def emit_ClearFlag(self, node: Node, op: ops.ClearFlag) -> None:
        """Emit a store of 0 to a flag."""
        self._set_flag(node, op.flag, ir.Constant(I32, 0))

    def emit_TakeTicket(self, node: Node, op: TakeTicket) -> None:
        """Emit an atomic increment of a counter; the old value, a ticket, selects the next index.

        The counter becomes 0 after the last ticket.
        """
        address, _ = self._address(node, op.counter)
        last = self.last_ticket(node, op.count)
        ticket = self.builder.atomic_rmw("uinc_wrap", address, last, "monotonic")
        self.follow(node, op.dim, op.first, ticket)

    def _set_flag(self, node: Node, dim: str, value: ir.Value) -> None:
        # An atomic exchange, because llvmlite's atomic store rejects opaque pointers.
        address, _ = self._address(node, dim)
        self.builder.atomic_rmw("xchg", address, value, "release")
