"""The rectified linear unit."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.operation import Algebra, Composed

__all__ = ["Relu", "relu"]


class Relu(Composed):
    """`max(a, 0)`; NaN stays NaN."""

    name = "relu"
    floating = False

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """Whether the result is 0: it is where the argument is 0."""
        return zeros[0]

    def compose(self, on: Algebra, *arguments: Any, **constants: Any) -> Any:
        """The maximum of the argument and 0."""
        return on("maximum", arguments[0], 0)


relu = Relu()
