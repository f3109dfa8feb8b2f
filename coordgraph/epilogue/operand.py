"""Operands of an epilogue: named tensors, scalars and indices, each along some axes of D."""

from __future__ import annotations

from dataclasses import dataclass, replace
from keyword import iskeyword

from coordgraph.errors import VerifyError
from coordgraph.tensors import dtype

__all__ = [
    "ACCUMULATOR",
    "COORDINATES",
    "NOT_STORED",
    "UNNAMED",
    "Operand",
    "check_name",
    "index",
    "operand",
    "sum_named",
]

ACCUMULATOR = "acc"
"""The name by which an epilogue function refers to the sum of products of an element of D."""
INDEX = "index"
"""The word that declares an index in the text form of a function: `column: n index`."""
SUM = "sum"
"""The word that declares a sum of products in the text form of a function with several sums."""
NUMBERS = ("true", "false", "inf", "nan")
"""Words that the text form of an epilogue reads as numbers, so that operands cannot have these
names."""
NOT_STORED = "none"
"""The text form of D's value if D is not stored."""
UNNAMED = "_"
"""The name of an operand or output whose declaration has none yet: the decorator replaces it."""
COORDINATES = "lmn"
"""The coordinates of an element of D, in order: l is the number of the product in a batch or group,
m the row, n the column."""


