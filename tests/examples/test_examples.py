"""The schedules of `examples/`, which use public names only, work like the library's own."""

from __future__ import annotations

import ast
import tokenize
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import codegen
from coordgraph import Gemm, KernelGraph, parse
from coordgraph.interpreter import SCHEDULERS, interpret, trace
from coordgraph.progress import wait_direction
from examples.ragged_split_k import RaggedSplitK
from examples.snake_deal import SnakeDeal
from passes import LongestFirst, Pass, Pipeline, Rasterize, kit
from tests.support.mermaid import parse as parse_mermaid
from tests.support.ptxas import assemble, assert_clean
from tests.support.sampling import chosen, cover, quick_cases, words

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 60
SPLITS = tuple(
    RaggedSplitK(owner=owner, reduction=reduction)
    for reduction in kit.REDUCTIONS
    for owner in kit.OWNERS
)
PLAIN = (RaggedSplitK(), SnakeDeal())
EXAMPLES = (*SPLITS, SnakeDeal())
TILE = (4, 4, 4)
PROBLEMS = (
    # 30 tiles on 7 workgroups: 4 full waves, and 2 tiles in three segments each.
    (20, 24, 37, 7),
    # The number of tiles is a multiple of the number of workgroups.
    (20, 24, 37, 10),
    # There are fewer tiles than workgroups.
    (8, 8, 30, 7),
    # After a full wave one tile is left, which would be cut into more segments than it has k tiles.
    (12, 12, 9, 8),
    (5, 3, 2, 3),
)
every_example = pytest.mark.parametrize("step", cover(0, EXAMPLES, words), ids=str)
each_example = pytest.mark.parametrize("step", PLAIN, ids=str)


def scheduled(step: Pass, tile: tuple[int, int, int] = TILE, dtype: str = "f32") -> KernelGraph:
    return step(Gemm(dtype).graph(tile))


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(m * n + k)
    a = random.integers(-4, 5, (m, k)).astype(np.float32)
    return a, random.integers(-4, 5, (k, n)).astype(np.float32)


