"""Draws mermaid texts as SVG and PNG files.

The package mermaidx draws: it runs mermaid.js in an embedded V8, and needs no browser.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from codegen.cli.errors import Unavailable

__all__ = ["PICTURES", "draw"]

PICTURES = (".svg", ".png")
"""The suffixes of the image files that `draw` can write."""
PACKAGES = ("mermaidx", "py_mini_racer")
"""The packages that draw: mermaid.js, and V8, which mermaidx imports only when it draws."""
TIMEOUT_MS = 120_000
"""Time limit of one diagram in milliseconds: graphs of hundreds of nodes take several seconds."""


def draw(text: str, path: Path) -> None:
    """Draw a mermaid text to a file whose suffix is one of `PICTURES`.

    Raises:
        Unavailable: a package in `PACKAGES` is not installed.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise Unavailable(
            f"{path.name}: drawing needs {' and '.join(PACKAGES)}; not installed: "
            f"{', '.join(missing)}; pip install 'coordgraph[draw]', or write mermaid text: -o "
            f"{path.with_suffix('.mmd').name}"
        )
    from mermaidx import svg_to_png
    from mermaidx.engines.v8_engine import Engine

    engine = Engine(render_timeout_ms=TIMEOUT_MS)
    engine.start()
    try:
        svg = engine.render_svg(text, theme="default", config=None, css=None)
    finally:
        engine.close()
    if path.suffix.lower() == ".png":
        path.write_bytes(svg_to_png(svg, background="#ffffff"))
    else:
        path.write_text(svg, encoding="utf-8")
