"""A value of another kind."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import NUMPY_KINDS, Array, Elementwise

__all__ = ["Cast", "cast"]


class Cast(Elementwise):
    """The same number as f32, f64 or i32.

    A float becomes i32 by dropping its fraction. The result of NaN, and of a number outside the
    range of i32, is unspecified. A bool becomes 0 or 1.

    Options:
        to: `f32`, `f64` or `i32`.
    """

    name = "cast"
    options = {"to": "f32"}  # noqa: RUF012 - never changed
    floating = False

    def refused(self, **constants: Any) -> str:
        """Why `to` is not a kind of number, or ''."""
        if constants["to"] in ("f32", "f64", "i32"):
            return ""
        return f"to={constants['to']!r} is none of f32, f64 and i32"

    def kind(self, kinds: tuple[str, ...], **constants: Any) -> str:
        """The kind of the result: the option `to`."""
        return constants["to"]

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0: it is where the argument is 0."""
        return zeros[0]

    def linear_in(self, constant: tuple[bool, ...]) -> bool:
        """False for every cast: one to i32 drops fractions, so it is not affine in `acc`."""
        return False

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The operation on NumPy arrays."""
        return arguments[0].astype(NUMPY_KINDS[constants["to"]])

    def text(self, *arguments: str, **constants: Any) -> str:
        """The expression as C writes it."""
        return f"({constants.get('to', 'f32')}){arguments[0]}"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit a conversion; between equal kinds there is none."""
        return emit.convert(arguments[0], kind, constants["to"])


cast = Cast()
