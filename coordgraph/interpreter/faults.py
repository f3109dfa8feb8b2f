"""`Fault`: one error of a schedule that the interpreter found, and the check that it violates."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Fault", "places"]


class Fault(NamedTuple):
    """One error of a schedule in one launch.

    Args:
        check: the name of the check that fails: `cover`, `fix-up`, `progress` or `bounds`.
        message: what is wrong, as one sentence.
        workgroups: the numbers of the workgroups that take part, in order.
        tile: the output tile, or () if there is none.
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
