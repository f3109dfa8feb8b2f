"""Errors name packages that hide `coordgraph`, `passes` or `codegen`, and say what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from codegen.cli.doctor import Finding, import_name
from coordgraph import import_names
from tests.support.sampling import quick_cases

ROOT = Path(__file__).resolve().parents[2]


def run(
    *words: str, cwd: Path, path: tuple[Path, ...] = (ROOT,)
) -> subprocess.CompletedProcess[str]:
    """Run a Python program that is started in the folder `cwd`."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def python(*words: str, cwd: Path, path: tuple[Path, ...] = (ROOT,)) -> tuple[int, str]:
    """(exit code, standard error) of a Python program that is started in the folder `cwd`."""
    done = run(*words, cwd=cwd, path=path)
    return done.returncode, done.stderr


def package(folder: Path, name: str) -> Path:
    """Write a package of another distribution; return the path of its file."""
    (folder / name).mkdir(parents=True)
    file = folder / name / "__init__.py"
    file.write_text("def build(): ...\n")
    return file


@pytest.mark.slow
def test_nothing_is_in_the_way_here():
    assert [import_names.hiding_file(name) for name in import_names.NAMES] == [None] * 3
    assert import_names.hidden() is None
    assert [import_name(name).status for name in import_names.NAMES] == ["ok"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a folder", "a module"])
def test_passes_of_the_user(tmp_path: Path, kind: str):
    if kind == "a folder":
        file = package(tmp_path, "passes")
        advice = f"Rename {tmp_path}/passes, or run Python"
    else:
        file = tmp_path / "passes.py"
        file.write_text("")
        advice = f"Rename {tmp_path}/passes.py, or run Python"
    code, err = python("-c", "import codegen", cwd=tmp_path)
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith(f"ImportError: 'import passes' runs {file}, which is not part of")
    assert f"its passes is in {ROOT}/passes. {advice}" in last
    code, err = python("-c", "import coordgraph; coordgraph.Gemm", cwd=tmp_path)
    assert code == 0
    assert f"RuntimeWarning: 'import passes' runs {file}" in err
    code, err = python("-m", "coordgraph", "passes", cwd=tmp_path)
    assert code == 4
    assert err.splitlines()[-1].startswith(f"error: 'import passes' runs {file}")


@quick_cases(1)
@pytest.mark.parametrize("name", ["passes", "codegen"])
def test_the_doctor_reports_what_is_in_the_way(tmp_path: Path, name: str):
    """`doctor` runs in a folder with a package `passes` or `codegen`, and names it."""
    file = package(tmp_path, name)
    done = run("-m", "coordgraph", "doctor", "--json", cwd=tmp_path)
    assert done.returncode == 4
    assert "error:" not in done.stderr
    found = json.loads(done.stdout)
    failed = [each for rows in list(found.values())[1:] for each in rows if each["needed"]]
    (row,) = (each for each in failed if each["status"] == "failed")
    assert row["name"] == f"import {name}"
    assert row["detail"].startswith(f"'import {name}' runs {file}, which is not part of")
    assert f"Rename {tmp_path}/{name}, or run Python" in row["detail"]
    assert [each["name"] for each in found["targets"]][:2] == ["interpreter", "cpu"]


@pytest.mark.slow
def test_codegen_of_another_distribution(tmp_path: Path):
    """The command line, which starts in `coordgraph`, names a package that hides `codegen`."""
    file = package(tmp_path / "site", "codegen")
    info = tmp_path / "site" / "codegen-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: astor-codegen\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("codegen\n")
    paths = (tmp_path / "site", ROOT)
    code, err = python("-m", "coordgraph", "--help", cwd=tmp_path, path=paths)
    assert code == 4
    assert f"error: 'import codegen' runs {file}" in err
    assert "that of 'astor-codegen': uninstall 'astor-codegen' and reinstall coordgraph" in err


def test_a_distribution_that_was_installed_over_ours(tmp_path: Path):
    """If another distribution has overwritten `codegen/__init__.py`, the error names that file."""
    ignored = shutil.ignore_patterns("__pycache__", "[a-z]*")
    shutil.copytree(ROOT / "coordgraph", tmp_path / "coordgraph", ignore=ignored)
    for name in ("__main__", "errors", "import_names", "late", "version"):
        shutil.copy(ROOT / "coordgraph" / f"{name}.py", tmp_path / "coordgraph")
    file = package(tmp_path, "codegen")
    shutil.copytree(ROOT / "passes", tmp_path / "passes", ignore=ignored)
    code, err = python("-c", "import coordgraph", cwd=tmp_path, path=())
    assert (code, f"'import codegen' runs {file}, which is not part" in err) == (0, True)
    done = run("-m", "coordgraph", "doctor", cwd=tmp_path, path=())
    assert (done.returncode, f"error: 'import codegen' runs {file}" in done.stderr) == (4, True)
    assert f"import passes: {tmp_path}/passes\nimport codegen: {file}\n" in done.stdout
    shutil.copy(ROOT / "codegen" / "__init__.py", file)
    assert python("-c", "import coordgraph", cwd=tmp_path, path=()) == (0, "")


def test_the_doctor_looks_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`doctor` also reports packages in the current folder that hide the library's packages.

    The installed command imports nothing from that folder, but users' programs do.
    """
    monkeypatch.chdir(tmp_path)
    file = package(tmp_path, "passes")
    assert import_name("coordgraph").status == "ok"
    own = ROOT / "passes"
    said = f"Python programs that start in this folder import {file}, not {own}: rename its folder"
    assert import_name("passes") == Finding("import passes", "failed", said)


def test_the_doctor_asks_for_distributions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(import_names, "claimants", lambda name: ("astor-codegen",))
    found = import_name("codegen")
    assert found.status == "failed"
    assert found.detail.startswith("astor-codegen installed a package of this name too, into")
    assert found.detail.endswith("uninstall astor-codegen")
