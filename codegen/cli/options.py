"""Options that commands share, and what they mean: problems, pipelines, targets."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codegen.cli import completion
from coordgraph import CoordGraphError
from coordgraph.elements import DTYPES, dtype

if TYPE_CHECKING:
    from coordgraph import Gemm, KernelGraph
    from passes.base import Pass
    from passes.pipeline import Instrument, Pipeline

__all__ = [
    "DEFAULT_SCHEDULE",
    "PROBLEM",
    "Alpha",
    "Batches",
    "Beta",
    "Extents",
    "Fixed",
    "Import",
    "Json",
    "Output",
    "Problem",
    "Scheduling",
    "Source",
    "StageName",
    "default_tile",
    "read_pipeline",
    "registered_passes",
]

DEFAULT_SCHEDULE = "two-tile-stream-k"
PROBLEM, SCHEDULE = "Problem", "Schedule and target"
# Copies of `codegen.TARGETS` and `coordgraph.gemm.GROUP_AXES`, whose modules load sympy: help and
# completion do without. A test holds them to the originals.
TARGET_NAMES = (
    *("interpreter", "cpu", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a"),
    *("sm_100", "sm_120", "native"),
)
GROUP_NAMES = ("m", "k", "mnk")
GPU_TILE, HOST_TILE = (128, 256, 64), (256, 256, 64)
SMALLEST_TILE = 16
"""What the matrix instructions of every target divide."""


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
    raise typer.BadParameter(f"'{text}' is no type of these matrices; there are {', '.join(known)}")


def _tile(text: str) -> tuple[int, int, int]:
    found = re.fullmatch(r"(\d{1,9})x(\d{1,9})x(\d{1,9})", text)
    if not found or "0" in found.groups():
        raise typer.BadParameter(f"'{text}' is not three positive numbers such as 128x128x32")
    m, n, k = map(int, found.groups())
    return m, n, k


def _groups(text: str) -> str:
    if text not in ("", *GROUP_NAMES):
        *first, last = GROUP_NAMES
        raise typer.BadParameter(f"groups part {', '.join(first)} or {last}, not '{text}'")
    return text


def _target(text: str) -> str:
    if text in TARGET_NAMES or re.fullmatch(r"sm_\d{2,3}[af]?", text):
        return text
    from codegen.api import TARGETS  # with architectures from outside

    if text not in TARGETS:
        raise typer.BadParameter(f"'{text}' is none of {', '.join(TARGETS)}")
    return text


def _import(modules: list[str] | None) -> list[str] | None:
    """Import modules: to define a pass or an edge is to register it."""
    if modules and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # what is installed goes before it
    for module in modules or ():
        try:
            import_module(module)
        except Exception as error:  # whatever the module does wrong
            raise typer.BadParameter(f"{module}: {type(error).__name__}: {error}") from error
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
        "--dtype", parser=_dtype, metavar=TYPES, help="Of A and B.", rich_help_panel=PROBLEM
    ),
]
OutDType = Annotated[
    str | None,
    typer.Option(
        "--out-dtype",
        parser=_out_dtype,
        metavar=OUT_TYPES,
        help="Of C and D; as A and B where not given, or i32 where these are integers.",
        rich_help_panel=PROBLEM,
    ),
]
TransposeA = Annotated[
    bool,
    typer.Option("--transpose-a", help="A is given as k x m.", rich_help_panel=PROBLEM),
]
TransposeB = Annotated[
    bool,
    typer.Option("--transpose-b", help="B is given as n x k.", rich_help_panel=PROBLEM),
]
Batched = Annotated[
    bool,
    typer.Option("--batched", help="Many products of one shape.", rich_help_panel=PROBLEM),
]
Groups = Annotated[
    str,
    typer.Option(
        "--groups",
        parser=_groups,
        metavar="|".join(GROUP_NAMES),
        help="Many products whose extent along this axis, or along all of them, is data.",
        show_default=False,
        rich_help_panel=PROBLEM,
    ),
]
Batches = Annotated[
    int | None,
    typer.Option("--batches", min=1, help="A batch of so many products.", rich_help_panel=PROBLEM),
]
Extents = Annotated[
    str | None,
    typer.Option(
        "--extents",
        metavar="E,E,…",
        help="With --groups: the extent of each group along that axis, as 200,0,56; of groups "
        "along mnk those of each product, as 64x96x128,32x200x8.",
        rich_help_panel=PROBLEM,
    ),
]
Fixed = Annotated[
    bool,
    typer.Option(
        "--fixed",
        help="Make the kernel for these sizes only; sizes are launch arguments otherwise.",
        rich_help_panel=PROBLEM,
    ),
]
Tile = Annotated[
    Any,
    typer.Option(
        "--tile",
        parser=_tile,
        metavar="MxNxK",
        help="The macro tile; one that suits target and problem where not given.",
        rich_help_panel=SCHEDULE,
    ),
]
Schedule = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        "-s",
        metavar="PIPELINE",
        autocompletion=completion.schedules,
        help="A pass, or several: 'reorder{swap=true},stream-k{workgroups=8}'. "
        f"{DEFAULT_SCHEDULE} where nothing else says how: a plan, or a graph that is read.",
        show_default=False,
        rich_help_panel=SCHEDULE,
    ),
]
PlanText = Annotated[
    str | None,
    typer.Option(
        "--plan",
        metavar="PLAN",
        help="Tile, cluster, passes and grid in one, as 'coordgraph explain' prints them: "
        "'256x256x64@c2x1 stream-k{owner=last} on 66'; or auto for the one that codegen.matmul "
        "chooses for the problem.",
        rich_help_panel=SCHEDULE,
    ),
]
Workgroups = Annotated[
    int | None,
    typer.Option(
        "--workgroups",
        "-w",
        min=1,
        help="The grid, for passes that take one and are not given it in their text.",
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
        help="A Python module to import first, for the passes and edges that it defines; more than "
        "once if wanted. It is looked for in this folder too.",
        rich_help_panel=SCHEDULE,
    ),
]
Target = Annotated[
    str,
    typer.Option(
        "--target",
        "-t",
        parser=_target,
        metavar="TARGET",
        autocompletion=completion.targets,
        help=f"{', '.join(TARGET_NAMES[:-1])}, or native: the GPU if there is one that multiplies "
        "the type, else cpu.",
        rich_help_panel=SCHEDULE,
    ),
]
Alpha = Annotated[float, typer.Option("--alpha", help="Scales A@B.", rich_help_panel=PROBLEM)]
Beta = Annotated[
    float,
    typer.Option(
        "--beta",
        help="Scales C; plans for any but 0 have room for C.",
        rich_help_panel=PROBLEM,
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FILE|-",
        help="A graph to read, in the text form or as JSON; - is stdin. Compile takes a scheduled "
        "one.",
    ),
]
StageName = Annotated[
    str | None,
    typer.Option(
        "--stage",
        metavar="N|PASS",
        help="0 is the graph before any pass, N after the Nth; the last where not given. Show has "
        "one more, lowered: as code is generated from it.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE|DIR",
        help="Write there; stdout where not given. A folder where there are several documents.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@dataclass(frozen=True)
class Problem:
    """The options of a problem; sizes are None where they stay symbols."""

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
        """Whether there is one product."""
        return not (self.batched or self.groups)

    def gemm(self, *, fixed: bool) -> Gemm:
        """The front end's record, with the sizes as numbers or as launch arguments."""
        from coordgraph import Gemm

        m, n, k = (self.m, self.n, self.k) if fixed else (None, None, None)
        return Gemm(
            *(self.dtype, self.out_dtype, m, n, k, self.transpose_a, self.transpose_b),
            batched=self.batched,
            grouped=bool(self.groups),
            group_axis=self.groups or "m",
        )

    def graph(self, tile: tuple[int, int, int] | None, target: str, *, fixed: bool) -> KernelGraph:
        """The graph that schedules start from."""
        return self.gemm(fixed=fixed).graph(tile or default_tile(target, (self.m, self.n, self.k)))


