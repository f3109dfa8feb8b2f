"""`export`: compiles a kernel to machine code, and writes the folder for C and C++ programs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from codegen.architectures import architecture_of
from codegen.export.example import example, makefile
from codegen.export.launcher import header, implementation
from codegen.export.recipe import Recipe, refuse
from codegen.kernel import Kernel
from codegen.targets.nvptx import CudaKernel
from codegen.targets.nvptx.facts import Facts
from codegen.toolchain import PtxasReport, ptxas_version
from coordgraph import CodegenError
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["Exported", "export"]

ALIGNMENTS = (1, ALIGNED_BYTES)
"""The values, in bytes, of the argument `alignment` of `export`."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
"""The names that an exported kernel may have: its C functions and types begin with the name."""


@dataclass(frozen=True)
class Exported:
    """What `export` has written.

    Attributes:
        files: the paths of the files, by base name.
        recipe: how a program launches the kernel.
        report: what ptxas reports about the kernel: registers, spills and warnings.
    """

    files: Mapping[str, Path]
    recipe: Recipe = field(repr=False)
    report: PtxasReport = field(repr=False)


def export(
    kernel: Kernel,
    folder: str | Path,
    *,
    name: str = "gemm",
    alignment: int = ALIGNED_BYTES,
    reads_c: bool = False,
    workgroups: int | None = None,
) -> Exported:
    """Write a compiled kernel as machine code with C functions that load and launch it.

    The folder gets `NAME.cubin`, `NAME.h`, `NAME.c`, `launch.json`, `example.cpp` and a
    `Makefile`; files of these names are overwritten. No GPU is needed, but ptxas is.

    Args:
        kernel: a kernel that `codegen.compile` made for a GPU architecture, such as `sm_90a`.
        folder: the folder to write to; it is created if it does not exist.
        name: the prefix of the C functions, and the base name of the files.
        alignment: 16 for the fastest code, which needs addresses and rows that are multiples of 16
            bytes; 1 for code without this condition.
        reads_c: whether launches may pass C.
        workgroups: the number of workgroups of a launch that passes no number, for schedules with
            `workgroups=None`; None for as many as the GPU runs at once.

    Raises:
        CodegenError: an argument has a wrong value, the kernel is for another target or has
            groups, or its registers spill.
        ToolNotFound: ptxas is not installed.
    """
    if not isinstance(kernel, CudaKernel):
        raise CodegenError(
            f"{kernel!r} cannot be exported; export a kernel that codegen.compile made for a GPU "
            "architecture, such as target='sm_90a'"
        )
    if alignment not in ALIGNMENTS:
        raise CodegenError(
            f"alignment = {alignment!r} is neither 16 nor 1; give 16 if addresses and rows of all "
            "matrices are multiples of 16 bytes, else 1"
        )
    if not NAME.fullmatch(name):
        raise CodegenError(
            f"name = {name!r} cannot start C identifiers; use ASCII letters, digits and _, and a "
            "letter first"
        )
    refuse(kernel.graph.gemm)
    program, report = kernel.program(kernel.variant(alignment, reads_c=reads_c)).assembled()
    facts = Facts.of(program)
    if report.spill_stores:
        raise CodegenError(
            f"the kernel spills {report.spill_stores} bytes of registers of each thread to "
            "memory; use a smaller tile"
        )
    recipe = Recipe(
        name,
        kernel.graph.gemm,
        facts,
        architecture=architecture_of(kernel.architecture).assembled_as,
        instructions=kernel.choice(alignment, reads_c=reads_c).family,
        alignment=alignment,
        reads_c=reads_c,
        pipeline=", ".join(kernel.graph.log),
        ptxas=ptxas_version(),
        workgroups=workgroups,
    )
    if recipe.timed:
        raise CodegenError(
            "a kernel with a timeline cannot be exported, because exported C functions do not "
            "read its records; compile it without timeline"
        )
    contents = {
        f"{name}.cubin": report.cubin,
        f"{name}.h": header(recipe).encode(),
        f"{name}.c": implementation(recipe).encode(),
        "example.cpp": example(recipe).encode(),
        "Makefile": makefile(recipe).encode(),
        "launch.json": (json.dumps(recipe.to_json(), indent=2) + "\n").encode(),
    }
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    files = {base: where / base for base in contents}
    for base, path in files.items():
        path.write_bytes(contents[base])
    return Exported(files, recipe, report)
