"""Parse or draw mermaid texts with the real mermaid.js, so that a broken diagram is caught.

mermaidx runs mermaid.js inside an embedded V8. Drawing a diagram takes seconds, since the layout
measures every label, and parsing it takes milliseconds. Parsing finds every error of syntax; tests
of one diagram draw it, and tests of many parse them.
"""

from __future__ import annotations

import atexit
import functools
import json
from collections.abc import Sequence

from mermaidx.engines._common import context_scripts
from mermaidx.engines.v8_engine import Engine, MermaidRenderError
from py_mini_racer import MiniRacer

__all__ = ["MermaidError", "parse", "render"]

LONGEST = 50_000
"""Length in characters of the longest text that mermaid.js draws (its option `maxTextSize`)."""


class MermaidError(AssertionError):
    """mermaid.js cannot draw a diagram; the message contains the diagram and mermaid.js's error."""

    def __init__(self, index: int, text: str, reason: str) -> None:
        self.index, self.text, self.reason = index, text, reason
        numbered = (f"{n:4} | {line}" for n, line in enumerate(text.splitlines(), start=1))
        super().__init__("\n".join([f"diagram {index} does not render: {reason}", *numbered]))


def parse(texts: Sequence[str]) -> None:
    """Parse each text; raise MermaidError for the first text that mermaid.js refuses."""
    for index, text in enumerate(texts):
        if len(text) > LONGEST:
            raise MermaidError(index, text, f"{len(text)} characters are more than {LONGEST}")
        if reason := _syntax_error(text):
            raise MermaidError(index, text, reason)


@functools.cache
def _syntax_error(text: str) -> str | None:
    context = _parser()
    context.eval("globalThis.outcome = 'it did not end'")
    context.eval(
        f"mermaid.parse({json.dumps(text)})"
        ".then(() => { outcome = null }, error => { outcome = String(error.message || error) })"
    )
    found = context.eval("outcome")
    return None if found is None else str(found)


@functools.cache
def _parser() -> MiniRacer:
    context = MiniRacer()
    context.eval("globalThis.__log = () => {}")
    for script in context_scripts():
        context.eval(script)
    return context


def render(texts: Sequence[str]) -> list[str]:
    """Draw each text as an SVG; raise MermaidError for the first text that mermaid.js cannot
    draw.
    """
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
