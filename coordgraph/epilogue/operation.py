"""`Elementwise`: the base class of epilogue operations; each subclass has a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.values import (
    OPERATIONS,
    Argument,
    Constant,
    Constants,
    Value,
    fits_float,
    known,
)
from coordgraph.errors import VerifyError

__all__ = ["FLOATS", "NUMPY_KINDS", "Algebra", "Array", "Composed", "Elementwise"]

if TYPE_CHECKING:  # NumPy is loaded when a function is evaluated: graphs and code need none of it
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:
    Array = Any
FLOATS = ("f32", "f64")
NUMPY_KINDS = {"f32": "float32", "f64": "float64", "i32": "int32", "bool": "bool"}
"""NumPy's type names of the kinds of values that epilogues compute with."""

_NOT_IN_TEXT = frozenset("()'\",;\\")
"""Characters that the text form of an epilogue cannot hold in an option."""


class Elementwise:
    """An elementwise operation of epilogues: its meaning, its algebraic laws and its code.

    A subclass sets `name` and `arity` and implements `numpy` and `llvm`; defining it registers it.
    Calling an operation with values of an epilogue that is being traced records a step.
    """

    name: ClassVar[str] = ""
    arity: ClassVar[int] = 1
    options: ClassVar[Mapping[str, Constant]] = {}
    """Options that are fixed when the epilogue is traced, with defaults: `approximate="none"`."""
    floating: ClassVar[bool] = True
    """Whether the operation takes f32 and f64 only."""
    temporaries: ClassVar[int] = 0
    """32-bit registers for temporaries on a GPU, beside the arguments and the result."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.name:
            _register(cls)

    def __call__(self, *arguments: object, **constants: Constant) -> Value:
        """Record a step of the epilogue that is being traced."""
        tape = next((a.tape for a in arguments if isinstance(a, Value)), None)
        if tape is None:
            raise VerifyError(f"{self.name}: needs a value of an epilogue that is being traced")
        if len(arguments) != self.arity:
            option = next(iter(self.options.items()), None)
            more = f"; write options by name: {option[0]}={option[1]!r}" if option else ""
            raise VerifyError(f"{self.name} takes {self.arity} values, not {len(arguments)}{more}")
        return tape.record(self.name, arguments, self.checked(constants))

    def checked(self, constants: Mapping[str, Constant]) -> Constants:
        """The given options without those that equal their defaults.

        Raises:
            VerifyError: an option is unknown or of another type than its default, or `refused`
                names a reason against its value.
        """
        for name in constants:
            if name not in self.options:
                has = f"; it has {', '.join(self.options)}" if self.options else ""
                raise VerifyError(f"{self.name} has no option '{name}'{has}")
        given = {name: self._option(name, value) for name, value in constants.items()}
        merged = {**self.options, **given}
        if why := self.refused(**merged):
            raise VerifyError(f"{self.name}: {why}")
        return tuple((n, v) for n, v in merged.items() if repr(v) != repr(self.options[n]))

    def _option(self, name: str, value: object) -> Constant:
        """The value of an option as the type of its default: text, a truth value or a number."""
        default = self.options[name]
        if getattr(value, "shape", None) == ():  # a NumPy scalar
            value = cast("Any", value).item()
        if isinstance(value, Value):
            why = "an option is known when the epilogue is traced, and cannot be one of its values"
        elif isinstance(default, str):
            if isinstance(value, str) and not _NOT_IN_TEXT.intersection(value):
                return str(value)
            why = f"it must be text without {' '.join(sorted(_NOT_IN_TEXT))}"
        elif isinstance(default, bool):
            if isinstance(value, bool):
                return value
            why = "it must be True or False"
        else:
            if isinstance(value, int | float) and not isinstance(value, bool):
                if isinstance(default, float) and fits_float(value):
                    return float(value)
                if isinstance(default, int) and value == value // 1:
                    return int(value)
            why = f"it must be a {'whole ' * isinstance(default, int)}number"
        raise VerifyError(f"{self.name}: {name}={value!r}: {why}")

    def refused(self, **constants: Any) -> str:
        """Why the values of options are not allowed, or ''."""
        return ""

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """The argument that the result always equals, bit by bit, or None: `x * 1` is x."""
        return None

    def kind(self, kinds: tuple[str, ...], **constants: Any) -> str:
        """The kind of the result: f32, f64, i32 or bool.

        Raises:
            VerifyError: the kinds differ, or the operation does not take them.
        """
        if len({*kinds}) > 1:
            raise VerifyError(
                f"{self.name} of {' and '.join(kinds)}: make them alike, as with "
                "ep.cast(value, to='f32')"
            )
        if self.floating and kinds[0] not in FLOATS:
            raise VerifyError(f"{self.name} is for f32 and f64, not {kinds[0]}: use ep.cast")
        if kinds[0] == "bool":
            raise VerifyError(f"{self.name} is for numbers, not truth values: use ep.where")
        return kinds[0]

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0 if the arguments that are True in `zeros` are 0."""
        return False

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """Whether the result is affine in `acc`, if each argument is.

        Args:
            constant: for each argument, whether it does not depend on `acc`.
        """
        return all(constant)

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Apply the operation to NumPy arrays: its reference meaning."""
        raise NotImplementedError

    def text(self, *arguments: str, **constants: Any) -> str:
        """The operation as pseudo-code."""
        listed = (*arguments, *(f"{n}={v}" for n, v in constants.items()))
        return f"{self.name}({', '.join(listed)})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the code of the operation; `kind` is the kind of its arguments."""
        raise NotImplementedError


