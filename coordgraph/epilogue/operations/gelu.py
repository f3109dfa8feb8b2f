"""The epilogue operation `gelu`: the Gaussian error linear unit."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

from coordgraph.epilogue.operation import Algebra, Composed

__all__ = ["Gelu", "gelu"]

CUBE = 0.044715
WAYS = ("none", "tanh")


class Gelu(Composed):
    """The GELU `a * (1 + erf(a / sqrt 2)) / 2`, or its approximation by the hyperbolic tangent.

    Options:
        approximate: `none`, or `tanh` for `a * (1 + tanh(sqrt(2/pi) * (a + 0.044715 a^3))) / 2`.
            If all outputs are 16-bit floats, a GPU computes this approximation with an absolute
            error of at most |a| * 2^-12 (see `tanh`).
    """

    name = "gelu"
    options = {"approximate": "none"}  # noqa: RUF012 - never changed
    temporaries = 4

    def refused(self, **constants: Any) -> str:
        """The reason why the option `approximate` is invalid, or '' if it is valid."""
        if constants["approximate"] in WAYS:
            return ""
        return f"approximate={constants['approximate']!r} must be {' or '.join(map(repr, WAYS))}"

    def zero_with(self, zeros: tuple[bool, ...]) -> bool:
        """True if the argument of `gelu` is known to be 0: then the result is 0."""
        return zeros[0]

    def compose(self, on: Algebra, *arguments: Any, **constants: Any) -> Any:
        """Compute the result by `tanh` if `approximate` is `tanh`, else by `erf`."""
        (a,) = arguments
        half = on("mul", a, 0.5)
        if constants["approximate"] == "none":
            inner = on("erf", on("mul", a, sqrt(0.5)))
        else:
            scale = sqrt(2 / pi)
            slope = on("fma", on("mul", a, a), scale * CUBE, scale)
            inner = on("tanh", on("mul", a, slope))
        return on("fma", half, inner, half)


gelu = Gelu()
