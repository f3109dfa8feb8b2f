"""Draw mermaid texts with the real mermaid.js, so that a diagram that would not show is caught.

mermaidx runs mermaid.js inside an embedded V8; one engine serves the whole process, and the same
text is drawn once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import mermaidx

__all__ = ["MermaidError", "render"]


class MermaidError(AssertionError):
    """mermaid.js refused a text; the message quotes both."""

    def __init__(self, index: int, text: str, reason: str) -> None:
        self.index, self.text, self.reason = index, text, reason
        numbered = (f"{n:4} | {line}" for n, line in enumerate(text.splitlines(), start=1))
        super().__init__("\n".join([f"diagram {index} does not render: {reason}", *numbered]))


def render(texts: Sequence[str]) -> list[str]:
    """Draw each text as an SVG; a MermaidError names the first that does not draw."""
    return [_render(index, text) for index, text in enumerate(texts)]


def _render(index: int, text: str) -> str:
    try:
        return _svg(text)
    except RuntimeError as error:
        reason = str(error).removeprefix("Mermaid rendering failed: ")
        raise MermaidError(index, text, reason) from error


@functools.cache
def _svg(text: str) -> str:
    return mermaidx.render(text, backend="v8").svg()
