"""Runs NVIDIA's command-line tools: ptxas for resource use and warnings, cuobjdump for SASS.

Kernels run without these tools, because the driver assembles PTX itself.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coordgraph.errors import CodegenError

__all__ = [
    "AssemblyError",
    "KernelUse",
    "PtxasReport",
    "ToolNotFound",
    "WrongTool",
    "assemble",
    "disassemble",
    "find_cuobjdump",
    "find_ptxas",
    "ptxas_version",
]

_TIMEOUT_S = 300.0
"""Seconds after which a command-line tool that still runs is killed."""


class ToolNotFound(CodegenError):
    """A CUDA tool was found neither on PATH, nor in a CUDA toolkit, nor in a Python wheel."""


class WrongTool(CodegenError):
    """`$COORDGRAPH_PTXAS` or `$COORDGRAPH_CUOBJDUMP` is not the path of ptxas or cuobjdump."""


class AssemblyError(CodegenError):
    """ptxas rejected the PTX; the attribute `log` is its whole output."""

    def __init__(self, message: str, log: str) -> None:
        self.log = log
        super().__init__(f"{message}\n{log}")


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Resource use of one kernel or of one device function that was not inlined, as ptxas reports.

    Attributes:
        registers: number of registers of a thread; None for a device function.
        spill_stores: number of bytes that a thread's register spills store to local memory.
        spill_loads: number of bytes that a thread's register spills load from local memory.
        stack_frame: size in bytes of a thread's stack frame.
        shared: size in bytes of the static shared memory of a workgroup.
    """

    registers: int | None
    spill_stores: int
    spill_loads: int
    stack_frame: int
    shared: int


@dataclass(frozen=True, slots=True)
class PtxasReport:
    """The result of assembling one PTX module.

    Attributes:
        functions: resource use of each kernel and device function, by name.
        warnings: the lines of the log with warnings or advice on performance.
        log: the whole output of ptxas.
        cubin: the assembled module.
    """

    functions: Mapping[str, KernelUse]
    warnings: tuple[str, ...]
    log: str
    cubin: bytes = field(repr=False)

    @property
    def registers(self) -> dict[str, int]:
        """The number of registers of a thread, for each kernel by its name."""
        uses = self.functions.items()
        return {name: use.registers for name, use in uses if use.registers is not None}

    @property
    def spill_stores(self) -> int:
        """The number of bytes of a thread's register-spill stores, summed over all functions."""
        return sum(use.spill_stores for use in self.functions.values())

    @property
    def spill_loads(self) -> int:
        """The number of bytes of a thread's register-spill loads, summed over all functions."""
        return sum(use.spill_loads for use in self.functions.values())

    @property
    def stack_frame(self) -> int:
        """The size in bytes of the largest stack frame of any function."""
        return max((use.stack_frame for use in self.functions.values()), default=0)

    @property
    def shared(self) -> int:
        """The size in bytes of static shared memory in the kernel that uses the most."""
        return max((use.shared for use in self.functions.values()), default=0)


def find_ptxas() -> Path | None:
    """The path of ptxas, or None if it is not installed.

    The search order is `$COORDGRAPH_PTXAS`, PATH, the CUDA toolkit, the nvidia-cuda-nvcc wheel.

    Raises:
        WrongTool: `$COORDGRAPH_PTXAS` is set, and is not the path of a program.
    """
    return _find("ptxas")


def find_cuobjdump() -> Path | None:
    """The path of cuobjdump, or None if it is not installed.

    The search order is `$COORDGRAPH_CUOBJDUMP`, PATH, the CUDA toolkit, the nvidia-cuda-cuobjdump
    wheel.

    Raises:
        WrongTool: `$COORDGRAPH_CUOBJDUMP` is set, and is not the path of a program.
    """
    return _find("cuobjdump")


def assemble(ptx: str, arch: str, options: Sequence[str] = ()) -> PtxasReport:
    """Assemble PTX with ptxas, and report the resource use of its functions.

    Args:
        ptx: the text of a PTX module.
        arch: the architecture to assemble for, such as "sm_90a".
        options: further command-line options of ptxas.

    Raises:
        ToolNotFound: ptxas is not installed.
        AssemblyError: ptxas rejects the PTX.
        WrongTool: an environment variable names a program that is not ptxas.
    """
    ptxas = _require("ptxas", find_ptxas(), "nvidia-cuda-nvcc")
    with tempfile.TemporaryDirectory(prefix="coordgraph-") as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx, encoding="utf-8")
        done = _run(
            [ptxas, "-v", "--warn-on-spills", f"-arch={arch}", *options, source, "-o", cubin]
        )
        log = (done.stdout + done.stderr).replace(str(source), source.name)
        if done.returncode != 0:
            failure = f"{ptxas} -arch={arch} failed with exit status {done.returncode}"
            raise AssemblyError(failure, log)
        if not cubin.exists():
            raise WrongTool(
                f"{ptxas} wrote no cubin, so it is not the program ptxas{_set_by('ptxas')}; set "
                f"{_variable('ptxas')} to the path of NVIDIA's ptxas"
            )
        return _report(log, cubin.read_bytes())


