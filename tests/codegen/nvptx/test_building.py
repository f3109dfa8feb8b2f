"""Kernels in the disk cache: a cached kernel is not generated again, and equals a generated one."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.targets.nvptx import CudaKernel, building, program
from codegen.targets.nvptx.facts import Facts
from codegen.targets.nvptx.launch.loaded_function import Spilled
from coordgraph import CodegenError, Gemm, KernelGraph, VerifyError
from passes import DataParallel, Pass, StreamK, TwoTileStreamK
from passes.lowering import LowerToHopper, LowerToTensorCores
from tests.codegen.nvptx.fake_driver import CLUSTERS, FakeDriver, matrix
from tests.passes.test_third_party import LastRowFirst
from tests.support.sampling import chosen, quick_cases

SCHEDULES = (DataParallel(), StreamK(), TwoTileStreamK(owner="last"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def graph(schedule: Pass, tile: Any = (64, 64, 64), **gemm: Any) -> KernelGraph:
    return schedule(Gemm(**gemm).graph(tile))


def kernel(schedule: Pass, target: str = "sm_90a", **options: Any) -> CudaKernel:
    made = codegen.compile(graph(schedule), target, **options)
    assert isinstance(made, CudaKernel)
    return made


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kernel.zip"))


def forbid_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make any later lowering, code generation or graph check fail the test."""

    def generate(*_: Any, **__: Any) -> Any:
        raise AssertionError("this was in the cache")

    for name in ("lowered", "module", "ptx"):
        monkeypatch.setattr(program.CudaProgram, name, property(generate))
    monkeypatch.setattr(KernelGraph, "verify", generate)
    monkeypatch.setattr(Facts, "of", generate)


def launch(made: CudaKernel, **options: Any) -> None:
    a, b, d = matrix(256, 128, 1 << 24), matrix(128, 512, 2 << 24), matrix(256, 512, 3 << 24)
    made(a, b, out=d, **options)


@quick_cases(1)
@pytest.mark.parametrize(
    ("target", "schedule"),
    chosen(
        [("sm_80", SCHEDULES[1]), ("sm_90a", SCHEDULES[2])], product(["sm_80", "sm_90a"], SCHEDULES)
    ),
    ids=str,
)
def test_what_is_cached_is_not_generated(
    fake_driver: FakeDriver, folder: Path, schedule: Pass, target: str, monkeypatch: Any
):
    fake_driver.arguments = 6
    first = kernel(schedule, target)
    launch(first)
    assert len(entries(folder)) == 1
    forbid_generation(monkeypatch)
    second = kernel(schedule, target)
    launch(second)
    assert fake_driver.loaded[0] == fake_driver.loaded[1]
    one, two = fake_driver.launches
    workspaces = (one.values[4:], two.values[4:])  # two kernels never share a workspace
    assert (one.grid, one.block, one.shared_bytes, one.attributes, one.values[:4]) == (
        (two.grid, two.block, two.shared_bytes, two.attributes, two.values[:4])
    ), workspaces
    (facts,) = (loaded.facts for loaded in first._functions.values())
    (read,) = (loaded.facts for loaded in second._functions.values())
    assert read == facts


@pytest.mark.slow
def test_what_makes_other_code_is_kept_apart(fake_driver: FakeDriver, folder: Path):
    kernels = [
        kernel(DataParallel()),
        kernel(DataParallel(), debug=True),
        kernel(DataParallel(), "sm_90"),
        kernel(DataParallel(), lowering=LowerToHopper(stages=2)),
        kernel(StreamK()),
        kernel(StreamK(workgroups=132)),
    ]
    for made in kernels:
        launch(made)
    assert len(entries(folder)) == len(kernels)
    made = kernel(DataParallel())
    # If A begins 8 bytes later, it is copied in narrower accesses, by another variant of the
    # kernel.
    for shift in (0, 2, 4, 8):
        a, b = matrix(256, 128, (1 << 24) + shift), matrix(128, 512, 2 << 24)
        made(a, b, out=matrix(256, 512, 3 << 24))
    assert len(entries(folder)) == len(kernels) + 3


