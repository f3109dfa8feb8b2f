"""The protocol of coordinate-transform edges, and their registry.

*Upstream* is toward the tensor, *downstream* toward the machine. `reverse` maps downstream indices
to upstream ones and is what code generation uses; `forward` maps upstream indices to downstream
ones. An edge class says everything about itself in one place: arity, size rule, both formulas,
guard and laws. There is no identity default: a missing direction raises `NotInvertible`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from sympy import Expr
from sympy.logic.boolalg import Boolean, true

from coordgraph.errors import VerifyError
from coordgraph.integers import Ranges
from coordgraph.tables import TableNeed

__all__ = ["EDGES", "Edge", "Law", "Sizes"]

EDGES: dict[str, type[Edge]] = {}

if TYPE_CHECKING:
    from coordgraph.coordinates.dimensions import Dimension

    class Operands:
        """One side of an edge: written as dimensions or their ids, read as a tuple of ids."""

        def __get__(self, edge: object, owner: type | None = None) -> tuple[str, ...]: ...
        def __set__(
            self, edge: object, value: str | Dimension | Sequence[str | Dimension]
        ) -> None: ...

else:
    Operands = tuple[str, ...]


class Law(Enum):
    """What a test may hold an edge to, for every index inside the sizes and the guard."""

    REVERSE_UNDOES_FORWARD = "reverse(forward(u)) == u"
    FORWARD_UNDOES_REVERSE = "forward(reverse(d)) == d"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of an edge's two sides, None where a dimension has none."""

    upstream: tuple[Expr | None, ...]
    downstream: tuple[Expr | None, ...]


@dataclass(frozen=True)
class Edge(ABC):
    """An ordered hyperedge: operand order is meaning."""

    upstream: Operands
    downstream: Operands

    arity: ClassVar[tuple[int | None, int | None]]
    """Operands upstream and downstream; None means one or more."""
    laws: ClassVar[frozenset[Law]]

    def __init_subclass__(cls) -> None:
        EDGES[cls.__name__] = cls

    def __post_init__(self) -> None:
        object.__setattr__(self, "upstream", _ids(self.upstream))
        object.__setattr__(self, "downstream", _ids(self.downstream))
        for side, count, want in (
            ("upstream", len(self.upstream), self.arity[0]),
            ("downstream", len(self.downstream), self.arity[1]),
        ):
            if count == 0 or (want is not None and count != want):
                wanted = "one or more" if want is None else str(want)
                raise VerifyError(f"{self}: {count} {side} operands, {self.kind} takes {wanted}")

    @property
    def kind(self) -> str:
        """The class name, as the text form and the pictures show it."""
        return type(self).__name__

    @property
    def details(self) -> dict[str, Any]:
        """The fields that only this edge has (strides, a function), in order."""
        return {f.name: getattr(self, f.name) for f in fields(self)[2:]}

    @abstractmethod
    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        """Conditions that the sizes must meet; those that read an absent size are left out.

        They follow from the sizes and the edge's own fields: names of operands do not matter.
        """

    def table_needs(self, sizes: Sizes) -> tuple[TableNeed, ...]:
        """What every table that the formulas read must be: a graph without it does not verify."""
        return ()

    @abstractmethod
    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        """Upstream indices from downstream ones."""

    @abstractmethod
    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        """Downstream indices from upstream ones."""

    def guard(
        self, upstream: Sequence[Expr], downstream: Sequence[Expr | None], sizes: Sizes
    ) -> tuple[Boolean, ...]:
        """When reversed indices are inside the upstream dimension (padding is outside)."""
        return ()

    def reverse_needs(self, known: dict[str, Expr]) -> tuple[str, ...]:
        """The downstream dimensions that `reverse` reads, given what is known so far."""
        return self.downstream

    def reads_when(self, downstream: Sequence[Expr | None]) -> tuple[Boolean, ...]:
        """The condition under which the reversed indices depend on each downstream operand.

        Where it does not hold, that operand may have any value, and what guards it says nothing.
        """
        return (true,) * len(self.downstream)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.upstream)} -> {', '.join(self.downstream)})"


def _ids(side: Any) -> tuple[str, ...]:
    """Accept an id, a dimension, or a sequence of either."""
    if isinstance(side, str) or hasattr(side, "id"):
        side = (side,)
    try:
        return tuple(item if isinstance(item, str) else item.id for item in side)
    except (TypeError, AttributeError):
        raise VerifyError(
            f"the operands {side!r} of an edge are neither ids nor dimensions"
        ) from None
