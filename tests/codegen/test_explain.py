"""`codegen.explain` reports what `codegen.matmul` does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import codegen
from codegen.call import build, matmul, measured, request, tuning
from codegen.call.explain import ByRule, Tuned
from codegen.call.known_gpus import KNOWN_GPUS, short_name
from codegen.cli.plans import explain_choice
from codegen.targets.nvptx import driver
from coordgraph import CodegenError, Gemm, VerifyError
from passes.choosing import Explanation, Plan, choices, rank
from passes.choosing.constants import known_devices
from passes.choosing.gpu_figures import known_figures
from tests.codegen.cli.commands import coordgraph
from tests.codegen.nvptx.fake_driver import CONTEXT, install, matrix
from tests.support.sampling import quick_cases

A, B, D = 1 << 30, 2 << 30, 3 << 30
COMPILE_PLAN = build.compile_plan
H200 = driver.Device(0, "NVIDIA H200", "sm_90a", 132, CONTEXT)
A100 = driver.Device(0, "NVIDIA A100-SXM4-80GB", "sm_80", 108, CONTEXT)


class Chosen(Exception):
    """An exception that stands for a compiled kernel: it holds the plan to compile."""


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run a test without a GPU, with empty caches and without compiling kernels."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    monkeypatch.setattr(driver, "unavailable", lambda: "the test says so")

    def compile_plan(plan: Plan, *_: Any, **__: Any) -> Any:
        raise Chosen(plan)

    monkeypatch.setattr(build, "compile_plan", compile_plan)
    matmul.forget()
    measured.forget()
    yield
    matmul.forget()
    measured.forget()


def here(monkeypatch: pytest.MonkeyPatch, device: driver.Device) -> None:
    """Pretend that this machine has one GPU, `device`."""
    install(monkeypatch)
    monkeypatch.setattr(driver, "device", lambda ordinal=0: device)
    monkeypatch.setattr(driver, "device_count", lambda: 1)
    bindings = driver.bindings()
    done = bindings.CUresult.CUDA_SUCCESS
    monkeypatch.setattr(bindings, "cuDriverGetVersion", lambda: (done, 13000))


def multiplied(*arrays: Any, **options: Any) -> Plan:
    """The plan with which `matmul` multiplies `arrays`."""
    with pytest.raises(Chosen) as caught:
        codegen.matmul(*arrays, **options)
    return caught.value.args[0]


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.name)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("size", [(2048, 2304, 8192), (512, 511, 512), (511, 512, 513), (8, 8, 8)])
def test_a_gpu(
    device: driver.Device, size: tuple[int, int, int], turned: bool, monkeypatch: pytest.MonkeyPatch
):
    here(monkeypatch, device)
    m, n, k = size
    a, b = matrix(m, k, A), matrix(n, k, B) if turned else matrix(k, n, B)
    plan = multiplied(a, b, out=matrix(m, n, D), transpose_b=turned)
    for name in (None, device.name):
        found = codegen.explain(m, n, k, transpose_b=turned, device=name)
        assert found.best.plan == plan
    aligned = k % 8 == 0 and (turned or n % 8 == 0)
    assert isinstance(found, Explanation if aligned else ByRule)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [(500, 400, 300), (3, 5, 7)])
def test_the_cpu(kind: type, size: tuple[int, int, int]):
    m, n, k = size
    found = codegen.explain(m, n, k, np.dtype(kind).name, device="cpu")
    assert found.best.plan == multiplied(np.ones((m, k), kind), np.ones((k, n), kind))
    assert "numpy arrays are multiplied on the CPU" in str(found)
    if kind is not np.float16:
        assert codegen.explain(m, n, k, np.dtype(kind).name) == found


@pytest.mark.parametrize("device", [H200, A100], ids=lambda device: device.name)
def test_a_batch(device: driver.Device, monkeypatch: pytest.MonkeyPatch):
    here(monkeypatch, device)
    a, b, d = (
        matrix(512, 512, at, shape=(9, 512, 512), strides=(1 << 18, 512, 1)) for at in (A, B, D)
    )
    found = codegen.explain(512, 512, 512, batches=9)
    assert found.best.plan == multiplied(a, b, out=d)
    assert isinstance(found, Explanation)
    assert found.as_data()["problem"]["batches"] == 9
    alone = codegen.explain(512, 512, 512)
    rates = [
        float(text.split("(")[1].split()[0]) for text in (found.reasons()[0], alone.reasons()[0])
    ]
    assert rates[0] > rates[1]  # with more products there are more tiles, so that all SMs are busy
    with pytest.raises(VerifyError, match="batches"):
        codegen.explain(512, 512, 512, batches=0)


def test_without_a_gpu_the_measured_one_is_meant():
    found = codegen.explain(2048, 2304, 8192, transpose_b=True)
    assert found.best.plan == rank(Gemm("bf16", None, 2048, 2304, 8192, False, True))[0].plan
    named = codegen.explain(2048, 2304, 8192, transpose_b=True, device="NVIDIA H200")
    assert isinstance(found, Explanation)
    assert isinstance(named, Explanation)
    assert (found, found.page) == (named, named.page)
    assert "measured times" in str(found)
    assert "assumed: this machine has no GPU" in found.heading[2]
    assert "assumed" not in str(named)


@pytest.mark.parametrize(
    ("short", "name", "target", "processors"),
    [
        ("H200", "NVIDIA H200", "sm_90a", 132),
        ("nvidia h200", "NVIDIA H200", "sm_90a", 132),
        ("H100", "NVIDIA H100 80GB HBM3", "sm_90a", 132),
        ("NVIDIA H100 SXM5", "NVIDIA H100 80GB HBM3", "sm_90a", 132),
        ("H100 PCIe", "NVIDIA H100 PCIe", "sm_90a", 114),
        ("A100", "NVIDIA A100-SXM4-80GB", "sm_80", 108),
        ("a100 sxm", "NVIDIA A100-SXM4-80GB", "sm_80", 108),
        ("L4", "NVIDIA L4", "sm_89", 58),
        ("L40S", "NVIDIA L40S", "sm_89", 142),
        ("RTX 4090", "NVIDIA GeForce RTX 4090", "sm_89", 128),
        ("B200", "NVIDIA B200", "sm_100", 148),
    ],
)
def test_gpus_have_short_names(short: str, name: str, target: str, processors: int):
    found = codegen.explain(2048, 2304, 8192, transpose_b=True, device=short)
    assert found.heading[2] == f"device   {name} ({target}, {processors} SMs)"
    assert found.as_data()["device"] == name
    modelled = target == "sm_90a" or name in known_figures()
    assert isinstance(found, Explanation if modelled else ByRule)
    if isinstance(found, Explanation):
        assert found.device.estimated == (name not in known_devices())


@pytest.mark.parametrize("name", dict.fromkeys(short_name(gpu.name) for gpu in KNOWN_GPUS))
def test_every_known_gpu_has_one(name: str):
    assert name in codegen.explain(512, 512, 512, device=name).heading[2].upper()


def test_a_gpu_of_the_machine_has_its_short_name(monkeypatch: pytest.MonkeyPatch):
    here(monkeypatch, replace(H200, name="NVIDIA H100 NVL", processors=130))
    found = codegen.explain(512, 512, 512, device="H100")
    assert found.heading[2] == "device   NVIDIA H100 NVL (sm_90a, 130 SMs)"


@pytest.mark.parametrize("size", [(2048, 2304, 8192), (16, 6144, 4096), (16384, 16384, 16384)])
def test_the_terms_add_up_to_the_total(size: tuple[int, int, int]):
    """The printed terms of a plan's predicted time add up to the printed total, within rounding."""
    found = codegen.explain(*size, device="H200")
    assert isinstance(found, Explanation)
    head, *rows = found.rows()
    summands = found.legend.partition("total = ")[2].partition(".")[0].split(" + ")
    covered = [name for name in head[2:] if name not in summands]
    for row, plan in zip(rows, found.as_data()["plans"], strict=True):
        shown = {name: float(text) for name, text in zip(head[1:], row[1:], strict=True)}
        assert sum(shown[name] for name in summands) == pytest.approx(shown["total"], abs=1e-6)
        terms = plan["terms"]
        assert sum(terms[name] for name in summands) == pytest.approx(plan["seconds"])
        assert terms["main"] >= max(terms[name] for name in covered)


