"""`coordgraph doctor`: what is installed here, and which targets work."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from codegen.cli.errors import ExitCode
from codegen.cli.options import Json
from codegen.cli.output import print_block, print_json, stdout, working
from coordgraph import CoordGraphError, import_names

__all__ = ["Finding", "Status", "doctor", "import_name"]

Status = Literal["ok", "absent", "failed"]
NEEDED = ("numpy", "sympy", "networkx", "llvmlite", "ml_dtypes", "typer", "rich")
HELPFUL = ("cuda-bindings", "cuda-core", "torch", "cupy", "jax")
ALSO_AS = {"cupy": ("cupy-cuda13x", "cupy-cuda12x")}
"""Other names of the same package."""
FEATURES = (
    *("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bf16", "amx-bf16"),
    *("neon", "fullfp16", "bf16", "sve"),
)
SIZES = (96, 80, 64)
TILES = {"sm_90a": (128, 256, 64)}
"""The tile to try a target with, large enough for TMA and warpgroups."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: whether it works, and what is to say of it."""

    name: str
    status: Status
    detail: str
    needed: bool = False


def doctor(as_json: Json = False) -> None:
    """Look at what is installed, and try every target on a small problem.

    Exit code 0 when the essentials work: the packages, the interpreter and the CPU.

    [bold]Example[/]

      coordgraph doctor
    """
    sections: dict[str, list[Finding]] = {}
    for title, look in (
        ("Packages", _packages),
        ("Machine", _machine),
        ("Tools", _tools),
        ("Targets", _targets),
    ):
        with working(f"looking at {title.lower()}"):
            sections[title] = list(look())
    healthy = all(f.status == "ok" for found in sections.values() for f in found if f.needed)
    if as_json:
        found = {title.lower(): [asdict(f) for f in rows] for title, rows in sections.items()}
        print_json({"healthy": healthy, **found})
    else:
        _print(sections, healthy)
    if not healthy:
        raise typer.Exit(ExitCode.UNAVAILABLE)


def _print(sections: dict[str, list[Finding]], healthy: bool) -> None:
    console = stdout()
    signs = {"ok": Text("ok", "green"), "absent": Text("-", "dim"), "failed": Text("FAIL", "red")}
    table = Table.grid(padding=(0, 2))
    table.add_column(width=4, no_wrap=True)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for title, rows in sections.items():
        table.add_row("", Text(title, "bold cyan"), "")
        for f in rows:
            table.add_row(
                signs[f.status], f.name, Text(f.detail, "" if f.status == "ok" else "dim")
            )
    print_block(table)
    verdict = "the essentials work" if healthy else "something that is needed does not work"
    console.print(Text(f"\n{verdict}", "bold green" if healthy else "bold red"))


def _packages() -> Iterator[Finding]:
    major, minor = sys.version_info[:2]
    fits = (3, 11) <= (major, minor) < (3, 14)
    yield Finding("python", "ok" if fits else "failed", platform.python_version(), needed=True)
    for name in (*NEEDED, *HELPFUL):
        needed = name in NEEDED
        if found := _version(name, *ALSO_AS.get(name, ())):
            yield Finding(name, "ok", found, needed)
        else:
            yield Finding(name, "failed" if needed else "absent", "not installed", needed)
    yield from map(import_name, import_names.NAMES)


def import_name(name: str) -> Finding:
    """Whether `import name` finds the package of this distribution, here and in other programs."""
    title, own = f"import {name}", import_names.package_folder(name)
    if reason := import_names.hidden([name]):
        return Finding(title, "failed", reason, needed=True)
    for file in (Path(name, "__init__.py").resolve(), Path(f"{name}.py").resolve()):
        if file.is_file() and not import_names.is_own(name, str(file)):
            detail = f"Python programs that start in this folder import {file}, not {own}: rename "
            return Finding(title, "failed", detail + ("it" if file.stem == name else "its folder"))
    if others := import_names.claimants(name):
        both = " and ".join(others)
        detail = f"{both} installed a package of this name too, into {own} or elsewhere: uninstall "
        return Finding(title, "failed", detail + both)
    return Finding(title, "ok", own, needed=True)


