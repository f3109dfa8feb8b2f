"""The argument list of a compiled kernel: what it is called with, in order.

Tensors come first, then the scalars of the epilogue, then the parameters that the code reads, then
the multipliers that stand in for divisions by launch-time values.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from llvmlite import ir
from sympy import Expr, Symbol

from coordgraph import KernelGraph
from coordgraph.integers import Ranges

__all__ = ["Arguments", "Magic", "Scalar"]


@dataclass(frozen=True)
class Scalar:
    """One integer argument: `value` is an expression in the parameters, `bits` wide."""

    name: str
    value: Expr
    bits: int


@dataclass(frozen=True)
class Magic:
    """A divisor d known at launch, as multiplier and shift: `x div d = (x·multiplier) >> shift`.

    Exact for 0 <= x < 2^31 (Granlund and Montgomery, PLDI 1994): with `l = ⌈log2 d⌉`, the
    multiplier is `⌈2^(31+l) / d⌉` and the shift 31 + l.
    """

    divisor: Expr
    multiplier: str
    shift: str

    @staticmethod
    def numbers(divisor: int) -> tuple[int, int]:
        """Multiplier and shift of a divisor; one of 0, which is never executed, counts as 1."""
        divisor = max(divisor, 1)
        bits = (divisor - 1).bit_length()
        return -(-(1 << (31 + bits)) // divisor), 31 + bits


@dataclass
class Arguments:
    """Collects what the code turns out to read.

    `deferred` are the parameters that the code itself works out.
    """

    graph: KernelGraph
    ranges: Ranges
    deferred: frozenset[str] = frozenset()
    tensors: tuple[str, ...] = ()
    floats: tuple[str, ...] = ()
    """Scalars of the epilogue that a launch passes by value, such as alpha."""
    scalars: dict[Expr, Scalar] = field(default_factory=dict[Expr, Scalar])
    magics: dict[Expr, Magic] = field(default_factory=dict[Expr, Magic])

    def __post_init__(self) -> None:
        self.tensors = tuple(t.name for t in self.graph.tensors)
        self.floats = tuple(o.name for o in self.graph.gemm.epilogue.scalars)
        for p in self.graph.parameters.items:
            if p.name in self.deferred:
                continue
            bits = 32 if self.ranges.fits(p.symbol, 32) else 64
            self.scalars[p.symbol] = Scalar(p.name, p.symbol, bits)

    @property
    def float_kinds(self) -> dict[str, str]:
        """The kinds of those numbers: f32, f64 or i32."""
        gemm = self.graph.gemm
        kinds = gemm.epilogue.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype).operands
        return {name: kinds[name] for name in self.floats}

    def magic(self, divisor: Expr) -> Magic:
        """The multiplier of a divisor that only parameters decide."""
        if divisor not in self.magics:
            number = len(self.magics)
            self.magics[divisor] = Magic(divisor, f"magic{number}", f"shift{number}")
        return self.magics[divisor]

    def uniform(self, expr: Expr) -> bool:
        """True where the host can compute the value at launch."""
        parameters = self.graph.parameters
        symbols: set[Symbol] = {p.symbol for p in parameters.items if p.name not in self.deferred}
        return expr.free_symbols <= symbols

    def integer_types(self) -> list[tuple[str, ir.IntType]]:
        """Name and type of every integer argument, in order."""
        types = [(s.name, ir.IntType(s.bits)) for s in self.scalars.values()]
        for m in self.magics.values():
            types += [(m.multiplier, ir.IntType(64)), (m.shift, ir.IntType(64))]
        return types
