"""Tests of the instructions that the PTX of a Hopper kernel contains, and of their order."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from coordgraph.control.asynchronous import CopyBox
from coordgraph.control.lowered import AccumulateFragment
from passes import DataParallel, StreamK, TwoTileStreamK
from tests.codegen.nvptx.configurations import Configuration, boxed
from tests.codegen.nvptx.hopper import lowered
from tests.codegen.nvptx.test_ptx import accumulation_loops, count
from tests.support.sampling import quick_cases

PERSISTENT = DataParallel(persistent=True)
ALONE = boxed((128, 256, 64), schedule=TwoTileStreamK())
SHARED_B = boxed((256, 256, 64), (2, 1, 1), schedule=StreamK(owner="last"))
SHARED_A = boxed((128, 512, 64), (1, 4, 1), schedule=PERSISTENT)
SHARED_BOTH = boxed((512, 128, 64), (4, 2, 1), schedule=StreamK(owner="last"))
SPLIT = boxed((64, 64, 512), (1, 1, 8), schedule=PERSISTENT)
SWAPPED = boxed((16, 256, 64), layout="nn", schedule=PERSISTENT)
DIRECT = boxed((128, 128, 64), types=("bf16", "f32"))
KERNELS = (ALONE, SHARED_B, SHARED_A, SHARED_BOTH, SPLIT, SWAPPED, DIRECT)
every_kernel = pytest.mark.parametrize("configuration", KERNELS, ids=str)
LOAD = r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\.global\.tile\S*"
STORE = r"cp\.async\.bulk\.tensor\.2d\.global\.shared::cta\.tile\.bulk_group"


@cache
def ptx(configuration: Configuration) -> str:
    return configuration.program.ptx


@quick_cases(1)
@every_kernel
def test_the_header(configuration: Configuration):
    text, this = ptx(configuration), lowered(configuration)
    assert ".target sm_90a\n" in text
    assert f".reqntid {this.size('workitem')}\n" in text
    cluster = f".explicitcluster\n.reqnctapercluster {this.ranks}, 1, 1\n"
    assert (cluster in text) == (this.ranks > 1)
    assert ("%clusterid.x" in text) == (this.ranks > 1)
    assert ("%ctaid.x" in text) == (this.ranks == 1)
    # A and B have tensor maps: kernel parameters of 128 bytes, aligned to 64 bytes. D has one,
    # too, unless threads store it, as in the kernel DIRECT.
    maps = 2 if configuration is DIRECT else 3
    assert count(r"\.param \.align 64 \.b8 \w+\[128\]", text) == maps
    assert count(r"prefetch\.tensormap", text) == maps


@quick_cases(1)
@every_kernel
def test_nothing_lives_in_local_memory(configuration: Configuration):
    assert ".local" not in ptx(configuration)


@quick_cases(2)
@every_kernel
def test_copies_are_those_of_the_graph(configuration: Configuration):
    this, text = lowered(configuration), ptx(configuration)
    copies = this.operations(CopyBox)
    steps = {t: this.size(f"{t}.box") * this.size(f"{t}.box.layer") for t in "AB"}
    written = [op for op in copies for _ in range(steps[op.tensor])]
    assert count(rf"{LOAD} ", text) == len(written)
    assert count(r"multicast::cluster", text) == sum(bool(op.receivers) for op in written)


@pytest.mark.parametrize(("configuration", "tensors"), [(SHARED_B, {"B"}), (SHARED_A, {"A"})])
def test_multicast_reaches_all_of_the_cluster(configuration: Configuration, tensors: set[str]):
    this, text = lowered(configuration), ptx(configuration)
    assert {op.tensor for op in this.operations(CopyBox) if op.receivers} == tensors
    masks = re.findall(rf"{LOAD}multicast::cluster [^;]*, (%rs\d+);", text)
    assert masks
    for mask in masks:
        (value,) = re.findall(rf"mov\.b16\s+{mask}, (-?\d+);", text)
        assert int(value) == 2**this.ranks - 1


def integers(text: str, rank: int) -> dict[str, int]:
    """Values, by name, of the PTX registers that depend on nothing but the CTA's cluster rank."""
    known: dict[str, int] = {}

    def value(name: str) -> int | None:
        return known.get(name) if name.startswith("%") else int(name)

    for name, target, operands in re.findall(r"\t([a-z0-9.]+)\s+(%rs?\d+), ([^;]+);", text):
        if operands == "%cluster_ctarank":
            known[target] = rank
            continue
        compute = MASK_ARITHMETIC.get(name)
        names = operands.split(", ")
        if compute and all(re.fullmatch(r"%rs?\d+|-?\d+", n) for n in names):
            values = [value(n) for n in names]
            if None not in values:
                known[target] = compute(*values) & 0xFFFFFFFF
    return known


MASK_ARITHMETIC: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "shr.u32": lambda a, b: a >> b,
    "shl.b32": lambda a, b: a << b,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "add.s32": lambda a, b: a + b,
    "cvt.u16.u32": lambda a: a & 0xFFFF,
}
"""The PTX instructions by which a kernel computes multicast masks."""