def test_switched_off(fake_driver: FakeDriver, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    for _ in range(2):
        launch(kernel(DataParallel()))
    assert not folder.exists()
    assert len(fake_driver.loaded) == 2


@quick_cases(1)
@pytest.mark.parametrize("damage", ["damaged", "no facts", "other facts", "no code"])
def test_bad_entries_are_made_anew(fake_driver: FakeDriver, folder: Path, damage: str):
    launch(kernel(DataParallel()))
    (path,) = entries(folder)
    key = path.name.partition(".")[0]
    good = building.cache.load(key)
    assert good is not None
    bad = {
        "no facts": {building.CODE: good[building.CODE]},
        "other facts": {**good, building.FACTS: b'{"threads": 3}'},
        "no code": {building.FACTS: good[building.FACTS]},
    }
    if damage == "damaged":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        building.cache.store(key, bad[damage])
    launch(kernel(DataParallel()))
    assert fake_driver.loaded[0] == fake_driver.loaded[1]
    again = building.cache.load(key)
    assert again == good


@pytest.mark.slow
def test_the_code_that_does_not_spill_is_kept(fake_driver: FakeDriver, monkeypatch: Any):
    """If the driver spills registers of the default code, code that needs fewer ones is used.

    Later calls use the new code too, and `kernel.ptx` is its PTX.
    """
    tried: list[str] = []

    def spills(code: str) -> bool:
        tried.append(code)
        return code not in good

    made = kernel(StreamK(), "sm_80")
    lean = made.program().leaner()
    assert lean is not None
    assert lean.ptx != made.ptx
    good = {lean.ptx}
    fake_driver.spills = spills
    launch(made)
    assert made.ptx == lean.ptx
    assert len(tried) == 2
    again = kernel(StreamK(), "sm_80")
    launch(again)
    assert len(tried) == 3
    assert again.ptx == lean.ptx
    # Another driver version assembles the code differently, so the search for code without spills
    # begins again.
    good = {lean.leaner().ptx}  # type: ignore[union-attr]
    launch(kernel(StreamK(), "sm_80"))
    assert tried[-1] in good


@pytest.mark.slow
def test_what_always_spills_is_refused_every_time(fake_driver: FakeDriver, folder: Path):
    fake_driver.spills = lambda _: True
    for _ in range(2):
        with pytest.raises(Spilled, match="use a smaller tile"):
            launch(kernel(DataParallel(), "sm_80"))
    assert not entries(folder)


@pytest.mark.slow
def test_edges_from_elsewhere_are_not_kept(fake_driver: FakeDriver, folder: Path):
    foreign = DataParallel()(LastRowFirst()(Gemm().graph((128, 128, 64))))
    for _ in range(2):
        made = codegen.compile(foreign, "sm_80")
        assert isinstance(made, CudaKernel)
        launch(made)
    assert not entries(folder)
    assert len(fake_driver.loaded) == 2


def test_refusals_come_at_compile_time():
    """`compile` refuses a graph that the target cannot run, before any call of the kernel.

    The graph is refused with an empty cache and with a cache that holds another kernel.
    """
    with pytest.raises(CodegenError, match=r"sm_80 .* the tile 64x64x24 must be a multiple"):
        codegen.compile(graph(DataParallel(), (64, 64, 24)), "sm_80")
    with pytest.raises(CodegenError, match="not f32; use target='cpu'"):
        codegen.compile(graph(DataParallel(), dtype="f32"), "sm_90a")
    broken = graph(DataParallel()).edit()
    with broken as e:
        e.kernel(workgroup="workgroup")
    with pytest.raises(VerifyError):
        codegen.compile(broken.graph, "sm_90a")


@pytest.mark.slow
def test_clusters_and_overlap_come_from_the_code(fake_driver: FakeDriver):
    """A kernel from the disk cache is launched with the cluster size and overlap of its code.

    Overlap is programmatic dependent launch: a kernel may start before the previous one ends.
    """
    for _ in range(2):
        made = kernel(StreamK(owner="last"), lowering=LowerToHopper(cluster_m=2))
        assert made.resident == CLUSTERS
        launch(made)
        found = fake_driver.launches[-1]
        assert found.grid == (2 * CLUSTERS, 1, 1)
        # The key 4 is CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, and 6 is
        # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
        assert found.attributes == {4: (2, 1, 1), 6: (1, 0, 0)}


def test_a_lesser_lowering_can_be_asked_for(fake_driver: FakeDriver):
    """A lowering pass that the caller gives is used even if the GPU has a faster one."""
    made = kernel(DataParallel(), lowering=LowerToTensorCores("sm_90a", stages=3))
    assert made.instructions == "mma.sync"
    assert made.lowered.coordinates["stage"].fixed_size == 3
    launch(made)
    assert "mma.sync" in fake_driver.loaded[0]
    assert "wgmma" not in fake_driver.loaded[0]
    (note,) = made.lowering_notes
    assert note.startswith("wgmma: the caller passed lowering=lower-to-tensor-cores{")


@pytest.mark.parametrize(
    ("gemm", "tile", "reason"),
    [
        ({"transpose_a": True, "grouped": True, "group_axis": "k"}, (128, 128, 64), None),
        ({"grouped": True, "group_axis": "k"}, (128, 128, 64), "groups begin at any element"),
        (
            {},
            (96, 96, 64),
            "tile 96x96x64: a workgroup's part 96x96 must be a",
        ),
    ],
)
def test_a_kernel_says_why_a_better_lowering_declined(gemm: Any, tile: Any, reason: str | None):
    scheduled = DataParallel(persistent=bool(gemm))(Gemm(**gemm).graph(tile))
    made = codegen.compile(scheduled, "sm_90a")
    assert isinstance(made, CudaKernel)
    if reason is None:
        assert (made.instructions, made.lowering_notes) == ("wgmma", ())
        return
    assert made.instructions == "mma.sync"
    (note,) = made.lowering_notes
    assert note.startswith(f"wgmma: {reason}"), note
    # The target sm_90, unlike sm_90a, has one lowering only, so none was declined.
    assert codegen.compile(scheduled, "sm_90").lowering_notes == ()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_lowering_is_used_or_refused(fake_driver: FakeDriver):
    lowering = LowerToHopper(stages=2)
    made = kernel(DataParallel(), lowering=lowering)
    assert made.lowered.coordinates["stage"].fixed_size == 2
    launch(made)
    assert fake_driver.loaded[0] == made.ptx
    # TMA cannot load rows that are no multiple of 16 bytes, so a variant without TMA serves the
    # call.
    made(matrix(256, 127, 1 << 24), matrix(127, 512, 2 << 24), out=matrix(256, 512, 3 << 24))
    assert "cp.async.bulk" not in fake_driver.loaded[1]
    lowering: Any
    for target, lowering, words in (
        ("sm_80", LowerToHopper(), "sm_80 has no lowering LowerToHopper; choose one of: LowerToT"),
        ("sm_90a", DataParallel(), "choose one of: LowerToHopper, LowerToTensorCores"),
        ("sm_90a", LowerToHopper("sm_80"), "refuses the graph: it is for sm_80"),
        ("sm_80", LowerToTensorCores("sm_86"), "refuses the graph: it is for sm_86"),
        ("sm_90a", LowerToHopper(cluster_m=3), "sm_90a: .*cluster_m=3.*graph: cluster 3x1x1"),
    ):
        with pytest.raises(CodegenError, match=words):
            kernel(DataParallel(), target, lowering=lowering)
    for target in ("cpu", "interpreter"):
        with pytest.raises(CodegenError, match="is for NVIDIA GPUs"):
            codegen.compile(graph(DataParallel(), dtype="f32"), target, lowering=lowering)


def test_calls_with_c_get_another_lowering_if_registers_do_not_suffice():
    """A 144x256 tile leaves no registers for elements of C to wgmma, but does to mma.sync."""
    made = codegen.compile(graph(DataParallel(), (144, 256, 64), transpose_b=True), "sm_90a")
    assert isinstance(made, CudaKernel)
    builder = made._builder
    found = [builder.variant(builder.aligned, reads_c=c).instructions for c in (False, True)]
    assert found == ["wgmma", "mma.sync"]


def test_a_loaded_kernel_keeps_its_ptx_but_no_modules_and_no_proofs(fake_driver: FakeDriver):
    """Full garbage collections visit every object that a kernel keeps, as long as it exists."""
    fake_driver.arguments = 6
    made = kernel(StreamK())
    launch(made)
    (found,) = made._builder.programs.values()
    assert set(vars(found)) & {"lowered", "walker", "module", "ptx"} == {"ptx"}
    assert "_plain_ranges" not in vars(made.graph.parameters)
    for step in made.graph.history.steps:
        assert "_plain_ranges" not in vars(step.after.parameters)
    assert ".entry" in made.ptx
    assert made.program().lowered.level == "lowered"
    launch(made)
