"""`coordgraph doctor`: reports what is installed on this machine and which targets work."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Literal

import typer
from rich.table import Table
from rich.text import Text

from codegen.cli.errors import ExitCode
from codegen.cli.options import Json
from codegen.cli.output import print_block, print_json, stdout, working
from coordgraph import CoordGraphError, import_names

if TYPE_CHECKING:
    from codegen.kernel import Kernel

__all__ = ["Finding", "Status", "doctor", "import_name"]

Status = Literal["ok", "absent", "failed"]
NEEDED = ("numpy", "sympy", "networkx", "llvmlite", "ml_dtypes", "typer", "rich")
HELPFUL = ("cuda-bindings", "cuda-core", "torch", "cupy", "jax")
ALSO_AS = {"cupy": ("cupy-cuda13x", "cupy-cuda12x")}
"""For each package, the names of its distributions, where they differ from the package's name."""
FEATURES = (
    *("sse4.2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bf16", "amx-bf16"),
    *("neon", "fullfp16", "bf16", "sve"),
)
SIZES = (150, 140, 256)
"""m, n and k of the products that `coordgraph doctor` computes to test targets. m and n are not
multiples of the default tile, so tiles at the border of D are partly padding."""


@dataclass(frozen=True)
class Finding:
    """One line of `coordgraph doctor`: what was examined, whether it works, and the details.

    `needed`: whether coordgraph fails to work without the examined package, tool or target.
    """

    name: str
    status: Status
    detail: str
    needed: bool = False


def doctor(as_json: Json = False) -> None:
    """Check the installed packages, the machine, NVIDIA's tools and the targets.

    The interpreter, the CPU and the GPU multiply small matrices. For each kind of matrix
    instructions, code for one architecture is generated, and assembled where ptxas is installed.
    The exit code is 0 if the required packages, the interpreter and the CPU work, and 4 otherwise.

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
        with working(f"checking {title.lower()}"):
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
    verdict, style = (
        ("the packages, the interpreter and the CPU work", "bold green")
        if healthy
        else ("a package, the interpreter or the CPU does not work", "bold red")
    )
    failed = [f.name for rows in sections.values() for f in rows if f.status == "failed"]
    if failed:
        verdict += f"{'; this does not' if healthy else ''}: {', '.join(failed)}"
        style = "bold yellow" if healthy else style
    console.print(Text(f"\n{verdict}", style))


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
    """Check that `import NAME` finds the package that the distribution coordgraph installed.

    The check fails if a file in the current folder, or another installed distribution, has a
    module of this name.
    """
    title, own = f"import {name}", import_names.package_folder(name)
    if reason := import_names.OVERRULED.get(name) or import_names.hidden([name]):
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
    yield _finding("kernel cache", _cache)


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
    return f"{gpus}; the driver supports CUDA {driver}"


def _cache() -> str:
    """The folder of the kernel cache.

    Raises:
        CoordGraphError: the folder cannot be written; kernels are then compiled by every process.
    """
    from codegen.cache import cache_directory

    folder = cache_directory()
    if folder is None:
        raise _Absent("off, by COORDGRAPH_CACHE=off")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CoordGraphError(
            f"{folder} cannot be written ({error.strerror}), so every process compiles its kernels "
            "again; set COORDGRAPH_CACHE to a folder that can be written"
        ) from error
    return str(folder)


def _tools() -> Iterator[Finding]:
    from codegen.toolchain import WrongTool, find_cuobjdump, find_ptxas

    for name, find, wheel in (
        ("ptxas", find_ptxas, "nvidia-cuda-nvcc"),
        ("cuobjdump", find_cuobjdump, "nvidia-cuda-cuobjdump"),
    ):
        try:
            path = find()
            detail = str(path) if path else f"not found; pip install {wheel}"
        except WrongTool as error:
            path, detail = None, str(error)
        yield Finding(name, "ok" if path else "absent", detail)


def _targets() -> Iterator[Finding]:
    yield _finding("interpreter", lambda: _multiply("interpreter", "f32"), needed=True)
    yield _finding("cpu", lambda: _multiply("cpu", "bf16"), needed=True)
    for architecture in _one_for_each_lowering():
        yield _finding(architecture, lambda a=architecture: _assemble(a))
    yield _finding("native GPU", _run_on_gpu)


def _one_for_each_lowering() -> list[str]:
    """For each family of matrix instructions: the oldest architecture that has no faster family."""
    from codegen.architectures import architecture_of, names

    found: dict[str, str] = {}
    for name in names():
        found.setdefault(architecture_of(name).lowerings[0].instructions, name)
    return list(found.values())


def _assemble(architecture: str) -> str:
    from codegen.architectures import architecture_of
    from codegen.toolchain import assemble, find_ptxas

    kernel = _kernel(architecture, "bf16")
    lines = len(kernel.ptx.splitlines())
    made = f"{kernel.instruction_family}: {lines} lines of PTX"
    if find_ptxas() is None:
        return f"{made} (not assembled: ptxas was not found)"
    used = assemble(kernel.ptx, architecture_of(architecture).assembled_as)
    return f"{made}, which ptxas assembles: {max(used.registers.values())} registers in a thread"


def _run_on_gpu() -> str:
    from codegen.targets.nvptx.driver import device, unavailable

    if reason := unavailable():
        raise _Absent(reason)
    return _multiply(device(0).architecture, "bf16")


def _kernel(target: str, dtype: str) -> Kernel:
    from codegen import compile
    from coordgraph import Gemm
    from passes import TwoTileStreamK

    return compile(TwoTileStreamK(workgroups=3)(Gemm(dtype).graph()), target)


def _multiply(target: str, dtype: str) -> str:
    """Run a product of four tiles on three workgroups, which share tiles, and check the result.

    Returns:
        The line for the report: the type, the matrix instructions and the relative error.
    """
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
            f"the kernel's result is wrong: relative error {check.error:.1e}, {check.wrong} "
            f"elements are wrong, {check.unwritten} are not written; please report this as a defect"
        )
    how = kernel.instruction_family
    return f"multiplies {dtype} by {how} with a relative error of {check.error:.1e}"


class _Absent(Exception):
    """Raised if an optional package or tool is not installed; `doctor` reports it as absent."""


def _finding(name: str, look: Callable[[], str], *, needed: bool = False) -> Finding:
    try:
        return Finding(name, "ok", look(), needed)
    except _Absent as reason:
        return Finding(name, "absent", str(reason), needed)
    except CoordGraphError as error:
        return Finding(name, "failed", str(error), needed)
    except Exception as error:  # a broken installation may raise anything
        return Finding(name, "failed", f"{type(error).__name__}: {error}", needed)
