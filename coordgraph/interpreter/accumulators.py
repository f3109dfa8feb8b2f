"""The order in which a workgroup uses its accumulators, checked while it is traced.

An accumulator is zeroed, takes iterations and partials of one output tile, and is then either sent
or finished by the epilogue and stored. Before it takes more iterations it must be zeroed again.

In a reduce-scatter a workgroup waits for the slots of all pieces of a tile. Each accumulator that
it then finishes for a share of the tile must have taken every one of these slots once.
"""

from __future__ import annotations

from enum import Enum

from coordgraph.interpreter.tracing import OutputTile

__all__ = ["Accumulators"]


class _State(Enum):
    """What was last done to an accumulator, as messages say it."""

    UNSET = "which was never zeroed"
    SUMMING = "which its epilogue has not finished"
    SENT = "which was not zeroed since it was sent"
    EXCHANGED = "which was sent and then took a partial"
    FINISHED = "which its epilogue has finished"
    STORED = "which was not zeroed since it was stored"


class Accumulators:
    """The accumulators of one workgroup; `problem` is the first step out of order, or empty."""

    def __init__(self, workgroup: int) -> None:
        self.problem = ""
        self._workgroup = workgroup
        self._states: dict[str, _State] = {}
        self._tiles: dict[str, OutputTile] = {}
        """The output tile whose iterations an accumulator holds."""
        self._used: set[str] = set()
        """The accumulators that hold a sum which is still to be sent or stored."""
        self._awaited: dict[OutputTile, list[int]] = {}
        """The slots with the pieces of a tile that the workgroup waited for."""
        self._taken: dict[str, list[int]] = {}
        """The slots that were added to an accumulator since it was zeroed."""

    def zero(self, name: str) -> None:
        """The accumulator becomes zero."""
        self._check_used(name, "zeroes")
        self._states[name] = _State.SUMMING
        self._tiles.pop(name, None)
        self._taken.pop(name, None)

    def add(self, name: str, tile: OutputTile | None) -> None:
        """The accumulator takes iterations of a tile; without a tile, those of padding."""
        self._check(name, "accumulates into", _State.SUMMING)
        if tile:
            self._check_tile(name, "accumulates", tile)
            self._tiles[name] = tile
            self._used.add(name)

    def receive(self, name: str) -> None:
        """The accumulator takes a partial from the workspace."""
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
        """The accumulator goes to a slot of the workspace, or to several."""
        self._check(name, "sends", _State.SUMMING, _State.SENT, _State.EXCHANGED)
        self._states[name] = _State.SENT
        self._used.discard(name)

    def finish(self, name: str, tile: OutputTile | None) -> None:
        """The epilogue changes the accumulator; without a tile, that of padding."""
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
        """The accumulator is written as a tile; without a tile, that of padding."""
        self._check(name, "stores", _State.FINISHED)
        self._check_tile(name, "stores", tile)
        self._states[name] = _State.STORED
        self._used.discard(name)

    def end(self) -> None:
        """The workgroup is done."""
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
        """What an accumulator holds was sent or stored."""
        if name in self._used:
            of = f" of output tile {self._tiles[name]}" if name in self._tiles else ""
            self._report(f"{does} accumulator '{name}', whose sum{of} is neither sent nor stored")

    def _report(self, problem: str) -> None:
        self.problem = self.problem or f"workgroup {self._workgroup} {problem}"