def code_lines(path: Path) -> int:
    """Number of lines with code or imports, without blank lines, comments and docstrings."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings |= {*range(first.lineno, (first.end_lineno or first.lineno) + 1)}
    lines: set[int] = set()
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type not in (*skipped, tokenize.ENCODING, tokenize.ENDMARKER):
                lines |= {*range(token.start[0], token.end[0] + 1)}
    return len(lines - docstrings)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_they_are_short_and_need_nothing_private(path: Path):
    assert code_lines(path) <= MOST_LINES
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("passes"):
            assert node.module == "passes"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.value.id != "kit" or node.attr in kit.__all__
            assert not node.attr.startswith("_")


def test_code_lines_are_counted(tmp_path: Path):
    header = '"""Doc."""\n\n# why\nimport a\n\n'
    function = 'def f(\n    x,\n):\n    """Doc.\n\n    More.\n    """\n'
    body = "    return (  # it\n        x\n    )\n"
    (tmp_path / "x.py").write_text(header + function + body, encoding="utf-8")
    assert code_lines(tmp_path / "x.py") == 7


@each_example
def test_no_file_of_the_library_knows_them(step: Pass):
    names = (step.name, type(step).__name__, type(step).__module__.rpartition(".")[2])
    for package in ("coordgraph", "passes", "codegen", "benchmarks"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert not [name for name in names if name in text], path


@each_example
def test_their_diagrams_parse(step: Pass):
    graph = scheduled(step)
    parse_mermaid([graph.coordinates.mermaid(), graph.control.mermaid()])
    assert "acc += A tile * B tile" in graph.pseudocode()


@every_example
def test_they_verify_and_their_text_reads_back(step: Pass):
    graph = scheduled(step)
    assert graph.verify() is graph
    assert parse(graph.text()) == graph
    assert Pipeline.parse(str(step)) == Pipeline([step])
    assert Pipeline.parse(",".join(graph.log)).passes == (step,)


@pytest.mark.slow
@every_example
def test_the_interpreter_agrees_with_numpy_under_every_scheduler(step: Pass):
    graph = scheduled(step)
    for m, n, k, workgroups in PROBLEMS:
        a, b = operands(m, n, k)
        for kind in SCHEDULERS.values():
            given = {"workgroups": workgroups}
            result = interpret(graph, a, b, parameters=given, schedule=kind())
            assert np.array_equal(result.d, a @ b)


@quick_cases(2)
@every_example
def test_the_cpu_agrees_with_numpy(step: Pass):
    kernel = codegen.compile(scheduled(step), target="cpu")
    for m, n, k, workgroups in PROBLEMS:
        a, b = operands(m, n, k)
        assert np.array_equal(kernel(a, b, workgroups=workgroups), a @ b)


@quick_cases(1)
@pytest.mark.parametrize(
    ("target", "step"),
    cover(
        0,
        product(["sm_80", "sm_90a"], [*PLAIN, RaggedSplitK(workgroups=132, reduction="scatter")]),
    ),
    ids=str,
)
def test_gpu_kernels_are_assembled_without_a_spill(step: Pass, target: str):
    graph = scheduled(step, (128, 128, 32 if target == "sm_80" else 64), "bf16")
    kernel = codegen.compile(graph, target=target)
    assert_clean(assemble(kernel.ptx, target))


@pytest.mark.parametrize("step", chosen(PLAIN[1:], PLAIN), ids=str)
def test_matmul_takes_a_plan_that_names_them(step: Pass):
    a, b = operands(100, 130, 70)
    for grid in (3, 7):
        plan = f"32x32x32 {step.name} on {grid}"
        assert np.array_equal(codegen.matmul(a, b, plan=plan), a @ b)
    plan = f"32x32x32 rasterize{{width=2}},{step.name}{{workgroups=5}}"
    assert np.array_equal(codegen.matmul(a, b, plan=plan), a @ b)


@every_example
def test_they_compose_with_orders(step: Pass):
    graph = Pipeline([Rasterize(width=2, snake=True), step])(Gemm("f32").graph(TILE))
    for m, n, k, workgroups in PROBLEMS:
        values = {"m": m, "n": n, "k": k, "workgroups": workgroups}
        assert trace(graph, values).problems() == ()


def test_the_ragged_wave_is_split_into_as_many_pieces_as_fit():
    graph = scheduled(RaggedSplitK())
    # 30 tiles of 12 k tiles on 7 workgroups: 4 full waves, and 2 tiles in 3 segments of 4 k tiles.
    found = trace(graph, {"m": 20, "n": 24, "k": 48, "workgroups": 7})
    assert found.iterations == (*[4 * 12 + 4] * 6, 4 * 12)
    assert len([s for s in found.segments if s.role == "whole"]) == 28
    assert wait_direction(graph) == "lower"


def test_the_snake_deals_to_and_fro():
    graph = scheduled(SnakeDeal())
    found = trace(graph, {"m": 20, "n": 8, "k": 4, "workgroups": 4})
    dealt = [[s.tile[0] * 2 + s.tile[1] for s in found.of(w)] for w in range(4)]
    assert dealt == [[0, 7, 8], [1, 6, 9], [2, 5], [3, 4]]
    assert wait_direction(graph) == "none"


def test_the_snake_balances_groups_that_are_sorted_by_depth():
    """`snake-deal` balances groups sorted by depth: 18 of 36 k tiles for each of two workgroups."""
    gemm = Gemm("f32", grouped=True, group_axis="k").graph(TILE)
    depths = [3, 8, 1, 6, 5, 4, 7, 2]
    offsets = [0, *(4 * int(end) for end in np.cumsum(depths))]
    values = {"m": 4, "n": 4, "k": offsets[-1], "groups": 8, "workgroups": 2}
    busiest: dict[str, int] = {}
    for name in ("snake-deal", "data-parallel{persistent=true}"):
        (step,) = Pipeline.parse(name).passes
        graph = Pipeline([LongestFirst(), step])(gemm)
        busiest[name] = max(trace(graph, values, {"offsets": offsets}).iterations)
    assert busiest == {"snake-deal": 18, "data-parallel{persistent=true}": 20}
