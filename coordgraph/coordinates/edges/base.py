"""`Edge`, the base class of coordinate transforms, and the registry of its subclasses.

*Upstream* is toward the tensors, *downstream* toward the machine (workgroups, loops, threads).
`reverse` maps downstream indices to upstream indices, as code generation needs; `forward` maps
upstream indices to downstream indices. A subclass defines its arity, size rule, both formulas,
guard and laws. No direction defaults to the identity: a direction without a formula raises
`NotInvertible`.
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
from coordgraph.integers import Ranges, equal
from coordgraph.tables import TableNeed

__all__ = ["EDGES", "Edge", "Law", "Sizes"]

EDGES: dict[str, type[Edge]] = {}
"""Every class of edge by class name; subclassing `Edge` registers the subclass."""

if TYPE_CHECKING:
    from coordgraph.coordinates.dimensions import Dimension

    class Operands:
        """The operands on one side (upstream or downstream) of an edge.

        The fields `upstream` and `downstream` of an edge take one or several dimensions or ids;
        reading such a field gives a tuple of ids.
        """

        def __get__(self, edge: object, owner: type | None = None) -> tuple[str, ...]: ...
        def __set__(
            self, edge: object, value: str | Dimension | Sequence[str | Dimension]
        ) -> None: ...

else:
    Operands = tuple[str, ...]


class Law(Enum):
    """An identity between `forward` and `reverse` that an edge declares and that tests verify.

    The identity must hold for all indices that are below their dimensions' sizes and for which the
    edge's guard holds.
    """

    REVERSE_UNDOES_FORWARD = "reverse(forward(u)) == u"
    FORWARD_UNDOES_REVERSE = "forward(reverse(d)) == d"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the dimensions on both sides of an edge; None for a dimension without a size."""

    upstream: tuple[Expr | None, ...]
    downstream: tuple[Expr | None, ...]

    @property
    def unchanged(self) -> tuple[Boolean, ...]:
        """Conditions: operands at the same position upstream and downstream have equal sizes.

        A position at which an operand has no size is left out.
        """
        return tuple(
            equal(above, below)
            for above, below in zip(self.upstream, self.downstream, strict=True)
            if above is not None and below is not None
        )


@dataclass(frozen=True)
class Edge(ABC):
    """A coordinate transform between ordered operands: dimensions upstream and downstream.

    Args:
        upstream: the operands toward the tensors, as dimensions or ids.
        downstream: the operands toward workgroups, loops and threads, as dimensions or ids.

    Raises:
        VerifyError: the number of operands on a side does not match the class's arity.
    """

    upstream: Operands
    downstream: Operands

    arity: ClassVar[tuple[int | None, int | None]]
    """The number of operands upstream and downstream; None stands for one or more operands."""
    laws: ClassVar[frozenset[Law]]
    """The identities between `forward` and `reverse` that hold for edges of this class."""
    consecutive: ClassVar[bool] = False
    """Whether `reverse` maps consecutive downstream indices to consecutive upstream indices.

    Where an index wraps, as at the border of a tile, an edge with `consecutive = True` may break
    this rule. The upstream index of an edge with `consecutive = False` takes several instructions,
    so kernels compute it once per iteration of the loop over k tiles, not at every use.
    """

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
                raise VerifyError(
                    f"{self}: it has {count} {side} operands, but {self.kind} takes {wanted}; name "
                    "that many"
                )

    @property
    def kind(self) -> str:
        """The name of the edge's class, as the text form and diagrams show it."""
        return type(self).__name__

    @property
    def details(self) -> dict[str, Any]:
        """The fields that the edge's class adds to `Edge`, such as strides, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)[2:]}

    @abstractmethod
    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        """Conditions that the sizes of the operands must satisfy.

        Conditions on operands without a size are left out. The conditions depend only on `sizes`
        and on the fields of the edge, not on the ids of operands.
        """

    def table_needs(self, sizes: Sizes) -> tuple[TableNeed, ...]:
        """The properties that tables must have so that `forward`, `reverse` and `guard` are valid.

        `KernelGraph.verify` checks these properties.
        """
        return ()

    @abstractmethod
    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        """Compute the upstream indices from the downstream indices.

        Args:
            indices: the downstream indices; None for an index that `reverse_needs` does not list.
            sizes: the sizes of the operands.
            ranges: the known ranges of symbols.

        Raises:
            NotInvertible: the edge has no reverse formula.
        """

    @abstractmethod
    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        """Compute the downstream indices from the upstream indices.

        Args:
            indices: the upstream indices.
            sizes: the sizes of the operands.
            ranges: the known ranges of symbols.

        Raises:
            NotInvertible: the edge has no forward formula.
        """

    def guard(
        self, upstream: Sequence[Expr], downstream: Sequence[Expr | None], sizes: Sizes
    ) -> tuple[Boolean, ...]:
        """Conditions under which the upstream indices that `reverse` computed are not padding.

        Args:
            upstream: the upstream indices that `reverse` computed.
            downstream: the downstream indices from which `reverse` computed them.
            sizes: the sizes of the operands.
        """
        return ()

    def reverse_needs(self, known: dict[str, Expr]) -> tuple[str, ...]:
        """The ids of the downstream dimensions whose indices `reverse` reads.

        Args:
            known: the known indices by dimension id; if a selector is a constant, `reverse` reads
                fewer indices.
        """
        return self.downstream

    def reads_when(self, downstream: Sequence[Expr | None]) -> tuple[Boolean, ...]:
        """For each downstream operand, the condition under which `reverse` depends on its index.

        `reverse` computes upstream indices (of tensors) from downstream indices (of workgroups,
        loops and threads). If the condition does not hold, the index may have any value, and guards
        on the index are ignored.
        """
        return (true,) * len(self.downstream)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.upstream)} -> {', '.join(self.downstream)})"


def _ids(side: Any) -> tuple[str, ...]:
    """Convert an id, a dimension, or a sequence of ids and dimensions to a tuple of ids.

    Raises:
        VerifyError: `side` is neither an id, nor a dimension, nor a sequence of ids and dimensions.
    """
    if isinstance(side, str) or hasattr(side, "id"):
        side = (side,)
    try:
        return tuple(item if isinstance(item, str) else item.id for item in side)
    except (TypeError, AttributeError):
        raise VerifyError(
            f"the operands {side!r} of an edge are neither dimensions nor their ids; pass "
            "dimensions or ids, such as 'A.0'"
        ) from None
