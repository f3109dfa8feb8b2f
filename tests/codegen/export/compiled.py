"""Compiles exported C functions together with a fake CUDA driver, and calls the functions."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from codegen.export import Exported
from codegen.export.c_expressions import c_name
from codegen.export.c_types import c_type

__all__ = ["Library", "Recorded", "compile_c", "compile_example", "cuda_headers"]

FAKE = Path(__file__).with_name("fake_cuda.c")
TOOLKIT = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
FLAGS = ("-Wall", "-Wextra", "-Werror", "-O1")
C = {"float": ctypes.c_float, "double": ctypes.c_double, "int32_t": ctypes.c_int32}


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_uint), ("value", ctypes.c_uint * 3))


class _Map(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("extents", ctypes.c_uint64 * 3),
        ("strides", ctypes.c_uint64 * 2),
        ("type", ctypes.c_uint),
        ("rank", ctypes.c_uint),
        ("box", ctypes.c_uint * 3),
        ("swizzle", ctypes.c_uint),
    )


class Recorded(ctypes.Structure):
    """The variable `recorded` of the fake driver: the last launch, tensor maps and cleared memory.

    Before a launch, the test stores how many arguments the kernel has and their sizes in bytes.
    """

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid", "block", "shared", "count")),
        ("attributes", _Attribute * 3),
        ("stream", ctypes.c_void_p),
        ("arguments", ctypes.c_uint),
        ("sizes", ctypes.c_uint * 128),
        ("values", ctypes.c_uint64 * 128),
        ("maps", ctypes.c_uint),
        ("encoded", _Map * 16),
        ("cleared", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("resident", ctypes.c_int),
        ("capability", ctypes.c_int),
    )


class _Kernel(ctypes.Structure):
    _fields_ = (
        ("module", ctypes.c_void_p),
        ("function", ctypes.c_void_p),
        ("resident", ctypes.c_int),
    )


def cuda_headers() -> Path:
    """The folder with cuda.h: of a CUDA toolkit or a wheel; skips the test if there is none."""
    for compiler in ("cc", "c++"):
        if shutil.which(compiler) is None:
            pytest.skip(f"no C compiler: {compiler} is not installed")
    wheels = find_spec("nvidia")
    roots = [Path(root) for root in (wheels and wheels.submodule_search_locations) or ()]
    for folder in (TOOLKIT / "include", *(f for root in roots for f in root.glob("*/include"))):
        if (folder / "cuda.h").exists():
            return folder
    pytest.skip("no cuda.h: neither a CUDA toolkit nor the wheel nvidia-cuda-runtime is installed")


def compile_c(*arguments: str | Path, compiler: str = "cc") -> None:
    """Run a C or C++ compiler with all warnings as errors."""
    _run(compiler, *FLAGS, f"-I{cuda_headers()}", *arguments)


def compile_example(exported: Exported, program: Path) -> None:
    """Compile and link the example program of an exported kernel.

    The compiler is nvcc of the CUDA toolkit if it is installed, else cc and c++.

    Args:
        exported: what `codegen.export.export` has written.
        program: the path of the program.
    """
    (source,) = (path for base, path in exported.files.items() if base.endswith(".c"))
    example, made = exported.files["example.cpp"], program.with_suffix(".o")
    nvcc = shutil.which("nvcc", path=f"{TOOLKIT / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}")
    if nvcc is None:
        compile_c("-std=c11", "-c", source, "-o", made)
        link = _link(TOOLKIT)
        compile_c("-std=c++17", example, made, *link, "-o", program, compiler="c++")
        return
    options = ("-O1", "-Xcompiler", "-Wall,-Wextra,-Werror")
    _run(nvcc, *options, "-c", source, "-o", made)
    link = _link(Path(nvcc).resolve().parents[1])
    _run(nvcc, *options, "-std=c++17", example, made, *link, "-o", program)


def _link(toolkit: Path) -> tuple[str, ...]:
    """Options that link the CUDA driver: the toolkit's stub, or the driver of this process."""
    folders = (toolkit / name / "stubs" for name in ("lib64", "lib"))
    stubs = next((folder for folder in folders if (folder / "libcuda.so").exists()), None)
    if stubs is not None:
        return f"-L{stubs}", "-lcuda"
    maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
    loaded = next((Path(line.split()[-1]) for line in maps if "/libcuda.so" in line), None)
    return ("-lcuda",) if loaded is None else (f"-L{loaded.parent}", f"-l:{loaded.name}")