def ptxas_version() -> str:
    """The version of ptxas and of its CUDA release, such as `ptxas 13.0 (V13.0.88)`.

    Raises:
        ToolNotFound: ptxas is not installed.
    """
    ptxas = _require("ptxas", find_ptxas(), "nvidia-cuda-nvcc")
    found = re.search(r"release (\S+), (V\S+)", _run([ptxas, "--version"]).stdout)
    return f"ptxas {found[1]} ({found[2]})" if found else "ptxas of an unknown version"


def disassemble(cubin: bytes) -> str:
    """The SASS of an assembled module, as text from cuobjdump.

    Raises:
        ToolNotFound: cuobjdump is not installed.
        CodegenError: cuobjdump fails.
    """
    cuobjdump = _require("cuobjdump", find_cuobjdump(), "nvidia-cuda-cuobjdump")
    with tempfile.TemporaryDirectory(prefix="coordgraph-") as folder:
        image = Path(folder, "kernel.cubin")
        image.write_bytes(cubin)
        # cuobjdump runs nvdisasm, which is in the same folder and not always on PATH.
        path = os.pathsep.join([str(cuobjdump.parent), os.environ.get("PATH", "")])
        done = _run([cuobjdump, "-sass", image], {**os.environ, "PATH": path})
    if done.returncode != 0:
        raise CodegenError(
            f"{cuobjdump} failed to disassemble a cubin; use the cuobjdump of a CUDA release that "
            f"is as new as ptxas; its output:\n{done.stdout}{done.stderr}"
        )
    if not done.stdout.strip():
        where = _set_by("cuobjdump")
        raise WrongTool(
            f"{cuobjdump} printed no SASS, so it is not the program cuobjdump of the CUDA "
            f"toolkit{where}; install the toolkit's program"
        )
    return done.stdout


_PROPERTIES = re.compile(r"Function properties for '?([\w$.]+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
# ptxas prints advice such as "(C7510) … wgmma.mma_async instructions are serialized" as info, not
# as a warning.
_WARNING = re.compile(r"^ptxas\b.*?\bwarning\s*:|\(C7\d{3}\)")


def _report(log: str, cubin: bytes) -> PtxasReport:
    """Parse the log of `ptxas -v`, in which a function's stack frame precedes its registers."""
    functions: dict[str, KernelUse] = {}
    name, frame = "", (0, 0, 0)
    for line in log.splitlines():
        if found := _PROPERTIES.search(line):
            name = found[1]
        elif found := _FRAME.search(line):
            frame = (int(found[1]), int(found[2]), int(found[3]))
            functions[name] = _use(None, frame, 0)
        elif found := _USED.search(line):
            shared = _SHARED.search(line)
            functions[name] = _use(int(found[1]), frame, int(shared[1]) if shared else 0)
    warnings = tuple(line.strip() for line in log.splitlines() if _WARNING.search(line))
    return PtxasReport(functions, warnings, log, cubin)


def _use(registers: int | None, frame: tuple[int, int, int], shared: int) -> KernelUse:
    """The `KernelUse` of a function; `frame`: bytes of stack frame, spill stores, spill loads."""
    stack, stores, loads = frame
    return KernelUse(registers, stores, loads, stack, shared)


def _find(tool: str) -> Path | None:
    """The path of a tool: the first place in the search order that has the program, or None.

    A file that is not executable, as some wheel installers leave it, is made executable.
    """
    for place in _places(tool):
        path = shutil.which(place)
        if path is None and Path(place).is_file() and _make_executable(Path(place)):
            path = place
        if path is not None:
            return Path(path)
        if place == os.environ.get(_variable(tool)):
            raise WrongTool(
                f"{_variable(tool)} is {place}, which is no program; set it to the path of {tool}, "
                "or unset it to search PATH and the CUDA toolkit"
            )
    return None


def _variable(tool: str) -> str:
    """The environment variable that may hold the path of a tool."""
    return f"COORDGRAPH_{tool.upper()}"


def _set_by(tool: str) -> str:
    """Suffix of an error message about a wrong tool: the variable that set its path, or ''."""
    return f" ({_variable(tool)} gave its path)" if os.environ.get(_variable(tool)) else ""


def _places(tool: str) -> Iterator[str]:
    """Candidates for `tool` in the order to try: file paths, and the bare name to find on PATH."""
    if chosen := os.environ.get(_variable(tool)):
        yield chosen
    yield tool
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield str(Path(home, "bin", tool))
    for folder in _wheel_folders():
        yield str(folder / tool)


def _wheel_folders() -> Iterator[Path]:
    """The `bin` folders of NVIDIA's Python wheels (nvidia/cu13/bin), the newest CUDA first."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec is not None else None
    for root in roots or ():
        yield from sorted(Path(root).glob("cu*/bin"), reverse=True)


def _make_executable(path: Path) -> bool:
    """Set a file's executable bit, which some wheel installers drop; return whether that worked."""
    try:
        path.chmod(path.stat().st_mode | 0o111)
    except OSError:
        return False
    return os.access(path, os.X_OK)


def _require(tool: str, path: Path | None, wheel: str) -> Path:
    """Return `path`; if `path` is None, raise ToolNotFound with advice how to install the tool."""
    if path is None:
        raise ToolNotFound(
            f"{tool} is neither on PATH, nor in $CUDA_HOME/bin, nor in an installed {wheel} wheel;"
            f" hint: pip install {wheel}, or set {_variable(tool)}"
        )
    return path


def _run(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command, and return its output as text, whatever its exit status."""
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=_TIMEOUT_S,
        env=env,
    )
