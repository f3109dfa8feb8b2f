"""`Emitter`: the code generator's interface, through which epilogue operations emit code."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Emitter"]


class Emitter(Protocol):
    """Emits instructions on values of the kinds f32, f64, i32 and bool.

    Epilogue operations call this protocol instead of a code generator. Values are opaque to them.
    """

    gpu: bool
    """Whether the code is PTX, where `asm` may be used; on a CPU `library` may be used."""
    fast: bool
    """Whether D has 16-bit elements: then approximations may have a relative error of 2^-11."""

    def constant(self, value: bool | int | float, kind: str) -> Any:
        """A constant of a kind."""
        ...

    def add(self, kind: str, a: Any, b: Any) -> Any:
        """`a + b`."""
        ...

    def sub(self, kind: str, a: Any, b: Any) -> Any:
        """`a - b`."""
        ...

    def mul(self, kind: str, a: Any, b: Any) -> Any:
        """`a * b`; a GPU may fuse it with an addition of the product, which then rounds once."""
        ...

    def div(self, kind: str, a: Any, b: Any) -> Any:
        """`a / b`, rounded to nearest."""
        ...

    def neg(self, kind: str, a: Any) -> Any:
        """`-a`."""
        ...

    def compare(self, kind: str, relation: str, a: Any, b: Any) -> Any:
        """Compare two values; the result is a bool. With a NaN only `!=` is true."""
        ...

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        """`yes` where the condition holds, else `no`."""
        ...

    def convert(self, value: Any, source: str, target: str) -> Any:
        """Convert a value from the kind `source` to the kind `target`."""
        ...

    def intrinsic(self, name: str, kind: str, *arguments: Any) -> Any:
        """An LLVM intrinsic on values of one kind, without the type's suffix: `llvm.fma`."""
        ...

    def library(self, name: str, kind: str, *arguments: Any) -> Any:
        """Call a function of the C library by its f64 name: `tanh` (`tanhf` is called for f32)."""
        ...

    def asm(self, instruction: str, *arguments: Any) -> Any:
        """One PTX instruction on f32 values: `ex2.approx.ftz.f32`."""
        ...
