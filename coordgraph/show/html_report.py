"""`HtmlReport`: one self-contained HTML page about a kernel, generated from plain data."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from coordgraph.show.report_pictures import pictures

__all__ = ["HtmlReport"]

PAGE = Path(__file__).with_name("page")
"""Folder with the sources of the report page: HTML skeleton, style sheets and scripts."""
STYLES = ("page.css", "details.css")
SCRIPTS = ("page.js", "pictures.js", "linked.js", "sections.js", "details.js")
"""The page's script files, in the order in which they run."""
NOTEBOOK_HEIGHT = 900
"""Height of the report in a notebook, in pixels."""


@dataclass(frozen=True)
class HtmlReport:
    """A report about a kernel: `report.save("kernel.html")`; a Jupyter notebook displays it.

    Args:
        data: the numbers and texts that the page shows, as plain data for JSON. The page's scripts
            only draw these data.
    """

    data: dict[str, Any] = field(repr=False)

    def html(self) -> str:
        """The HTML page as text; the page makes no network requests."""
        return fill(
            _part("page.html"),
            {
                "TITLE": html.escape(self.data["title"]),
                "STYLE": "\n".join(map(_part, STYLES)),
                "SCRIPT": "\n".join(map(_part, SCRIPTS)),
                "DATA": _embedded(self.data),
            },
        )

    def save(self, path: str | Path) -> Path:
        """Write the HTML page to the file `path` and return the path."""
        path = Path(path)
        path.write_text(self.html(), encoding="utf-8")
        return path

    def pictures(self) -> dict[str, str]:
        """The pictures as SVG documents, by name, such as `tiles` and `timeline-simulated`."""
        return pictures(self.data)

    def save_pictures(self, folder: str | Path) -> list[Path]:
        """Write every picture as an SVG file, and as PNG too if mermaidx is installed.

        Returns:
            The paths of the files.
        """
        folder, found = Path(folder), list[Path]()
        folder.mkdir(parents=True, exist_ok=True)
        for name, svg in self.pictures().items():
            path = folder / f"{name}.svg"
            path.write_text(svg, encoding="utf-8")
            found.append(path)
            if (png := _png(svg)) is not None:
                found.append(path.with_suffix(".png"))
                found[-1].write_bytes(png)
        return found

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.html())}" style="width:100%;border:0" '
            f'height="{NOTEBOOK_HEIGHT}" title="{html.escape(self.data["title"])}"></iframe>'
        )


def _png(svg: str) -> bytes | None:
    """Convert an SVG document to PNG; None if the extra `coordgraph[draw]` is not installed."""
    try:
        from mermaidx import svg_to_png
    except ImportError:
        return None
    return svg_to_png(svg, background="#ffffff")


@cache
def _part(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def fill(skeleton: str, values: dict[str, str]) -> str:
    """Replace each placeholder `<!--NAME-->` or `/*NAME*/` of a skeleton by `values[NAME]`."""
    for name, value in values.items():
        for mark in (f"<!--{name}-->", f"/*{name}*/"):
            before, found, after = skeleton.partition(mark)
            if found:
                skeleton = before + value + after
                break
    return skeleton


def _embedded(data: Any) -> str:
    """Data as JSON for a `script` element, escaped so that no string of it can end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
