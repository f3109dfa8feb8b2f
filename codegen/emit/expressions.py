"""Emit index expressions as LLVM IR.

A value has 32 bits if its bounds are proved to fit, else 64. A division is unsigned if both
operands are proved non-negative; otherwise the result of a signed division is corrected, so that
the quotient is rounded down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from sympy import Add, Eq, Expr, Ge, Gt, Integer, Le, Lt, Mul, Ne, Pow, Symbol
from sympy.core.basic import Basic
from sympy.core.relational import Relational
from sympy.logic.boolalg import And, Boolean, Not, Or, false, true

from codegen.emit.arguments import Magic
from coordgraph import CodegenError
from coordgraph.integers import (
    BitXor,
    FloorDiv,
    FloorMod,
    Load,
    Maximum,
    Minimum,
    Ranges,
    Search,
    Select,
    evaluate,
    operands,
    symbols_of,
)

__all__ = ["Bounds", "Expressions", "Hazards", "Number"]

Number = Any
"""An integer: a Python int if its value is known at compile time, else an LLVM integer value."""
_SIGNED: dict[type[Basic], str] = {Eq: "==", Ne: "!=", Lt: "<", Le: "<=", Gt: ">", Ge: ">="}


class Bounds:
    """A cache of proofs about ranges of expressions, since code generation often repeats proofs."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], bool] = {}

    def natural(self, expr: Expr, ranges: Ranges) -> bool:
        """Whether the value of `expr` is proved to be at least 0."""
        return self._ask(Ranges.prove_nonnegative, ranges, expr)

    def fits(self, expr: Expr, ranges: Ranges) -> bool:
        """Whether the value of `expr` is proved to fit a signed 32-bit integer."""
        return self._ask(Ranges.fits, ranges, expr, 32)

    def _ask(self, question: Callable[..., bool], ranges: Ranges, expr: Expr, *more: int) -> bool:
        ranges = ranges.about(expr)
        key = question, ranges, expr, *more
        if key not in self._known:
            self._known[key] = question(ranges, expr, *more)
        return self._known[key]


class Hazards:
    """Hooks for values that may be out of range if the graph is wrong, such as a divisor of 0.

    This class checks nothing; a subclass overrides hooks to check values at run time.
    """

    unproved = False
    """True if range proofs must not be relied on, because the graph may declare false sizes."""

    def natural(self, value: ir.Value, *, chosen: bool) -> ir.Value:
        """Hook for a dividend that is proved to be at least 0; returns the value to divide.

        The proof may be wrong for a wrong graph, so a subclass can check the value at run time.

        Args:
            value: the dividend.
            chosen: True if the result is certainly used; False in a branch of a select, whose value
                may be discarded.
        """
        return value

    def divisor(self, value: ir.Value, *, chosen: bool) -> ir.Value:
        """Hook for a divisor that is not proved to be positive; returns the divisor to use.

        Args:
            value: the divisor.
            chosen: True if the quotient is certainly used; False in a branch of a select, whose
                value may be discarded.
        """
        return value

    def entry(self, table: str, place: ir.Value, *, chosen: bool) -> ir.Value:
        """Hook for the load of a table's entry; returns the index to load.

        Args:
            table: the name of the table.
            place: the index of the entry, 64 bits.
            chosen: True if the result is certainly used; False in a branch of a select, whose value
                may be discarded.
        """
        return place


