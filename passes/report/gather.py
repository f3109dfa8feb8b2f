"""`make_report`: collects the data of an HTML report about one launch of a scheduled graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import prod
from pathlib import Path
from typing import Any, Literal

from coordgraph import KernelGraph, LaunchError, __version__
from coordgraph.difference.alignment import Tree
from coordgraph.kernel import REPORT
from coordgraph.show.html_report import HtmlReport
from coordgraph.text.printer import RecordPrinter
from passes.report.addresses import addresses
from passes.report.causes import alternatives, headline, peak_flops
from passes.report.fitting import check_fit
from passes.report.rewrites import rewrites
from passes.report.terms import terms
from passes.report.timelines import (
    ACTIVITIES,
    Grid,
    Measured,
    dropped_records,
    measured_run,
    simulated_run,
    tilings_of,
)
from passes.simulation import Kernel, Machine, Simulation, simulate

__all__ = ["FORMAT", "Subject", "make_report"]

FORMAT = 3
"""Version of the report's data format; it is raised when a field changes its meaning."""


@dataclass(frozen=True)
class Subject:
    """The graph, launch and machine of a report, and results that are already known.

    Args:
        graph: the scheduled graph.
        problem: the launch arguments by name, such as `m`, `n` and `k`.
        machine: the GPU on which the launch is simulated, or its name.
        tables: the entries of the tables that the graph reads, such as `offsets`.
        kernel: the cluster shape, and whether the consumers are cooperative or ping-pong.
        title: the schedule or the plan as text; '' for the names of the graph's passes.
        measured: the timeline of a real launch, or None.
        lowered: the graph lowered for a target, or None.
        target: the target of `lowered` and `code`, such as `sm_90a`.
        code: the lines of the compiled kernel, each with the number of its operation in `lowered`.
        check: how thoroughly `KernelGraph.check` checks the graph (its argument `level`); None
            leaves out the section on proofs.
    """

    graph: KernelGraph
    problem: Mapping[str, int]
    machine: Machine | str = "NVIDIA H200"
    tables: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    kernel: Kernel = field(default_factory=Kernel)
    title: str = ""
    measured: Measured | None = None
    lowered: KernelGraph | None = None
    target: str = ""
    code: Sequence[tuple[str, int]] = ()
    check: Literal["default", "all"] | None = "default"


def make_report(subject: Subject, path: str | Path | None = None) -> HtmlReport:
    """Make the HTML report of a launch, and write it to `path` if that is given.

    Raises:
        VerifyError: the graph is not scheduled, or `measured` is malformed or of another launch.
        LaunchError: a launch argument is missing or out of bounds, or the machine is unknown.
        PassError: the machine cannot run a kernel with these tiles and element types.
    """
    graph, given = subject.graph, _arguments(subject.graph, subject.problem)
    run = simulate(graph, given, subject.machine, tables=subject.tables, kernel=subject.kernel)
    found = HtmlReport(_data(subject, given, run))
    if path is not None:
        found.save(path)
    return found


@REPORT.implement
def report(
    graph: KernelGraph, path: str | Path | None = None, *, machine: Machine | str, **options: Any
) -> HtmlReport:
    """Make the HTML report of a graph: implements `KernelGraph.report`."""
    own = {f.name for f in fields(Subject)} - {"graph", "problem", "machine"}
    given = {name: options.pop(name) for name in own & set(options)}
    known = {p.name for p in graph.parameters.given}
    if unknown := sorted(set(options) - known - set("mnk")):
        raise LaunchError(
            f"report() has no argument {', '.join(unknown)}; give launch arguments "
            f"({', '.join(sorted(known))}) or {', '.join(sorted(own))}"
        )
    return make_report(Subject(graph, options, machine, **given), path)


def _arguments(graph: KernelGraph, problem: Mapping[str, int]) -> dict[str, int]:
    """The launch arguments, completed by the sizes that the graph fixes.

    Raises:
        LaunchError: a size is missing.
    """
    wanted = [p.name for p in graph.parameters.given]
    missing = [axis for axis in "mnk" if axis in wanted and axis not in problem]
    if missing:
        example = ", ".join(f"{axis}=4096" for axis in missing)
        raise LaunchError(
            f"the report is about one launch: give {', '.join(missing)}, as in report(path, "
            f"{example})"
        )
    return {name: value for name, value in problem.items() if name in wanted}


