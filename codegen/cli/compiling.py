"""`coordgraph compile`: the code of a kernel, and its registers, spills and shared memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from codegen.cli.option_groups import takes_groups
from codegen.cli.options import (
    Import,
    Instructions,
    Json,
    Problem,
    Scheduling,
    Source,
    output_option,
)
from codegen.cli.output import duration, print_block, print_json, stderr, working, write_document
from coordgraph import CodegenError

if TYPE_CHECKING:
    from codegen.cli.scheduled import Scheduled
    from codegen.kernel import Kernel
    from codegen.toolchain import PtxasReport

__all__ = ["Emit", "compile_command"]


class Emit(StrEnum):
    """The forms of a kernel that `coordgraph compile --emit` can write, such as PTX."""

    PTX = "ptx"
    LLVM = "llvm"
    ASM = "asm"
    SASS = "sass"
    INDEX = "index"
    GRAPH = "graph"


SUFFIX = {
    Emit.PTX: "ptx",
    Emit.LLVM: "ll",
    Emit.ASM: "s",
    Emit.SASS: "sass",
    Emit.INDEX: "index.txt",
    Emit.GRAPH: "graph.txt",
}


@takes_groups()
def compile_command(
    *,
    emit: Annotated[
        list[Emit] | None,
        typer.Option(
            "--emit",
            "-e",
            help="What to write: PTX, LLVM IR, the host's assembly, SASS (needs ptxas and "
            "cuobjdump), index expressions or the lowered graph. May be given more than once.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        output_option(
            "The file to write to, or a folder for several documents; by default stdout.",
            "FILE|DIR",
        ),
    ] = None,
    source: Source = None,
    scheduling: Scheduling,
    problem: Problem,
    instructions: Instructions = None,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Compile a kernel and write its code. Compiling for a GPU needs no GPU.

    Sizes that are given are constants in the code; the others are launch arguments. A report on
    stderr gives the instructions that multiply, and registers, spills and warnings if ptxas is
    installed.

    [bold]Examples[/]

      coordgraph compile --target sm_90a --emit ptx -o kernel.ptx
      coordgraph compile --target cpu --emit asm | less
      coordgraph compile --target sm_80 -e ptx -e sass -e index -o code
      coordgraph compile --target sm_90a --plan '256x256x64@c2x1 stream-k{owner=last}' -e ptx
      coordgraph compile --target sm_90a --plan auto --m 2048 --n 2304 --k 8192 -e ptx
      coordgraph compile --target sm_90a --groups k --transpose-a -s data-parallel -e ptx
      coordgraph compile --target sm_90a --tile 128x256x64 --instructions wgmma
    """
    from codegen.cli.scheduled import from_file, scheduled
    from codegen.cli.targets import resolve

    wanted = list(dict.fromkeys(emit or ()))
    target = resolve(scheduling.target, problem.dtype)
    if source is None:
        made = scheduled(problem, replace(scheduling, target=target), fixed=True)
    else:
        made = from_file(problem, scheduling, source)
    if output is not None and not wanted:
        kinds = ", ".join(kind.value for kind in Emit)
        raise typer.BadParameter(
            f"--output is given without --emit; add --emit with one or more of {kinds}"
        )
    if len(wanted) > 1 and output is None and not as_json:
        raise typer.BadParameter(
            "--emit is given several times, which needs a folder; give --output DIR"
        )
    _possible(wanted, target)
    start = time.perf_counter()
    with working(f"compiling for {target}"):
        kernel = made.compile(target, instructions=instructions)
        if target.startswith("sm_"):
            kernel.ptx  # noqa: B018 - generates it
        seconds = time.perf_counter() - start
        code = {kind: _WRITERS[kind](kernel) for kind in wanted}
    with working("assembling by ptxas"):
        report = _report(kernel)
    files = _write(code, output, target) if output is not None else {}
    family, notes, at_call = _instructions(made, kernel)
    if as_json:
        found: dict[str, Any] = {"target": target, "instructions": family, "lowering_notes": notes}
        found |= {"instructions_at_call": at_call or family}
        found |= {"seconds": seconds, "compiled": kernel.build_steps}
        found |= {"from_cache": kernel.from_cache, "pipeline": made.graph.log}
        found["plan"] = None if made.plan is None else str(made.plan)
        found["report"] = report
        found["files"] = {kind.value: str(path) for kind, path in files.items()}
        if output is None:
            found["code"] = {kind.value: text for kind, text in code.items()}
        print_json(found)
        return
    if output is None:
        for text in code.values():
            write_document(text, None)
    how = {"code": family, "declined": "\n".join(notes)}
    if at_call:
        how["at a call"] = f"{at_call}: rows of these sizes are no multiples of 16 bytes"
    if made.plan is not None:
        how["plan"] = str(made.plan)
    how["compiled"] = f"in {duration(seconds)}: {kernel.build_steps}"
    _print({"target": target, **how}, report, files)


