"""`Launch`: the launch arguments of one problem on which checks run a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Launch"]


@dataclass(frozen=True)
class Launch:
    """The launch arguments of a problem on which checks run a graph.

    Args:
        values: the values of the parameters that the caller gives, by name.
        tables: the entries of the tables that the caller gives, by name.
        cost: an estimate of the number of events in the launch's trace, computed from the numbers
            of output tiles, k tiles and workgroups.
    """

    values: Mapping[str, int]
    tables: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    cost: int = field(default=0, compare=False)

    def __str__(self) -> str:
        shown = {name: value for name, value in self.values.items() if value}
        if len(self.tables) == 3:
            shown = {k: v for k, v in shown.items() if not k.startswith("elements_")}
        tables = {name: list(entries) for name, entries in self.tables.items()}
        return ", ".join(f"{name}={value}" for name, value in {**shown, **tables}.items())