def test_the_heading_says_types_and_layouts():
    found = codegen.explain(
        *(64, 128, 256, "f16", "f32"), transpose_a=True, transpose_b=True, device="H200", batches=3
    )
    problem, layout, _, code = found.heading
    assert problem.endswith(
        "3 products of D (64 x 128) = A (64 x 256) x B (256 x 128), f16 to f32, sums in f32"
    )
    assert layout.endswith("A as its transpose, 256 x 64; B as its transpose, 128 x 256")
    assert code == "code     wgmma + TMA"
    assert str(found).startswith("\n".join(found.heading))
    data = found.as_data()["problem"]
    assert (data["out_dtype"], data["transpose_a"], data["transpose_b"]) == ("f32", True, True)


def test_why_no_gpu_can_be_used_is_said():
    """If no GPU can run a problem, the CPU is assumed, and the text says why.

    In the test, mma.sync cannot multiply int8 because of the layout of A and B.
    """
    found = codegen.explain(512, 512, 512, "i8")
    assert (found.as_data()["device"], isinstance(found, ByRule)) == ("cpu", True)
    why = "assumed: no GPU can be used, since mma.sync multiplies i8 only if A and B are "
    assert why in found.heading[2]
    words = ("--m", "512", "--n", "512", "--k", "512", "--dtype", "i8")
    assert why in coordgraph("explain", *words).out
    layout = codegen.explain(512, 512, 512, "i8", transpose_b=True)
    assert layout.as_data()["device"] == "NVIDIA H200"
    assert codegen.explain(512, 512, 512, "f32").heading[2].endswith(", not f32")
    assert "assumed" not in str(codegen.explain(512, 512, 512, "i8", device="cpu"))


