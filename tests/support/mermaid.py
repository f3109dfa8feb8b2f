"""Draw mermaid texts with the real mermaid.js, so that a diagram that would not show is caught.

mermaidx runs mermaid.js inside an embedded V8; one engine serves the whole process, and the same
text is drawn once.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Sequence

from mermaidx.engines.v8_engine import Engine, MermaidRenderError

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
    except MermaidRenderError as error:
        raise MermaidError(index, text, str(error)) from error


@functools.cache
def _svg(text: str) -> str:
    return _engine().render_svg(text, theme="default", config=None, css=None)


@functools.cache
def _engine() -> Engine:
    # mermaidx's own engine gives up after 8 s, which a busy machine takes for a large diagram.
    engine = Engine(render_timeout_ms=120_000)
    engine.start()
    atexit.register(engine.close)
    return engine
