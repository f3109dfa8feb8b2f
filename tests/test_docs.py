"""The documentation is executed: every block, diagram and link. See tests/support/pages.py."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import coordgraph.control.asynchronous
import coordgraph.control.lowered  # noqa: F401 - registers operations
from coordgraph.control.operations import OPERATIONS
from coordgraph.coordinates.dimensions import DIMENSIONS
from coordgraph.coordinates.edges import EDGES
from coordgraph.elements import DTYPES
from coordgraph.epilogue.values import OPERATIONS as EPILOGUE_OPERATIONS
from passes import PASSES
from passes.lowering.architectures import ARCHITECTURES
from tests.support.gpu import Gpu, find_gpu
from tests.support.mermaid import parse, render
from tests.support.pages import Page, names_from_hidden_blocks, read_blocks
from tests.support.sampling import Slow, chosen

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
TARGETS = frozenset(
    re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
)


def page_name(path: Path) -> str:
    """The path of a page relative to the repository's root, without its extension."""
    return path.relative_to(ROOT).with_suffix("").as_posix()


by_name = pytest.mark.parametrize("path", PAGES, ids=page_name)
LONG = {
    DOCS / f"{page}.md"
    for page in (
        "explanation/choosing",
        "explanation/groups/batches-and-groups",
        "explanation/groups/lists",
        "explanation/groups/tables",
        "explanation/memory-traffic",
        "explanation/schedules-compared",
        "how-to/deploy",
        "how-to/gather-and-scatter-rows",
        "how-to/make-results-batch-invariant",
        "how-to/multiply-and-gate",
        "how-to/multiply-batches-and-groups",
        "how-to/multiply-slices",
        "how-to/read-the-report",
        "how-to/rotate-columns",
        "how-to/trace-a-kernel",
        "how-to/tune",
        "how-to/use-an-epilogue",
        "how-to/use-from-jax",
    )
}
"""Pages that take seconds to run and show what other tests check; their tests are marked slow."""


def run_command(arguments: list[str]) -> str:
    """The output of a `coordgraph` command."""
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


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of caches; pages share it, so that a kernel of several pages is compiled once."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture
def registries() -> Iterator[None]:
    """After a page, remove the passes, edges, element types and so on that its code registered."""
    found: list[Any] = [EDGES, DIMENSIONS, OPERATIONS, EPILOGUE_OPERATIONS]
    found += [PASSES, DTYPES, ARCHITECTURES]
    before = [dict(registry) for registry in found]
    yield
    for registry, entries in zip(found, before, strict=True):
        registry.clear()
        registry.update(entries)


@pytest.fixture
def reader(tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader's environment: a plain terminal, an empty folder and a cache of kernels."""
    for variable in ("COORDGRAPH_THREADS", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in (("NO_COLOR", "1"), ("COLUMNS", "100"), ("TERM", "dumb")):
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
    monkeypatch.chdir(tmp_path)


def test_long_pages_are_pages():
    assert {*PAGES} >= LONG


@pytest.mark.parametrize(
    "path", PAGES if Slow.updating else chosen({*PAGES} - LONG, PAGES), ids=page_name
)
@pytest.mark.usefixtures("reader", "registries")
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


@by_name
def test_blocks_that_are_shown_need_no_hidden_ones(path: Path):
    assert names_from_hidden_blocks(read_blocks(path.read_text(encoding="utf-8"))) == []


@by_name
def test_diagrams_parse(path: Path):
    parse(diagrams(path))


def test_the_diagrams_of_the_readme_render():
    assert render(diagrams(ROOT / "README.md"))


def diagrams(path: Path) -> list[str]:
    blocks = read_blocks(path.read_text(encoding="utf-8"))
    return [block.text for block in blocks if block.language == "mermaid"]


@pytest.mark.parametrize("registry", [DIMENSIONS, EDGES, OPERATIONS], ids=["dims", "edges", "ops"])
def test_the_reference_names_every_kind(registry: dict[str, type]):
    pages = ("dimensions", "edges", "operations")
    text = "".join((REFERENCE / f"{page}.md").read_text(encoding="utf-8") for page in pages)
    ours = [name for name, kind in registry.items() if kind.__module__.startswith("coordgraph.")]
    assert [name for name in ours if not re.search(rf"`{name}\b", text)] == []


def test_every_pass_has_a_page():
    import passes.lowering.host.lower  # noqa: F401 - registers its passes

    lowerings = (REFERENCE / "passes" / "lowerings.md").read_text(encoding="utf-8")
    ours = [kind.name for kind in PASSES.values() if kind.__module__.startswith("passes.")]
    missing = [
        name
        for name in ours
        if f"`{name}`" not in lowerings and not (REFERENCE / "passes" / f"{name}.md").exists()
    ]
    assert len(ours) > 4
    assert missing == []


def test_the_reference_describes_every_epilogue_operation():
    """Operations are instances, which mkdocstrings leaves out, so the page names each one's
    class.
    """
    from coordgraph import epilogue

    text = (REFERENCE / "api" / "epilogue.md").read_text(encoding="utf-8")
    kinds = [type(getattr(epilogue, name)) for name in epilogue.__all__]
    ours = [kind for kind in kinds if issubclass(kind, epilogue.Elementwise)]
    assert len(ours) > 20
    missing = [k.__name__ for k in ours if f"::: {k.__module__}.{k.__name__}\n" not in text]
    assert missing == []


def test_the_reference_names_every_command_and_exit_code():
    from typer.main import get_command

    from codegen.cli.app import app
    from codegen.cli.errors import ExitCode

    text = (REFERENCE / "command-line.md").read_text(encoding="utf-8")
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name in commands if f"| `{name}` |" not in text] == []
    assert [int(code) for code in ExitCode if f"| {int(code)} |" not in text] == []


def test_pages_are_short():
    lines = {page_name(path): len(path.read_text("utf-8").splitlines()) for path in PAGES}
    assert lines["README"] <= 250
    assert {name: count for name, count in lines.items() if count > 500} == {}


def test_every_page_is_in_the_navigation():
    """mkdocs.yml lists every page; `make docs` would not link to a page that is missing there."""
    named = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    pages = [path.relative_to(DOCS).as_posix() for path in PAGES if DOCS in path.parents]
    assert sorted(named) == sorted(pages)


def anchors(source: str) -> set[str]:
    """The link anchors of a page's headings, as GitHub forms them."""
    prose = re.sub(r"^```.*?^```$", "", source, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*?) *$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken_links(path: Path, source: str) -> list[str]:
    """Links of a page to files or headings that do not exist."""
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
