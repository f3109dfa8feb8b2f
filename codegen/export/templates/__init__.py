"""Templates of the exported C files: text in which `$word` and `${word}` are filled in."""

from __future__ import annotations

from importlib.resources import files
from string import Template

__all__ = ["filled"]


def filled(template: str, **words: str) -> str:
    """The text of the template file `template`, with every `$word` replaced.

    Raises:
        KeyError: the template has a word that is not given.
    """
    return Template((files(__name__) / template).read_text("utf-8")).substitute(words)
