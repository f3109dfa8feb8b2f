"""Check that a traced workgroup uses its accumulators in a valid order.

The valid order: zero the accumulator; add products and partial sums of one output tile to it; then
either send the accumulator to the workspace, or run the epilogue on it and store it. If D is not
stored, the epilogue is the last operation. The accumulator must be zeroed again before more
products are added.

In a reduce-scatter, every workgroup of an output tile sends its partial sum of the whole tile, then
waits for the workspace slots of all these partial sums, then finishes one share of the tile. The
accumulator of that share must have added the partial sum of every awaited slot exactly once.
"""

from __future__ import annotations

from enum import Enum

from coordgraph.interpreter.tracing import OutputTile

__all__ = ["Accumulators"]


class _State(Enum):
    """The operation last done to an accumulator.

    The value of a member is the clause that describes the accumulator in error messages.
    """

    UNSET = "which was never zeroed"
    SUMMING = "which its epilogue has not finished"
    SENT = "which was not zeroed since it was sent"
    EXCHANGED = "to which a partial sum was added after it was sent"
    FINISHED = "which its epilogue has finished"
    STORED = "which was not zeroed since it was stored"


class Accumulators:
    """Checks the order in which one workgroup operates on its accumulators.

    `problem` describes the first operation that is out of order; it is empty if there is none.

    Args:
        workgroup: the number of the workgroup.
        stores_d: whether the kernel stores D; if not, the epilogue is the last operation on a sum.
    """

    def __init__(self, workgroup: int, stores_d: bool = True) -> None:
        self.problem = ""
        self._workgroup, self._stores_d = workgroup, stores_d
        self._states: dict[str, _State] = {}
        self._tiles: dict[str, OutputTile] = {}
        """The output tile whose products each accumulator holds, by accumulator name. Accumulators
        without products have no entry."""
        self._used: set[str] = set()
        """Names of the accumulators whose sums have been neither sent nor stored yet."""
        self._awaited: dict[OutputTile, list[int]] = {}
        """For each output tile, the workspace slots of its partial sums that the workgroup waited
        for."""
        self._taken: dict[str, list[int]] = {}
        """The workspace slots whose partial sums were added to an accumulator since it was last
        zeroed, by accumulator name."""

    def zero(self, name: str) -> None:
        """Check that the workgroup may zero the accumulator `name` now, and record that it does."""
        self._check_used(name, "zeroes")
        self._states[name] = _State.SUMMING
        self._tiles.pop(name, None)
        self._taken.pop(name, None)

    def add(self, name: str, tile: OutputTile | None) -> None:
        """Check that products of output tile `tile` may be added to accumulator `name` now.

        Args:
            name: the accumulator's name.
            tile: the number of the output tile; None if the tiles of A and B lie outside the
                tensors, so that the products are zero.
        """
        self._check(name, "accumulates into", _State.SUMMING)
        if tile:
            self._check_tile(name, "accumulates", tile)
            self._tiles[name] = tile
            self._used.add(name)

    def receive(self, name: str, tile: OutputTile) -> None:
        """Check that a partial sum from the workspace may be added to accumulator `name` now.

        Args:
            name: the accumulator's name.
            tile: the output tile at the indices of D that are in scope.
        """
        self._check_tile(name, "adds a partial sum of", tile)
        self._check(name, "adds a partial sum to", _State.SUMMING, _State.SENT, _State.EXCHANGED)
        # Receiving is valid after sending, too: in a butterfly reduction, a workgroup sends its
        # sum, then receives the sum of another workgroup.
        if self._states.get(name) is _State.SENT:
            self._states[name] = _State.EXCHANGED
        self._used.add(name)

    def wait_for(self, slot: int, tile: OutputTile) -> None:
        """Record that the workgroup waited for a partial sum of `tile` in workspace slot `slot`."""
        self._awaited.setdefault(tile, []).append(slot)

    def take(self, name: str, slot: int, tile: OutputTile) -> None:
        """Check that the partial sum in a workspace slot may be added to accumulator `name` now.

        The workgroup must have waited for the slot (`wait_for`).

        Args:
            name: the accumulator's name.
            slot: the slot's number.
            tile: the output tile at the indices of D that are in scope.
        """
        self.receive(name, tile)
        if not any(slot in slots for slots in self._awaited.values()):
            self._report(f"adds slot {slot} to accumulator '{name}' and did not wait for the slot")
        self._taken.setdefault(name, []).append(slot)

    def send(self, name: str, tile: OutputTile) -> None:
        """Check that accumulator `name` may be sent to a workspace slot now.

        Args:
            name: the accumulator's name.
            tile: the output tile at the indices of D that are in scope. Generated code sends the
                elements that this tile has inside D.
        """
        self._check(name, "sends", _State.SUMMING, _State.SENT, _State.EXCHANGED)
        self._check_tile(name, "sends", tile)
        self._states[name] = _State.SENT
        self._used.discard(name)

    def finish(self, name: str, tile: OutputTile | None) -> None:
        """Check that the epilogue of output tile `tile` may run on accumulator `name` now.

        Args:
            name: the accumulator's name.
            tile: the number of the output tile; None if the tile lies outside the output.
        """
        self._check(name, "runs the epilogue on", _State.SUMMING, _State.EXCHANGED)
        self._check_tile(name, "finishes", tile)
        if tile in self._awaited:
            awaited, taken = sorted(self._awaited[tile]), sorted(self._taken.get(name, []))
            if awaited != taken:
                self._report(
                    f"runs the epilogue of output tile {tile} on accumulator '{name}', to which it "
                    f"added slots {taken}, and it waited for slots {awaited}"
                )
        self._states[name] = _State.FINISHED
        if not self._stores_d:
            self._used.discard(name)

    def store(self, name: str, tile: OutputTile | None) -> None:
        """Check that accumulator `name` may be stored as output tile `tile` now.

        Args:
            name: the accumulator's name.
            tile: the number of the output tile; None if the tile lies outside the output, so that
                nothing is stored.
        """
        self._check(name, "stores", _State.FINISHED)
        self._check_tile(name, "stores", tile)
        self._states[name] = _State.STORED
        self._used.discard(name)

    def end(self) -> None:
        """Check that no accumulator holds a sum that was neither sent nor stored.

        The method is called once, after the workgroup's last operation.
        """
        for name in self._states:
            self._check_used(name, "ends with")

    def _check(self, name: str, does: str, *allowed: _State) -> None:
        state = self._states.get(name, _State.UNSET)
        if state not in allowed:
            self._report(f"{does} accumulator '{name}', {state.value}")

    def _check_tile(self, name: str, does: str, tile: OutputTile | None) -> None:
        held = self._tiles.get(name, tile)
        if tile and held != tile:
            self._report(f"{does} output tile {tile} with accumulator '{name}', which holds {held}")

    def _check_used(self, name: str, does: str) -> None:
        """Report a problem if the sum in accumulator `name` was neither sent nor stored.

        Args:
            name: the accumulator's name.
            does: the verb phrase that follows the workgroup's number in the message.
        """
        if name in self._used:
            of = f" of output tile {self._tiles[name]}" if name in self._tiles else ""
            self._report(f"{does} accumulator '{name}', whose sum{of} is neither sent nor stored")

    def _report(self, problem: str) -> None:
        self.problem = self.problem or f"workgroup {self._workgroup} {problem}"
