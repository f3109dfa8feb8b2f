"""Plans for kernels with mma.sync, chosen by data-sheet rates of a GPU such as the A100."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

import codegen
from codegen.call.known_gpus import KNOWN_GPUS
from codegen.call.request import PlanRequest
from coordgraph import Gemm
from passes.choosing import Plan
from passes.choosing.choosers import chooser_of
from passes.choosing.explaining import Explanation
from passes.choosing.fixed_rules import instructions_plan
from passes.choosing.gpu_figures import (
    FOLDER,
    GpuFigures,
    figures_of,
    known_figures,
    library_figures,
    measured_latencies,
)
from passes.choosing.mma_sync import choices, ranked
from passes.choosing.mma_sync_model import MmaShape, cost
from passes.choosing.plan_table import Table
from passes.lowering import MMA_SYNC, LowerToTensorCores, architecture_of
from passes.simulation import MACHINES, simulate_plan
from tests.support.sampling import quick_cases

RECORD = Path(__file__).parents[3] / "benchmarks/results/mma-sync-h200-2026-11-24.json.gz"
SIZES = ((4096, 4096, 4096), (256, 256, 8192), (16, 6144, 4096), (8, 8, 8))
GPUS = ("NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "NVIDIA GeForce RTX 4090")


def problem(m: int, n: int, k: int, dtype: str = "bf16") -> Gemm:
    """A product with B given as its transpose."""
    return Gemm(dtype, None, m, n, k, False, True)


def test_the_library_has_three_files():
    assert set(library_figures()) == set(GPUS)
    assert all(figures.estimated for figures in library_figures().values())


@quick_cases(4)
@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["bf16", "i8"])
def test_plans_fit_the_gpu(name: str, size: tuple[int, int, int], dtype: str):
    figures = library_figures()[name]
    gemm = problem(*size, dtype)
    found = ranked(gemm, figures, 8)
    assert found
    lowering = LowerToTensorCores(architecture=figures.architecture)
    for choice in found:
        plan = choice.plan
        assert (plan.cluster, plan.consumers) == ((1, 1, 1), "cooperative")
        graph = plan.graph(replace(gemm, m=None, n=None, k=None))
        assert lowering.why_not(graph) is None
        stages = lowering(graph).coordinates["stage"].fixed_size
        shape = MmaShape.of(Table.of([(gemm, plan)]), figures)
        assert shape.stages[0] == stages
        # A stage holds a tile of A and one of B.
        used = stages * shape.loaded_bytes[0]
        assert used <= architecture_of(figures.architecture).shared_bytes
        assert shape.resident[0] * used <= figures.sm_shared_bytes
        if plan.workgroups is not None:
            assert plan.workgroups <= shape.resident[0] * figures.processors
    assert [c.seconds for c in found] == sorted(c.seconds for c in found)


@pytest.mark.parametrize("size", [(64, 1024, 4096), (2048, 2304, 8192)])
def test_no_plan_is_listed_twice(size: tuple[int, int, int]):
    """Of 64 x 1024 x 4096, four plans divide tiles into one piece for each workgroup that fits."""
    explained = codegen.explain(*size, device="RTX 4090", count=1000)
    assert isinstance(explained, Explanation)
    found = explained.choices
    assert len({choice.plan for choice in found}) == len(found)
    assert any(choice.plan.workgroups == 128 for choice in found)


def test_explain_says_that_nothing_was_measured():
    text = str(codegen.explain(2048, 2304, 8192, transpose_b=True, device="A100"))
    assert "Estimates, not measured on NVIDIA A100-SXM4-80GB." in text
    assert "NVIDIA A100 Tensor Core GPU Architecture (white paper, 2020)" in text
    assert "mma.sync on NVIDIA H200, scaled by clock rate" in text
    assert "tune=True measures" in text
    assert "coordgraph calibrate" in str(codegen.explain(512, 512, 512, device="H100 PCIe"))
    assert "not measured" not in str(codegen.explain(512, 512, 512, device="H100"))


def test_where_the_fixed_rule_remains():
    size = 2048, 2304, 8192
    here = {"device": GPUS[0], "target": "sm_80", "processors": 108}
    request = PlanRequest(problem(*size), **here)
    assert request.figures is not None
    *first, last = request.plans()
    assert len(first) == 8
    assert last == instructions_plan(*size, 108)
    for other in (
        replace(request, alignment=8),
        replace(request, invariant=True),
        replace(request, device="NVIDIA A30"),
    ):
        assert other.figures is None
        assert list(other.plans()) == [other.simple_plan]
    # For operands that TMA cannot read, Hopper GPUs also run mma.sync. The cost model
    # with data-sheet rates does not cover Hopper, so the plan comes from the fixed rule
    # `instructions_plan`.
    for name in ("NVIDIA H200", "NVIDIA H100 80GB HBM3"):
        hopper = PlanRequest(problem(2048, 2304, 8188), "sm_90a", name, 132, alignment=8)
        assert list(hopper.plans()) == [instructions_plan(2048, 2304, 8188, 132)]
        assert chooser_of(MMA_SYNC.instructions).figures(hopper.gemm, name, 132) is None  # type: ignore[misc]


def test_a_partition_has_a_share_of_memory():
    whole, half = figures_of(GPUS[0], 108), figures_of(GPUS[0], 54)
    assert whole is not None
    assert half is not None
    assert half.dram_rate == whole.dram_rate / 2
    assert half.flops_per_clock == whole.flops_per_clock
    assert (
        next(choices(problem(*SIZES[0]), half)).seconds
        > 1.5 * next(choices(problem(*SIZES[0]), whole)).seconds
    )


def test_latencies_are_scaled_by_clock_rate():
    figures = library_figures()[GPUS[0]]
    measured = measured_latencies(figures.latencies_of)
    found = figures.latencies
    ratio = measured.clock / figures.clock
    assert found.iteration_seconds == pytest.approx(measured.iteration_seconds * ratio)
    assert found.partial_rate == pytest.approx(measured.partial_rate / ratio)
    assert found.dram_seconds == measured.dram_seconds


def test_machines_have_the_same_figures():
    for name, figures in library_figures().items():
        machine = MACHINES[name]
        assert machine.processors == figures.processors
        assert machine.dram_rate == figures.reached_dram_rate
        assert machine.constants is None
        known = next(gpu for gpu in KNOWN_GPUS if gpu.name == name)
        assert (f"sm_{known.capability}", known.processors) == (
            figures.architecture,
            figures.processors,
        )
    run = simulate_plan(problem(1024, 1024, 512), Plan.parse("128x128x32 data-parallel"), "L40S")
    assert run.instructions == "mma.sync"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder, which replaces the user's folder of GPUs' rates and sizes in a test."""
    monkeypatch.setenv("COORDGRAPH_DEVICES", str(tmp_path))
    found = tmp_path / FOLDER.name
    found.mkdir()
    known_figures.cache_clear()
    yield found
    known_figures.cache_clear()


