"""The epilogue operation `leaky_relu`: the leaky rectified linear unit."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.operation import Algebra, Composed

__all__ = ["LeakyRelu", "leaky_relu"]


class LeakyRelu(Composed):
    """The leaky rectified linear unit: `a` if a is positive, else `slope * a`.

    Options:
        slope: the factor that negative values are multiplied by; 0.01 by default.
    """

    name = "leaky_relu"
    options = {"slope": 0.01}  # noqa: RUF012 - never changed
    temporaries = 1

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if the argument of `leaky_relu` is known to be 0: then the result is 0."""
        return zeros[0]

    def compose(self, on: Algebra, *arguments: Any, **constants: Any) -> Any:
        """Compute the result by a comparison, a product and a select."""
        (a,) = arguments
        positive = on("compare", a, 0.0, relation=">")
        return on("where", positive, a, on("mul", a, float(constants["slope"])))


leaky_relu = LeakyRelu()
