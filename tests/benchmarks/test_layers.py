"""Imports among modules of `benchmarks`: folders import each other in one direction only."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx as nx

import benchmarks.measures

ROOT = Path(benchmarks.measures.__file__).parents[2]
BELOW = {
    "problems": set[str](),
    "timing": {"problems"},
    "peers": {"problems", "timing"},
    "counting": set[str](),
    "reports": {"problems", "timing", "peers"},
}
"""The folders that each folder may import; `measures` and top-level modules may import all."""


def imports() -> nx.DiGraph:
    """The graph of imports between modules; imports inside functions count too."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "benchmarks").rglob("*.py")
    }
    graph = nx.DiGraph()
    graph.add_nodes_from(files)
    for module, path in files.items():
        for node in ast.walk(ast.parse(path.read_bytes())):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            graph.add_edges_from((module, name) for name in names if name in files)
    return graph


def test_there_are_no_import_cycles():
    graph = imports()
    assert graph.number_of_edges() > 100
    assert [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1] == []


def test_folders_import_only_those_below_them():
    wrong = [
        (module, other)
        for module, other in imports().edges
        for folder, target in [(module.split(".")[1:2], other.split(".")[1:2])]
        if folder and folder[0] in BELOW and target and target != folder
        if target[0] not in BELOW[folder[0]]
    ]
    assert wrong == []
