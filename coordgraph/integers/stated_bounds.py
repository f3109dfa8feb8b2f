"""`Bounds`: the lower and upper bounds that are stated about a symbol."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from sympy import Expr, Symbol

from coordgraph.integers.bounds import SymbolBounds
from coordgraph.integers.polynomials import symbols_of, to_polynomial


@dataclass(frozen=True, slots=True)
class Bounds:
    """The inclusive lower and upper bounds of one symbol; every one of these bounds holds."""

    lowers: tuple[Expr, ...] = ()
    uppers: tuple[Expr, ...] = ()
    symbols: frozenset[Symbol] = field(init=False, repr=False, compare=False)
    """The symbols that occur in the expressions of the bounds."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        symbols = frozenset[Symbol]().union(*map(symbols_of, (*self.lowers, *self.uppers)))
        object.__setattr__(self, "symbols", symbols)
        object.__setattr__(self, "_hash", hash((self.lowers, self.uppers)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # Do not pickle the cached hash, because hashes of strings differ between processes.
        return Bounds, (self.lowers, self.uppers)

    def polynomials(self) -> SymbolBounds:
        """The lower bounds and the upper bounds as polynomials."""
        return tuple(map(to_polynomial, self.lowers)), tuple(map(to_polynomial, self.uppers))


def with_item(
    known: Mapping[Symbol, Bounds], symbol: Symbol, bounds: Bounds
) -> Mapping[Symbol, Bounds]:
    """A read-only copy of a mapping with the bounds of one symbol added or replaced."""
    # `copy` of a read-only mapping copies the hashes of its keys; `**` would compute them again.
    items = known.copy() if isinstance(known, MappingProxyType) else dict(known)
    items[symbol] = bounds
    return MappingProxyType(items)
