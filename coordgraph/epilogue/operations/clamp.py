"""The epilogue operation `clamp`: restrict a value to the range between two bounds."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.operation import Algebra, Composed

__all__ = ["Clamp", "clamp"]


class Clamp(Composed):
    """`min(max(a, low), high)` for `clamp(a, low, high)`; a NaN stays NaN."""

    name = "clamp"
    arity = 3
    floating = False

    def compose(self, on: Algebra, *arguments: Any, **constants: Any) -> Any:
        """Compute the maximum with `low`, then the minimum with `high`."""
        a, low, high = arguments
        return on("minimum", on("maximum", a, low), high)


clamp = Clamp()
