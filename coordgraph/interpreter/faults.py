"""`Fault`: one error of a schedule that the interpreter found, and the check that it refutes."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Fault"]


class Fault(NamedTuple):
    """One error of a schedule in one launch.

    Args:
        check: the name of the check that it refutes: `cover`, `fix-up`, `progress` or `bounds`.
        message: what is wrong, as one sentence.
        workgroups: the numbers of the workgroups that take part, in order.
        tile: the output tile, or () if there is none.
    """

    check: str
    message: str
    workgroups: tuple[int, ...] = ()
    tile: tuple[int, ...] = ()