def test_advice_of_explain_is_taken_next():
    """What the output for a type that GPUs refuse advises is not refused itself."""
    words = ("explain", "--m", "512", "--n", "512", "--k", "512", "--dtype")
    done = coordgraph(*words, "f32")
    assert "target=" not in done.out
    assert done.out.endswith("No times are predicted: the cost model covers GPUs.\n")
    for kind in ("f32", "i8"):
        done = coordgraph(*words, kind, "--device", "H100")
        assert "choose device='cpu' (--device cpu)" in done.err
        assert coordgraph(*words, kind, "--device", "cpu").code == 0
    assert "(transpose_b=True or --transpose-b); or choose device='cpu'" in done.err
    assert "--transpose-a" not in done.err
    assert "(transpose_b=True or --transpose-b)" in coordgraph(*words, "i8").out
    assert "NVIDIA H100" in coordgraph(*words, "i8", "--device", "H100", "--transpose-b").out
    done = coordgraph(*words, "i8", "--transpose-a", "--transpose-b", "--device", "H100")
    assert "give A row-major (transpose_a=False; leave out --transpose-a); or" in done.err


def test_rows_of_odd_length():
    found = codegen.explain(512, 511, 512)
    assert isinstance(found, ByRule)
    assert "Rows of b have 1022 bytes; TMA needs a multiple of 16." in str(found)
    assert found.heading[-1] == "code     mma.sync + cp.async"
    assert "16 tiles for 132 SMs" in str(found)
    assert found.rows() == [["plan"], [str(found.plan)]]
    assert found.as_data()["plans"][0]["plan"] == str(found.plan)
    assert found.as_data()["device"] == "NVIDIA H200"


