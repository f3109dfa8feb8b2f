"""The epilogue operation `cast`: conversion of a number to another type."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import NUMPY_KINDS, Array, Elementwise

__all__ = ["Cast", "cast"]


class Cast(Elementwise):
    """Convert a value to f32, f64 or i32.

    A float becomes i32 by dropping its fraction. The result of NaN, and of a number outside the
    range of i32, is unspecified. A bool becomes 0 or 1.

    Options:
        to: `f32`, `f64` or `i32`.
    """

    name = "cast"
    options = {"to": "f32"}  # noqa: RUF012 - never changed
    floating = False

    def refused(self, **constants: Any) -> str:
        """The reason why the option `to` is invalid, or '' if it is valid."""
        if constants["to"] in ("f32", "f64", "i32"):
            return ""
        return f"to={constants['to']!r} is none of f32, f64 and i32"

    def kind(self, kinds: tuple[str, ...], **constants: Any) -> str:
        """The kind of the result, which the option `to` names: f32, f64 or i32."""
        return constants["to"]

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the argument of `cast` is known to be 0, and so the result as well."""
        return zeros[0]

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """False, because a cast to i32 drops fractions and so is not affine in `acc`."""
        return False

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `cast` on NumPy arrays; generated code is tested against the result."""
        return arguments[0].astype(NUMPY_KINDS[constants["to"]])

    def text(self, *arguments: str, **constants: Any) -> str:
        """The C expression of `cast` for pseudo-code, from the texts of the arguments."""
        return f"({constants.get('to', 'f32')}){arguments[0]}"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit a conversion from `kind` to the option `to`; nothing if they are equal."""
        return emit.convert(arguments[0], kind, constants["to"])


cast = Cast()