def _version(*names: str) -> str | None:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def _machine() -> Iterator[Finding]:
    from codegen.cli.targets import cpu_name, hardware_threads

    yield Finding("processor", "ok", f"{cpu_name()}, {hardware_threads()} threads")
    yield _finding("LLVM", _llvm, needed=True)
    yield _finding("GPU", _gpus)


def _llvm() -> str:
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    has = [name for name in FEATURES if features.get(name)]
    number = ".".join(map(str, llvm.llvm_version_info))
    return f"{number}, for {llvm.get_host_cpu_name()}: {' '.join(has) or 'no vector extensions'}"


def _gpus() -> str:
    from codegen.targets.nvptx.driver import cuda, device, device_count, unavailable

    if reason := unavailable():
        raise _Absent(reason)
    number = cuda("cuDriverGetVersion")
    driver = f"{number // 1000}.{number % 1000 // 10}"
    found = [device(i) for i in range(device_count())]
    gpus = ", ".join(f"{d.name} ({d.architecture}, {d.processors} SMs)" for d in found)
    return f"{gpus}; the driver is for CUDA {driver}"


def _tools() -> Iterator[Finding]:
    from codegen.toolchain import find_cuobjdump, find_ptxas

    for name, find, wheel in (
        ("ptxas", find_ptxas, "nvidia-cuda-nvcc"),
        ("cuobjdump", find_cuobjdump, "nvidia-cuda-cuobjdump"),
    ):
        path = find()
        detail = str(path) if path else f"not found; pip install {wheel}"
        yield Finding(name, "ok" if path else "absent", detail)


def _targets() -> Iterator[Finding]:
    yield _finding("interpreter", lambda: _multiply("interpreter", "f32"), needed=True)
    yield _finding("cpu", lambda: _multiply("cpu", "bf16"), needed=True)
    for architecture in ("sm_80", "sm_90a"):
        yield _finding(architecture, lambda a=architecture: _assemble(a))
    yield _finding("native GPU", _run_on_gpu)


def _assemble(architecture: str) -> str:
    from codegen.toolchain import assemble, find_ptxas

    kernel = _kernel(architecture, "bf16")
    lines = len(kernel.ptx.splitlines())
    if find_ptxas() is None:
        return f"compiles to {lines} lines of PTX (no ptxas to assemble them)"
    used = assemble(kernel.ptx, architecture)
    registers = max(used.registers.values())
    return f"compiles to {lines} lines of PTX, which ptxas assembles: {registers} registers"


def _run_on_gpu() -> str:
    from codegen.targets.nvptx.driver import device, unavailable

    if reason := unavailable():
        raise _Absent(reason)
    return _multiply(device(0).architecture, "bf16")


def _kernel(target: str, dtype: str) -> Any:
    from codegen import compile
    from coordgraph import Gemm
    from passes import TwoTileStreamK

    graph = Gemm(dtype).graph(TILES.get(target, (64, 64, 32)))
    return compile(TwoTileStreamK(workgroups=3)(graph), target)


def _multiply(target: str, dtype: str) -> str:
    """A ragged problem that three workgroups share."""
    from codegen.cli.check import Check, make_inputs, poisoned
    from codegen.cli.options import Problem
    from codegen.cli.timing import launch

    problem = Problem(*SIZES, dtype, None, False, False)
    inputs = make_inputs(problem, 1.0, 0.0, 0)
    kernel = _kernel(target, dtype)
    found = launch(kernel, inputs, poisoned(*SIZES[:2], dtype), 1)
    check = Check.of(found.d, inputs, problem)
    if not check.passed:
        raise CoordGraphError(
            f"a wrong result: error {check.error:.1e}, {check.wrong} elements wrong, "
            f"{check.unwritten} not written"
        )
    return f"multiplies {dtype} with an error of {check.error:.1e}"


class _Absent(Exception):
    """Not here, and not an error."""


def _finding(name: str, look: Callable[[], str], *, needed: bool = False) -> Finding:
    try:
        return Finding(name, "ok", look(), needed)
    except _Absent as reason:
        return Finding(name, "absent", str(reason), needed)
    except CoordGraphError as error:
        return Finding(name, "failed", str(error), needed)
    except Exception as error:  # a broken installation may fail in any way
        return Finding(name, "failed", f"{type(error).__name__}: {error}", needed)
