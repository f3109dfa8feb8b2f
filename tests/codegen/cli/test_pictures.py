"""`show --output` draws a diagram to a file, and `run` writes diagrams to the cache directory."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from codegen.cli import diagrams
from coordgraph import Gemm
from passes import StreamK
from tests.codegen.cli.commands import coordgraph

SMALL = ("--m", "40", "--n", "33", "--k", "50", "--tile", "16x16x16", "--repeat", "1")
RUN = ("run", *SMALL, "-t", "interpreter", "-s", "stream-k", "-w", "3", "--json")
SHOW = ("show", "-s", "data-parallel", "-p", "control")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory: a new path for each test, set by environment variables."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.mark.slow
def test_svg_and_png_are_drawn(tmp_path: Path):
    for words in ((*SHOW, "-o", "graph.svg"), (*SHOW, "mermaid", "--diff", "-o", "graph.PNG")):
        done = coordgraph(*words)
        assert (done.code, done.out, done.err) == (0, "", "")
    assert (tmp_path / "graph.svg").read_text(encoding="utf-8").startswith("<svg")
    png = (tmp_path / "graph.PNG").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert min(width, height) > 100


def test_other_files_are_text(tmp_path: Path):
    assert coordgraph(*SHOW, "-o", "graph.txt").code == 0
    assert (tmp_path / "graph.txt").read_text().startswith("// D = ")


def test_only_mermaid_is_drawn(tmp_path: Path):
    done = coordgraph("show", "text", "-o", "graph.svg", "--json")
    assert done.code == 2
    assert "leave out 'text'" in done.json["error"]["message"]
    assert not (tmp_path / "graph.svg").exists()


@pytest.mark.parametrize("package", ["mermaidx", "py_mini_racer"])
def test_what_is_not_installed_is_named(
    package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """If `mermaidx` or its V8 engine `py_mini_racer` is missing, an error names the package.

    The engine may be missing alone: the documentation site installs `mermaidx` without it.
    """
    monkeypatch.setitem(sys.modules, package, None)
    done = coordgraph(*SHOW, "-o", "graph.png")
    assert done.code == 4
    assert f"not installed: {package}; pip install 'coordgraph[draw]'" in done.err
    assert not (tmp_path / "graph.png").exists()


def test_a_run_leaves_its_diagrams_in_the_cache_directory(folder: Path, tmp_path: Path):
    found = coordgraph(*RUN).json["diagrams"]
    assert set(found) == {"coordinates", "control"}
    for path in map(Path, found.values()):
        assert path.parent == folder / "diagrams"
        assert path.read_text().startswith("graph TD")
    assert not (tmp_path / "home").exists()
    assert not (tmp_path / "xdg").exists()


def test_a_cache_that_is_off_leaves_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    assert coordgraph(*RUN).json["diagrams"] == {}
    assert list(tmp_path.iterdir()) == []
    asked = coordgraph(*RUN, "--mermaid-dir", "wanted").json["diagrams"]
    assert len(asked) == len(list((tmp_path / "wanted").iterdir())) == 2


def test_graphs_of_one_schedule_do_not_overwrite_each_other(folder: Path):
    """Graphs for different types and tiles have the same pass log, but each gets a diagram
    of its own.
    """
    step = StreamK(workgroups=3)
    graphs = [
        step(Gemm(kind).graph(tile)) for kind in ("f32", "f16") for tile in (None, (64, 64, 64))
    ]
    found = [diagrams.write_diagrams(graph, "stream-k", None) for graph in graphs]
    assert diagrams.write_diagrams(graphs[0], "stream-k", None) == found[0]
    texts = {path: path.read_text() for paths in found for path in paths.values()}
    assert set((folder / "diagrams").iterdir()) == set(texts)
    # 4 graphs have 8 diagrams, of which some have equal texts and so share a file.
    assert len(texts) >= 6
    for graph, paths in zip(graphs, found, strict=True):
        assert texts[paths["coordinates"]] == graph.coordinates.mermaid()
        assert texts[paths["control"]] == graph.control.mermaid()


def test_old_diagrams_are_deleted(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(diagrams, "MOST_FILES", 4)
    for workgroups in range(1, 5):
        graph = StreamK(workgroups=workgroups)(Gemm("f32").graph())
        last = diagrams.write_diagrams(graph, "x" * 500, None)
    kept = set((folder / "diagrams").iterdir())
    assert len(kept) == 4
    assert kept >= set(last.values())