@dataclass(frozen=True)
class Operand:
    """One argument of an epilogue other than a sum of products: a tensor, a scalar or an index.

    Args:
        name: the name of the function's parameter, and of the keyword argument of a call.
        axes: the coordinates of D on which the operand's elements depend: some of `l`, `m` and `n`
            in this order. The operand is broadcast along the other coordinates; '' is a scalar.
        dtype: the element type; '' means the type of D, or the accumulator's type for a scalar.
        optional: True if a call may leave the operand out, which then counts as 0.
        in_memory: True for a scalar that the kernel reads from an array of one element; False for a
            scalar that is passed by value.
        summed: True to convert elements to the accumulator's type when they are read.
        index: True if the operand's value is the index of the element of D along the only axis in
            `axes`. It is an i32 that the kernel computes, so no call passes an array for it.
    """

    name: str
    axes: str = ""
    dtype: str = ""
    optional: bool = False
    in_memory: bool = False
    summed: bool = False
    index: bool = False

    @property
    def exchanged(self) -> Operand:
        """The operand for the transpose of D: a copy with m and n exchanged in `axes`."""
        axes = {{"m": "n", "n": "m"}.get(axis, axis) for axis in self.axes}
        return replace(self, axes="".join(axis for axis in "lmn" if axis in axes))

    def __post_init__(self) -> None:
        check_name(self.name, "operand")
        named = self.name != UNNAMED  # the decorator gives the name later
        what = f"operand {self.name}" if named else "operand"
        name = self.name if named else ("column" if self.index else "bias")
        example = f'{name}=index("n")' if self.index else f'{name}=operand("n", "f32")'
        for field, given in (("coordinates", self.axes), ("type", self.dtype)):
            if not isinstance(given, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise VerifyError(
                    f"{what}: {field} {given!r} is not text; give a str, as in {example}"
                )
        if self.index:
            self._check_index(what, example)
        if self.axes not in _subsets():
            raise VerifyError(
                f"{what}: {self.axes!r} are not coordinates of an operand; give some "
                "of l (batch or group), m (row) and n (column), in this order, as in 'n', 'mn' or "
                "'lmn'"
            )
        if self.in_memory and self.axes:
            raise VerifyError(
                f"{what}: in_memory=True needs an operand without axes, not "
                f"{self.axes!r}; leave in_memory out"
            )
        if self.optional and self.is_scalar:
            raise VerifyError(
                f"{what}: a scalar passed by value cannot be optional; leave optional "
                "out, or use in_memory=True"
            )
        if self.dtype:
            object.__setattr__(self, "dtype", dtype(self.dtype).name)

    def _check_index(self, what: str, example: str) -> None:
        """Check that an index has exactly one axis, and none of the properties of an array.

        Args:
            what: the operand, for messages.
            example: a declaration of an index, for messages.
        """
        if self.axes not in (*COORDINATES,):
            raise VerifyError(
                f"{what}: {self.axes!r} is not the axis of an index; give one of l (batch or "
                f"group), m (row) and n (column), as in {example}"
            )
        if self.dtype or self.optional or self.in_memory or self.summed:
            raise VerifyError(
                f"{what}: an index is computed by the kernel and is an i32, so it has no dtype, "
                "and is neither optional nor in_memory nor summed; leave them out"
            )

    @property
    def is_scalar(self) -> bool:
        """True if the operand is one number that a launch passes by value."""
        return not self.axes and not self.in_memory

    def text(self) -> str:
        """The text form of the operand, such as `residual: mn bf16 optional`."""
        words = (
            self.axes or ("element" if self.in_memory else "scalar"),
            self.dtype,
            "optional" * self.optional,
            "summed" * self.summed,
            INDEX * self.index,
        )
        return f"{self.name}: {' '.join(filter(None, words))}"

    @classmethod
    def parse(cls, text: str) -> Operand:
        """Parse the text form of an operand, such as `bias: n f32`, which `Operand.text` writes.

        Raises:
            VerifyError: the text is not the text form of an operand.
        """
        name, found, rest = text.partition(":")
        words = rest.split()
        if not found or not words:
            raise VerifyError(
                f"operand {text!r} cannot be read; write it as in 'bias: n' or 'scale: scalar f32'"
            )
        axes, *more = words
        optional, summed, indexed = (word in more for word in ("optional", "summed", INDEX))
        kinds = [word for word in more if word not in ("optional", "summed", INDEX)]
        if len(kinds) > 1:
            raise VerifyError(
                f"operand {text!r} has {len(kinds)} types ({', '.join(kinds)}); give only one"
            )
        axes = "" if axes in ("scalar", "element") else axes
        element = words[0] == "element"
        return cls(name.strip(), axes, "".join(kinds), optional, element, summed, indexed)


def check_name(name: str, what: str, example: str = "bias") -> None:
    """Check that an operand, an output or a sum of products can have a name.

    Args:
        name: the name.
        what: what has the name, for the message: `operand`, `output` or `sum of products`.
        example: a possible name, for the message.

    Raises:
        VerifyError: the name is no identifier, or the text form or a call cannot express it.
    """
    if not name.isidentifier() or iskeyword(name) or not name.isascii():
        article = "an" if what[0] in "aeiou" else "a"
        raise VerifyError(
            f"{name!r} cannot be the name of {article} {what}; choose an ASCII identifier that "
            f"is no keyword of Python, such as {example}"
        )
    if name in NUMBERS:
        raise VerifyError(
            f"{what} {name}: the text of an epilogue reads {name} as a number; rename the {what}"
        )
    if name == NOT_STORED:
        raise VerifyError(
            f"{what} {name}: the text of an epilogue has {name} as D's value if D is not stored; "
            f"rename the {what}"
        )
    if name == "self":
        raise VerifyError(f"{what} self: a call cannot pass self= by name; rename the {what}")


def operand(
    axes: str = "",
    dtype: str = "",
    *,
    optional: bool = False,
    in_memory: bool = False,
    summed: bool = False,
) -> Operand:
    """Declare an operand of an epilogue with all properties: `c=operand("mn", optional=True)`.

    Args:
        axes: the coordinates of D on which the operand's elements depend: some of `l` (product of a
            batch), `m` (row) and `n` (column), in this order.
        dtype: the element type; by default the type of D, or the accumulator's type for a scalar.
        optional: True if a call may leave the operand out, which then counts as 0.
        in_memory: True for a scalar that the kernel reads from an array of one element.
        summed: True to convert elements to the accumulator's type when they are read.
    """
    return Operand(UNNAMED, axes, dtype, optional, in_memory, summed)


def index(axis: str) -> Operand:
    """Declare an operand that is the index of the element of D along an axis: `column=index("n")`.

    The index is an i32 that the kernel computes from the position of the element, so a call passes
    no array for it. Rows and columns count from the first of the element's own product. If a table
    scatters rows, the index is the row of the product, not the row of D in which it is stored.

    Args:
        axis: `m` for the row, `n` for the column, or `l` for the number of the product in a batch
            or in groups, which is 0 if there is only one product.

    Raises:
        VerifyError: `axis` is none of these.
    """
    return Operand(UNNAMED, axis, index=True)


def sum_named(name: str) -> str:
    """The text form of a sum of products of a function that has several, such as `gate: sum`.

    Raises:
        VerifyError: a sum cannot have that name.
    """
    check_name(name, "sum of products", "gate")
    return f"{name}: {SUM}"


def _subsets() -> set[str]:
    return {
        "".join(c for i, c in enumerate(COORDINATES) if bits >> i & 1)
        for bits in range(2 ** len(COORDINATES))
    }
