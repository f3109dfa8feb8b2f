"""The epilogue operation `compare`: comparison of two values."""

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
    """The comparison `a < b` (or another relation) as a bool; if a or b is NaN, only `!=` holds.

    Options:
        relation: `<`, `<=`, `>`, `>=`, `==` or `!=`.
    """

    name = "compare"
    arity = 2
    options = {"relation": "<"}  # noqa: RUF012 - never changed
    floating = False

    def refused(self, **constants: Any) -> str:
        """The reason why the option `relation` is invalid, or '' if it is valid."""
        if constants["relation"] in RELATIONS:
            return ""
        return f"relation={constants['relation']!r} is none of {', '.join(RELATIONS)}"

    def kind(self, kinds: tuple[str, ...], **constants: Any) -> str:
        """The kind of the result, which is bool.

        Raises:
            VerifyError: the kinds of the arguments differ.
        """
        super().kind(kinds, **constants)
        return "bool"

    def numpy(self, *arguments: Array, **constants: Any) -> Array:
        """Evaluate `compare` on NumPy arrays; generated code is tested against the result."""
        import numpy as np

        a, b = arguments
        return getattr(np, RELATIONS[constants["relation"]])(a, b)

    def text(self, *arguments: str, **constants: Any) -> str:
        """The C expression of `compare` for pseudo-code, from the texts of the arguments."""
        return f"{arguments[0]} {constants.get('relation', '<')} {arguments[1]}"

    def llvm(self, emit: Emitter, kind: str, *arguments: Any, **constants: Any) -> Any:
        """Emit the single instruction that computes `compare`."""
        return emit.compare(kind, constants["relation"], *arguments)


compare = Compare()
