"""The C type of each element type, from its width and kind in `coordgraph.elements`."""

from __future__ import annotations

from coordgraph.elements import dtype

__all__ = ["c_type", "is_declared"]

FLOATS = {32: "float", 64: "double"}
"""The C type of floating-point numbers, by their width in bits."""


def c_type(kind: str) -> str:
    """The C type of elements of the type named `kind`.

    The result for a floating-point type that C lacks is `kind` itself, such as `bf16`; the exported
    example declares a type of this name.
    """
    found = dtype(kind)
    if found.is_float:
        return FLOATS.get(found.bits, kind)
    return f"{'int' if found.least < 0 else 'uint'}{found.bits}_t"


def is_declared(kind: str) -> bool:
    """Whether the exported example declares the type itself, in the template `KIND.cpp.in`."""
    return c_type(kind) == kind
