"""Tests of the mutation testing tool (`tests.mutants`)."""

from __future__ import annotations

import ast
import json
import subprocess
from base64 import b64encode
from pathlib import Path
from zlib import compress

import pytest

from tests.mutants.blocks import Block, Record, block_at, instrumented, read
from tests.mutants.mutations import Mutation, draw, mutations
from tests.mutants.trials import Workplace, covering_tests

SOURCE = b'''"""A module."""
def clip(value: int, most: int = 3) -> int:
    """The value, at most `most`."""
    if value < most and value:
        return value + 1
    raise ValueError("too " + "large")
'''


def mutated(source: bytes) -> set[str]:
    return {f"{found.kind}: {found.old} → {found.new}" for found in mutations(source)}


def test_every_kind_of_mutation():
    assert mutated(SOURCE) == {
        "constant: 3 → (4)",
        "constant: 3 → (2)",
        "and/or: value < most and value → (value < most or value)",
        "not: value < most and value → (not (value < most and value))",
        "comparison: value < most → (value <= most)",
        "comparison: value < most → (value >= most)",
        "operator: value + 1 → (value - 1)",
        "constant: 1 → (2)",
        "constant: 1 → (0)",
        'statement: raise ValueError("too " + "large") → pass',
    }
    assert mutated(b"f(a, b)\nmax(a, b)\nnot a") == {
        "arguments: f(a, b) → (f(b, a))",
        "statement: f(a, b) → pass",
        "statement: max(a, b) → pass",
        "not: not a → (a)",
    }


def test_mutants_are_other_programs_that_parse():
    for source in (SOURCE, "é = 'é'; á = é + (1 if é else 2)".encode()):
        own = ast.dump(ast.parse(source))
        others = [ast.dump(ast.parse(found.apply(source))) for found in mutations(source)]
        assert len(others) > 5
        assert own not in others
        assert len({*others}) == len(others)


def test_draws_repeat_and_take_packages_in_turn(tmp_path: Path):
    for package in ("one", "two"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "a.py").write_bytes(SOURCE * 3)
    drawn = draw(tmp_path, ("one", "two"), 8, "a")
    assert drawn == draw(tmp_path, ("one", "two"), 8, "a")
    assert drawn != draw(tmp_path, ("one", "two"), 8, "b")
    assert [found.path for found in drawn] == ["one/a.py", "two/a.py"] * 4
    assert len({found.kind for found in drawn}) > 2
    assert len({(found.path, found.line) for found in drawn}) == 8


BLOCKS = b"""
A = 1
class C:
    B = 2
    def f(self, x):
        if x:
            return A
        for i in x:
            pass
        return lambda: x
"""


@pytest.mark.parametrize(
    ("line", "block"), [(2, 0), (4, 0), (6, 6), (7, 7), (8, 6), (9, 9), (10, 6)]
)
def test_the_innermost_block_of_a_line(line: int, block: int):
    assert block_at(BLOCKS, line) == block


def test_blocks_that_run_are_marked():
    table, hit = list[Block](), bytearray(9)
    space = {"_blocks_": hit}
    exec(compile(instrumented(BLOCKS, "a.py", table), "a.py", "exec"), space)
    assert table == [("a.py", 6), ("a.py", 7), ("a.py", 9)]
    space["C"]().f([])  # type: ignore[operator]
    assert [*hit[:3]] == [1, 0, 0]


def test_which_tests_cover_a_mutant():
    record, table = Record(), {("passes/a.py", 6): 0, ("passes/a.py", 7): 1}
    for name, seconds, hit in (
        ("tests/far.py::slower", 3, b"\1\0"),
        ("tests/far.py::cheap", 1, b"\1\1"),
        ("tests/passes/test_a.py::near", 2, b"\1"),
        ("tests/passes/test_a.py::other", 0, b"\0\1"),
    ):
        record.add(name, seconds, table, compress(hit))

    def covering(line: int, seconds: float) -> list[str]:
        mutation = Mutation("passes/a.py", line, 0, 0, "", "", "")
        names = covering_tests(mutation, BLOCKS, record, seconds)
        return [name.partition("::")[2] for name in names]

    assert covering(6, 9) == ["near", "cheap", "slower"]
    assert covering(6, 3) == ["near", "cheap"]
    assert covering(7, 9) == ["other", "cheap"]
    assert {*covering(9, 9)} == {"near", "cheap", "slower", "other"}, "no test executes line 9"


@pytest.mark.slow
def test_mutants_are_killed_by_quick_or_slow_tests_or_survive(tmp_path: Path):
    """Of three mutants of one line, quick tests kill one, slow tests another; one survives."""
    (tmp_path / "a.py").write_text("def f(x):\n    return x + 1, x + 2, x + 3\n")
    (tmp_path / "test_a.py").write_text(
        "import pytest, a\n"
        "def test_quick():\n    assert a.f(1)[0] == 2\n"
        "@pytest.mark.slow\ndef test_slow():\n    assert a.f(1)[1] == 3\n"
    )
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n"
        "    parser.addoption('--sample')\n    parser.addoption('--sample-seed')\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -m 'not slow'\nmarkers = slow\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    record = Record()
    record.add("test_a.py::test_quick", 0.1, {("a.py", 2): 0}, compress(b"\1"))
    workplace = Workplace(tmp_path)
    try:
        trials = [
            workplace.attempt(mutation, record, seconds=9, slow_seconds=60, seed="")
            for mutation in mutations((tmp_path / "a.py").read_bytes(), "a.py")
            if mutation.kind == "operator"
        ]
    finally:
        workplace.close()
    assert [(trial.verdict, trial.by) for trial in trials] == [
        ("quick", "test_a.py::test_quick"),
        ("slow", "test_a.py::test_slow"),
        ("survived", ""),
    ]
    assert not workplace.folder.exists()


def test_what_processes_write_is_read(tmp_path: Path):
    """`read` merges the records of several processes; the last line of a file may be incomplete."""

    def line(name: str, blocks: list[Block], hit: bytes) -> str:
        return json.dumps([name, 0.5, blocks, b64encode(compress(hit)).decode()])

    one, two = [("a.py", 1), ("a.py", 1), ("a.py", 2)], [("b.py", 1)]
    first, second = line("first", one, b"\0\0\1"), line("second", two, b"\0\0\0\1")
    (tmp_path / "gw0.jsonl").write_text(f"{first}\n{second}\n{first[:9]}")
    (tmp_path / "gw1.jsonl").write_text(line("other", two, b"\1") + "\n")
    record = read(tmp_path.glob("*.jsonl"))
    assert record.seconds == {"first": 0.5, "second": 0.5, "other": 0.5}
    assert record.executing("a.py", 2) == ["first"]
    assert {*record.executing("b.py", 1)} == {"second", "other"}
    assert record.executing("a.py", 1) == ["first"], "no test: those of the file"
    assert record.executing("c.py", 1) == []