@dataclass(frozen=True)
class Scheduling:
    """The options that say how a problem is computed, and where."""

    schedule: Schedule = None
    workgroups: Workgroups = None
    tile: Tile = None
    plan: PlanText = None
    target: Target = "native"


def default_tile(
    target: str, extents: tuple[int | None, int | None, int | None]
) -> tuple[int, int, int]:
    """A tile that suits the target, halved until the problem fills more than half of it."""

    def fitting(side: int, extent: int | None) -> int:
        while extent is not None and side > SMALLEST_TILE and side // 2 >= extent:
            side //= 2
        return side

    best = GPU_TILE if target.startswith("sm_") else HOST_TILE
    m, n, k = (fitting(*pair) for pair in zip(best, extents, strict=True))
    return m, n, k


def registered_passes() -> dict[str, type[Pass]]:
    """Every pass by name: those of lowering, and of installed distributions, too."""
    _import_lowerings()
    from passes.registry import all_passes

    return all_passes()


def _import_lowerings() -> None:
    """Register the passes of lowering, which `import passes` alone does not load."""
    for module in ("passes.lowering", "passes.lowering.host"):
        import_module(module)


def read_pipeline(
    text: str, workgroups: int | None = None, instruments: Iterable[Instrument] = ()
) -> Pipeline:
    """A pipeline from its text, with `workgroups` put in where passes take them.

    Raises:
        ParseError: the text is malformed, or names an unknown pass or option.
        typer.BadParameter: no pass takes `workgroups`, or the text gives another number.
    """
    from passes import Pipeline

    _import_lowerings()
    instruments = tuple(instruments)
    parsed = Pipeline.parse(text, instruments)
    if workgroups is None:
        return parsed
    takers = [p for p in parsed.passes if "workgroups" in {f.name for f in fields(p)}]
    if not takers:
        raise typer.BadParameter(f"no pass of '{parsed}' takes --workgroups")
    for taker in takers:
        if getattr(taker, "workgroups") not in (None, workgroups):  # noqa: B009
            raise typer.BadParameter(f"'{taker}' says otherwise than --workgroups {workgroups}")
    filled = [replace(p, workgroups=workgroups) if p in takers else p for p in parsed.passes]  # type: ignore[call-arg]
    return Pipeline(filled, instruments)