def _register(kind: type[Elementwise]) -> None:
    """Add an operation to `OPERATIONS`.

    Defining the operation again in the same module replaces it, as in a notebook.

    Raises:
        VerifyError: the name is no identifier, or an operation of another module has the name.
    """
    if not (kind.name.isidentifier() and kind.name.isascii()):
        raise VerifyError(
            f"{kind.__qualname__} has the name {kind.name!r}, which the text of epilogues cannot "
            "hold; use letters, digits and '_'"
        )
    other = type(OPERATIONS.get(kind.name))
    if kind.name in OPERATIONS and other.__module__ != kind.__module__:
        raise VerifyError(
            f"{kind.__module__}.{kind.__qualname__} has the name '{kind.name}' of "
            f"{other.__module__}.{other.__qualname__}; give it another name"
        )
    OPERATIONS[kind.name] = kind()


class Algebra:
    """Calls operations by name on arrays, or on values of a code generator.

    Args:
        kind: the kind of all values; Python numbers are converted to it.
        emit: the code generator, or None for NumPy.
    """

    def __init__(self, kind: str, emit: Emitter | None = None) -> None:
        self.kind, self.emit = kind, emit

    def __call__(self, name: str, *arguments: Any, **constants: Any) -> Any:
        """Apply the operation called `name`."""
        values = [self._value(argument) for argument in arguments]
        operation = known(name)
        merged = {**operation.options, **constants}
        if self.emit is None:
            return operation.numpy(*values, **merged)
        return operation.llvm(self.emit, self.kind, *values, **merged)

    def _value(self, argument: Any) -> Any:
        if not isinstance(argument, bool | int | float):
            return argument
        if self.emit is None:
            import numpy as np

            return np.asarray(argument, NUMPY_KINDS[self.kind])
        return self.emit.constant(argument, self.kind)


class Composed(Elementwise):
    """An operation composed of others; `compose` defines it for NumPy and for generated code."""

    def compose(self, on: Algebra, *arguments: Any, **constants: Any) -> Any:
        """Compute the result by operations of `on`."""
        raise NotImplementedError

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Run `compose` on NumPy arrays."""
        kind = next(k for k, t in NUMPY_KINDS.items() if arguments[0].dtype == t)
        return self.compose(Algebra(kind), *arguments, **constants)

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Run `compose` on values of the code generator."""
        return self.compose(Algebra(kind, emit), *arguments, **constants)
