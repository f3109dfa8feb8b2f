"""Tests of `codegen.warm` with a fake driver: the built kernels, and the plans of later calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import codegen
from codegen.call import build, choose, families, warming
from codegen.call.compile_workers import CompileWorkers
from codegen.call.request import PlanRequest
from codegen.targets.nvptx import driver
from coordgraph import CodegenError, Gemm, LaunchError, PassError
from passes.choosing import rank
from passes.choosing.kernel_family import choose_family
from tests.codegen.nvptx.fake_driver import ARCHITECTURE, CONTEXT, PROCESSORS, FakeDriver, install

NAME = "NVIDIA H200"
REQUEST = PlanRequest(
    Gemm("bf16", m=640, n=1024, k=512, transpose_b=True), ARCHITECTURE, NAME, PROCESSORS
)
RANGES = {"m": (256, 1024), "n": 1024, "k": (256, 1024)}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeDriver]:
    """A fake H200; kernels are compiled in this process, and `warm` tries only 10 random sizes."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path))
    found = install(monkeypatch)
    device = driver.Device(0, NAME, ARCHITECTURE, PROCESSORS, CONTEXT)
    monkeypatch.setattr(driver, "device", lambda ordinal: device)
    monkeypatch.setattr(CompileWorkers, "run", lambda self, jobs, advance: None)

    def few(*args: object, **options: object) -> object:
        return choose_family(*args, **{**options, "drawn": 10})  # type: ignore[arg-type]

    monkeypatch.setattr(warming, "choose_family", few)
    yield found
    families.forget()
    build.forget()


def sized(m: int, n: int = 1024, k: int = 512) -> PlanRequest:
    return replace(REQUEST, gemm=replace(REQUEST.gemm, m=m, n=n, k=k))


def first(request: PlanRequest) -> str:
    return next(choose.plans(request)).kernel


@pytest.mark.slow
def test_calls_in_the_range_choose_among_built_kernels(fake: FakeDriver):
    made = codegen.warm("bf16", transpose_b=True, kernels=2, **RANGES)
    built = {plan.kernel for plan in made.kernels}
    assert len(built) == len(fake.loaded) == 2
    assert str(made).startswith("2 kernels for m 256 to 1024, n 1024, k 256 to 1024, ")
    chosen = {first(sized(m, k=k)) for m in range(256, 1025, 128) for k in (256, 512, 1024)}
    assert chosen <= built
    free = {sized(m).plans().__next__().kernel for m in range(256, 1025, 128)}
    assert not free <= built  # without `warm`, other kernels are chosen
    others = (
        sized(2048),
        sized(640, n=2048),
        replace(sized(640), reads_c=True),
        replace(sized(640), gemm=replace(REQUEST.gemm, transpose_b=False)),
        replace(sized(640), ordinal=1),
    )
    for request in others:
        assert first(request) == next(request.plans()).kernel


def test_calls_add_up(fake: FakeDriver):
    few = codegen.warm("bf16", transpose_b=True, kernels=1, **RANGES)
    more = codegen.warm("bf16", transpose_b=True, kernels=2, **{**RANGES, "n": 2048})
    known = families.family_of(sized(640))
    assert known is not None
    assert set(known.kernels) == {*few.kernels, *more.kernels}
    assert families.family_of(sized(640, n=2048)) is known


def test_the_selection_is_kept_on_disk(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    once = codegen.warm("bf16", transpose_b=True, kernels=2, **RANGES)
    (file,) = tmp_path.glob("*.family.json")
    monkeypatch.setattr(warming, "choose_family", lambda *_, **__: pytest.fail("selected again"))
    build.forget()
    assert codegen.warm("bf16", transpose_b=True, kernels=2, **RANGES) == once
    file.write_text("{")
    with pytest.raises(pytest.fail.Exception, match="selected again"):
        codegen.warm("bf16", transpose_b=True, kernels=2, **RANGES)


@pytest.mark.slow
def test_kernels_that_spill_are_left_out(fake: FakeDriver):
    asked: list[str] = []

    def spills(code: str) -> bool:
        asked.append(code)
        return len(set(asked)) == 1  # only the first kernel that is checked spills registers

    fake.spills = spills
    made = codegen.warm("bf16", transpose_b=True, kernels=2, **RANGES)
    (reason,) = made.refused.values()
    assert "spill" in reason
    assert len(made.kernels) == 1
    assert first(sized(640)) == made.kernels[0].kernel
    fake.spills = lambda code: True
    build.forget()
    with pytest.raises(CodegenError, match=r"no kernel can be built: .*spill"):
        codegen.warm("bf16", transpose_b=True, kernels=2, **RANGES)


def test_without_a_cost_model_the_kernels_of_the_rule_are_built(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
):
    older = driver.Device(0, "NVIDIA A100-SXM4-80GB", "sm_80", 108, CONTEXT)
    monkeypatch.setattr(driver, "device", lambda ordinal: older)
    made = codegen.warm("bf16", transpose_b=True, kernels=2, **RANGES)
    assert 1 <= len(made.kernels) == len(fake.loaded) <= 2
    assert made.loss == 0.0
    request = replace(REQUEST, target="sm_80", device=older.name, processors=older.processors)
    assert request.constants is None
    kernels = {plan.kernel for plan in made.kernels}
    assert first(request) in kernels
    for m, n, k in ((256, 1024, 1024), (1024, 1024, 256), (900, 1024, 640)):
        assert first(replace(request, gemm=replace(request.gemm, m=m, n=n, k=k))) in kernels


def test_types_without_code_are_refused(fake: FakeDriver):
    with pytest.raises(CodegenError, match=r"no kernel can be built: .* multiply bf16, f16, i8"):
        codegen.warm("f32", **RANGES)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"kernels": 0}, LaunchError, "kernels = 0"),
        ({"device": -1}, LaunchError, "device = -1"),
        ({"transpose_b": "yes"}, LaunchError, "transpose_b = 'yes'"),
        ({"m": (9, 8)}, PassError, "m = (9, 8) is an empty range"),
        ({"k": 0}, PassError, "an extent of k = 0"),
    ],
)
def test_wrong_arguments(
    fake: FakeDriver, options: dict[str, object], error: type[Exception], message: str
):
    with pytest.raises(error) as found:
        codegen.warm("bf16", **options)  # type: ignore[arg-type]
    assert message in str(found.value)


def test_ranking_is_unchanged_without_a_family(fake: FakeDriver):
    expected = [choice.plan for choice in rank(sized(640).gemm, REQUEST.constants)]
    assert [*choose.plans(sized(640))][: len(expected)] == expected
