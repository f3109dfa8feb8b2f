"""The help of a command, made from the docstring of its function."""

from __future__ import annotations

import inspect

__all__ = ["help_text"]


def help_text(docstring: str | None) -> str:
    """A docstring with each paragraph of prose on one line; indented lines stay as they are.

    Typer breaks the lines of the help where the docstring has line breaks, and again at the width
    of the terminal, so a paragraph of several lines would be ragged on a narrow terminal.
    """
    paragraphs = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(
        text if text.startswith(" ") else text.replace("\n", " ") for text in paragraphs
    )
