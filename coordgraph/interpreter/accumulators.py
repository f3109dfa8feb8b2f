"""Check that a traced workgroup uses its accumulators in a valid order.

The valid order: zero the accumulator; add products and partial sums of one output tile to it; then
either send it to the workspace, or run the epilogue on it and store it. It must be zeroed again
before more products are added.

In a reduce-scatter a workgroup waits for the slots of all pieces of a tile. Each accumulator that
it then finishes for a share of the tile must have added every one of these slots once.
"""

from __future__ import annotations

from enum import Enum

from coordgraph.interpreter.tracing import OutputTile

__all__ = ["Accumulators"]


class _State(Enum):
    """What was last done to an accumulator; the value is the clause that error messages append."""

    UNSET = "which was never zeroed"
    SUMMING = "which its epilogue has not finished"
    SENT = "which was not zeroed since it was sent"
    EXCHANGED = "which was sent and then took a partial"
    FINISHED = "which its epilogue has finished"
    STORED = "which was not zeroed since it was stored"


class Accumulators:
    """Checks the order of operations on the accumulators of one workgroup.

    `problem` describes the first operation out of order; it is '' while there is none.
    """

    def __init__(self, workgroup: int) -> None:
        self.problem = ""
        self._workgroup = workgroup
        self._states: dict[str, _State] = {}
        self._tiles: dict[str, OutputTile] = {}
        """By accumulator, the output tile whose products it holds; absent if it holds none."""
        self._used: set[str] = set()
        """Names of the accumulators whose sums have been neither sent nor stored yet."""
        self._awaited: dict[OutputTile, list[int]] = {}
        """For each tile, the slots of its pieces that the workgroup has waited for."""
        self._taken: dict[str, list[int]] = {}
        """For each accumulator, the slots added to it since it was zeroed."""

    def zero(self, name: str) -> None:
        """Note that the workgroup zeroes the accumulator `name`."""
        self._check_used(name, "zeroes")
        self._states[name] = _State.SUMMING
        self._tiles.pop(name, None)
        self._taken.pop(name, None)

    def add(self, name: str, tile: OutputTile | None) -> None:
        """Note that products of output tile `tile` are added to `name`; None means padding."""
        self._check(name, "accumulates into", _State.SUMMING)
        if tile:
            self._check_tile(name, "accumulates", tile)
            self._tiles[name] = tile
            self._used.add(name)

    def receive(self, name: str) -> None:
        """Note that a partial sum from the workspace is added to the accumulator `name`."""
        self._check(name, "adds a partial to", _State.SUMMING, _State.SENT, _State.EXCHANGED)
        if self._states.get(name) is _State.SENT:  # as in a butterfly reduction
            self._states[name] = _State.EXCHANGED
        self._used.add(name)

    def wait_for(self, slot: int, tile: OutputTile) -> None:
        """The workgroup has waited for a slot with a piece of a tile."""
        self._awaited.setdefault(tile, []).append(slot)

    def take(self, name: str, slot: int) -> None:
        """The accumulator takes the piece in a slot that the workgroup has waited for."""
        self.receive(name)
        if not any(slot in slots for slots in self._awaited.values()):
            self._report(f"adds slot {slot} to accumulator '{name}' and did not wait for the slot")
        self._taken.setdefault(name, []).append(slot)

    def send(self, name: str) -> None:
        """Note that the accumulator `name` is written to a slot of the workspace."""
        self._check(name, "sends", _State.SUMMING, _State.SENT, _State.EXCHANGED)
        self._states[name] = _State.SENT
        self._used.discard(name)

    def finish(self, name: str, tile: OutputTile | None) -> None:
        """Note that the epilogue of output tile `tile` runs on `name`; None means padding."""
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

    def store(self, name: str, tile: OutputTile | None) -> None:
        """Note that the accumulator `name` is stored as output tile `tile`; None means padding."""
        self._check(name, "stores", _State.FINISHED)
        self._check_tile(name, "stores", tile)
        self._states[name] = _State.STORED
        self._used.discard(name)

    def end(self) -> None:
        """Note that the workgroup has ended: no accumulator may hold an unstored sum."""
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
        """Report a problem if the sum in `name` has been neither sent nor stored."""
        if name in self._used:
            of = f" of output tile {self._tiles[name]}" if name in self._tiles else ""
            self._report(f"{does} accumulator '{name}', whose sum{of} is neither sent nor stored")

    def _report(self, problem: str) -> None:
        self.problem = self.problem or f"workgroup {self._workgroup} {problem}"
