"""A value kept between two bounds."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.operation import Algebra, Composed

__all__ = ["Clamp", "clamp"]


class Clamp(Composed):
    """`min(max(a, low), high)`; NaN stays NaN."""

    name = "clamp"
    arity = 3
    floating = False

    def compose(self, on: Algebra, *arguments: Any, **constants: Any) -> Any:
        """The maximum with `low`, then the minimum with `high`."""
        a, low, high = arguments
        return on("minimum", on("maximum", a, low), high)


clamp = Clamp()