def _run(*command: str | Path) -> None:
    """Run a compiler, and fail with its messages if it fails."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@dataclass
class Library:
    """The exported functions of a kernel, compiled with a fake CUDA driver.

    Args:
        exported: what `codegen.export.export` has written.
        resident: how many workgroups the fake GPU runs at once.
    """

    exported: Exported
    resident: int = 132

    def __post_init__(self) -> None:
        name, files = self.exported.recipe.name, self.exported.files
        made = files[f"{name}.c"].with_name("launcher.so")
        compile_c("-std=c11", "-shared", "-fPIC", "-Wl,-Bsymbolic", files[f"{name}.c"], FAKE,
                  "-o", made)  # fmt: skip
        self.name, self.code = name, ctypes.CDLL(str(made))
        self.recorded = Recorded.in_dll(self.code, "recorded")
        self.recorded.resident = self.resident
        self.kernel = _Kernel()
        assert self.function("load")(ctypes.byref(self.kernel), b"image") == 0

    def function(self, name: str) -> Any:
        """An exported function, by its name without the prefix."""
        return getattr(self.code, f"{self.name}_{name}")

    def arguments(self, **values: Any) -> ctypes.Structure:
        """The struct of a launch's arguments; members that are not given are 0."""
        recipe = self.exported.recipe
        members: list[tuple[str, Any]] = [(c_name(p.name), ctypes.c_int64) for p in recipe.given]
        members += [(c_name(t.name), ctypes.c_uint64) for t in recipe.arguments]
        members += [(c_name(name), C[c_type(kind)]) for name, kind in recipe.facts.floats]
        kind = type("Arguments", (ctypes.Structure,), {"_fields_": members})
        made = kind()
        for name, value in values.items():
            assert name in dict(members), f"{name} is not one of {[n for n, _ in members]}"
            setattr(made, name, value)
        return made

    def problem(self, arguments: ctypes.Structure) -> str | None:
        """The error message of the exported function `NAME_problem`; None for valid arguments."""
        ask = self.function("problem")
        ask.restype = ctypes.c_char_p
        found = ask(ctypes.byref(self.kernel), ctypes.byref(arguments))
        return None if found is None else found.decode()

    def workspace(self, arguments: ctypes.Structure) -> int:
        """The size in bytes of the workspace that a launch needs."""
        size = ctypes.c_size_t()
        ask = self.function("workspace_size")
        assert ask(ctypes.byref(self.kernel), ctypes.byref(arguments), ctypes.byref(size)) == 0
        return size.value

    def launch(self, arguments: ctypes.Structure, workspace: int, stream: int = 0) -> int:
        """Launch the kernel; return the CUresult of the exported function, 0 for success."""
        facts, recorded = self.exported.recipe.facts, self.recorded
        scalars = [ctypes.sizeof(C[c_type(kind)]) for _, kind in facts.floats]
        integers = [8] * (len(facts.scalars) + 2 * len(facts.divisors))
        pointers = [8] * (len(facts.tensors) + len(self.exported.recipe.boxes))
        sizes = [*pointers, *scalars, *integers]
        recorded.arguments, recorded.maps = len(sizes), 0
        for place, size in enumerate(sizes):
            recorded.sizes[place], recorded.values[place] = size, 0
        where = ctypes.c_uint64(workspace), ctypes.c_void_p(stream)
        return self.function("launch")(ctypes.byref(self.kernel), ctypes.byref(arguments), *where)