class Expressions:
    """Emits LLVM IR that computes index expressions.

    Args:
        builder: the LLVM IR builder that inserts the instructions.
        values: the values of symbols; the walker adds the values of loop indices and assignments.
        magic: a function from a divisor to the kernel arguments for division by multiplication, or
            to None if the host does not know the divisor at the launch.
        arguments: the LLVM function's integer arguments, by name.
        bounds: the cache of range proofs.
        widest: True to compute all values with 64 bits, as on CPUs, where 32 bits are no faster.
        tables: for each table, by name, a function that emits the load of a 32-bit entry, given the
            entry's 64-bit index.
        hazards: hooks for divisors and table indices of wrong graphs.
    """

    def __init__(
        self,
        builder: ir.IRBuilder,
        values: dict[Symbol, Number],
        magic: Callable[[Expr], Magic | None],
        arguments: dict[str, ir.Value],
        bounds: Bounds,
        *,
        widest: bool = False,
        tables: Mapping[str, Callable[[ir.Value], ir.Value]] | None = None,
        hazards: Hazards | None = None,
    ) -> None:
        self.builder = builder
        self.values = values
        self.magic = magic
        self.arguments = arguments
        self.bounds = bounds
        self.widest = widest
        self.tables = tables or {}
        self.hazards = hazards or Hazards()
        self.branches = 0
        """How many selects and operands of `And` and `Or` enclose the expression being emitted."""
        self.printed: dict[tuple[Any, ...], Any] = {}
        """Emitted values that can be reused, because they dominate the builder's position.

        The key is (expression, values of its symbols)."""

    def number(self, expr: Expr, ranges: Ranges) -> Number:
        """Emit code for an integer expression and return its value.

        `ranges` are the bounds of the expression's symbols. The result is a Python int if the value
        is known at compile time.
        """
        if isinstance(expr, Integer):
            return int(expr)
        if isinstance(expr, Symbol):
            return self._symbol(expr)
        return self._once(expr, lambda: self._print(expr, ranges))

    def condition(self, condition: Boolean, ranges: Ranges) -> Any:
        """Emit code for a condition and return its value, an LLVM i1.

        The result is a Python bool if the value is known at compile time.
        """
        return self._once(condition, lambda: self._decide(condition, ranges))

    def _once(self, expr: Basic, make: Callable[[], Any]) -> Any:
        """Return the LLVM value of `expr`; if it has not been emitted yet, call `make` to emit it.

        A value that was emitted before is reused if the symbols in `expr` have not changed since.
        """
        numbers = tuple(self.values.get(symbol) for symbol in symbols_of(expr))
        if any(isinstance(number, ir.AllocaInstr) for number in numbers):
            return make()  # not reused: the expression has a counter, which changes
        key = expr, numbers
        if key not in self.printed:
            self.printed[key] = make()
        return self.printed[key]

    def _print(self, expr: Expr, ranges: Ranges) -> Number:
        if (known := self._known(expr)) is not None:
            return known
        match expr:
            case Add() | Mul():
                return self._ring(expr, operands(expr), ranges)
            case Pow(args=(base, Integer() as exponent)) if exponent > 0:
                return self._ring(expr, (base,) * int(exponent), ranges)
            case FloorDiv() | FloorMod():
                return self._divide(expr, ranges)
            case Minimum() | Maximum():
                return self._extreme(expr, ranges)
            case BitXor():
                return self._xor(expr, ranges)
            case Select():
                return self._select(expr, ranges)
            case Load():
                table, index = operands(expr)
                place = self.widen(self.number(index, ranges), 64, index, ranges)
                place = self.hazards.entry(str(table), place, chosen=not self.branches)
                return self._entry(table)(place)
            case Search():
                return self._search(expr, ranges)
            case _:
                raise CodegenError(
                    f"no code can be generated for {type(expr).__name__} in the index expression "
                    f"{expr}; use the functions of coordgraph.integers"
                )

    def _decide(self, condition: Boolean, ranges: Ranges) -> Any:
        if condition in (true, false):
            return condition == true
        if isinstance(condition, Not):
            inner = self.condition(operands(condition)[0], ranges)
            return not inner if isinstance(inner, bool) else self.builder.not_(inner)
        if isinstance(condition, And | Or):
            return self._junction(condition, ranges)
        if not isinstance(condition, Relational):
            raise CodegenError(
                f"no code can be generated for the condition {condition}; use comparisons, And, Or "
                "and Not"
            )
        left, right = (self.number(side, ranges) for side in operands(condition))
        if isinstance(left, int) and isinstance(right, int):
            return bool(condition.func(left, right))
        bits = max(self._bits(left), self._bits(right))
        first, second = (
            self.widen(value, bits, side, ranges)
            for value, side in zip((left, right), operands(condition), strict=True)
        )
        return self.builder.icmp_signed(_SIGNED[condition.func], first, second)

    def widen(self, value: Number, bits: int, expr: Expr, ranges: Ranges) -> ir.Value:
        """`value`, which is the value of `expr`, as an LLVM integer of `bits` bits.

        A wider value is truncated, so the caller must know that the value fits `bits` bits.
        """
        kind = ir.IntType(bits)
        if isinstance(value, int):
            return ir.Constant(kind, value)
        if value.type.width == bits:
            return value
        if value.type.width > bits:
            return self.builder.trunc(value, kind)
        natural = self.bounds.natural(expr, ranges)
        return (self.builder.zext if natural else self.builder.sext)(value, kind)

    def _symbol(self, symbol: Symbol) -> Number:
        try:
            value = self.values[symbol]
        except KeyError:
            raise CodegenError(
                f"the symbol '{symbol}' has no value here: it is neither an argument of the kernel "
                "nor bound by an enclosing operation; bind it with For, SetCoordinate or Assign"
            ) from None
        if isinstance(value, ir.AllocaInstr):  # a counter: load its current value
            return self.builder.load(value, typ=value.allocated_type)
        return value

    def _known(self, expr: Expr) -> int | None:
        """The value of `expr` if all its symbols are known at compile time, else None."""
        numbers: dict[Symbol, int] = {}
        for symbol in symbols_of(expr):
            value = self.values.get(symbol)
            if not isinstance(value, int):
                return None
            numbers[symbol] = value
        return int(evaluate(expr, numbers))

    def _width(self, expr: Expr, ranges: Ranges) -> int:
        return 32 if not self.widest and self.bounds.fits(expr, ranges) else 64

    @staticmethod
    def _bits(value: Number) -> int:
        return (
            32
            if isinstance(value, int) and -(2**31) <= value < 2**31
            else (64 if isinstance(value, int) else value.type.width)
        )

    def _ring(self, expr: Expr, parts: tuple[Expr, ...], ranges: Ranges) -> Number:
        """Emit a sum or a product; operands may be truncated, since arithmetic is modulo 2^bits."""
        is_sum = isinstance(expr, Add)
        # With non-negative operands no intermediate result overflows, so the flags nuw and nsw are
        # valid. These flags let LLVM widen loop indices.
        safe = not self.hazards.unproved and all(self.bounds.natural(a, ranges) for a in parts)
        # A sum of non-negative operands needs 64 bits if one of the operands does.
        wide = is_sum and safe and any(self._width(a, ranges) == 64 for a in parts)
        bits = 64 if wide else self._width(expr, ranges)
        flags = ("nuw", "nsw") if safe else ()
        operation = self.builder.add if is_sum else self.builder.mul
        constant = 0 if is_sum else 1
        result: ir.Value | None = None
        for arg in parts:
            value = self.number(arg, ranges)
            if isinstance(value, int):
                constant = constant + value if is_sum else constant * value
                continue
            value = self.widen(value, bits, arg, ranges)
            result = value if result is None else operation(result, value, flags=flags)
        assert result is not None
        if constant != (0 if is_sum else 1):
            flags = flags if constant >= 0 else ()
            result = operation(result, ir.Constant(ir.IntType(bits), constant), flags=flags)
        return result

    def _exact(self, exprs: tuple[Expr, ...], ranges: Ranges) -> tuple[list[Number], int]:
        """The values of `exprs`, all widened to one width, and that width in bits."""
        numbers = [self.number(e, ranges) for e in exprs]
        bits = 64 if self.widest else max(map(self._bits, numbers))
        return [self.widen(v, bits, e, ranges) for v, e in zip(numbers, exprs, strict=True)], bits

    def _divide(self, expr: Expr, ranges: Ranges) -> Number:
        a, d = operands(expr)
        modulo = isinstance(expr, FloorMod)
        divisor = self._known(d)
        natural = self.bounds.natural(a, ranges)
        if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
            return self._divide_power(a, divisor, modulo, natural, ranges)
        if not natural or not self.bounds.natural(d - 1, ranges):
            return self._divide_floor(a, d, modulo, ranges)
        narrow = self._width(a, ranges) == 32  # d may have 64 bits, as 32·tiles_n has
        if narrow and divisor is None and (magic := self.magic(d)) is not None:
            return self._divide_magic(a, d, magic, modulo, ranges)
        (x, y), _ = self._exact((a, d), ranges)
        x = self.hazards.natural(x, chosen=not self.branches)
        if self.hazards.unproved:
            y = self.hazards.divisor(y, chosen=not self.branches)
        return self.builder.urem(x, y) if modulo else self.builder.udiv(x, y)

    def _divide_power(
        self, a: Expr, divisor: int, modulo: bool, natural: bool, ranges: Ranges
    ) -> ir.Value:
        """Emit `a` divided by, or modulo, a power of two: a shift or a mask, which round down."""
        (x,), bits = self._exact((a,), ranges)
        kind = ir.IntType(bits)
        if modulo:
            return self.builder.and_(x, ir.Constant(kind, divisor - 1))
        if natural:
            x = self.hazards.natural(x, chosen=not self.branches)
        shift = self.builder.lshr if natural else self.builder.ashr
        return shift(x, ir.Constant(kind, divisor.bit_length() - 1))

    def _divide_magic(
        self, a: Expr, d: Expr, magic: Magic, modulo: bool, ranges: Ranges
    ) -> ir.Value:
        x = self.widen(self.number(a, ranges), 32, a, ranges)
        i32, i64 = ir.IntType(32), ir.IntType(64)
        wide = self.builder.mul(self.builder.zext(x, i64), self.arguments[magic.multiplier])
        quotient = self.builder.trunc(self.builder.lshr(wide, self.arguments[magic.shift]), i32)
        if not modulo:
            return quotient
        divisor = self.widen(self.number(d, ranges), 32, d, ranges)
        return self.builder.sub(x, self.builder.mul(quotient, divisor))

    def _divide_floor(self, a: Expr, d: Expr, modulo: bool, ranges: Ranges) -> ir.Value:
        """Emit the quotient, rounded down, or the remainder of a division by a positive number."""
        (x, y), bits = self._exact((a, d), ranges)
        b, zero = self.builder, ir.Constant(ir.IntType(bits), 0)
        if not self.bounds.natural(d - 1, ranges):
            y = self.hazards.divisor(y, chosen=not self.branches)
        remainder = b.srem(x, y)
        negative = b.icmp_signed("<", remainder, zero)
        if modulo:
            return b.select(negative, b.add(remainder, y), remainder)
        return b.sub(b.sdiv(x, y), b.zext(negative, ir.IntType(bits)))

    def _extreme(self, expr: Expr, ranges: Ranges) -> Number:
        (x, y), _ = self._exact(operands(expr), ranges)
        less = self.builder.icmp_signed("<", x, y)
        first, second = (x, y) if isinstance(expr, Minimum) else (y, x)
        return self.builder.select(less, first, second)

    def _xor(self, expr: Expr, ranges: Ranges) -> Number:
        (x, y), _ = self._exact(operands(expr), ranges)
        return self.builder.xor(x, y)

    def _select(self, expr: Expr, ranges: Ranges) -> Number:
        condition, a, b = operands(expr)
        chosen = self.condition(condition, ranges)
        if isinstance(chosen, bool):
            return self.number(a if chosen else b, ranges)
        self.branches += 1
        (x, y), _ = self._exact((a, b), ranges)
        self.branches -= 1
        return self.builder.select(chosen, x, y)

    def _entry(self, table: Symbol) -> Callable[[ir.Value], ir.Value]:
        if table.name not in self.tables:
            raise CodegenError(
                f"the kernel does not have the table '{table}' as an argument; declare it as a "
                "table of the graph"
            )
        return self.tables[table.name]

    def _search(self, expr: Expr, ranges: Ranges) -> ir.Value:
        """Emit a binary search in a table: the last index whose entry is at most the wanted value.

        The arguments of `expr` are the table, its number of entries, and the wanted value. The
        emitted loop sets the bits of the index one by one, from the highest bit of the number
        of entries down.
        """
        table, n, x = operands(expr)
        entry, b, kind = self._entry(table), self.builder, ir.IntType(32)
        count = self.widen(self.number(n, ranges), 32, n, ranges)
        (wanted,), bits = self._exact((x,), ranges)
        leading = ir.FunctionType(kind, [kind, ir.IntType(1)])
        name = "llvm.ctlz.i32"
        known = b.module.globals.get(name) or ir.Function(b.module, leading, name)
        zeros = b.call(known, [count, ir.Constant(ir.IntType(1), 0)])
        highest = b.lshr(ir.Constant(kind, 1 << 31), b.and_(zeros, ir.Constant(kind, 31)))
        before = b.block
        head, done = b.append_basic_block("search"), b.append_basic_block("search.done")
        b.branch(head)
        b.position_at_end(head)
        found, bit = b.phi(kind, "found"), b.phi(kind, "bit")
        found.add_incoming(ir.Constant(kind, 0), before)
        bit.add_incoming(highest, before)
        place = b.or_(found, bit)
        last = b.sub(count, ir.Constant(kind, 1))
        inside = b.icmp_unsigned("<=", place, last)
        read = b.select(inside, place, last)
        read = self.hazards.entry(str(table), b.zext(read, ir.IntType(64)), chosen=False)
        value = entry(read)
        value = value if bits == 32 else b.zext(value, ir.IntType(bits))
        taken = b.and_(inside, b.icmp_signed("<=", value, wanted))
        following = b.select(taken, place, found)
        lower = b.lshr(bit, ir.Constant(kind, 1))
        found.add_incoming(following, head)
        bit.add_incoming(lower, head)
        b.cbranch(b.icmp_unsigned("==", lower, ir.Constant(kind, 0)), done, head)
        b.position_at_end(done)
        return following

    def _junction(self, condition: Boolean, ranges: Ranges) -> Any:
        decisive = isinstance(condition, Or)
        combine = self.builder.or_ if decisive else self.builder.and_
        result: Any = not decisive
        for part in operands(condition):
            self.branches += 1
            value = self.condition(part, ranges)
            self.branches -= 1
            if isinstance(value, bool):
                if value == decisive:
                    return decisive
                continue
            result = value if isinstance(result, bool) else combine(result, value)
        return result
