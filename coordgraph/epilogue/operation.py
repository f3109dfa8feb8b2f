"""`Elementwise`: the base class of epilogue operations; every subclass has a separate file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from coordgraph.elements import BYTE, DTYPES
from coordgraph.epilogue.emitter import Emitter, emitter_methods
from coordgraph.epilogue.values import (
    OPERATIONS,
    Argument,
    Constant,
    Constants,
    Value,
    fits_float,
    known,
)
from coordgraph.errors import CodegenError, CoordGraphError, VerifyError

__all__ = [
    "FLOATS",
    "NUMPY_KINDS",
    "QUANTIZED",
    "Algebra",
    "Array",
    "Composed",
    "Elementwise",
    "emitted",
]

# numpy is only imported when an operation is evaluated, which keeps `import coordgraph` fast
if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
else:
    Array = Any
FLOATS = ("f32", "f64")
QUANTIZED = tuple(d.name for d in DTYPES.values() if d.bits == BYTE)
"""The kinds of quantized values (8-bit integers and 8-bit floats), which only `cast` and outputs
accept."""
NUMPY_KINDS = {
    **{"f32": "float32", "f64": "float64", "i32": "int32", "bool": "bool"},
    **{name: DTYPES[name].library for name in QUANTIZED},
}
"""For each kind of value in epilogues, the name of the NumPy type of its values."""

_NOT_IN_TEXT = frozenset("()'\",;\\")
"""Characters that an option's value must not contain, because the text form cannot express them."""


