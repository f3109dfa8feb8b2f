"""The sigmoid linear unit."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.operation import Algebra, Composed

__all__ = ["Silu", "silu"]


class Silu(Composed):
    """`a * sigmoid(a)`, also called swish."""

    name = "silu"
    temporaries = 2

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0: it is where the argument is 0."""
        return zeros[0]

    def compose(self, on: Algebra, *arguments: Any, **constants: Any) -> Any:
        """The product of the argument and its sigmoid."""
        (a,) = arguments
        return on("mul", a, on("sigmoid", a))


silu = Silu()