@pytest.mark.parametrize("kinds", [("f32", None), ("f64", None), ("bf16", "f64")])
def test_what_gpus_do_not_multiply(kinds: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(CodegenError, match=r"no code for this problem on NVIDIA H200: .* f(32|64)"):
        codegen.explain(512, 512, 512, *kinds, device="NVIDIA H200")
    here(monkeypatch, H200)
    monkeypatch.setattr(build, "compile_plan", COMPILE_PLAN)
    a, b, d = (matrix(512, 512, at, kinds[0]) for at in (A, B, D))
    with pytest.raises(CodegenError, match=r"have the type f(32|64)|not f(32|64)"):
        codegen.matmul(a, b, out=replace(d, dtype=kinds[1] or kinds[0]))


@pytest.mark.parametrize("name", ["NVIDIA H100 SXM9", "H", "", "gpu", 5, []])
def test_unknown_devices_are_refused(name: Any, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(CodegenError, match=r"device = .* is not .* 'cpu'"):
        codegen.explain(512, 512, 512, device=name)
    here(monkeypatch, A100)
    if name == "gpu":
        with pytest.raises(CodegenError, match="'cpu', 'NVIDIA A100-SXM4-80GB', 'A100', "):
            codegen.explain(512, 512, 512, device=name)


def test_a_gpu_that_is_too_old_is_none(monkeypatch: pytest.MonkeyPatch):
    def device(ordinal: int = 0) -> driver.Device:
        raise CodegenError("too old")

    monkeypatch.setattr(driver, "device_count", lambda: 1)
    monkeypatch.setattr(driver, "device", device)
    assert codegen.explain(512, 512, 512) == codegen.explain(512, 512, 512, device="NVIDIA H200")


@pytest.mark.parametrize("count", [0, "x", 2.5])
def test_counts(count: Any):
    with pytest.raises(VerifyError, match="count = "):
        codegen.explain(512, 512, 512, count=count)


SIZE = 2048, 2304, 8192
COUNT = 12


def tuned(monkeypatch: pytest.MonkeyPatch, order: int) -> list[Plan]:
    """Tune on a fake device, and return the plans that were measured, the fastest first.

    If `order` is 1, the first plan that tuning lists takes 1 ms, the second 2 ms and so on. If it
    is -1, the last one takes 1 ms.
    """
    m, n, k = SIZE
    plans: list[Plan] = []

    def times(situation: Any, *_: Any) -> dict[Plan, float]:
        plans.extend(islice(situation.plans(), COUNT))
        return {plan: 1e-3 * (1 + place) for place, plan in enumerate(plans[::order])}

    class Made:
        """A stand-in for a kernel, with the attributes that `matmul` reads before it calls
        the kernel.
        """

        def __init__(self, plan: Plan, gemm: Gemm, *_: Any, **__: Any) -> None:
            self.graph = plan.graph(gemm)

        def __call__(self, *_: Any, **__: Any) -> None:
            pass

        def repeated(self, *_: Any, **__: Any) -> None:
            pass

    with monkeypatch.context() as patch:
        patch.setattr(build, "compile_plan", Made)
        patch.setattr(tuning, "find_fastest", times)
        patch.setattr(tuning, "opened", lambda *_: nullcontext())
        patch.setattr(tuning, "_refuse_capture", lambda _: None)
        codegen.matmul(matrix(m, k, A), matrix(k, n, B), out=matrix(m, n, D), tune=True)
    matmul.forget()
    measured.forget()  # drops the times in memory, so that they are read from disk
    return plans[::order]


@pytest.mark.parametrize("order", [1, -1])
def test_what_was_tuned_is_told(order: int, monkeypatch: pytest.MonkeyPatch):
    here(monkeypatch, H200)
    before = codegen.explain(*SIZE)
    assert isinstance(before, Explanation)
    plans = tuned(monkeypatch, order)
    found = codegen.explain(*SIZE)
    assert isinstance(found, Tuned)
    m, n, k = SIZE
    launched = multiplied(matrix(m, k, A), matrix(k, n, B), out=matrix(m, n, D))
    assert found.best.plan == launched == plans[0]
    assert [plan for plan, _ in found.measured.times] == plans
    assert len(plans) == COUNT
    # Measured times are shown beside the model's prediction for the same plan.
    predicted = {choice.plan: choice.seconds for choice in choices(before.problem)}
    data = found.as_data()
    assert [(t["plan"], t["seconds"], t["predicted"]) for t in data["tuned"]] == [
        (str(plan), pytest.approx(1e-3 * place), predicted[plan])
        for place, plan in enumerate(plans, 1)
    ]
    assert data["plans"] == before.as_data()["plans"]
    head, first, *_ = found.rows()
    assert head == ["plan", "measured", "predicted", "measured / predicted"]
    assert first[:2] == [str(plans[0]), "1000"]
    assert float(first[3]) == pytest.approx(1e-3 / predicted[plans[0]], abs=0.01)
    # The text explains the choice in words and shows the prediction below them.
    text = str(found)
    assert (
        f"{plans[0]} is remembered: tune=True measured 1000 µs (77 TFLOP/s), the least of 12"
        in text
    )
    last = (
        "The cost model prefers the same plan."
        if order == 1
        else f"{before.best.plan}, which took 1100.0%"
    )
    assert last in text
    assert "off by" in text
    assert text.endswith(before.page)
    assert text.startswith("\n".join(found.heading))


def test_what_was_tuned_is_for_one_problem_and_one_device(monkeypatch: pytest.MonkeyPatch):
    here(monkeypatch, H200)
    tuned(monkeypatch, -1)
    assert isinstance(codegen.explain(*SIZE, out_dtype="bf16"), Tuned)
    assert isinstance(codegen.explain(*SIZE, out_dtype="f32"), Explanation)
    assert isinstance(codegen.explain(*SIZE, transpose_b=True), Explanation)
    assert isinstance(codegen.explain(2048, 2304, 8200), Explanation)
    here(monkeypatch, replace(H200, name="NVIDIA H100 SXM5"))
    assert isinstance(codegen.explain(*SIZE), Explanation)
    assert isinstance(codegen.explain(*SIZE, device="NVIDIA H200"), Explanation)


def test_a_plan_without_a_prediction(monkeypatch: pytest.MonkeyPatch):
    here(monkeypatch, H200)
    problem = Gemm("bf16", None, *SIZE)
    slow, odd = rank(problem)[1].plan, Plan.parse("96x96x32 data-parallel")
    where = request.PlanRequest(problem, H200.architecture, H200.name, H200.processors)
    measured.remember(where, {slow: 2e-3, odd: 1e-3})
    found = codegen.explain(*SIZE)
    assert isinstance(found, Tuned)
    assert found.best.plan == odd
    assert found.rows()[1] == [str(odd), "1000", "", ""]
    assert found.as_data()["tuned"][0]["predicted"] is None
    assert "which was not measured" in str(found)
    measured.remember(where, {odd: 1e-3})
    assert "off by" not in str(codegen.explain(*SIZE))


def test_the_command_tells_what_was_tuned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    here(monkeypatch, H200)
    plans = tuned(monkeypatch, -1)
    explain_choice(Gemm("bf16", None, *SIZE), None, as_json=False)
    printed = " ".join(capsys.readouterr().out.split())
    assert f" plan measured predicted measured / predicted {plans[0]} 1000 " in printed
    assert "device NVIDIA H200 (sm_90a, 132 SMs), the GPU of this machine" in printed
    assert f"{plans[0]} is remembered: tune=True measured" in printed
    assert "plan total launch main tiles fixup cluster correction loop" in printed
    assert "What bounds it:" in printed


@quick_cases(1)
@pytest.mark.parametrize("size", [(16, 6144, 4096), (2048, 2304, 8192), (4096, 4096, 4096)])
def test_plans_read_back(size: tuple[int, int, int]):
    """Printed plans can be passed to `matmul` and to `coordgraph run --plan`."""
    problem = Gemm("bf16", None, *size)
    plans = {choice.plan for choice in choices(problem)} | {c.plan for c in rank(problem)}
    plans |= {codegen.explain(*size, device="cpu").best.plan, codegen.explain(5, 5, 5).best.plan}
    assert len(plans) > 20
    for plan in plans:
        assert Plan.parse(str(plan)) == plan
        assert str(Plan.parse(str(plan))) == str(plan)


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_types_of_newer_gpus_are_explained_on_them(kind: str):
    found = codegen.explain(4096, 4096, 4096, kind, transpose_b=True, device="H200")
    assert "sm_90a" in "".join(found.heading)
    with pytest.raises(CodegenError, match="which sm_80 lacks"):
        codegen.explain(4096, 4096, 4096, kind, transpose_b=True, device="A100")


def test_a_plan_by_rule_has_no_time_and_no_bound():
    best = codegen.explain(2048, 2300, 8192, device="NVIDIA H200").best
    assert isinstance(best, ByRule)
    assert (best.seconds, best.bound) == (None, None)


def test_a_problem_without_all_sizes_is_refused():
    with pytest.raises(VerifyError, match="give all three"):
        codegen.explain(None, 64, 64)  # pyright: ignore[reportArgumentType]
