"""Draws mermaid texts as SVG and PNG files.

The drawing is by mermaidx, which runs mermaid.js in an embedded V8 and needs no browser.
"""

from __future__ import annotations

from pathlib import Path

from codegen.cli.errors import Unavailable

__all__ = ["PICTURES", "draw"]

PICTURES = (".svg", ".png")
"""The suffixes of the image files that `draw` can write."""
TIMEOUT_MS = 120_000
"""Time limit of one diagram in milliseconds: graphs of hundreds of nodes take several seconds."""


def draw(text: str, path: Path) -> None:
    """Draw a mermaid text to a file whose suffix is one of `PICTURES`.

    Raises:
        Unavailable: mermaidx is not installed.
    """
    try:
        from mermaidx import svg_to_png
        from mermaidx.engines.v8_engine import Engine
    except ImportError as error:
        raise Unavailable(
            f"{path.name}: drawing needs mermaidx, which is not installed; pip install "
            f"'coordgraph[draw]', or write mermaid text: -o {path.with_suffix('.mmd').name}"
        ) from error
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
