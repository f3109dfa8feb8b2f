"""Values by name on the command line: `--at workgroup=5,for_k` and `--with m=1280,k=512`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

__all__ = ["At", "Forward", "read_names", "read_pairs"]

At = Annotated[
    list[str] | None,
    typer.Option(
        "--at",
        metavar="NAME[=VALUE],…",
        help="Known coordinates: NAME=VALUE gives one a number or an expression, NAME alone "
        "leaves it a symbol. Without --at all coordinates of hardware and loops are symbols, or "
        "with --forward all coordinates of tensors. Launch arguments, such as m=1280, are taken "
        "too; explain-index also takes tables, such as 'rows=(0,200,256)'.",
    ),
]
Forward = Annotated[
    bool, typer.Option("--forward", help="From tensors to hardware, not the reverse.")
]


def read_names(entries: Sequence[str]) -> dict[str, str | None]:
    """Parse `a=1,b` to {'a': '1', 'b': None}; commas in parentheses belong to the value."""
    found: dict[str, str | None] = {}
    for entry in (part for text in entries for part in _split(text)):
        name, equals, value = entry.partition("=")
        name = name.strip()
        if not name or (equals and not value.strip()):
            raise typer.BadParameter(f"'{entry}' lacks a name or a value; write NAME or NAME=VALUE")
        if name in found:
            raise typer.BadParameter(f"'{name}' is given twice; leave out one")
        found[name] = value.strip() if equals else None
    return found


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += sign
    return [part for part in parts if part.strip()]


def read_pairs(entries: Sequence[str], option: str) -> dict[str, str]:
    """Parse `a=1,b=2`; a name without a value is refused."""
    found = read_names(entries)
    for name, value in found.items():
        if value is None:
            raise typer.BadParameter(f"{option} {name}: a value is missing, as in {name}=1024")
    return {name: value for name, value in found.items() if value is not None}