def test_a_file_of_the_user_replaces_the_library(folder: Path):
    mine = replace(library_figures()[GPUS[0]], estimated=False, source="my measurement")
    (folder / "a100.json").write_text(mine.to_json())
    assert figures_of(GPUS[0], 108) == mine
    text = str(codegen.explain(512, 512, 512, transpose_b=True, device="A100"))
    assert "my measurement" in text
    assert "not measured" not in text


@pytest.mark.parametrize("change", [{"clock": None}, {"latencies_of": "NVIDIA H9"}])
def test_a_wrong_file_of_the_user_is_skipped(folder: Path, change: dict[str, str | None]):
    fields = json.loads(library_figures()[GPUS[0]].to_json())
    for name, value in change.items():
        del fields[name]
        fields |= {} if value is None else {name: value}
    (folder / "a100.json").write_text(json.dumps(fields))
    with pytest.warns(RuntimeWarning, match=r"a100\.json has no figures"):
        assert figures_of(GPUS[0], 108) == library_figures()[GPUS[0]]


def h200() -> GpuFigures:
    """Rates and sizes of an H200 (`GpuFigures`) for kernels with mma.sync, compiled for sm_80.

    The rate of mma.sync and that of the L2 cache are fitted to the times in RECORD.
    """
    return replace(
        library_figures()[GPUS[0]],
        device="NVIDIA H200",
        processors=132,
        clock=1.75e9,
        flops_per_clock=1864,
        sm_shared_bytes=233472,
        l2_bytes=50e6,
        l2_bytes_per_clock=6091,
        dram_rate=4.8e12,
        dram_share=0.9,
    )


def test_chosen_plans_are_near_the_fastest_measured_ones():
    """On 120 sizes, measured plans that the model prefers take 5 % longer than the fastest.

    The plans of the fixed rule, `instructions_plan`, take 33 % longer. The latencies of the model
    are fitted to the same times.
    """
    rows = json.loads(gzip.decompress(RECORD.read_bytes()))["rows"]
    losses: list[float] = []
    of_rule: list[float] = []
    for row in rows:
        size, times = (row["m"], row["n"], row["k"]), row["times"]
        gemm, plans = problem(*size), list(times)
        seconds = cost(Table.of((gemm, Plan.parse(plan)) for plan in plans), h200()).total
        least = min(times.values())
        losses.append(log(times[plans[int(np.argmin(seconds))]] / least))
        rule = str(instructions_plan(*size, 132))
        of_rule.append(log(min(t for p, t in times.items() if p.startswith(rule)) / least))
    assert exp(mean(losses)) < 1.07
    assert exp(mean(of_rule)) > 1.3