def test_multicast_reaches_a_row_and_a_column_of_the_cluster():
    """A is multicast to CTAs with the same rows of D, and B to those with the same columns."""
    this, text = lowered(SHARED_BOTH), ptx(SHARED_BOTH)
    masks = re.findall(rf"{LOAD}multicast::cluster [^;]*, (%rs\d+);", text)
    order = [op.tensor for op in this.operations(CopyBox)]
    assert len({*masks}) == 2
    for rank in range(this.ranks):
        known = integers(text, rank)
        m, n = divmod(rank, 2)
        row = sum(1 << (2 * m + other) for other in range(2))
        column = sum(1 << (2 * other + n) for other in range(4))
        wanted = {"A": row, "B": column}
        assert {known[mask] for mask in masks} == {row, column}
        assert [known[mask] for mask in dict.fromkeys(masks)] == [wanted[t] for t in order]


@every_kernel
def test_every_multiplication_is_written_once(configuration: Configuration):
    this, text = lowered(configuration), ptx(configuration)
    each = this.blocks * this.beside * this.size("fragment.k")
    loops = count(r"wgmma\.commit_group", text)
    assert loops == (2 if configuration is ALONE else 1)
    assert count(rf"wgmma\.mma_async\.sync\.aligned\.m64n{this.wide}k16\.f32", text) == each * loops
    transposed = ", 1, 1, 0, 0;", ", 1, 1, 1, 0;"
    assert (transposed[1] in text) == (configuration is SWAPPED)
    assert (transposed[0] in text) == (configuration is not SWAPPED)


@every_kernel
def test_d_leaves_by_one_way(configuration: Configuration):
    text, this = ptx(configuration), lowered(configuration)
    if configuration is DIRECT:
        assert not re.search(rf"stmatrix|{STORE}|fence\.proxy", text)
        assert count(r"st\.global\.(?:v2\.b32|b64)", text) > 0
        return
    boxes = count(STORE, text)
    sums = count("bulk\\.wait_group\\.read 0;", text) - (this.size("store.slot") == 1) * boxes
    assert sums == 1, "the kernel waits for its TMA stores once, at the end"
    assert boxes % (this.size("store.m") * this.size("store.box")) == 0
    received = this.nodes(AccumulateFragment, source="fixup.shared")
    # If the last step of a fix-up has fewer accesses than the others, it has code of its own.
    shorter = bool(received) and this.size("piece.vector") % this.size("fixup.place") > 0
    places = len(received) // (1 + shorter)
    runs = places * this.size("fixup.step") if received else 0
    assert count(r"fence\.proxy\.async\.shared::cta;", text) == boxes + runs
    assert count(r"cp\.async\.bulk\.commit_group;", text) == boxes
    form = r"stmatrix\.sync\.aligned\.m8n8\.x4" + (r"\.trans" if this.swapped else "")
    assert count(form + r"\.shared\.b16", text) == boxes * this.size("store.n")
    # Only partial sums and flags are stored from registers to global memory.
    assert (count(r"st\.global\.v4", text) > 0) == bool(
        configuration in (ALONE, SHARED_B, SHARED_BOTH)
    )
    assert not re.search(r"st\.global\.(?:b16|b32|b64|v2)", text)
    order = [
        m[0]
        for m in re.finditer(rf"stmatrix|fence\.proxy\.async\.shared|{STORE}|bulk\.commit", text)
    ]
    squeezed = [a for a, b in zip(order, [*order[1:], ""], strict=True) if a != b]
    # The code before the first stmatrix, which stages D, loads partial sums; it is left out here.
    if runs:
        squeezed = squeezed[squeezed.index("stmatrix") :]
    assert len(squeezed) == 4 * boxes
    assert squeezed[:2] == ["stmatrix", "fence.proxy.async.shared"]


@every_kernel
def test_a_launch_lets_the_next_one_begin_and_waits_for_the_one_before(
    configuration: Configuration,
):
    text = ptx(configuration)
    assert count(r"griddepcontrol\.launch_dependents;", text) == 1
    assert count(r"griddepcontrol\.wait;", text) == 1
    before, after = text.split("griddepcontrol.wait;")
    assert not re.search(r"\b(?:ld|st|red|atom)\.\S*global|cp\.async\.bulk", before)
    assert "mbarrier.init" in before
    assert "mbarrier.init" not in after


@every_kernel
def test_what_a_cluster_shares(configuration: Configuration):
    text, this = ptx(configuration), lowered(configuration)
    meetings = 2 if this.ranks > 1 else 0
    assert count(r"barrier\.cluster\.arrive\.release; barrier\.cluster\.wait", text) == meetings
    shares = configuration in (SHARED_A, SHARED_B, SHARED_BOTH)
    summed = configuration is SPLIT
    assert (count("mapa", text) > 0) == (shares or summed)
    accesses = this.registers // 4 if summed else 0
    assert count(r"st\.shared::cluster\.v4\.f32", text) == accesses
    assert count(r"mbarrier\.arrive\.release\.cluster", text) == summed
    assert count(r"mbarrier\.try_wait\.parity\.acquire\.cluster", text) == summed


@every_kernel
def test_the_loops_over_k_compute_no_index(configuration: Configuration):
    """The loops over k of consumers and producer contain no division and no access to global
    memory.
    """
    text = ptx(configuration)
    loops = accumulation_loops(text.replace("wgmma.mma_async", "wgmma.mma.sync"))
    assert loops
    for loop in loops:
        assert not re.search(r"\b(?:div|rem)\.|\.global\b|ld\.param", loop)
        assert "wgmma.wait_group.sync.aligned 1;" in loop
