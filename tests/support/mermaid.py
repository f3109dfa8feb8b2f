"""Draw mermaid diagrams with mermaid.js itself, to find those that do not render.

mermaidx runs mermaid.js in an embedded V8. One engine serves the whole process, and equal texts are
drawn once.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Sequence

from mermaidx.engines.v8_engine import Engine, MermaidRenderError

__all__ = ["MermaidError", "render"]


class MermaidError(AssertionError):
    """mermaid.js cannot draw a diagram; the message contains the diagram and mermaid.js's error."""

    def __init__(self, index: int, text: str, reason: str) -> None:
        self.index, self.text, self.reason = index, text, reason
        numbered = (f"{n:4} | {line}" for n, line in enumerate(text.splitlines(), start=1))
        super().__init__("\n".join([f"diagram {index} does not render: {reason}", *numbered]))


def render(texts: Sequence[str]) -> list[str]:
    """Draw each text as an SVG; raise MermaidError for the first that mermaid.js cannot draw."""
    return [_render(index, text) for index, text in enumerate(texts)]


def _render(index: int, text: str) -> str:
    try:
        return _svg(text)
    except MermaidRenderError as error:
        raise MermaidError(index, text, str(error)) from error


@functools.cache
def _svg(text: str) -> str:
    return _engine().render_svg(text, theme="default", config=None, css=None)


@functools.cache
def _engine() -> Engine:
    # mermaidx's default engine stops after 8 s; large diagrams take longer on a busy machine.
    engine = Engine(render_timeout_ms=120_000)
    engine.start()
    atexit.register(engine.close)
    return engine
