"""NVIDIA's command-line tools, where there are any: ptxas for resource use, cuobjdump for SASS.

Neither is needed to run a kernel (the driver assembles PTX itself); they show what became of it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coordgraph.errors import CodegenError

__all__ = [
    "AssemblyError",
    "KernelUse",
    "PtxasReport",
    "ToolNotFound",
    "assemble",
    "disassemble",
    "find_cuobjdump",
    "find_ptxas",
]

_TIMEOUT_S = 300.0


class ToolNotFound(CodegenError):
    """A CUDA tool is on none of the places where it is looked for."""


class AssemblyError(CodegenError):
    """ptxas refused the PTX; `log` is all that it said."""

    def __init__(self, message: str, log: str) -> None:
        self.log = log
        super().__init__(f"{message}\n{log}")


@dataclass(frozen=True, slots=True)
class KernelUse:
    """What one kernel, or one device function that was not inlined, takes of the machine.

    `registers` is per thread, and none for a device function; the rest is bytes: `shared` per
    workgroup and static only, the others per thread.
    """

    registers: int | None
    spill_stores: int
    spill_loads: int
    stack_frame: int
    shared: int


@dataclass(frozen=True, slots=True)
class PtxasReport:
    """What ptxas made of one PTX module, and what it said about it."""

    functions: Mapping[str, KernelUse]
    warnings: tuple[str, ...]
    log: str
    cubin: bytes

    @property
    def registers(self) -> dict[str, int]:
        """Registers per thread of each kernel."""
        uses = self.functions.items()
        return {name: use.registers for name, use in uses if use.registers is not None}

    @property
    def spill_stores(self) -> int:
        """Bytes of spill stores, all functions together."""
        return sum(use.spill_stores for use in self.functions.values())

    @property
    def spill_loads(self) -> int:
        """Bytes of spill loads, all functions together."""
        return sum(use.spill_loads for use in self.functions.values())

    @property
    def stack_frame(self) -> int:
        """Bytes of the largest stack frame."""
        return max((use.stack_frame for use in self.functions.values()), default=0)

    @property
    def shared(self) -> int:
        """Bytes of static shared memory of the kernel that has the most."""
        return max((use.shared for use in self.functions.values()), default=0)


def find_ptxas() -> Path | None:
    """Path of ptxas: `COORDGRAPH_PTXAS`, `PATH`, the CUDA toolkit, the nvidia-cuda-nvcc wheel."""
    return _find("ptxas")


def find_cuobjdump() -> Path | None:
    """Path of cuobjdump, looked for in the same places (`COORDGRAPH_CUOBJDUMP` and so on)."""
    return _find("cuobjdump")


def assemble(ptx: str, arch: str, options: Sequence[str] = ()) -> PtxasReport:
    """Assemble `ptx` for `arch` (such as "sm_90a") and report what it takes of the machine.

    Raises ToolNotFound without ptxas, and AssemblyError with its log where it refuses the text.
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
            said = f"{ptxas} -arch={arch} failed with exit status {done.returncode}"
            raise AssemblyError(said, log)
        return _report(log, cubin.read_bytes())


def disassemble(cubin: bytes) -> str:
    """SASS of `cubin`, as cuobjdump prints it."""
    cuobjdump = _require("cuobjdump", find_cuobjdump(), "nvidia-cuda-cuobjdump")
    with tempfile.TemporaryDirectory(prefix="coordgraph-") as folder:
        image = Path(folder, "kernel.cubin")
        image.write_bytes(cubin)
        # cuobjdump calls nvdisasm, which lies beside it and is not always on PATH.
        path = os.pathsep.join([str(cuobjdump.parent), os.environ.get("PATH", "")])
        done = _run([cuobjdump, "-sass", image], {**os.environ, "PATH": path})
    if done.returncode != 0:
        raise CodegenError(f"{cuobjdump} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


_PROPERTIES = re.compile(r"Function properties for '?([\w$.]+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
# Advice such as "(C7510) … wgmma.mma_async instructions are serialized" is printed as mere info.
_WARNING = re.compile(r"^ptxas\b.*?\bwarning\s*:|\(C7\d{3}\)")


def _report(log: str, cubin: bytes) -> PtxasReport:
    """Read the log of `ptxas -v`: each function's properties come before its registers."""
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
    stack, stores, loads = frame
    return KernelUse(registers, stores, loads, stack, shared)


def _find(tool: str) -> Path | None:
    """The first place that has `tool`, made executable if need be."""
    for place in _places(tool):
        path = shutil.which(place)
        if path is None and Path(place).is_file() and _make_executable(Path(place)):
            path = place
        if path is not None:
            return Path(path)
    return None


def _places(tool: str) -> Iterator[str]:
    if chosen := os.environ.get(f"COORDGRAPH_{tool.upper()}"):
        yield chosen
    yield tool
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield str(Path(home, "bin", tool))
    for folder in _wheel_folders():
        yield str(folder / tool)


def _wheel_folders() -> Iterator[Path]:
    """The `bin` folders of NVIDIA's wheels (nvidia/cu13/bin), the newest CUDA first."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations if spec is not None else None
    for root in roots or ():
        yield from sorted(Path(root).glob("cu*/bin"), reverse=True)


def _make_executable(path: Path) -> bool:
    """Some installers drop the executable bit of a wheel's files."""
    try:
        path.chmod(path.stat().st_mode | 0o111)
    except OSError:
        return False
    return os.access(path, os.X_OK)


def _require(tool: str, path: Path | None, wheel: str) -> Path:
    if path is None:
        raise ToolNotFound(
            f"{tool} is neither on PATH, nor in $CUDA_HOME/bin, nor in an installed {wheel} wheel;"
            f" hint: pip install {wheel}, or set COORDGRAPH_{tool.upper()}"
        )
    return path


def _run(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=_TIMEOUT_S,
        env=env,
    )
