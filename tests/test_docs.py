"""The documentation is run: every block, every diagram, every link. See tests/support/pages.py."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import coordgraph.control.asynchronous
import coordgraph.control.lowered  # noqa: F401 - registers operations
from coordgraph.control.operations import OPERATIONS
from coordgraph.coordinates.dimensions import DIMENSIONS
from coordgraph.coordinates.edges import EDGES
from passes import PASSES
from tests.support.gpu import Gpu, find_gpu
from tests.support.mermaid import render
from tests.support.pages import Page, read_blocks
from tests.support.sampling import chosen

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TARGETS = frozenset(
    re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)
WITH_HIDDEN = [p for p in PAGES if any(b.hidden for b in read_blocks(p.read_text("utf-8")))]
by_name = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


def run_command(arguments: list[str]) -> str:
    """What a `coordgraph` command prints."""
    from codegen.cli import main

    printed, before, code = io.StringIO(), sys.argv, None
    sys.argv = ["coordgraph", *arguments]
    try:
        with contextlib.redirect_stdout(printed):
            main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    assert not code, f"coordgraph {' '.join(arguments)} ends with {code}:\n{printed.getvalue()}"
    return printed.getvalue()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody with a plain terminal, an empty folder and an empty cache."""
    for variable in ("COORDGRAPH_THREADS", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in (("NO_COLOR", "1"), ("COLUMNS", "100"), ("TERM", "dumb")):
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@by_name
@pytest.mark.usefixtures("reader")
def test_blocks_hold_what_the_code_makes(path: Path, request: pytest.FixtureRequest):
    has_commands = importlib.util.find_spec("codegen.cli") is not None
    page = Page(
        path,
        gpu=isinstance(find_gpu(), Gpu),
        command=run_command if has_commands else None,
        targets=TARGETS,
    )
    page.run()
    if request.config.getoption("--update-golden"):
        path.write_text(page.updated(), encoding="utf-8", newline="\n")
    elif page.differences:
        told = "\n\n".join(map(str, page.differences))
        pytest.fail(f"{told}\n\nif the code is right: pytest --update-golden", pytrace=False)


@pytest.mark.parametrize("path", chosen(PAGES[:1], WITH_HIDDEN), ids=lambda path: path.name)
@pytest.mark.usefixtures("reader")
def test_blocks_that_are_shown_need_no_others(path: Path):
    page = Page(path, gpu=isinstance(find_gpu(), Gpu), targets=TARGETS, shown_only=True)
    page.run()
    assert page.differences == []


@by_name
def test_diagrams_render(path: Path):
    blocks = read_blocks(path.read_text(encoding="utf-8"))
    render([block.text for block in blocks if block.language == "mermaid"])


@pytest.mark.parametrize("registry", [DIMENSIONS, EDGES, OPERATIONS], ids=["dims", "edges", "ops"])
def test_concepts_name_every_kind(registry: dict[str, type]):
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    ours = [name for name, kind in registry.items() if kind.__module__.startswith("coordgraph.")]
    assert [name for name in ours if not re.search(rf"`{name}\b", text)] == []


def test_the_reference_names_every_pass():
    import passes.lowering.host.lower  # noqa: F401 - registers its passes

    text = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8")
    ours = [kind for kind in PASSES.values() if kind.__module__.startswith("passes.")]
    unnamed = [kind.name for kind in ours if not re.search(rf"(`|### ){kind.name}\b", text)]
    assert len(ours) > 4
    assert unnamed == []


def anchors(source: str) -> set[str]:
    """The anchors that a page's headings make, as on GitHub."""
    prose = re.sub(r"^```.*?^```$", "", source, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*?) *$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken_links(path: Path, source: str) -> list[str]:
    """Links to files or headings that do not exist."""
    prose = re.sub(r"^```.*?^```$", "", source, flags=re.MULTILINE | re.DOTALL)
    broken: list[str] = []
    for link in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = unquote(link).partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists():
            broken.append(link)
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            broken.append(link)
    return broken


@by_name
def test_links_lead_somewhere(path: Path):
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def test_broken_links_are_seen(tmp_path: Path):
    (tmp_path / "other.md").write_text("# A *head*, and more\n", encoding="utf-8")
    good = "[a](other.md) [b](other.md#a-head-and-more) [c](#here) [d](https://x.org/#y)\n# Here\n"
    here = tmp_path / "page.md"
    here.write_text(good, encoding="utf-8")
    assert broken_links(here, good) == []
    assert broken_links(here, "[a](nothing.md)") == ["nothing.md"]
    assert broken_links(here, "[a](other.md#b)") == ["other.md#b"]
