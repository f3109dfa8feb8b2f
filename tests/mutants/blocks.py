"""A pytest plugin that records which blocks of the library each test executes.

A block is a list of statements: the body of a function, of a loop or of a branch. An import hook
adds an assignment to each block, which costs less than tracing lines and works in every Python
version. `PYTEST_PLUGINS=tests.mutants.blocks COORDGRAPH_BLOCKS=FOLDER pytest` writes a file per
process. The option `-p` would load the plugin too late in the workers of pytest-xdist.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from time import process_time
from types import CodeType
from zlib import compress, decompress

import pytest

__all__ = ["Record", "block_at", "blocks", "instrumented", "read"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("coordgraph", "passes", "codegen")
MOST = 60_000
"""Largest number of blocks (bodies of functions, loops and branches) in the library whose execution
tests can record; a further block raises IndexError when it is executed."""

Block = tuple[str, int]
"""Type of a block: path and first line; line 0 stands for the module level and class bodies."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def blocks(tree: ast.AST, inside: bool = False) -> Iterator[list[ast.stmt]]:
    """The statement lists (bodies, branches) in functions of `tree`, outer lists before inner.

    `inside` says that `tree` itself is part of a function's body.
    """
    for field, value in ast.iter_fields(tree):
        within = (inside and not isinstance(tree, ast.ClassDef)) or (
            isinstance(tree, _FUNCTIONS) and field == "body"
        )
        if isinstance(value, list):
            if within and value and isinstance(value[0], ast.stmt):
                yield value
            for child in value:
                if isinstance(child, ast.AST):
                    yield from blocks(child, within)


def block_at(source: bytes, line: int) -> int:
    """First line of the innermost block of Python statements with `line`; 0 outside functions."""
    found = 0
    for block in blocks(ast.parse(source)):
        if block[0].lineno <= line <= (block[-1].end_lineno or 0):
            found = block[0].lineno
    return found


def instrumented(source: bytes, path: str, table: list[Block]) -> ast.Module:
    """The syntax tree of a file with an assignment to `_blocks_` in every statement block.

    Each block, as (path, first line), is appended to `table`.
    """
    tree = ast.parse(source)
    for block in [*blocks(tree)]:
        first = block[0]
        mark = ast.parse(f"_blocks_[{len(table)}] = 1").body[0]
        for node in ast.walk(mark):
            ast.copy_location(node, first)
        table.append((path, first.lineno))
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        block.insert(int(documented), mark)
    return tree


class Record:
    """Which blocks of source each test executed, and the CPU time of each test.

    Attributes:
        seconds: CPU seconds of each test, by pytest's node id.
    """

    def __init__(self) -> None:
        self.seconds = dict[str, float]()
        self._hits = dict[str, tuple[dict[Block, int], bytes]]()

    def add(self, name: str, seconds: float, table: dict[Block, int], hit: bytes) -> None:
        """Add a test; it ran a block if byte `table[block]` of the decompressed `hit` is 1."""
        self.seconds[name] = seconds
        self._hits[name] = table, hit

    def executing(self, path: str, line: int) -> list[str]:
        """The tests that executed the block of Python statements whose first line is `line`.

        If no test executed the block in its own process (a subprocess may have), the tests that
        executed another block of the file.
        """
        wanted = {
            id(table): ({table[path, line]} if (path, line) in table else set[int]())
            for table, _ in self._hits.values()
        }
        return self._of(wanted) or self._of(
            {
                id(table): {number for (file, _), number in table.items() if file == path}
                for table in {id(t): t for t, _ in self._hits.values()}.values()
            }
        )

    def _of(self, wanted: dict[int, set[int]]) -> list[str]:
        found = list[str]()
        for name, (table, compressed) in self._hits.items():
            if numbers := wanted[id(table)]:
                hit = decompress(compressed)
                if any(number < len(hit) and hit[number] for number in numbers):
                    found.append(name)
        return found


def read(files: Iterable[Path]) -> Record:
    """Read which statement blocks each test executed, from the files of all test processes."""
    record = Record()
    for file in files:
        table, count = dict[Block, int](), 0
        # the text after the last newline may be an incomplete line
        for line in file.read_text().split("\n")[:-1]:
            name, seconds, blocks, text = json.loads(line)
            for path, first in blocks:
                table[path, first] = count
                count += 1
            record.add(name, seconds, table, b64decode(text))
    return record


class _Recorder:
    """pytest plugin that records which blocks of Python statements each test executes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hit = bytearray(MOST)
        self.table = list[Block]()
        self.written = 0
        builtins._blocks_ = self.hit  # pyright: ignore[reportAttributeAccessIssue]
        get_code, table = SourceFileLoader.get_code, self.table

        def get_marked_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
            path = Path(self.get_filename(fullname))
            if fullname.partition(".")[0] not in PACKAGES or not path.is_relative_to(ROOT):
                return get_code(self, fullname)
            name = path.relative_to(ROOT).as_posix()
            tree = instrumented(path.read_bytes(), name, table)
            return compile(tree, str(path), "exec", dont_inherit=True)

        SourceFileLoader.get_code = get_marked_code

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.hit[:] = bytes(MOST)
        start = process_time()
        result = yield
        seconds = round(process_time() - start, 3)
        hit = b64encode(compress(bytes(self.hit[: len(self.table)]))).decode()
        blocks = self.table[self.written :]
        self.written = len(self.table)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with (self.folder / f"{worker}.jsonl").open("a") as file:
            print(json.dumps([item.nodeid, seconds, blocks, hit]), file=file)
        return result


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    # This hook is called before conftest.py imports the library.
    pluginmanager.register(_Recorder(Path(os.environ["COORDGRAPH_BLOCKS"])))
