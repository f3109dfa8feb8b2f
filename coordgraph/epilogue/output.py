"""Outputs of an epilogue besides D: named tensors of D's shape that the same kernel stores."""

from __future__ import annotations

from dataclasses import dataclass

from coordgraph.epilogue.operand import UNNAMED, check_name
from coordgraph.epilogue.reduction import REDUCTIONS
from coordgraph.epilogue.values import Argument
from coordgraph.errors import VerifyError
from coordgraph.tensors import dtype

__all__ = ["Output", "output"]

REDUCED_AXES = ("m", "")
"""The allowed values of `Output.axes` for outputs that reduce rows, or all of D."""
ALL = "all"
"""The word for `Output.axes` = `''` (reduce all of D) in the text form of an output's
declaration."""


@dataclass(frozen=True)
class Output:
    """One output of an epilogue besides D.

    Args:
        name: the name of the output's tensor, and of the keyword argument of a call that passes an
            array for it.
        axes: the coordinates of D that the output has: `mn`, one element for every element of D.
            If `reduce` is given, `m`, one element for every row of D, or '', one element for all
            products; a kernel then stores an element for every row and column tile of D, which
            `codegen.matmul` reduces further. In a kernel for several products (a batch or groups),
            what the kernel stores is divided among the products in the same way as D.
        dtype: the element type; '' means the type of D, or the type of the value if it is reduced.
        value: the name of the value that is converted to the element type and stored, such as
            `%0`; '' in a declaration, before the function is traced.
        reduce: `sum`, `max` or `logsumexp` over the columns of each row of a macro tile that are
            inside D; '' to store every value.
    """

    name: str
    axes: str = "mn"
    dtype: str = ""
    value: Argument = ""
    reduce: str = ""

    def __post_init__(self) -> None:
        check_name(self.name, "output")
        named = self.name != UNNAMED  # the decorator gives the name later
        what = f"output {self.name}" if named else "output"
        name = self.name if named else "pre"
        for field, given in (("coordinates", self.axes), ("type", self.dtype)):
            if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise VerifyError(
                    f"{what}: {field} {given!r} is not text; give a str, as in "
                    f'{name}=output("mn", "f32")'
                )
        if self.axes not in ("mn", *REDUCED_AXES):
            raise VerifyError(
                f"{what}: {self.axes!r} are not coordinates of an output; give 'mn', "
                "one element for every element of D, or 'm' or '' with reduce='sum'"
            )
        if self.reduce not in ("", *REDUCTIONS):
            raise VerifyError(
                f"{what}: reduce={self.reduce!r} is unknown; choose one of {', '.join(REDUCTIONS)}"
            )
        if (self.axes in REDUCED_AXES) != bool(self.reduce):
            raise VerifyError(
                f"{what} has axes {self.axes!r} and reduce={self.reduce!r}, but the "
                "axes 'm' and '' need a reduction, and 'mn' allows none; declare output('mn'), "
                "output('m', reduce='sum') or output('', reduce='sum')"
            )
        if self.dtype:
            object.__setattr__(self, "dtype", dtype(self.dtype).name)

    def text(self) -> str:
        """The text form of the output's declaration, such as `pre: mn bf16`."""
        words = (self.axes or ALL, self.dtype, self.reduce)
        return f"{self.name}: {' '.join(filter(None, words))}"

    @classmethod
    def parse(cls, text: str, value: Argument) -> Output:
        """Parse the text form of an output's declaration, which `Output.text` writes.

        Args:
            text: the text of the declaration.
            value: the name of the value that the output stores.

        Raises:
            VerifyError: the text is not the text form of an output.
        """
        name, found, rest = text.partition(":")
        words = rest.split()
        reduce = next((word for word in words[1:] if word in REDUCTIONS), "")
        kinds = [word for word in words[1:] if word != reduce]
        if not found or not words or len(kinds) > 1:
            raise VerifyError(f"output {text!r} cannot be read; write it as in 'pre: mn bf16'")
        axes = "" if words[0] == ALL else words[0]
        return cls(name.strip(), axes, "".join(kinds), value, reduce)


def output(axes: str = "mn", dtype: str = "", *, reduce: str = "") -> Output:
    """Declare an output of an epilogue besides D: `pre=output("mn", "bf16")`.

    The decorated function returns a tuple: the value of D, then the value of every declared output,
    in the order of the declarations. A kernel call returns its arrays in the same order:
    `d, pre = kernel(a, b)` for a function that ends with `return gelu(x), x`. If the value of D is
    None, as in `return None, x`, the kernel does not store D, and a call returns None in its place.

    Args:
        axes: the coordinates of D that the output has: `mn`, one element for every element of D.
            With `reduce`: `m`, one element for every row of D, or '', a single element.
        dtype: the element type; by default the type of D, or that of the value if it is reduced.
        reduce: `sum`, `max` or `logsumexp` of the values of a row, or of all values. A kernel
            stores the reduction of each row of a macro tile, so its output has the shape m x
            (column tiles of D); `codegen.matmul` reduces the column tiles too, and returns m
            elements, or reduces all and returns an array without axes.
    """
    return Output(UNNAMED, axes, dtype, reduce=reduce)
