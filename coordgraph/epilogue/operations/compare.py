"""A comparison of two values."""

from __future__ import annotations

from typing import Any

from coordgraph.epilogue.emitter import Emitter
from coordgraph.epilogue.operation import Array, Elementwise

__all__ = ["Compare", "compare"]


RELATIONS = {
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "==": "equal",
    "!=": "not_equal",
}


class Compare(Elementwise):
    """A truth value; with a NaN only `!=` is true.

    Options:
        relation: `<`, `<=`, `>`, `>=`, `==` or `!=`.
    """

    name = "compare"
    arity = 2
    options = {"relation": "<"}  # noqa: RUF012 - never changed
    floating = False

    def refused(self, **constants: Any) -> str:
        """Why `relation` is not a comparison operator, or ''."""
        if constants["relation"] in RELATIONS:
            return ""
        return f"relation={constants['relation']!r} is none of {', '.join(RELATIONS)}"

    def kind(self, kinds: tuple[str, ...], **constants: Any) -> str:
        """The kind of the result: bool."""
        super().kind(kinds, **constants)
        return "bool"

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """The operation on NumPy arrays."""
        import numpy as np

        a, b = arguments
        return getattr(np, RELATIONS[constants["relation"]])(a, b)

    def text(self, *arguments: str, **constants: Any) -> str:
        """The expression as C writes it, with an operator."""
        return f"{arguments[0]} {constants.get('relation', '<')} {arguments[1]}"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit one instruction."""
        return emit.compare(kind, constants["relation"], *arguments)


compare = Compare()
