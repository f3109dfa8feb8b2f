"""`Picture`: collects the nodes, arrows and styles of one Mermaid diagram."""

from __future__ import annotations

import re
from collections.abc import Iterable

from coordgraph.errors import VerifyError

__all__ = ["Picture", "escape"]

ADDED = "fill:#dbeafe,color:#111"
ADDED_ARROW = "stroke:#2563eb,stroke-width:2px"
DIRECTIONS = ("TD", "TB", "BT", "LR", "RL")


class Picture:
    """Collects the lines of one diagram, and gives every node a name that mermaid accepts."""

    def __init__(self, direction: str) -> None:
        if direction not in DIRECTIONS:
            known = ", ".join(DIRECTIONS)
            raise VerifyError(f"unknown direction '{direction}'; choose one of {known}")
        self.added: list[str] = []
        self._head = f"graph {direction}"
        self._lines: list[str] = []
        self._styles: list[str] = []
        self._nodes: dict[object, str] = {}
        self._names: set[str] = set()
        self._arrows = 0
        self._added_arrows: list[str] = []

    def node(
        self, key: object, opening: str, lines: Iterable[str], closing: str, name: str = ""
    ) -> str:
        """Add a node to the diagram; returns the node's name in the Mermaid source.

        Args:
            key: the object that identifies the node in later calls of `arrow` and `style`.
            opening: mermaid's bracket before the label, which selects the node's shape.
            lines: the lines of the label.
            closing: mermaid's bracket after the label.
            name: the preferred name of the node; by default `key` as text.
        """
        node = self._nodes[key] = self._name(name or str(key))
        label = "<br/>".join(map(escape, lines))
        self._lines.append(f'  {node}{opening}"{label}"{closing}')
        return node

    def arrow(self, start: object, end: object, label: str = "", added: bool = False) -> None:
        """Add an arrow between the nodes that `start` and `end` identify.

        Args:
            start, end: the keys of the nodes.
            label: the text on the arrow.
            added: whether to highlight the arrow, because an earlier version of the graph lacks it.
        """
        middle = f'-- "{escape(label)}" -->' if label else "-->"
        self._lines.append(f"  {self._nodes[start]} {middle} {self._nodes[end]}")
        if added:
            self._added_arrows.append(str(self._arrows))
        self._arrows += 1

    def comment(self, text: str) -> None:
        """Add a comment, which Mermaid does not draw."""
        self._lines.append(f"  %% {text}")

    def style(self, key: object, style: str) -> None:
        """Give the node that `key` identifies a Mermaid style such as `stroke:#3f3`."""
        self._styles.append(f"  style {self._nodes[key]} {style}")

    def text(self) -> str:
        """The Mermaid source of the whole diagram."""
        lines = [self._head, *self._lines, *self._styles]
        if self.added:
            lines += [f"  classDef added {ADDED}", f"  class {','.join(self.added)} added"]
        if self._added_arrows:
            lines.append(f"  linkStyle {','.join(self._added_arrows)} {ADDED_ARROW}")
        return "\n".join(lines) + "\n"

    def _name(self, wanted: str) -> str:
        """An unused Mermaid name for a node, similar to `wanted`.

        The name has only letters, digits and underscores, and is no word that Mermaid reserves.
        """
        name = re.sub(r"[^A-Za-z0-9]+", "_", wanted)
        if not name[:1].isalpha() or name.lower().startswith(_WORDS):
            name = f"n_{name}"
        candidate, number = name, 1
        while candidate in self._names:
            number += 1
            candidate = f"{name}_{number}"
        self._names.add(candidate)
        return candidate


# Reserved words of Mermaid, and properties of the JavaScript objects in which Mermaid stores nodes.
# Node names must not start with these words, because some Mermaid versions misread such names.
_WORDS = (
    *("accdescr", "acctitle", "call", "class", "click", "default", "direction", "end"),
    *("flowchart", "graph", "href", "interpolate", "linkstyle", "style", "subgraph"),
    *("constructor", "hasownproperty", "isprototypeof", "propertyisenumerable", "prototype"),
    *("tolocalestring", "tostring", "valueof"),
)


def escape(text: str) -> str:
    """Escape a label so that mermaid shows it verbatim: syntax characters become entities."""
    escaped = _SYNTAX.sub(lambda match: f"#{ord(match[0])};", text)
    # Mermaid decodes entities before it looks for `\n` (line break), `$$` (formula) and `fa:`
    # (icon). A word joiner (U+2060) after an entity keeps Mermaid from finding them.
    escaped = re.sub("#(36|58|92);", r"\g<0>#8288;", escaped)
    return " ".join(escaped.split()) or " "


# Characters that start mermaid syntax: quotes, entities, tags, markdown, formulas, icons (fa:name).
_SYNTAX = re.compile(r'["#&<>`\\$]|:(?=\S)')
