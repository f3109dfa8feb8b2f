"""Architecture rules: imports go codegen → passes → coordgraph; small files; light imports."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

from tests.support.sampling import quick_cases

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("coordgraph", "passes", "codegen")
WITHOUT_CYCLES = (*PACKAGES, "benchmarks")
MAX_LINES = 450

# For each package: packages that it may not import anywhere, not even inside a function.
FORBIDDEN = {
    "coordgraph": {"passes", "codegen", "llvmlite", "cuda"},
    "passes": {"codegen", "llvmlite", "cuda"},
    "codegen": set[str](),
}
GUESTS = {"torch", "cupy", "jax", "scipy", "mermaidx", "nvtx"}
"""Packages that users may install; they are imported inside functions, never at module level."""
HEAVY = ("cuda", "cupy", "jax", "llvmlite", "matplotlib", "ml_dtypes", "rich", "scipy", "torch")
"""Packages that importing coordgraph, passes or codegen must not load."""
IMPORT_NAMES = {"cuda-python": "cuda"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(tree: ast.AST, *, module_level: bool = False) -> Iterator[tuple[int, str]]:
    """(line number, top-level package) of each absolute import.

    With `module_level`, imports inside functions are left out.
    """
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


def module_imports(modules: dict[str, ast.AST]) -> nx.DiGraph[str]:
    """The graph of imports between modules; imports in functions or for type checkers count too."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(modules)
    for name, tree in modules.items():
        for node in ast.walk(tree):
            named = list[str]()
            if isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = name.split(".")[: -node.level] if node.level else []
                module = ".".join([*base, *filter(None, [node.module])])
                named = [module, *(f"{module}.{alias.name}" for alias in node.names)]
            graph.add_edges_from((name, other) for other in named if other in modules)
    return graph


def import_cycles(modules: dict[str, ast.AST]) -> list[list[str]]:
    """Sets of modules that form import cycles: each imports all others, directly or indirectly."""
    found = nx.strongly_connected_components(module_imports(modules))
    return sorted(sorted(group) for group in found if len(group) > 1)


def modules_of(package: str) -> dict[str, ast.AST]:
    """The syntax tree of every module of a package, by the module's dotted name."""
    named = {path: path.relative_to(ROOT).with_suffix("").parts for path in sources(package)}
    return {
        ".".join(parts).removesuffix(".__init__"): ast.parse(path.read_bytes())
        for path, parts in named.items()
    }


