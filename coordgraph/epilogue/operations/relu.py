"""The epilogue operation `relu`: the rectified linear unit."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.operation import Algebra, Composed

__all__ = ["Relu", "relu"]


class Relu(Composed):
    """The rectified linear unit `max(a, 0)`; the result for a NaN is NaN."""

    name = "relu"
    floating = False

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if the argument of `relu` is known to be 0: then the result is 0."""
        return zeros[0]

    def compose(self, on: Algebra, *arguments: Any, **constants: Any) -> Any:
        """Compute the maximum of the argument and 0."""
        return on("maximum", arguments[0], 0)


relu = Relu()
