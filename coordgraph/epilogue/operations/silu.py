"""The epilogue operation `silu`: the sigmoid linear unit (swish)."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.operation import Algebra, Composed

__all__ = ["Silu", "silu"]


class Silu(Composed):
    """The SiLU `a * sigmoid(a)`, also called swish."""

    name = "silu"
    temporaries = 2

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if the argument of `silu` is known to be 0: then the result is 0."""
        return zeros[0]

    def compose(self, on: Algebra, *arguments: Any, **constants: Any) -> Any:
        """Compute the product of the argument and its sigmoid."""
        (a,) = arguments
        return on("mul", a, on("sigmoid", a))


silu = Silu()
