"""The argument list of a compiled kernel.

The order of the arguments is: tensors, scalars of the epilogue, integer parameters that the code
reads, and multipliers and shifts for divisions by values that are known only at launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sympy import Expr, Symbol

from coordgraph import KernelGraph
from coordgraph.integers import Ranges

if TYPE_CHECKING:
    from llvmlite import ir

__all__ = ["KERNEL_NAME", "Arguments", "Magic", "Scalar"]

KERNEL_NAME = "gemm"
"""The name of the kernel function in the generated code."""


@dataclass(frozen=True)
class Scalar:
    """One integer argument of a kernel.

    Args:
        name: the name of the argument.
        value: the argument's value, as an expression in the graph's parameters.
        bits: the argument's width in bits, 32 or 64.
    """

    name: str
    value: Expr
    bits: int


@dataclass(frozen=True)
class Magic:
    """Division by a value d known at launch: `x div d` is `(x·multiplier) >> shift`.

    The formula is exact for 0 <= x < 2^31 (Granlund and Montgomery, "Division by Invariant Integers
    using Multiplication", PLDI 1994). With `l = ⌈log2 d⌉`, the multiplier is `⌈2^(31+l) / d⌉` and
    the shift is 31 + l.

    Args:
        divisor: d, as an expression in the graph's parameters.
        multiplier: the name of the 64-bit argument that holds the multiplier.
        shift: the name of the 64-bit argument that holds the shift.
    """

    divisor: Expr
    multiplier: str
    shift: str

    @staticmethod
    def numbers(divisor: int) -> tuple[int, int]:
        """(multiplier, shift) for division by `divisor`.

        0 is treated as 1: a divisor may be 0 in a launch whose kernel never divides by it. Divisors
        above 2^31 are treated as 2^31, by which the quotient of every x is 0 too.
        """
        divisor = min(max(divisor, 1), 1 << 31)
        bits = (divisor - 1).bit_length()
        return -(-(1 << (31 + bits)) // divisor), 31 + bits


@dataclass
class Arguments:
    """The arguments of a kernel, collected while its code is generated.

    Args:
        graph: the lowered graph.
        ranges: bounds of the graph's symbols, which decide the widths of arguments.
        deferred: names of the parameters that the kernel computes itself, from tables in memory.
    """

    graph: KernelGraph
    ranges: Ranges
    deferred: frozenset[str] = frozenset()
    tensors: tuple[str, ...] = ()
    """Names of the tensors, each of which is passed as an address."""
    floats: tuple[str, ...] = ()
    """Names of the epilogue's scalars that a launch passes by value, such as alpha."""
    scalars: dict[Expr, Scalar] = field(default_factory=dict[Expr, Scalar])
    """The integer arguments of the kernel, by the symbol of the graph parameter that each holds."""
    magics: dict[Expr, Magic] = field(default_factory=dict[Expr, Magic])
    """For each divisor that is known only at launch: its multiplier and shift arguments."""

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
        """The kind (f32, f64 or i32) of each scalar in `floats`, by the scalar's name."""
        gemm = self.graph.gemm
        kinds = gemm.epilogue.kinds(gemm.accumulator, gemm.out_dtype or gemm.dtype).operands
        return {name: kinds[name] for name in self.floats}

    def magic(self, divisor: Expr) -> Magic:
        """The multiplier and shift arguments for a divisor; a new divisor adds new arguments."""
        if divisor not in self.magics:
            number = len(self.magics)
            self.magics[divisor] = Magic(divisor, f"magic{number}", f"shift{number}")
        return self.magics[divisor]

    def uniform(self, expr: Expr) -> bool:
        """Whether the host can compute `expr` at launch: the value depends on parameters only."""
        parameters = self.graph.parameters
        symbols: set[Symbol] = {p.symbol for p in parameters.items if p.name not in self.deferred}
        return expr.free_symbols <= symbols

    def integer_types(self) -> list[tuple[str, ir.IntType]]:
        """The name and LLVM type of every integer argument, in the order of the argument list."""
        from llvmlite import ir

        types = [(s.name, ir.IntType(s.bits)) for s in self.scalars.values()]
        for m in self.magics.values():
            types += [(m.multiplier, ir.IntType(64)), (m.shift, ir.IntType(64))]
        return types
