"""The epilogue operation `clamp`: restrict a value to the range between two bounds."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.operation import Algebra, Composed

__all__ = ["Clamp", "clamp"]


class Clamp(Composed):
    """The operation `clamp(a, min, max)`: the value a, but at least min, and then at most max.

    The result is NaN if an argument is NaN. As for `torch.clamp`, bounds may be passed by name.
    """

    name = "clamp"
    arity = 3
    names = ("a", "min", "max")
    floating = False

    def compose(self, on: Algebra, *arguments: Any, **constants: Any) -> Any:
        """Compute `min(max(a, low), high)` from the three arguments a, low and high."""
        a, low, high = arguments
        return on("minimum", on("maximum", a, low), high)


clamp = Clamp()
