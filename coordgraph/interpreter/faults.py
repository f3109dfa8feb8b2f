"""`Fault`: one error of a schedule that the interpreter found, and the check that it violates."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Fault", "places"]


class Fault(NamedTuple):
    """One error of a schedule in one launch.

    Args:
        check: the name of the check that fails: `cover`, `fix-up`, `progress` or `bounds`.
        message: what is wrong, as one sentence.
        workgroups: ascending numbers of the workgroups whose work on the output tile, or whose
            sends and receives, are at fault; () if they are not recorded.
        tile: the number of the output tile, such as (m, n); () if the error is not of one tile.
    """

    check: str
    message: str
    workgroups: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()

    def __str__(self) -> str:
        where = places(self.workgroups, self.tile)
        return f"{self.message} [{', '.join(where)}]" if where else self.message


def places(workgroups: tuple[int, ...], tile: tuple[int, ...]) -> list[str]:
    """The workgroups and the output tile where a fault occurs, as phrases for messages."""
    found: list[str] = []
    if workgroups:
        plural = "s" if len(workgroups) > 1 else ""
        found.append(f"workgroup{plural} {', '.join(map(str, workgroups))}")
    if tile:
        found.append(f"output tile {tile}")
    return found
