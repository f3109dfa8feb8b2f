"""Run the fenced blocks of a documentation page in order, and compare their output with the page.

- `python` blocks of a page share a namespace. The `text` block right after a `python` block is its
  output, as is the `mermaid` block right after a `python` block that prints a diagram.
  Without a GPU, a block marked `<!-- gpu -->` is only parsed. A block inside an HTML comment
  (`<!-- python … -->`) is run but readers do not see it. Such a block may define what generated
  blocks draw, but nothing that a visible block needs, because readers copy only visible blocks.
- The text of a `mermaid` block marked `<!-- generated: EXPRESSION -->` is the expression's value.
- `toml` blocks are parsed.
- `sh` blocks: lines that begin with `coordgraph` are run; `make` must name an existing target.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import shlex
import sys
import tomllib
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordgraph.checks import CHECKS
from coordgraph.coordinates.dimensions import DIMENSIONS
from coordgraph.coordinates.edges import EDGES
from passes import PASSES

__all__ = ["Block", "Difference", "Page", "names_from_hidden_blocks", "read_blocks"]

FENCE = "```"
REGISTRIES: tuple[dict[str, Any], ...] = (CHECKS, DIMENSIONS, EDGES, PASSES)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page.

    `line` is the number, in the page, of the block's first line of text; `mark` is the HTML comment
    before the block.
    """

    language: str
    text: str
    line: int
    mark: str = ""

    @property
    def hidden(self) -> bool:
        """Whether this code block is inside an HTML comment: it is run, but readers do not see it.

        `mark` is then `hidden`.
        """
        return self.mark == "hidden"

    @property
    def generated(self) -> bool:
        """Whether the block's text is the value of the expression in the comment before it."""
        return self.mark.startswith("generated:")


@dataclass(frozen=True, slots=True)
class Difference:
    """A fenced block of a page whose text differs from what the page's code produces."""

    block: Block
    actual: str

    def __str__(self) -> str:
        return (
            f"line {self.block.line}: the block holds\n{self.block.text}\n"
            f"--- but the code makes\n{self.actual}"
        )


def read_blocks(source: str) -> list[Block]:
    """The fenced blocks of a page, in order; SyntaxError if a block or a comment is not closed."""
    found: list[Block] = []
    mark = ""
    lines = iter(enumerate(source.splitlines(), start=1))
    for number, line in lines:
        if line.startswith(FENCE):
            text = _until(lines, number, lambda line: line == FENCE)
            found.append(Block(line.removeprefix(FENCE), text, number + 1, mark))
            mark = ""
        elif line.startswith("<!--"):
            body = line.removeprefix("<!--")
            if "-->" not in body:
                body += "\n" + _until(lines, number, lambda line: line.startswith("-->"))
            body = body.partition("-->")[0]
            head, _, code = body.partition("\n")
            if head.strip() == "python":
                found.append(Block("python", code, number + 1, "hidden"))
            else:
                mark = body.strip()
        elif line.strip():
            mark = ""
    return found


def _until(lines: Iterator[tuple[int, str]], start: int, ends: Callable[[str], bool]) -> str:
    body: list[str] = []
    for _, line in lines:
        if ends(line):
            return "\n".join(body)
        body.append(line)
    raise SyntaxError(f"line {start}: the block or comment that begins here is not closed")


def names_from_hidden_blocks(blocks: Sequence[Block]) -> list[str]:
    """Python names that visible code blocks read, but only hidden blocks before them have bound."""
    hidden, shown, found = set[str](), set[str](), list[str]()
    for block in blocks:
        if block.language != "python":
            continue
        read, bound = _names(ast.parse(block.text))
        if block.hidden:
            hidden |= bound
        else:
            shown |= bound
            found += sorted(read & hidden - shown)
    return found


def _names(tree: ast.Module) -> tuple[set[str], set[str]]:
    """Two sets: the names that a module reads, and the names that it binds, in any scope."""
    read, bound = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                read.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ExceptHandler(name=str(name)):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
            case _:
                pass
    return read, bound


