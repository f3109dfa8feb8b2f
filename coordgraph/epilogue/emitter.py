"""`Emitter`: the methods of a code generator with which epilogue operations emit their code."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

__all__ = ["Emitter", "emitter_methods"]


class Emitter(Protocol):
    """Protocol: emits instructions on values of the kinds f32, f64, i32, bool and 8 bits.

    An epilogue operation calls these methods to generate its code. The values that the methods take
    and return belong to the code generator; operations only pass such values on.
    """

    gpu: bool
    """True if the target is a GPU: `asm` may be called. False on a CPU: `library` may be called."""
    fast: bool
    """True if all outputs are 16-bit floats, so that a relative error of 2^-11 is allowed."""

    def constant(self, value: bool | int | float, kind: str) -> Any:
        """A constant of kind `kind`: f32, f64, i32 or bool."""
        ...

    def add(self, kind: str, a: Any, b: Any) -> Any:
        """Emit `a + b`."""
        ...

    def sub(self, kind: str, a: Any, b: Any) -> Any:
        """Emit `a - b`."""
        ...

    def mul(self, kind: str, a: Any, b: Any) -> Any:
        """Emit `a * b`; a GPU may fuse the product with a following addition, and round once."""
        ...

    def div(self, kind: str, a: Any, b: Any) -> Any:
        """Emit `a / b`, rounded to nearest."""
        ...

    def neg(self, kind: str, a: Any) -> Any:
        """Emit `-a`."""
        ...

    def compare(self, kind: str, relation: str, a: Any, b: Any) -> Any:
        """Emit a comparison of a and b, such as `a < b`; the result is a bool.

        If a or b is NaN, only `!=` is true.
        """
        ...

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        """Emit a select: the result is `yes` if the bool `condition` is true, else `no`."""
        ...

    def convert(self, value: Any, source: str, target: str) -> Any:
        """Emit a conversion of `value` from the kind `source` to the kind `target`."""
        ...

    def saturate(self, value: Any, kind: str, target: str) -> Any:
        """Emit the rounding of a float of kind `kind` to the nearest value of an 8-bit type.

        The type `target` is i8, u8, e4m3 or e5m2. Ties go to the even value, and a number outside
        the range of `target` to the nearest finite end of the range. NaN becomes 0 in an integer
        type and stays NaN in a float type.
        """
        ...

    def intrinsic(self, name: str, kind: str, *arguments: Any) -> Any:
        """Emit a call of an LLVM intrinsic; `name` lacks the type suffix, as in `llvm.fma`."""
        ...

    def library(self, name: str, kind: str, *arguments: Any) -> Any:
        """Emit a call of a C library function, named as for f64: `tanh` becomes `tanhf` for f32."""
        ...

    def asm(self, instruction: str, *arguments: Any) -> Any:
        """Emit one PTX instruction on f32 values, such as `ex2.approx.ftz.f32`."""
        ...


def emitter_methods() -> list[str]:
    """The signatures of all methods of `Emitter`, such as `add(kind, a, b)`, for error messages."""
    found = [*inspect.getmembers(Emitter, inspect.isfunction)]
    return [
        f"{name}({', '.join(map(_shown, [*inspect.signature(method).parameters.values()][1:]))})"
        for name, method in found
        if not name.startswith("_")
    ]


def _shown(parameter: inspect.Parameter) -> str:
    return f"*{parameter.name}" if parameter.kind is parameter.VAR_POSITIONAL else parameter.name
