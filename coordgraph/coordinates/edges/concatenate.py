"""`Concatenate`: join parts of different lengths into one index, the inverse of `Ragged`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Ge, Integer
from sympy.logic.boolalg import Boolean

from coordgraph.coordinates.edges.base import Edge, Law, Sizes
from coordgraph.coordinates.edges.radix import compose, decompose, product
from coordgraph.coordinates.edges.ragged import borders_of
from coordgraph.errors import NotInvertible, VerifyError
from coordgraph.integers import Ranges, floor_div, index_symbol, load, search
from coordgraph.tables import TableNeed

__all__ = ["Concatenate"]


@dataclass(frozen=True)
class Concatenate(Edge):
    """`Concatenate(G, I; O)`: index i of part g becomes `o = t[g] + i`.

    - forward: `o = t[g] + i`;
    - reverse: `g = search(t, n_g, o)`, the part with `t[g] <= o < t[g + 1]`; `i = o - t[g]`.

    The table t has n_g + 1 non-decreasing entries: the start of each part, which is 0 for the
    first one, and the end of the last part. Part g has `t[g + 1] - t[g]` indices, possibly none.
    Size rule: |O| is at least the last entry. An index o past the last entry belongs to no part;
    for such an o, reverse gives the last part and an i past that part's end.

    With more operands, `Concatenate(G, J0, …, I; O)`, part g is a row-major block of extents
    n_0, …, `t[g + 1] - t[g]`, and begins at `p·t[g]`, where p = n_0·… is the product of |J0|, …:

    - forward: `o = p·t[g] + (j0·n_1 + …)·(t[g + 1] - t[g]) + i`;
    - reverse: `g = search(t, n_g, o div p)`, the other indices by repeated mod and div.

    This form is a `Flatten` whose last extent differs between parts; no part may be empty.

    Args:
        table: the name of the table t.
        extents: if given, one table name for each upstream operand after the first. Part g then
            begins at `t[g]` and is a row-major block; its extent along an operand is
            `x[g + 1] - x[g]` for that operand's table x, or the operand's size if the name is ''.

    Raises:
        VerifyError: there are fewer than two upstream operands, or `extents` has a wrong length.
    """

    table: str = ""
    extents: tuple[str, ...] = ()

    arity = (None, 1)
    laws = frozenset({Law.REVERSE_UNDOES_FORWARD, Law.FORWARD_UNDOES_REVERSE})
    consecutive = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.upstream) < 2:
            raise VerifyError(
                f"{self}: it has only {len(self.upstream)} upstream operand; give at least two: "
                "the number of a part, and an index in the part"
            )
        if self.extents and len(self.extents) != len(self.upstream) - 1:
            raise VerifyError(
                f"{self}: extents has {len(self.extents)} entries; give one for each upstream "
                "operand after the first, or leave extents empty"
            )

    def size_rule(self, sizes: Sizes) -> tuple[Boolean, ...]:
        (count, *_), (whole,), each = sizes.upstream, sizes.downstream, self._each(sizes)
        if count is None or whole is None or each is None:
            return ()
        return (Ge(whole, each * load(index_symbol(self.table), count)),)

    def table_needs(self, sizes: Sizes) -> tuple[TableNeed, ...]:
        borders = borders_of(sizes.upstream[0])
        extents = (TableNeed(name, borders) for name in self.extents if name)
        return (TableNeed(self.table, borders, from_zero=True), *extents)

    def reverse(
        self, indices: Sequence[Expr | None], sizes: Sizes, ranges: Ranges
    ) -> tuple[Expr, ...]:
        (index,), (count, *_) = indices, sizes.upstream
        assert index is not None
        if count is None:
            raise NotInvertible(
                f"{self}: dimension '{self.upstream[0]}', which numbers the parts, has no size; "
                "give it the number of parts as its size"
            )
        starts, each = index_symbol(self.table), self._needed(sizes)
        segment = search(starts, count, floor_div(index, each))
        inside = index - each * load(starts, segment)
        return segment, *decompose(inside, self._extents(segment, sizes), self)

    def forward(self, indices: Sequence[Expr], sizes: Sizes, ranges: Ranges) -> tuple[Expr, ...]:
        segment, *inside = indices
        starts, each = index_symbol(self.table), self._needed(sizes)
        within = compose(inside, self._extents(segment, sizes), self)
        return (each * load(starts, segment) + within,)

    def _extents(self, segment: Expr, sizes: Sizes) -> tuple[Expr | None, ...]:
        """The extents of part number `segment` along each upstream operand after the first."""
        _, *own = sizes.upstream
        tables = self.extents or (*("" for _ in own[:-1]), self.table)
        return tuple(
            _step(table, segment) if table else size
            for table, size in zip(tables, own, strict=True)
        )

    def _each(self, sizes: Sizes) -> Expr | None:
        """The factor p: part g of the joined index begins at `p * table[g]`; None if p is unknown.

        p is 1 if `extents` is given, else the product of the sizes of all upstream operands except
        the first and the last.
        """
        return Integer(1) if self.extents else product(sizes.upstream[1:-1])

    def _needed(self, sizes: Sizes) -> Expr:
        each = self._each(sizes)
        if each is None:
            raise NotInvertible(
                f"{self}: an upstream operand between the first and the last has no size; give "
                "that dimension a size"
            )
        return each


def _step(table: str, segment: Expr) -> Expr:
    """The extent of part number `segment` along the operand whose borders `table` holds."""
    starts = index_symbol(table)
    return load(starts, segment + 1) - load(starts, segment)
