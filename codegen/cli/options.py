"""Options that several commands take: the problem, the schedule, the target, input and output."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codegen.cli.completion import schedules, targets
from codegen.cli.names import GROUP_NAMES, TARGET_NAMES, import_lowerings
from coordgraph import CoordGraphError
from coordgraph.elements import DTYPES, dtype

if TYPE_CHECKING:
    from coordgraph import Gemm, KernelGraph
    from coordgraph.gemm import GemmProblem
    from passes.pipeline import Instrument, Pipeline

__all__ = [
    "DEFAULT_SCHEDULE",
    "PROBLEM",
    "Alpha",
    "Batches",
    "Beta",
    "Checked",
    "Events",
    "Extents",
    "Fixed",
    "Import",
    "Instructions",
    "Json",
    "Ordinal",
    "Problem",
    "ReadsC",
    "Scheduling",
    "Seed",
    "Source",
    "StageName",
    "Threads",
    "output_option",
    "read_pipeline",
    "target_option",
]

DEFAULT_SCHEDULE = "two-tile-stream-k"
PROBLEM, SCHEDULE = "Problem", "Schedule and target"


def _dtype(text: str) -> str:
    return _one_of(text, _OPERANDS)


def _out_dtype(text: str) -> str:
    return _one_of(text, _RESULTS)


def _one_of(text: str, known: tuple[str, ...]) -> str:
    try:
        if (found := dtype(text).name) in known:
            return found
    except CoordGraphError:
        pass
    raise typer.BadParameter(f"'{text}' is not one of the types {', '.join(known)}")


def _tile(text: str) -> tuple[int, int, int]:
    found = re.fullmatch(r"(\d{1,9})x(\d{1,9})x(\d{1,9})", text)
    if not found or "0" in found.groups():
        raise typer.BadParameter(f"'{text}' is not three positive numbers such as 128x128x32")
    m, n, k = map(int, found.groups())
    return m, n, k


def _groups(text: str) -> str:
    if text not in ("", *GROUP_NAMES):
        *first, last = GROUP_NAMES
        raise typer.BadParameter(f"groups may divide {', '.join(first)} or {last}, not '{text}'")
    return text


def _target(text: str) -> str:
    if text in TARGET_NAMES or re.fullmatch(r"sm_\d{2,3}[af]?", text):
        return text
    from codegen.api import TARGETS  # TARGETS has also the architectures of other packages

    if text not in TARGETS:
        raise typer.BadParameter(f"'{text}' is not a target; there are {', '.join(TARGETS)}")
    return text


def _import(modules: list[str] | None) -> list[str] | None:
    """Import modules, which registers the passes and edges that they define."""
    if modules and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # last in the search path, after installed modules
    for module in modules or ():
        if module.endswith(".py") or os.sep in module:
            path = Path(module)
            raise typer.BadParameter(
                f"'{module}' is a file; give the name of its module, {path.stem}, and start in its "
                f"folder, {path.resolve().parent}, or set PYTHONPATH to that"
            )
        try:
            import_module(module)
        except Exception as error:  # a module may raise anything while it is imported
            raise typer.BadParameter(
                f"--import {module}: the import failed: {type(error).__name__}: {error}; correct "
                "the module or its name"
            ) from error
    return modules


_OPERANDS = tuple(d.name for d in DTYPES.values() if d.operand)
_RESULTS = tuple(
    d.name
    for d in DTYPES.values()
    if any(x.operand and DTYPES[x.accumulator].becomes(d) for x in DTYPES.values())
)
TYPES, OUT_TYPES = "|".join(_OPERANDS), "|".join(_RESULTS)
M = Annotated[int | None, typer.Option("--m", min=1, help="Rows of A.", rich_help_panel=PROBLEM)]
N = Annotated[int | None, typer.Option("--n", min=1, help="Columns of B.", rich_help_panel=PROBLEM)]
K = Annotated[
    int | None,
    typer.Option("--k", min=0, help="Columns of A, rows of B.", rich_help_panel=PROBLEM),
]
DType = Annotated[
    str,
    typer.Option(
        "--dtype", parser=_dtype, metavar=TYPES, help="Type of A and B.", rich_help_panel=PROBLEM
    ),
]
OutDType = Annotated[
    str | None,
    typer.Option(
        "--out-dtype",
        parser=_out_dtype,
        metavar=OUT_TYPES,
        help="Type of C and D. By default that of A and B, or i32 if A and B are integers.",
        rich_help_panel=PROBLEM,
    ),
]
TransposeA = Annotated[
    bool,
    typer.Option(
        "--transpose-a", help="A is stored as its transpose, k x m.", rich_help_panel=PROBLEM
    ),
]
TransposeB = Annotated[
    bool,
    typer.Option(
        "--transpose-b", help="B is stored as its transpose, n x k.", rich_help_panel=PROBLEM
    ),
]
Batched = Annotated[
    bool,
    typer.Option(
        "--batched",
        help="The problem is a batch of products of the same shape.",
        rich_help_panel=PROBLEM,
    ),
]
Groups = Annotated[
    str,
    typer.Option(
        "--groups",
        parser=_groups,
        metavar="|".join(GROUP_NAMES),
        help="Grouped products: extents along m, along k, or along m, n and k are data in device "
        "memory.",
        show_default=False,
        rich_help_panel=PROBLEM,
    ),
]
Batches = Annotated[
    int | None,
    typer.Option(
        "--batches", min=1, help="The number of products of a batch.", rich_help_panel=PROBLEM
    ),
]
Extents = Annotated[
    str | None,
    typer.Option(
        "--extents",
        metavar="E,E,…",
        help="With --groups m or k: the extent of each group along that axis, as 200,0,56. With "
        "--groups mnk: m, n and k of each product, as 64x96x128,32x200x8.",
        rich_help_panel=PROBLEM,
    ),
]
Fixed = Annotated[
    bool,
    typer.Option(
        "--fixed",
        help="Compile the kernel for these sizes only; by default sizes are launch arguments.",
        rich_help_panel=PROBLEM,
    ),
]
Tile = Annotated[
    Any,
    typer.Option(
        "--tile",
        parser=_tile,
        metavar="MxNxK",
        help="Extents of the macro tile in m, n and k. By default 128x128 and 128 bytes of k "
        "(128x128x64 for bf16) on every target, with fewer rows or columns where --m or --n is "
        "small.",
        rich_help_panel=SCHEDULE,
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        "-s",
        metavar="PIPELINE",
        autocompletion=schedules,
        help="A pass or several, as in 'reorder,stream-k{owner=last}'. By default "
        f"{DEFAULT_SCHEDULE}, unless a plan or a graph is given.",
        show_default=False,
        rich_help_panel=SCHEDULE,
    ),
]
PlanText = Annotated[
    str | None,
    typer.Option(
        "--plan",
        metavar="PLAN",
        help="Tile, cluster, passes and grid in one text, as 'coordgraph explain' prints it: "
        "'256x256x64@c2x1 stream-k{owner=last} on 66'. auto is the plan that codegen.matmul "
        "chooses.",
        rich_help_panel=SCHEDULE,
    ),
]
Workgroups = Annotated[
    int | None,
    typer.Option(
        "--workgroups",
        "-w",
        min=1,
        help="The number of workgroups, for passes with the option 'workgroups'.",
        rich_help_panel=SCHEDULE,
    ),
]
Import = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        callback=_import,
        is_eager=True,
        help="A Python module that defines passes or edges; may be given more than once. The "
        "current folder is searched too.",
        rich_help_panel=SCHEDULE,
    ),
]


def target_option(text: str, complete: Callable[[str], list[str]]) -> Any:
    """Make the option --target: `text` is its help, `complete` lists values for the shell."""
    return typer.Option(
        "--target",
        "-t",
        parser=_target,
        metavar="TARGET",
        autocompletion=complete,
        help=text,
        rich_help_panel=SCHEDULE,
    )


Target = Annotated[
    str,
    target_option(
        f"What to compile for: {', '.join(TARGET_NAMES[:-1])}, or native, the GPU of this machine "
        "if it has one that multiplies the type, else the CPU.",
        targets,
    ),
]
Instructions = Annotated[
    str | None,
    typer.Option(
        "--instructions",
        metavar="NAME",
        help="The instructions that must multiply, wgmma or mma.sync. Without it a kernel for "
        "sm_90a uses mma.sync where wgmma cannot multiply the tile or the matrices.",
        rich_help_panel=SCHEDULE,
    ),
]
Alpha = Annotated[float, typer.Option("--alpha", help="Factor of A@B.", rich_help_panel=PROBLEM)]
Beta = Annotated[
    float,
    typer.Option(
        "--beta",
        help="Factor of C; 0 means that C is not read.",
        rich_help_panel=PROBLEM,
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FILE|-",
        help="Read the graph from a file in the text form or as JSON; - is stdin. 'compile' and "
        "'run' need a scheduled graph.",
    ),
]
StageName = Annotated[
    str | None,
    typer.Option(
        "--stage",
        metavar="N|PASS",
        help="0 is the graph before the first pass, N the graph after the Nth pass; by default the "
        "last stage. 'show' also has the stage 'lowered', from which code is generated.",
    ),
]
Events = Annotated[
    Path | None,
    typer.Option(
        "--events",
        metavar="FILE",
        help="Write all events as JSON columns: begin, end, workgroup, slot, activity, tile.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, help="Seed of the random matrices.", rich_help_panel=PROBLEM)
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads on the CPU; by default one for each processor."),
]
Checked = Annotated[
    bool, typer.Option("--check", help="Compare with numpy in 64 bits; exit 1 if wrong.")
]
ReadsC = Annotated[bool, typer.Option("--reads-c", help="Calls add C or another matrix.")]
Ordinal = Annotated[int, typer.Option("--ordinal", min=0, help="The number of the GPU.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@dataclass(frozen=True)
class Problem:
    """The options that describe a problem; a size that is not given is None and stays a symbol."""

    m: M = None
    n: N = None
    k: K = None
    dtype: DType = "bf16"
    out_dtype: OutDType = None
    transpose_a: TransposeA = False
    transpose_b: TransposeB = False
    batched: Batched = False
    groups: Groups = ""

    @property
    def single(self) -> bool:
        """Whether the problem is one product, neither a batch nor groups."""
        return not (self.batched or self.groups)

    def gemm(self, *, fixed: bool) -> Gemm:
        """The problem as a `Gemm`; sizes are constants if `fixed`, else launch arguments."""
        from coordgraph import Gemm

        m, n, k = (self.m, self.n, self.k) if fixed else (None, None, None)
        return Gemm(
            *(self.dtype, self.out_dtype, m, n, k, self.transpose_a, self.transpose_b),
            batched=self.batched,
            grouped=bool(self.groups),
            group_axis=self.groups or "m",
        )

    def of(self, gemm: GemmProblem) -> Problem:
        """A copy of this `Problem` with the types, layouts and fixed sizes of `gemm`."""
        return replace(
            self,
            m=self.m if gemm.m is None else gemm.m,
            n=self.n if gemm.n is None else gemm.n,
            k=self.k if gemm.k is None else gemm.k,
            dtype=gemm.dtype,
            out_dtype=gemm.out_dtype,
            transpose_a=gemm.transpose_a,
            transpose_b=gemm.transpose_b,
            batched=gemm.batched,
            groups=gemm.group_axis if gemm.grouped else "",
        )

    def graph(self, tile: tuple[int, int, int] | None, *, fixed: bool) -> KernelGraph:
        """The graph before any schedule; if `tile` is None, tiles have the shape `default_tile`."""
        from coordgraph.frontend import default_tile

        return self.gemm(fixed=fixed).graph(tile or default_tile(self.dtype, (self.m, self.n)))


@dataclass(frozen=True)
class Scheduling:
    """The options that give the schedule or the plan, and the target."""

    schedule: Schedule = None
    workgroups: Workgroups = None
    tile: Tile = None
    plan: PlanText = None
    target: Target = "native"


def output_option(text: str, metavar: str = "FILE") -> Any:
    """The option --output of one command, whose help is `text`."""
    return typer.Option("--output", "-o", metavar=metavar, help=text)


def read_pipeline(
    text: str, workgroups: int | None = None, instruments: Iterable[Instrument] = ()
) -> Pipeline:
    """Parse the text of a pipeline.

    Args:
        text: the text, as in `reorder{swap=true},stream-k`.
        workgroups: the value of --workgroups for passes with that option, or None.
        instruments: called by the pipeline after each pass.

    Raises:
        ParseError: the text is malformed, or names an unknown pass or option.
        typer.BadParameter: no pass has the option `workgroups`, or the text gives another number.
    """
    from passes import Pipeline

    import_lowerings()
    instruments = tuple(instruments)
    parsed = Pipeline.parse(text, instruments)
    if workgroups is None:
        return parsed
    takers = [p for p in parsed.passes if "workgroups" in {f.name for f in fields(p)}]
    if not takers:
        raise typer.BadParameter(
            f"no pass of '{parsed}' has the option 'workgroups'; leave --workgroups out"
        )
    for taker in takers:
        if getattr(taker, "workgroups") not in (None, workgroups):  # noqa: B009
            raise typer.BadParameter(
                f"'{taker}' and --workgroups {workgroups} contradict each other; give one of them"
            )
    filled = [replace(p, workgroups=workgroups) if p in takers else p for p in parsed.passes]  # type: ignore[call-arg]
    return Pipeline(filled, instruments)