def _data(subject: Subject, given: Mapping[str, int], run: Simulation) -> dict[str, Any]:
    graph, machine = subject.graph, run.machine
    shapes = [tuple(t.shape) for t in graph.tilings]
    tiles = tilings_of(run, shapes)
    grid = _grid(graph, shapes, given)
    simulated = simulated_run(run, grid)
    measured = None
    if subject.measured is not None:
        measured = measured_run(subject.measured, simulated, grid)
        check_fit(measured["events"], run.steps, complete=not dropped_records(subject.measured))
    runs = [simulated, *([measured] if measured else [])]
    deepest = graph if subject.lowered is None else subject.lowered
    peak = peak_flops(machine, graph.gemm.dtype)
    others = alternatives(graph, given, run, subject.kernel, subject.tables)
    predicted = terms(graph, given, run, subject.kernel, runs)
    bounds = {row["name"]: row["model"] for row in predicted["limits"] if row["name"] != "loop"}
    schedule = subject.title or ", ".join(graph.log)
    return {
        "format": FORMAT,
        "version": __version__,
        "title": f"{_product(tiles['products'])} {graph.gemm.dtype} · {schedule}",
        "problem": _problem(graph, tiles["products"], given),
        "schedule": schedule,
        "machine": _machine(machine, run, subject.kernel),
        "headline": headline(measured or simulated, run, tiles["count"], others, peak, bounds),
        "activities": list(ACTIVITIES),
        "runs": runs,
        "tiles": tiles,
        "terms": predicted,
        "passes": rewrites(deepest),
        "addresses": addresses(
            deepest, {"workgroups": run.steps.workgroups, **given, **subject.tables}
        ),
        "addresses_of": deepest.level,
        "code": _code(subject),
        "proofs": _proofs(subject),
    }


def _proofs(subject: Subject) -> dict[str, Any] | None:
    """Data of the section on proofs: checks of the graph and, if it is compiled, of its lowering.

    The result is None if the report has no such section.
    """
    if subject.check is None:
        return None
    found = subject.graph.check(level=subject.check).json()
    if subject.lowered is None:
        return found
    below = subject.lowered.check(level=subject.check).json()
    verdicts = [{**each, "check": f"{each['check']} (lowered)"} for each in below["verdicts"]]
    return {
        **found,
        "refuted": found["refuted"] or below["refuted"],
        "verdicts": [*found["verdicts"], *verdicts],
        "seconds": found["seconds"] + below["seconds"],
    }


def _grid(
    graph: KernelGraph, shapes: Sequence[tuple[int, ...]], given: Mapping[str, int]
) -> Grid | None:
    """How tiles of these shapes divide D, as a `Grid`; None if m or n is not known."""
    m, n = (given.get(axis, getattr(graph.gemm, axis)) for axis in "mn")
    return Grid(shapes, m, n) if isinstance(m, int) and isinstance(n, int) else None


def _code(subject: Subject) -> dict[str, Any] | None:
    """Data of the report's section on compiled code; None if the report has no compiled code.

    For each line of the code, `of` has the number of the operation that it was generated from.
    """
    if subject.lowered is None or not subject.code:
        return None
    tree, line = Tree(subject.lowered.control), RecordPrinter().operation
    operations = zip(tree.operations, tree.depths, strict=True)
    return {
        "target": subject.target,
        "operations": [{"line": line(op), "depth": depth} for op, depth in operations],
        "lines": [text for text, _ in subject.code],
        "of": [number for _, number in subject.code],
    }


def _product(products: Sequence[Sequence[int]]) -> str:
    first = " × ".join(map(str, products[0]))
    return first if len(products) == 1 else f"{len(products)} products, {first}"


def _problem(
    graph: KernelGraph, products: Sequence[Sequence[int]], given: Mapping[str, int]
) -> dict[str, Any]:
    gemm = graph.gemm
    sizes = [given.get(a, getattr(gemm, a)) for a in "mnk"]
    if len(products) == 1 and all(isinstance(size, int) for size in sizes):
        products = [[int(size or 0) for size in sizes]]
    return {
        "text": _product(products),
        "arguments": dict(given),
        "dtype": gemm.dtype,
        "out_dtype": gemm.out_dtype or gemm.dtype,
        "accumulator": gemm.accumulator,
        "transpose_a": gemm.transpose_a,
        "transpose_b": gemm.transpose_b,
    }


def _machine(machine: Machine, run: Simulation, kernel: Kernel) -> dict[str, Any]:
    cluster = prod(kernel.cluster)
    return {
        "name": machine.name,
        "source": machine.source,
        "processors": machine.processors,
        "slots": run.slots,
        "slot": "cluster" if cluster > 1 else "SM" if kernel.resident == 1 else "slot",
        "slot_processors": cluster,
        "workgroups": run.steps.workgroups,
        "instructions": run.instructions,
        "fallback": _fallback(machine, run),
    }


def _fallback(machine: Machine, run: Simulation) -> str:
    """Sentences that say why no faster matrix instructions are used; '' if there are none."""
    if not run.refusals:
        return ""
    found = f"Multiplied by {run.instructions}, since {'; '.join(run.refusals)}."
    if machine.constants is not None:
        found += " Simulated times are those of wgmma, which is faster."
    return found
