"""The trial of a mutant: check, print, interpret, compile and launch the mutated graph."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from enum import StrEnum
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

import codegen
from codegen.kernel import Kernel
from codegen.targets.cpu.failures import StoppedLaunch
from coordgraph import CoordGraphError, KernelGraph, LaunchError, from_json, parse
from coordgraph.errors import UnnamedFault
from coordgraph.gemm import AXES, tensor_of
from coordgraph.integers import evaluate
from coordgraph.interpreter.arguments import numpy_dtype
from coordgraph.tensors import Role
from coordgraph.verification import Launch
from coordgraph.verification.reference import make_operands, products
from tests.fuzz.memory import Fences, Overwritten, watched_workspaces
from tests.fuzz.mutants import Mutant

__all__ = ["FINDINGS", "Outcome", "Result", "attempt"]

LAUNCHES = 2
"""Number of launches that a trial runs of each graph."""
MOST_ELEMENTS = 1 << 14
"""Largest number of elements of a tensor; larger launches are skipped."""
REFUTED_SHARE = 0.15
"""Fraction of the refuted graphs that are run nevertheless: on the CPU, by a kernel that checks
every index.
"""
INTERPRETER_SHARE, GUARDED_SHARE, PLAIN_SHARE, GPU_SHARE = 0.3, 0.6, 0.1, 0.3
"""Fractions of the accepted graphs that are run in the interpreter, on the CPU with a check of
every index, on the CPU without these checks, and compiled for GPUs. Each of these four stages takes
longer than all other stages together, so only a fraction of the graphs goes through it.
"""
GPU_TARGETS = ("sm_80", "sm_90a")


class Outcome(StrEnum):
    """The result of trying a mutant: accepted and right, refused, or a kind of defect."""

    REFUSED = "refused while it was read or made"
    REFUTED = "refuted by a check"
    UNNAMED = "refused or refuted, but no check names the fault"
    RIGHT = "accepted, and every product is right"
    NOT_RUN = "accepted, and not run, or refused by the target"
    WRONG = "accepted, but a product is wrong"
    UNLIKE = "accepted, but text or JSON does not give the graph back"
    FOREIGN = "an exception that is not the library's"
    OVERWRITE = "memory outside a tensor was written"
    CRASH = "the process died"
    HANG = "the time limit was exceeded"


FINDINGS = (
    *(Outcome.WRONG, Outcome.UNLIKE, Outcome.FOREIGN),
    *(Outcome.OVERWRITE, Outcome.CRASH, Outcome.HANG),
)
"""The outcomes that show a defect of the library."""


class Result(NamedTuple):
    """The outcome of one mutant, with details for the report.

    Args:
        outcome: what happened.
        stage: the stage of the trial that ended with the outcome.
        detail: the message of an error, or the traceback of an exception that is no error of the
            library.
    """

    outcome: Outcome
    stage: str
    detail: str = ""


class _Wrong(Exception):
    pass


_fences = Fences()


def attempt(mutant: Mutant, note: Callable[[str], None]) -> Result:
    """Run all stages of a mutant's trial; `note` is called with the name of each stage."""
    stage = ""

    def at(name: str) -> None:
        nonlocal stage
        stage = name
        note(name)

    try:
        return _attempt(mutant, at)
    except _Wrong as error:
        return Result(Outcome.WRONG, stage, str(error))
    except Overwritten as error:
        return Result(Outcome.OVERWRITE, stage, str(error))
    except BaseException:
        return Result(Outcome.FOREIGN, stage, traceback.format_exc(limit=-12))


def _attempt(mutant: Mutant, at: Callable[[str], None]) -> Result:
    at("read")
    try:
        graph = mutant.make()
        at("verify")
        graph.verify()
    except CoordGraphError as error:
        return Result(_refused(error, Outcome.REFUSED), "read", str(error))
    at("text")
    try:
        if parse(graph.text()) != graph or from_json(graph.json()) != graph:
            return Result(Outcome.UNLIKE, "text")
    except CoordGraphError as error:
        return Result(Outcome.UNLIKE, "text", str(error))
    for name in ("mermaid", "pseudocode", "control"):
        at(name)
        _draw(graph, name)
    at("check")
    if graph.level != "scheduled":
        return Result(Outcome.NOT_RUN, "level")
    try:
        report = graph.check()
    except CoordGraphError as error:
        return Result(_refused(error, Outcome.REFUTED), "check", str(error))
    launches = report.launches[:LAUNCHES]
    if report.refuted:
        if mutant.draw.random() < REFUTED_SHARE:
            at("guarded run of a refuted graph")
            _run(graph, "cpu", launches, compare=False, debug=True)
        return Result(Outcome.REFUTED, "check", "; ".join(v.name for v in report.refuted))
    return _use(mutant, graph, launches, at)


