"""Kernels with atomic reduction: they assemble without a spill, and flags count the senders."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from codegen.targets.nvptx.facts import Facts
from codegen.targets.nvptx.program import Vectors
from codegen.targets.nvptx.sm_80.emit import CudaWalker
from coordgraph import CodegenError, KernelGraph
from coordgraph.control.graph import Rewrite
from coordgraph.control.lowered import (
    Barrier,
    ClearFlag,
    FillElements,
    RaiseFlag,
    ReduceFragment,
    SignalFlag,
    WaitFlag,
)
from coordgraph.control.operations import If, Operation
from coordgraph.tensors import Role
from passes import HybridStreamK, SplitK, StreamK, TwoTileStreamK
from passes.lowering.architectures import ARCHITECTURES
from tests.codegen.nvptx.configurations import Configuration, boxed
from tests.codegen.nvptx.test_assembly import check
from tests.support.sampling import cover, quick_cases

FIRST, LAST = (StreamK(owner=owner, reduction="atomic") for owner in ("first", "last"))
HYBRID = HybridStreamK(owner="last", reduction="atomic")
SPLIT = SplitK(splits=4, reduction="atomic")
PLAIN = (
    Configuration((128, 128, 32), (FIRST,), architecture="sm_80"),
    Configuration((128, 256, 64), (LAST,), architecture="sm_80"),
    Configuration((96, 96, 48), (HYBRID,), "tt", architecture="sm_89"),
    Configuration((64, 64, 64), (SPLIT,), "tn", ("f16", "f32"), architecture="sm_80"),
)
VECTORS = (
    Configuration((128, 256, 64), (LAST,), architecture="sm_90"),
    Configuration((64, 128, 32), (FIRST,), "nt", vectors=Vectors(1, 8, 1), architecture="sm_90a"),
    Configuration((128, 128, 32), (SPLIT,), "tt", architecture="sm_120"),
)
HOPPER = (
    boxed((128, 256, 64), schedule=FIRST),
    boxed((256, 256, 64), (2, 1, 1), "tn", LAST),
    boxed((256, 128, 64), layout="nn", schedule=HYBRID),
    boxed((128, 144, 64), layout="tt", schedule=LAST, types=("bf16", "f16")),
    boxed((128, 256, 64), schedule=SPLIT),
    boxed((256, 256, 64), (1, 2, 1), "nn", SplitK(splits=3, owner="first", reduction="atomic")),
    boxed((16, 256, 64), layout="nn", schedule=SplitK(splits=16, reduction="atomic")),
    boxed((64, 128, 128), (1, 1, 2), "nt", TwoTileStreamK(owner="last", reduction="atomic")),
    boxed((64, 256, 64), schedule=LAST, consumers="pingpong"),
    boxed((256, 128, 64), (2, 1, 1), "nn", SPLIT, consumers="pingpong"),
    boxed((64, 128, 64), layout="tn", schedule=HYBRID, types=("f16", "f32"), consumers="pingpong"),
)
KERNELS = (*PLAIN, *VECTORS, *HOPPER)


def sums(made: Configuration) -> tuple[object, ...]:
    """The values of a kernel's options that change its code for adding partial sums.

    Quick tests assemble kernels in which each value of each option occurs at least once, not all
    combinations.
    """
    machine = (made.consumers, made.boxes, made in PLAIN)
    return (machine, made.vectors.d, any(extent > 1 for extent in made.cluster))


every_kernel = pytest.mark.parametrize("configuration", cover(0, KERNELS, sums), ids=str)


@pytest.mark.slow
@pytest.mark.usefixtures("ptxas")
@every_kernel
def test_it_is_assembled(configuration: Configuration):
    check(configuration)


@quick_cases(1)
@every_kernel
def test_flags_count_senders(configuration: Configuration):
    """A sender adds one to the flag with release order; the receiver waits for the count
    with acquire.
    """
    program = configuration.program
    control = program.lowered.control
    (wait,) = control.of_kind(WaitFlag)
    assert not wait.turn
    assert wait.senders.free_symbols
    assert len(control.of_kind(RaiseFlag)) == len(control.of_kind(ClearFlag)) == 1
    assert not control.of_kind(SignalFlag)
    text = program.ptx
    (waited,) = re.findall(r"ld\.acquire\.gpu\.global\.u32 v, .*; setp\.ne\.u32 p, v, (\S+);", text)
    assert waited.startswith("%r")
    assert len(re.findall(r"red\.release\.gpu\.global\.add\.u32 \[%rd\d+\], 1;", text)) == 1
    assert re.findall(r"st\.relaxed\.gpu\.global\.u32 \[%rd\d+\], 0;", text)
    assert "st.release" not in text


def holds(op: Operation, kind: type[Operation]) -> bool:
    return any(isinstance(inner, kind) for inner in op.walk())


@every_kernel
def test_all_have_added_before_one_says_so(configuration: Configuration):
    control = configuration.program.lowered.control
    bodies = [getattr(op, name) for op in control.operations for name in op.BODIES]
    (found,) = (
        (add, meet, say)
        for body in bodies
        for add, meet, say in zip(body, body[1:], body[2:], strict=False)
        if holds(say, RaiseFlag) and not holds(say, ReduceFragment)
    )
    assert holds(found[0], ReduceFragment)
    assert isinstance(found[1], Barrier)
    assert isinstance(found[2], If)


@quick_cases(2)
@every_kernel
def test_every_sum_is_added_and_cleared(configuration: Configuration):
    """Sums are added with vector atomics where the architecture has them (sm_90, PTX 8.1), then
    cleared.
    """
    program = configuration.program
    (add,) = program.lowered.control.of_kind(ReduceFragment)
    # If the last step of a fix-up is shorter than the others, it has a clear operation of its own,
    # with the same vector width.
    clears = {op.width for op in program.lowered.control.of_kind(FillElements) if _clears(op)}
    (width,) = clears
    assert width == add.width == (4 if configuration.boxes else 2)
    assert add.form == ("scalar" if configuration in PLAIN else "vector")
    text = program.ptx
    many = f".v{add.width}" if configuration not in PLAIN else ""
    adds = re.findall(r"red\.relaxed\.gpu\.global\.add(\S*)\.f32 ", text)
    assert set(adds) == {many}
    m, n, _ = (t // c for t, c in zip(configuration.tile, configuration.cluster, strict=True))
    team = program.threads
    if configuration.boxes:
        team = 128 if configuration.consumers == "pingpong" else team - 128
    assert len(adds) * (add.width if many else 1) * team == m * n
    zeros = re.escape(f"{{{', '.join(['0'] * width)}}};")
    stores = re.findall(rf"st\.global\.v{width}\.b32\s+\S+ {zeros}", text)
    if not stores:  # from sm_90 on, LLVM may store two 32-bit zeros by one b64 store
        stores = re.findall(r"st\.global\.b64\s", text)
    assert len(stores) * width * team == m * n
    version = re.search(r"^\.version (\S+)", text, re.M)
    assert version is not None
    assert (float(version[1]) >= 8.1) == bool(many)


def _clears(op: FillElements) -> bool:
    return op.destination == "partials"


@every_kernel
def test_the_workspace_begins_at_zero(configuration: Configuration):
    facts = Facts.of(configuration.program)
    roles = {t.name: t.role for t in facts.tensors if t.role.workspace}
    assert roles == {"partials": Role.SUMS, "flags": Role.FLAGS}
    assert Facts.from_json(facts.to_json()) == facts
    (schedule,) = configuration.schedule
    assert isinstance(schedule, StreamK | SplitK | HybridStreamK | TwoTileStreamK)
    assert facts.waits == ("lower" if schedule.owner == "last" else "higher")


def test_who_adds_vectors():
    forms = {name: machine.reduction for name, machine in ARCHITECTURES.items()}
    older = ("sm_80", "sm_86", "sm_87", "sm_89")
    assert forms == {name: "scalar" if name in older else "vector" for name in ARCHITECTURES}


def changed(graph: KernelGraph, change: Rewrite) -> KernelGraph:
    with graph.edit("changed") as e:
        e.control = e.control.rewrite(change)
    return e.graph


def test_what_may_be_padding_is_not_added():
    def into_d(op: Operation) -> Operation:
        return replace(op, destination="D") if isinstance(op, ReduceFragment) else op

    graph = changed(PLAIN[0].program.lowered, into_d)
    with pytest.raises(CodegenError, match="kernels for GPUs can add only to f32 elements"):
        CudaWalker(graph).build()