def dependencies() -> set[str]:
    """Import names of the packages that pyproject.toml requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[^\w-]", entry)[0] for entry in project["dependencies"]]
    return {IMPORT_NAMES.get(name, name.replace("-", "_")) for name in names}


def repository_files() -> list[Path]:
    """Files that git tracks or would add; if git fails, every file outside hidden folders."""
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


@quick_cases(1)
@pytest.mark.parametrize("package", PACKAGES)
def test_dependencies_point_down_only(package: str):
    assert not offenders(package, FORBIDDEN[package])


def test_the_scanner_sees_cycles():
    written = {
        "p.a": "def f():\n  from p.b import x",
        "p.b": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from p import c",
        "p.c": "import p.a",
        "p.d": "from . import a",
        "p.e": "from .f import x",
        "p.f": "from p.e import x",
    }
    modules: dict[str, ast.AST] = {name: ast.parse(text) for name, text in written.items()}
    assert import_cycles(modules) == [["p.a", "p.b", "p.c"], ["p.e", "p.f"]]
    assert module_imports(modules).has_edge("p.d", "p.a")


@quick_cases(1)
@pytest.mark.parametrize("package", WITHOUT_CYCLES)
def test_no_import_cycles(package: str):
    """No two modules import each other: code that both need belongs in a third module."""
    modules = modules_of(package)
    assert module_imports(modules).number_of_edges() > 10
    assert import_cycles(modules) == []


OPERATORS = ("torch", "jax")
"""Packages of `GUESTS` that have a package of the same name in `codegen`, with operators for it."""


@quick_cases(1)
@pytest.mark.parametrize("package", PACKAGES)
def test_guests_are_imported_late(package: str):
    """Only `codegen.torch` and `codegen.jax` import a package of `GUESTS` at module level."""
    found = offenders(package, GUESTS, module_level=True)
    for guest in OPERATORS:
        own = [x for x in found if x.startswith(f"codegen/{guest}/") and x.endswith(f" {guest}")]
        assert bool(own) == (package == "codegen")
        found = [x for x in found if x not in own]
    assert found == []


@quick_cases(1)
@pytest.mark.parametrize("guest", OPERATORS)
@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_imports_the_operators_of_a_guest(package: str, guest: str):
    """No other module imports `codegen.torch` or `codegen.jax`: it would need PyTorch or JAX."""
    modules = modules_of("codegen") | modules_of(package)
    found = module_imports(modules)
    ours = {name for name in modules if f"{name}.".startswith(f"codegen.{guest}.")}
    assert len(ours) > 3
    assert [(x, y) for x, y in found.edges() if y in ours and x not in ours] == []


@quick_cases(1)
@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_imported_is_required(package: str):
    known = dependencies() | GUESTS | set(PACKAGES) | sys.stdlib_module_names
    used = {name for path in sources(package) for _, name in imports(ast.parse(path.read_bytes()))}
    assert used <= known, f"missing from pyproject.toml: {sorted(used - known)}"


@quick_cases(2)
@pytest.mark.parametrize(
    ("packages", "heavy"),
    [
        ("coordgraph", (*HEAVY, "networkx", "numpy", "passes", "sympy")),
        ("codegen", (*HEAVY, "networkx", "numpy", "passes", "sympy")),
        ("coordgraph, passes", (*HEAVY, "codegen", "networkx", "numpy")),
    ],
)
def test_imports_are_light(packages: str, heavy: tuple[str, ...]):
    """Importing the packages in a new process loads no heavy package and prints nothing."""
    script = (
        f"import sys, {packages}\n"
        f"loaded = sorted({set(heavy)} & {{name.partition('.')[0] for name in sys.modules}})\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    run_quietly(script)


def test_the_checks_before_a_build_import_no_simulation_of_lowered_graphs():
    """The check of a scheduled graph in a new process loads neither that nor NumPy's generators."""
    heavy = {"coordgraph.verification.memory_order", "coordgraph.control.effects", "numpy.random"}
    run_quietly(
        "import sys, coordgraph, passes\n"
        "passes.DataParallel()(coordgraph.Gemm('f32').graph((4, 4, 4))).verify('default')\n"
        f"loaded = sorted({heavy} & {{*sys.modules}})\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )


def run_quietly(script: str) -> None:
    """Run a script in a new process; it must succeed, print nothing and raise no warning."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "package",
    [
        *("coordgraph", "coordgraph.interpreter", "coordgraph.text"),
        *("codegen", "passes.simulation"),
    ],
)
def test_late_names_are_those_of_the_package(package: str):
    """Names that a package imports on first use are the objects that type checkers see.

    Type checkers read the imports under `TYPE_CHECKING`, Python looks names up in a dictionary.
    """
    path = ROOT.joinpath(*package.split("."), "__init__.py")
    (checked,) = (
        node
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    module = importlib.import_module(package)
    seen = set[str]()
    for node in checked.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            name = alias.asname or alias.name
            home = importlib.import_module(node.module or "")
            assert getattr(module, name) is getattr(home, alias.name)
            seen.add(name)
    assert len(seen) > 1
    assert {*module.__all__, *seen} <= set(dir(module))
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Gem'"):
        module.Gem  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_files_stay_small(package: str):
    lengths = {path: len(path.read_bytes().splitlines()) for path in sources(package)}
    assert lengths, f"{package} has no source file"
    long = {str(path.relative_to(ROOT)): n for path, n in lengths.items() if n > MAX_LINES}
    assert not long, f"more than {MAX_LINES} lines: {long}"


def test_no_file_points_outside_the_repository():
    """No file of the repository names a folder outside of it."""
    outside = re.compile(rb"\.\./" + rb"shared(?![\w.-])")
    files = repository_files()
    assert ROOT / "pyproject.toml" in files
    assert not [str(p.relative_to(ROOT)) for p in files if outside.search(p.read_bytes())]


def test_source_distributions_hold_every_folder():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = {
        name.strip("/") for name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    }
    folders = {
        path.relative_to(ROOT).parts[0] for path in repository_files() if path.parent != ROOT
    }
    assert {name for name in folders if not name.startswith(".")} <= included


@pytest.mark.parametrize("room", ["schedules", "orders"])
def test_the_kit_is_public(room: str):
    """The library's schedules and orders import only public names from `passes.kit`."""
    from passes import kit

    for path in sorted((ROOT / "passes" / room).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("passes"):
                names = {alias.name for alias in node.names}
                if node.module == "passes.kit":
                    assert names <= set(kit.__all__), path
                else:
                    assert not (node.module or "").startswith("passes.kit."), path


def test_the_library_does_not_import_examples():
    assert not [found for package in PACKAGES for found in offenders(package, {"examples"})]