class Elementwise:
    """Base class of the elementwise operations that epilogues may use.

    A subclass sets `name` and `arity` and implements `numpy` (the reference) and `llvm` (the code
    generation). Defining a subclass registers the operation; `abstract=True` declares a base class
    of operations, which is not registered. Calling an operation with values of an epilogue that is
    being traced records a step.
    """

    name: ClassVar[str] = ""
    """The name of the operation in the text form of epilogues, an identifier."""
    arity: ClassVar[int] = 1
    """The number of values (operands of the operation) that the operation takes."""
    names: ClassVar[tuple[str, ...]] = ()
    """Keyword names of the values, in the order of the values; () if values are positional only."""
    options: ClassVar[Mapping[str, Constant]] = {}
    """Default values of the operation's options by option name; an example is `approximate="none"`.

    Options are fixed when the epilogue is traced.
    """
    floating: ClassVar[bool] = True
    """True if the operation accepts only values of kind f32 and f64, not of kind i32."""
    temporaries: ClassVar[int] = 0
    """The number of 32-bit registers that a GPU thread needs to compute the operation, in addition
    to those of the arguments and the result."""

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        super().__init_subclass__()
        if not abstract:
            _register(cls)

    def __call__(self, *arguments: object, **constants: Constant) -> Value:
        """Record the operation as a step of the epilogue that is being traced.

        Args:
            arguments: traced values and numbers, as many as `arity`; at least one traced value.
                The last ones may be passed by name if the operation has `names`.
            constants: the operation's options, by option name.
        """
        for name in self.names[len(arguments) :]:
            if name in constants:
                arguments = (*arguments, constants.pop(name))
        tape = next((a.tape for a in arguments if isinstance(a, Value)), None)
        if tape is None:
            raise VerifyError(
                f"{self.name} is called outside an epilogue that is being traced; call it inside a "
                "function decorated with @epilogue"
            )
        if len(arguments) != self.arity:
            option = next(iter(self.options.items()), None)
            more = f"; write options by name: {option[0]}={option[1]!r}" if option else ""
            values = f"{self.arity} value{'s' * (self.arity != 1)}"
            values += f" ({', '.join(self.names)})" if self.names else ""
            raise VerifyError(f"{self.name} takes {values}, not {len(arguments)}{more}")
        return tape.record(self.name, arguments, self.checked(constants))

    def checked(self, constants: Mapping[str, Constant]) -> Constants:
        """The options in `constants` that differ from their defaults, as (name, value) pairs.

        Raises:
            VerifyError: an option is unknown, has another type than its default, or has a value
                that `refused` rejects.
        """
        for name in constants:
            if name not in self.options:
                has = f"; it has {', '.join(self.options)}" if self.options else ""
                raise VerifyError(f"{self.name} has no option '{name}'{has}")
        given = {name: self._option(name, value) for name, value in constants.items()}
        merged = {**self.options, **given}
        if why := self.refused(**merged):
            raise VerifyError(f"{self.name}: an option is invalid: {why}")
        return tuple((n, v) for n, v in merged.items() if repr(v) != repr(self.options[n]))

    def _option(self, name: str, value: object) -> Constant:
        """Convert the value of the option `name` to the type of the option's default value."""
        default = self.options[name]
        if getattr(value, "shape", None) == ():  # convert a NumPy scalar to a Python number
            value = cast("Any", value).item()
        if isinstance(value, Value):
            why = "it must be a constant, not a traced value: options are fixed at tracing"
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
        raise VerifyError(f"{self.name}: the option {name}={value!r} is invalid: {why}")

    def refused(self, **constants: Any) -> str:
        """The reason why the values of the options are invalid, or '' if they are valid."""
        return ""

    def fold(self, arguments: tuple[Argument, ...], constants: Constants) -> Argument | None:
        """The argument that equals the result bit for bit, such as x for `x * 1`; else None."""
        return None

    def kind(self, kinds: tuple[str, ...], **constants: Any) -> str:
        """The kind of the result (f32, f64, i32 or bool) for arguments of the given kinds.

        Raises:
            VerifyError: the kinds of the arguments differ, or the operation does not support them.
        """
        if len({*kinds}) > 1:
            raise VerifyError(
                f"{self.name} has arguments of kinds {' and '.join(kinds)}, which must be equal; "
                "convert one, as with ep.cast(value, to='f32')"
            )
        if self.floating and kinds[0] not in FLOATS:
            raise VerifyError(
                f"{self.name} takes f32 and f64, not {kinds[0]}; convert the value by ep.cast"
            )
        if kinds[0] == "bool":
            raise VerifyError(
                f"{self.name} takes numbers, but an argument is a bool; turn it into a number with "
                "ep.where"
            )
        return kinds[0]

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if the operation's result is 0, provided that all arguments are finite.

        Args:
            zeros: for each argument, True if it is known to be 0.
        """
        return False

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """True if the result is affine in `acc`, provided that all arguments are affine in `acc`.

        Args:
            constant: for each argument, True if it does not depend on `acc`.
        """
        return all(constant)

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate the operation on NumPy arrays; generated code is tested against it."""
        raise NotImplementedError

    def text(self, *arguments: str, **constants: Any) -> str:
        """The operation as a C-like expression, made from the texts of its arguments."""
        listed = (*arguments, *(f"{n}={v}" for n, v in constants.items()))
        return f"{self.name}({', '.join(listed)})"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the operation's code by calls of `emit`; `kind` is the kind of the arguments."""
        raise NotImplementedError


def _register(kind: type[Elementwise]) -> None:
    """Add an instance of the operation class `kind` to `OPERATIONS`.

    An operation with the same name from the same module is replaced, which happens if a notebook
    cell is rerun.

    Raises:
        VerifyError: the name is missing or not an ASCII identifier, an operation of another module
            has this name, or the class lacks a method that computes the operation.
    """
    if not kind.name:
        raise VerifyError(
            f"{kind.__qualname__} has no name; set one, as in name = 'softplus', or declare a base "
            f"class of operations by class {kind.__qualname__}(…, abstract=True)"
        )
    if not (kind.name.isidentifier() and kind.name.isascii()):
        raise VerifyError(
            f"{kind.__qualname__} has the name {kind.name!r}, which the text form of epilogues "
            "cannot express; use ASCII letters, digits and '_'"
        )
    other = type(OPERATIONS.get(kind.name))
    if kind.name in OPERATIONS and other.__module__ != kind.__module__:
        raise VerifyError(
            f"{kind.__module__}.{kind.__qualname__} has the name '{kind.name}', which is taken by "
            f"{other.__module__}.{other.__qualname__}; give it another name"
        )
    base, needed = Elementwise, ("numpy", "llvm")
    if issubclass(kind, Composed):
        base, needed = Composed, ("compose",)
    if missing := [name for name in needed if getattr(kind, name) is getattr(base, name)]:
        raise VerifyError(
            f"{kind.__qualname__} lacks the method {' and the method '.join(missing)}; an "
            "operation has numpy and llvm, or is a subclass of Composed with compose"
        )
    OPERATIONS[kind.name] = kind()


