"""Traced values: the arguments with which an epilogue's Python function is called to trace it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias, cast

from coordgraph.errors import VerifyError

__all__ = [
    "OPERATIONS",
    "Argument",
    "Constant",
    "Constants",
    "Step",
    "Tape",
    "Value",
    "fits_float",
    "known",
    "plain_number",
]

Constant: TypeAlias = bool | int | float | str
Constants: TypeAlias = tuple[tuple[str, Constant], ...]
Argument: TypeAlias = str | bool | int | float
"""An argument of an operation in a traced epilogue: a number, or the name of a value: `acc`, an
operand, or `%i` for the result of the epilogue's operation number i."""


@dataclass(frozen=True)
class Step:
    """One operation of a traced epilogue: its name, its arguments and its options (`constants`).

    The step at position i of a function computes the value `%i`. Steps are equal if their texts are
    equal: 0.0 differs from -0.0, 1 differs from 1.0 and from True, and NaN equals NaN.
    """

    operation: str
    arguments: tuple[Argument, ...]
    constants: Constants = ()

    def __eq__(self, other: object) -> bool:
        return self._exact == other._exact if isinstance(other, Step) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._exact)

    @cached_property
    def _exact(self) -> tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]:
        """The step's fields as a tuple that is equal for equal steps; numbers are text.

        As numbers, 0.0 and -0.0, or 1 and True, would be equal.
        """
        options = tuple((name, repr(value)) for name, value in self.constants)
        return self.operation, tuple(map(repr, self.arguments)), options


class Operation(Protocol):
    """Protocol: the only method of an `Elementwise` operation that tracing an epilogue calls."""

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """The argument that equals the result bit for bit, such as x for `x * 1`; else None."""
        ...


OPERATIONS: dict[str, Any] = {}
"""All epilogue operations by operation name; defining a subclass of `Elementwise` adds one."""


def known(name: str) -> Any:
    """The epilogue operation named `name`.

    Raises:
        VerifyError: no operation has that name.
    """
    if name not in OPERATIONS:
        raise VerifyError(f"no epilogue operation '{name}'; there are {', '.join(OPERATIONS)}")
    return OPERATIONS[name]


def fits_float(number: bool | int | float) -> bool:
    """True if a number can be converted to a float; a Python int may be too large for one."""
    try:
        float(number)
    except OverflowError:
        return False
    return True


def plain_number(number: bool | int | float) -> bool | int | float:
    """Convert an instance of a subclass of int or float to int or float, whose repr is plain."""
    if isinstance(number, bool):
        return number
    return int(number) if isinstance(number, int) else float(number)


@dataclass
class Tape:
    """The steps of an epilogue that is being traced; equal steps are recorded only once."""

    steps: dict[Step, str] = field(default_factory=dict[Step, str])

    def record(self, name: str, arguments: tuple[object, ...], constants: Constants) -> Value:
        """Record the operation `name` on the given arguments; returns the operation's result."""
        given = tuple(self._argument(argument) for argument in arguments)
        operation: Operation = known(name)
        folded = operation.fold(given, constants)
        if isinstance(folded, str):
            return Value(self, folded)
        step = Step(name, given, constants)
        return Value(self, self.steps.setdefault(step, f"%{len(self.steps)}"))

    def _argument(self, argument: object) -> Argument:
        if isinstance(argument, Value):
            if argument.tape is not self:
                raise VerifyError(
                    "an epilogue uses a value of another epilogue; use only the parameters of the "
                    "function that is traced"
                )
            return argument.name
        if getattr(argument, "shape", None) == ():  # convert a NumPy scalar to a Python number
            argument = cast("Any", argument).item()
        if isinstance(argument, bool | int | float):
            if not fits_float(argument):
                raise VerifyError(
                    "an epilogue contains an integer that no float can hold; its absolute value "
                    "must be less than 2^1024"
                )
            return plain_number(argument)
        raise VerifyError(
            f"an epilogue computes with traced values and numbers, not {argument!r}; declare it as "
            'an operand, as in @epilogue(bias="n"), and pass it to the call'
        )