class Page:
    """A page to run: after `run`, `differences` lists the outdated blocks.

    Args:
        path: path of the page.
        gpu: whether to run blocks marked `<!-- gpu -->`; otherwise they are only parsed.
        command: runs a `coordgraph` command and returns its output; None runs no command.
        targets: names of the Makefile's targets.
    """

    def __init__(
        self,
        path: Path,
        *,
        gpu: bool = False,
        command: Callable[[list[str]], str] | None = None,
        targets: frozenset[str] = frozenset(),
    ) -> None:
        self.path, self.gpu, self.command, self.targets = path, gpu, command, targets
        self.source = path.read_text(encoding="utf-8")
        self.blocks = read_blocks(self.source)
        self.differences: list[Difference] = []

    def run(self) -> None:
        """Run all code blocks, then unregister passes, edges and checks that the page defined."""
        module = types.ModuleType("documentation_page")
        saved = [dict(registry) for registry in REGISTRIES]
        sys.modules[module.__name__] = module
        try:
            self._run(module.__dict__)
        finally:
            del sys.modules[module.__name__]
            for registry, before in zip(REGISTRIES, saved, strict=True):
                # Only what the page itself defines is removed; modules that it imported stay.
                for name in [n for n, v in registry.items() if v.__module__ == module.__name__]:
                    del registry[name]
                    registry.update({name: before[name]} if name in before else {})

    def updated(self) -> str:
        """The source of the page, with every outdated block replaced by the current output."""
        lines = self.source.splitlines()
        for difference in reversed(self.differences):
            first = difference.block.line - 1
            last = first + len(difference.block.text.splitlines())
            lines[first:last] = difference.actual.splitlines()
        return "\n".join(lines) + "\n"

    def _run(self, namespace: dict[str, Any]) -> None:
        following = [*self.blocks[1:], Block("", "", 0)]
        for before, block, after in zip(
            [Block("", "", 0), *self.blocks], self.blocks, following, strict=False
        ):
            output: str | None = None
            match block.language:
                case "python":
                    output = self._python(block, namespace)
                case "sh":
                    output = self._shell(block)
                case "mermaid" if block.generated:
                    made = eval(block.mark.removeprefix("generated:").strip(), namespace)
                    self._compare(block, made)
                case "text":
                    assert before.language in ("python", "sh"), self._at(block, "output of what?")
                case "toml":
                    tomllib.loads(block.text)
                case "mermaid" | "":
                    pass
                case "c":
                    pass  # C blocks are compiled by tests/codegen/export/test_exported_files.py
                case _:
                    raise AssertionError(self._at(block, f"unknown language '{block.language}'"))
            if output is not None and after.language in ("text", "mermaid") and not after.generated:
                self._compare(after, output)
            elif block.language == "python" and output:
                raise AssertionError(
                    self._at(block, f"it prints, but no text or mermaid block has:\n{output}")
                )

    def _python(self, block: Block, namespace: dict[str, Any]) -> str | None:
        # The empty lines in front make line numbers in tracebacks equal those of the page.
        source = "\n" * (block.line - 1) + block.text + "\n"
        if block.mark == "gpu" and not (self.gpu and _importable(source)):
            ast.parse(source, str(self.path))
            return None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(self.path), "exec"), namespace)
        return printed.getvalue()

    def _shell(self, block: Block) -> str | None:
        printed: list[str] = []
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["make"]:
                unknown = {w for w in words[1:] if "=" not in w} - self.targets
                assert not unknown, self._at(block, f"no such target: {unknown}")
            if words[:1] == ["coordgraph"] and self.command is not None:
                printed.append(self.command(words[1:]))
        return "".join(printed) if printed else None

    def _compare(self, block: Block, actual: str) -> None:
        # Editors remove blanks at the ends of lines, and printed tables have some there.
        actual = "\n".join(line.rstrip() for line in actual.splitlines()).rstrip("\n")
        if actual != block.text:
            self.differences.append(Difference(block, actual))

    def _at(self, block: Block, message: str) -> str:
        return f"{self.path.name}, line {block.line}: {message}"


def _importable(source: str) -> bool:
    """Whether every package that the Python code `source` imports is installed."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return all(importlib.util.find_spec(name) is not None for name in names)