def emitted(
    operation: Elementwise, emit: Emitter, kind: str, values: Sequence[Any], options: Any
) -> Any:
    """Call an operation's `llvm` method; the message of an error in it lists the methods of `emit`.

    Args:
        operation: the operation.
        emit: the emitter of LLVM instructions.
        kind: the kind of the values: f32, f64, i32 or bool.
        values: the arguments of the operation, as values of the emitter.
        options: the values of the operation's options, by name.

    Raises:
        CodegenError: `llvm` raises an error, or returns None.
    """
    try:
        found = operation.llvm(emit, kind, *values, **options)
    except CoordGraphError:
        raise
    except Exception as error:  # a user may have written `llvm`, which may raise any exception
        raise CodegenError(
            f"{operation.name}: its method llvm(emit, …) raised {type(error).__name__}: {error}; "
            f"correct the method; the methods of emit are {', '.join(emitter_methods())}"
        ) from error
    if found is None:
        raise CodegenError(
            f"{operation.name}: its method llvm(emit, …) returned None; return the value of the "
            "method's last call of emit"
        )
    return found


class Algebra:
    """Applies operations by name, either to NumPy arrays or to values of a code generator.

    Args:
        kind: the kind of all values (f32, f64 or i32); Python numbers are converted to it.
        emit: the code generator; None to compute with NumPy arrays.
    """

    def __init__(self, kind: str, emit: Emitter | None = None) -> None:
        self.kind, self.emit = kind, emit

    def __call__(self, name: str, *arguments: Any, **constants: Any) -> Any:
        """Apply the operation `name` to arguments, with options by keyword."""
        operation = known(name)
        if len(arguments) != operation.arity:
            raise VerifyError(
                f'on("{name}", …) takes {operation.arity} values, not {len(arguments)}; give '
                "values by position and options by name"
            )
        values = [self._value(argument) for argument in arguments]
        merged = {**operation.options, **dict(operation.checked(constants))}
        if self.emit is None:
            return operation.numpy(*values, **merged)
        return emitted(operation, self.emit, self.kind, values, merged)

    def _value(self, argument: Any) -> Any:
        if not isinstance(argument, bool | int | float):
            return argument
        if self.emit is None:
            import numpy as np

            return np.asarray(argument, NUMPY_KINDS[self.kind])
        return self.emit.constant(argument, self.kind)


class Composed(Elementwise, abstract=True):
    """Base class of operations that are composed of other operations by the method `compose`.

    `compose` defines both `numpy` and `llvm`.
    """

    def compose(self, on: Algebra, *arguments: Any, **constants: Any) -> Any:
        """Compute the result from other operations, by calls such as `on("mul", a, 0.5)`.

        Args:
            on: applies an operation: `on(name, *values, **options)`. Values may be numbers.
            arguments: the values of the operation, as many as `arity`.
            constants: all options of the operation, by name.
        """
        raise NotImplementedError

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Compute the result on NumPy arrays by `compose`."""
        kind = next(k for k, t in NUMPY_KINDS.items() if arguments[0].dtype == t)
        return self.compose(Algebra(kind), *arguments, **constants)

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit code for the result by `compose`, on values of the code generator."""
        return self.compose(Algebra(kind, emit), *arguments, **constants)