def _instructions(made: Scheduled, kernel: Kernel) -> tuple[str, tuple[str, ...], str]:
    """The matrix instructions of the written code, why faster ones are not used, and a fallback.

    The written code needs matrices whose rows are multiples of 16 bytes. For other sizes, a call
    of the kernel runs another variant of its code. If that variant has other matrix instructions,
    the last text names these instructions; otherwise it is empty.
    """
    notes: tuple[str, ...] = getattr(kernel, "lowering_notes", ())
    family, at_call = kernel.instruction_family, made.instructions(kernel)[0]
    return family, notes, "" if at_call == family else at_call


def _possible(wanted: list[Emit], target: str) -> None:
    """Check, before compiling, that the target has every requested output, such as PTX or LLVM IR.

    Raises:
        CodegenError: a requested output does not exist for the target.
    """
    gpu = target.startswith("sm_")
    for kind in wanted:
        if kind in (Emit.PTX, Emit.SASS) and not gpu:
            raise CodegenError(
                f"there is no {kind.value} for '{target}'; choose a GPU, such as --target sm_80"
            )
        if kind is Emit.ASM and target != "cpu":
            raise CodegenError(
                f"there is no host assembly for '{target}'; choose --emit ptx or sass"
            )
        if kind is Emit.LLVM and target == "interpreter":
            raise CodegenError(
                "the interpreter compiles nothing; choose --target cpu, sm_80 or later"
            )


def _write(code: dict[Emit, str], output: Path, target: str) -> dict[Emit, Path]:
    """Write a single document to a file, or several to a folder; return the paths."""
    if len(code) <= 1 and not output.is_dir():
        files = dict.fromkeys(code, output)
    else:
        output.mkdir(parents=True, exist_ok=True)
        files = {kind: output / f"gemm.{target}.{SUFFIX[kind]}" for kind in code}
    for kind, path in files.items():
        write_document(code[kind], path)
    return files


def _index(kernel: Kernel) -> str:
    return "".join(f"{line}\n" for line in kernel.index_expressions)


def _assembly(kernel: Kernel) -> str:
    from codegen.targets.cpu import HostKernel

    assert isinstance(kernel, HostKernel)
    return kernel.assembly


def _sass(kernel: Kernel) -> str:
    from codegen.architectures import architecture_of
    from codegen.toolchain import assemble, disassemble

    return disassemble(assemble(kernel.ptx, architecture_of(kernel.target).assembled_as).cubin)


_WRITERS: dict[Emit, Callable[[Kernel], str]] = {
    Emit.PTX: lambda kernel: kernel.ptx,
    Emit.LLVM: lambda kernel: kernel.llvm_ir,
    Emit.ASM: _assembly,
    Emit.SASS: _sass,
    Emit.INDEX: _index,
    Emit.GRAPH: lambda kernel: kernel.lowered.text(),
}


def _report(kernel: Kernel) -> dict[str, Any]:
    """Counts of the kernel's operations, and for GPUs its threads, memory and ptxas's report."""
    operations = len(kernel.lowered.control.operations)
    found: dict[str, Any] = {"operations": operations, "indices": len(kernel.index_expressions)}
    if not kernel.target.startswith("sm_"):
        return found
    from codegen.targets.nvptx import CudaKernel
    from codegen.toolchain import ToolNotFound

    assert isinstance(kernel, CudaKernel)
    program = kernel.program()
    found |= {"threads": program.threads, "shared_bytes": program.shared_bytes}
    try:
        used: PtxasReport = program.report()
    except ToolNotFound as error:
        found["ptxas"] = None
        found["note"] = str(error)
        return found
    found["ptxas"] = {
        "registers": max(used.registers.values(), default=None),
        "spill_stores": used.spill_stores,
        "spill_loads": used.spill_loads,
        "stack_frame": used.stack_frame,
        "warnings": used.warnings,
        "cubin_bytes": len(used.cubin),
    }
    return found


def _print(head: dict[str, str], report: dict[str, Any], files: dict[Emit, Path]) -> None:
    """Print the report on stderr, since stdout may hold code."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    for label, text in head.items():
        if text:
            table.add_row(label, Text(text))
    ptxas = report.pop("ptxas", {})
    if "note" in report:  # ptxas has not run; the note says why
        report["ptxas"] = report.pop("note")
    for label, value in report.items():
        table.add_row(label.replace("_", " "), Text(str(value)))
    for label, value in (ptxas or {}).items():
        bad = label != "registers" and label != "cubin_bytes" and value
        text = "\n".join(value) if isinstance(value, tuple) else str(value)
        table.add_row(label.replace("_", " "), Text(text or "none", "red" if bad else ""))
    for kind, path in files.items():
        table.add_row(kind.value, Text(str(path)))
    print_block(table, stderr())
