"""The layers: codegen → passes → coordgraph, small files, and light imports."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("coordgraph", "passes", "codegen")
MAX_LINES = 450

# What each package may not import anywhere, not even inside a function.
FORBIDDEN = {
    "coordgraph": {"passes", "codegen", "llvmlite", "cuda"},
    "passes": {"codegen", "llvmlite", "cuda"},
    "codegen": set[str](),
}
# Array libraries that a user may bring: imported where they are used, never at module level.
GUESTS = {"torch", "cupy", "jax", "scipy"}
"""Imported where a user has them, or asks for what needs them."""
IMPORT_NAMES = {"cuda-python": "cuda"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(tree: ast.AST, *, module_level: bool = False) -> Iterator[tuple[int, str]]:
    """Line and top-level package of each absolute import, those inside functions too or not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, (node.module or "").partition(".")[0]
        elif not (module_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from imports(node, module_level=module_level)


def offenders(package: str, names: set[str], *, module_level: bool = False) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sources(package)
        for line, name in imports(ast.parse(path.read_bytes()), module_level=module_level)
        if name in names
    ]


def dependencies() -> set[str]:
    """Import names of what pyproject.toml requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[^\w-]", entry)[0] for entry in project["dependencies"]]
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


def repository_files() -> list[Path]:
    """What git tracks or would add; without git, every file outside hidden folders."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(listing, cwd=ROOT, capture_output=True, check=True)
        paths = [ROOT / os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    except (OSError, subprocess.CalledProcessError):
        inside = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        paths = [ROOT / path for path in inside if not path.parts[0].startswith(".")]
    return [path for path in paths if path.is_file()]


def test_the_scanner_sees_imports():
    tree = ast.parse(
        "import a.b\nfrom c.d import e\nfrom . import f\n"
        "if x:\n  import g\nclass C:\n  import h\n  def m(self):\n    import i\n"
    )
    assert [name for _, name in imports(tree)] == ["a", "c", "g", "h", "i"]
    assert [name for _, name in imports(tree, module_level=True)] == ["a", "c", "g", "h"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_exists_and_is_typed(package: str):
    assert (ROOT / package / "__init__.py").is_file()
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_dependencies_point_down_only(package: str):
    assert not offenders(package, FORBIDDEN[package])


@pytest.mark.parametrize("package", PACKAGES)
def test_guests_are_imported_late(package: str):
    assert not offenders(package, GUESTS, module_level=True)


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_imported_is_required(package: str):
    known = dependencies() | GUESTS | set(PACKAGES) | sys.stdlib_module_names
    used = {name for path in sources(package) for _, name in imports(ast.parse(path.read_bytes()))}
    assert used <= known, f"missing from pyproject.toml: {sorted(used - known)}"


def test_graphs_and_passes_load_neither_llvm_nor_cuda():
    """In a fresh process, and without writing anything to the terminal."""
    script = (
        "import sys, coordgraph, passes\n"
        "heavy = {'codegen', 'llvmlite', 'cuda', 'torch', 'cupy', 'jax', 'matplotlib'}\n"
        "loaded = sorted(heavy & {name.partition('.')[0] for name in sys.modules})\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("package", PACKAGES)
def test_files_stay_small(package: str):
    lengths = {path: len(path.read_bytes().splitlines()) for path in sources(package)}
    assert lengths, f"{package} has no source file"
    long = {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > MAX_LINES}
    assert not long, f"more than {MAX_LINES} lines: {long}"


def test_no_file_points_outside_the_repository():
    """A checkout stands alone: nothing names a folder that lies beside it."""
    outside = re.compile(rb"\.\./" + rb"shared(?![\w.-])")
    files = repository_files()
    assert ROOT / "pyproject.toml" in files
    assert not [str(p.relative_to(ROOT)) for p in files if outside.search(p.read_bytes())]