def _refusing(symbol: str, remedy: str) -> Callable[..., Any]:
    """A method for `Value` that refuses the operator `symbol`: it raises a `VerifyError`.

    Args:
        symbol: the operator, such as `**`.
        remedy: what the message tells the user to write instead.
    """

    def refuse(self: Value, *others: object) -> Any:
        raise VerifyError(f"{symbol} does not work on the values of an epilogue; {remedy}")

    return refuse


_NEST = "nest ep.where, as in ep.where(a, ep.where(b, yes, no), no)"
_WHOLE = (
    "for floats use ep.cast(a / b, to='i32'), which drops the fraction; for an i32 a from 0 to "
    "2^23 and a positive whole number b, q = ep.cast(ep.cast(a, to='f32') / b, to='i32') and "
    "r = a - q * b give the quotient ep.where(r < 0, q - 1, ep.where(r < b, q, q + 1)), and the "
    "remainder is a - b * quotient"
)
_POWER = "multiply, or use ep.sqrt, ep.rsqrt or ep.exp(b * ep.log(a))"
_CAST = "use ep.cast, and functions such as ep.exp for math.exp"


@dataclass(frozen=True, eq=False, repr=False)
class Value:
    """A value of an epilogue that is being traced; operators on values record steps.

    The steps are recorded on `tape`.
    """

    tape: Tape
    name: str

    # With None, NumPy evaluates `numpy_scalar + value` by a call of `Value.__radd__`.
    __array_ufunc__ = None

    def _record(self, operation: str, *arguments: object, **constants: Constant) -> Value:
        return self.tape.record(operation, arguments, tuple(constants.items()))

    def __repr__(self) -> str:
        return f"<value {self.name} of an epilogue>"

    __pow__ = __rpow__ = _refusing("**", _POWER)
    __floordiv__ = __rfloordiv__ = _refusing("//", _WHOLE)
    __mod__ = __rmod__ = _refusing("%", _WHOLE)
    __and__ = __rand__ = _refusing("&", _NEST)
    __or__ = __ror__ = _refusing("|", _NEST)
    __xor__ = __rxor__ = _refusing("^", _NEST)
    __invert__ = _refusing("~", "swap the values of ep.where, or compare the other way")
    __float__ = _refusing("float()", _CAST)
    __int__ = __index__ = _refusing("int()", _CAST)

    def __add__(self, other: object) -> Value:
        return self._record("add", self, other)

    def __radd__(self, other: object) -> Value:
        return self._record("add", other, self)

    def __sub__(self, other: object) -> Value:
        return self._record("sub", self, other)

    def __rsub__(self, other: object) -> Value:
        return self._record("sub", other, self)

    def __mul__(self, other: object) -> Value:
        return self._record("mul", self, other)

    def __rmul__(self, other: object) -> Value:
        return self._record("mul", other, self)

    def __truediv__(self, other: object) -> Value:
        return self._record("div", self, other)

    def __rtruediv__(self, other: object) -> Value:
        return self._record("div", other, self)

    def __neg__(self) -> Value:
        return self._record("neg", self)

    def __abs__(self) -> Value:
        return self._record("abs", self)

    def __lt__(self, other: object) -> Value:
        return self._record("compare", self, other, relation="<")

    def __le__(self, other: object) -> Value:
        return self._record("compare", self, other, relation="<=")

    def __gt__(self, other: object) -> Value:
        return self._record("compare", self, other, relation=">")

    def __ge__(self, other: object) -> Value:
        return self._record("compare", self, other, relation=">=")

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return self._record("compare", self, other, relation="==")

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return self._record("compare", self, other, relation="!=")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise VerifyError(
            "an epilogue is traced once for all elements: Python cannot branch on a value; use "
            "ep.where(condition, yes, no), ep.minimum or ep.maximum"
        )