def _use(
    mutant: Mutant, graph: KernelGraph, launches: tuple[Launch, ...], at: Callable[[str], None]
) -> Result:
    """Run an accepted graph in the interpreter and on the CPU, and compile it for GPUs.

    A random choice decides which of these stages take place. `at` is called with the name of each
    stage before it begins.
    """
    ran = 0
    if mutant.draw.random() < INTERPRETER_SHARE:
        at("interpreter")
        ran += _run(graph, "interpreter", launches)
    if mutant.draw.random() < GUARDED_SHARE:
        at("guarded run")
        ran += _run(graph, "cpu", launches, debug=True)
    if mutant.draw.random() < PLAIN_SHARE:
        at("run")
        ran += _run(graph, "cpu", launches, twice=True)
    targets = GPU_TARGETS if graph.gemm.dtype != "f32" else GPU_TARGETS[:1]
    for target in targets if mutant.draw.random() < GPU_SHARE else ():
        at(f"PTX for {target}")
        try:
            codegen.compile(graph, target, verify=False).ptx  # noqa: B018 - generates the code
        except CoordGraphError:
            continue
        ran += 1
    return Result(Outcome.RIGHT if ran else Outcome.NOT_RUN, "end")


def _refused(error: CoordGraphError, named: Outcome) -> Outcome:
    return Outcome.UNNAMED if isinstance(error, UnnamedFault) else named


def _draw(graph: KernelGraph, name: str) -> None:
    try:
        graph.control.mermaid() if name == "control" else getattr(graph, name)()
    except CoordGraphError:
        pass


def _run(
    graph: KernelGraph,
    target: str,
    launches: tuple[Launch, ...],
    *,
    compare: bool = True,
    debug: bool = False,
    twice: bool = False,
) -> int:
    """Compile the graph and run launches; return the number of launches that ran.

    Args:
        graph: the graph.
        target: `cpu` or `interpreter`.
        launches: the launches to run.
        compare: whether to compare D with the reference.
        debug: whether the kernel checks every index.
        twice: whether to run every launch twice.
    """
    try:
        kernel = codegen.compile(graph, target, debug=debug, verify=None if compare else False)
    except CoordGraphError:
        return 0
    ran = 0
    for launch in launches:
        for _ in range(1 + twice):
            try:
                ran += _call(kernel, launch, compare)
            except StoppedLaunch as error:
                if compare:
                    raise _Wrong(f"with {launch}: {error}") from error
            except LaunchError:
                continue
            except CoordGraphError as error:
                if compare:
                    raise _Wrong(f"with {launch}: {error}") from error
    return ran


def _call(kernel: Kernel, launch: Launch, compare: bool) -> int:
    graph, gemm = kernel.graph, kernel.graph.gemm
    extents = [getattr(gemm, axis) or launch.values.get(axis, 1) for axis in AXES]
    if any(a * b > MOST_ELEMENTS for a, b in combinations(extents, 2)):
        return 0
    operands = make_operands(graph, launch)
    if any(array.size > MOST_ELEMENTS for array in operands.arrays.values()):
        return 0
    arrays: dict[str, Any] = {}
    for name, array in operands.arrays.items():
        arrays[name] = _fences.array(array.shape, array.dtype)
        arrays[name][...] = array
    (output,) = (t for t in graph.tensors if t.role is Role.OUTPUT)
    shape = tuple(int(evaluate(extent, operands.values)) for extent in output.shape)
    kind = numpy_dtype(output.dtype)
    if not all(0 <= extent <= MOST_ELEMENTS for extent in shape) or np.prod(shape) > MOST_ELEMENTS:
        return 0
    out = _fences.array(shape, kind)
    more: dict[str, Any] = {o.name: arrays[tensor_of(o.name)] for o in gemm.epilogue.tensors}
    more |= operands.scalars
    if "workgroups" in launch.values and "workgroups" in graph.parameters:
        more["workgroups"] = launch.values["workgroups"]
    if gemm.grouped:
        rows = [list(entries) for entries in launch.tables.values()]
        more["offsets"] = np.array(rows if gemm.diagonal else rows[0], np.int32)
    threads = {"threads": 2} if kernel.target == "cpu" else {}
    with watched_workspaces():
        kernel(arrays["A"], arrays["B"], out=out, **more, **threads)
    if compare:
        for product in products(graph, operands):
            found = out.reshape(-1)[product.place].astype(np.float64)
            wrong = np.abs(found - product.expected.astype(np.float64)) > 1e-2
            if wrong.any():
                raise _Wrong(f"with {launch}: {int(wrong.sum())} elements of D are wrong")
    _fences.check()
    return 1
