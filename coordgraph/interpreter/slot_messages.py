"""Error messages for workspace slots: out of bounds, or with sends that match no receives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["outside_workspace", "unmatched"]

Tile = tuple[int, ...]
"""Number of an output tile: (m, n), or (product, m, n) in a graph for several products."""


def outside_workspace(slot: int, slots: int) -> str:
    """The error message for the slot number `slot` if the workspace has only `slots` slots."""
    if slots <= 0:
        return f"workspace slot {slot} is used, but the workspace is empty"
    return f"workspace slot {slot} is outside 0..{slots - 1}"


def unmatched(
    at: tuple[int, int],
    sends: Sequence[tuple[int, Tile, int]],
    receives: Sequence[tuple[int, Tile]],
) -> str:
    """The error message for a workspace slot whose sends and receives do not match.

    Args:
        at: the number of the slot, and the position of the partial sum among those that are sent to
            the slot one after another (`Send.turn`).
        sends: for each send of a partial sum, its workgroup, its output tile and how often the
            partial sum must be received.
        receives: for each receive, its workgroup and its output tile.
    """
    slot = f"workspace slot {at[0]}" + (f" at turn {at[1]}" if at[1] else "")
    senders, receivers = _workgroups(w for w, *_ in sends), _workgroups(w for w, _ in receives)
    if not sends:
        verb = "receive" if receivers.startswith("workgroups") else "receives"
        return f"{receivers} {verb} from {slot}, which no workgroup writes"
    if not receives:
        verb = "write" if senders.startswith("workgroups") else "writes"
        return f"{senders} {verb} {slot}, from which no workgroup receives"
    written = "written once" if len(sends) == 1 else f"written {len(sends)} times"
    wanted = sum(readers for *_, readers in sends)
    received = "once" if len(receives) == 1 else f"{len(receives)} times"
    return (
        f"{slot} is {written} by {senders}, with partial sums of output tiles "
        f"{_tiles(tile for _, tile, _ in sends)} for {wanted} "
        f"{'receive' if wanted == 1 else 'receives'}, but it is received "
        f"{received} by {receivers}, for output tiles "
        f"{_tiles(tile for _, tile in receives)}"
    )


def _workgroups(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    return f"workgroup{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"


def _tiles(tiles: Iterable[Tile]) -> str:
    return ", ".join(map(str, sorted(set(tiles))))
