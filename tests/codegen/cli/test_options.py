"""Every option of the command line is declared in one place."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import codegen.cli
from codegen.cli import options as shared_options
from codegen.cli.option_groups import takes_groups
from coordgraph.gemm import GROUP_AXES

FOLDER = Path(codegen.cli.__file__).parent


def declared(tree: ast.AST) -> Iterator[list[str]]:
    """The flags of each `typer.Option` in a syntax tree, as `["--output", "-o"]`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("typer.Option", "Option"):
            words = (word.value for word in node.args if isinstance(word, ast.Constant))
            yield [word for word in words if isinstance(word, str) and word.startswith("-")]


def every_declaration() -> list[list[str]]:
    files = sorted(FOLDER.glob("*.py"))
    return [flags for file in files for flags in declared(ast.parse(file.read_bytes()))]


def test_no_option_is_declared_twice():
    """Long flags are declared once; a short letter may stand for different options of different
    commands.
    """
    found = Counter(f for flags in every_declaration() for f in flags if f.startswith("--"))
    assert len(found) > 30
    assert [flag for flag, count in found.items() if count > 1] == []


def test_every_option_says_its_flag():
    """Every option declares its flag explicitly, such as `--output`.

    The check for duplicate flags does not see flags that typer derives from parameter names.
    """
    assert all(any(flag.startswith("--") for flag in flags) for flags in every_declaration())


def test_copies_of_names_are_complete():
    assert tuple(codegen.TARGETS) == shared_options.TARGET_NAMES
    assert shared_options.GROUP_NAMES == GROUP_AXES


def test_declarations_are_found():
    tree = ast.parse('a: Annotated[int, typer.Option("--a", "-a", help="--b")]\nb = Option(min=1)')
    assert sorted(declared(tree)) == [[], ["--a", "-a"]]


@dataclass(frozen=True)
class Size:
    """A pass with two options, defined for this test."""

    rows: Annotated[int | None, typer.Option("--rows", "-r", min=1, help="Of A.")] = None
    columns: Annotated[int, typer.Option("--columns")] = 7
    deep: Annotated[bool, typer.Option("--deep")] = False


def command(**options: object) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @takes_groups(**options)  # type: ignore[arg-type]
    def show(
        *, name: Annotated[str, typer.Option("--name")] = "x", size: Size, last: bool = True
    ) -> None:
        typer.echo(f"{name} {size.rows} {size.columns} {size.deep} {last}")

    return app


@pytest.mark.parametrize(
    ("options", "words", "said"),
    [
        ({}, [], "x None 7 False True"),
        ({}, ["-r", "3", "--deep", "--name", "y"], "y 3 7 True True"),
        ({"columns": 9}, ["--rows", "2"], "x 2 9 False True"),
        ({"required": ("rows",)}, ["--rows", "2", "--no-last"], "x 2 7 False False"),
        ({"without": ("columns",)}, ["--rows", "2"], "x 2 7 False True"),
    ],
)
def test_a_group_is_a_record(options: dict[str, object], words: list[str], said: str):
    done = CliRunner().invoke(command(**options), words)
    assert done.output == f"{said}\n"


@pytest.mark.parametrize(
    ("options", "words", "why"),
    [
        ({"required": ("rows",)}, [], "Missing option"),
        ({"without": ("deep",)}, ["--deep"], "No such option"),
        ({}, ["--rows", "0"], "--rows"),
    ],
)
def test_a_command_says_which_options_it_takes(
    options: dict[str, object], words: list[str], why: str
):
    done = CliRunner().invoke(command(**options), words)
    assert done.exit_code == 2
    assert why in done.output
