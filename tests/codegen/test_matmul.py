"""`codegen.matmul` gives right results on the CPU, and chooses suitable plans on a fake GPU."""

from __future__ import annotations

import inspect
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import codegen
from codegen.call import build, matmul, measured
from codegen.call.arrays import library
from codegen.call.request import PlanRequest
from coordgraph import CodegenError, Gemm, LaunchError, ParseError, PassError, VerifyError
from coordgraph import epilogue as ep
from passes import DataParallel
from passes.choosing import Plan, rank
from tests.codegen.nvptx.fake_driver import FakeDriver, matrix
from tests.support.sampling import chosen, cover, quick_cases

pytestmark = pytest.mark.usefixtures("forgotten")

A, B, D = 1 << 30, 2 << 30, 3 << 30


def operands(m: int, n: int, k: int, kind: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(m * n + k)
    a, b = random.integers(-4, 5, (m, k)), random.integers(-4, 5, (k, n))
    return a.astype(kind), b.astype(kind)


@quick_cases(1)
@pytest.mark.parametrize(
    ("size", "kind"),
    cover(0, product([(1, 1, 1), (3, 50, 7), (70, 33, 129)], [np.float32, np.float64])),
)
def test_numpy_arrays_are_multiplied(size: tuple[int, int, int], kind: type):
    a, b = operands(*size, kind)
    for _ in range(2):
        assert np.array_equal(codegen.matmul(a, b), a @ b)
    out = np.full((size[0], size[1]), np.nan, kind)
    assert codegen.matmul(a, b, out=out) is out
    assert np.array_equal(out, a @ b)


def test_transposes_are_read_where_they_lie():
    a, b = operands(20, 30, 40)
    stored_a, stored_b = np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)
    want = a @ b
    assert np.array_equal(codegen.matmul(stored_a.T, stored_b.T), want)
    assert np.array_equal(codegen.matmul(stored_a, b, transpose_a=True), want)
    assert np.array_equal(codegen.matmul(a, stored_b, transpose_b=True), want)
    # `transpose_a` declares that the array holds A transposed, as the view `a.T` does.
    assert np.array_equal(codegen.matmul(a.T, b, transpose_a=True), want)


def test_transposes_need_no_attribute(fake: FakeDriver):
    """Transposed arrays need no `.T` attribute, since not all libraries have it."""
    a, b = matrix(512, 64, A), matrix(768, 64, B)
    view_a, view_b = (library(x).transposed(x) for x in (matrix(64, 512, A), b))
    codegen.matmul(a, b, out=matrix(512, 768, D), transpose_b=True)
    codegen.matmul(a, view_b, out=matrix(512, 768, D))
    assert fake.launches[0] == fake.launches[1]
    codegen.matmul(view_a, view_b, out=matrix(512, 768, D))
    assert len(fake.launches) == 3


def test_too_many_rows_are_refused(fake: FakeDriver):
    tall = matrix(1 << 31, 64, 1 << 40)
    with pytest.raises(LaunchError, match=r"^m = 2147483648 must be in 1\.\."):
        codegen.matmul(tall, matrix(64, 64, B), out=matrix(1 << 31, 64, 1 << 50))
    assert fake.launches == []


def test_the_epilogue_has_its_scalars():
    a, b = operands(20, 30, 40)
    c = np.ones((20, 30), np.float32)
    assert np.allclose(codegen.matmul(a, b, c, alpha=2.0, beta=-3.0), 2 * (a @ b) - 3)


def test_a_plan_can_be_told():
    a, b = operands(100, 100, 100)
    plan = "32x32x16 stream-k{owner=last} on 5"
    assert np.array_equal(codegen.matmul(a, b, plan=plan), a @ b)
    assert np.array_equal(codegen.matmul(a, b, plan=Plan((64, 64, 64))), a @ b)


@pytest.mark.parametrize(
    ("plan", "error"), [("quick", PassError), ("8x8x8 qick", ParseError), ("8x8x8@c2x1 x", None)]
)
def test_a_plan_that_cannot_be_used_is_refused(plan: str, error: type[Exception] | None):
    a, b = operands(4, 4, 4)
    with pytest.raises(error or (ParseError, CodegenError)):
        codegen.matmul(a, b, plan=plan)


def test_clusters_are_refused_where_there_are_none():
    a, b = operands(4, 4, 4)
    with pytest.raises(CodegenError, match="clusters, which kernels for cpu do not have"):
        codegen.matmul(a, b, plan="64x64x64@c2x1 data-parallel")
    with pytest.raises(CodegenError, match="consumers, which kernels for cpu do not have"):
        codegen.matmul(a, b, plan="64x128x64@pingpong data-parallel")


def test_a_grid_is_refused_where_there_is_none_to_choose():
    a, b = operands(4, 4, 4)
    with pytest.raises(CodegenError, match="does not let a plan choose; leave out 'on 5'"):
        codegen.matmul(a, b, plan="16x16x16 data-parallel on 5")


@pytest.mark.parametrize("first", [None, " on 5"])
def test_a_refused_grid_refuses_no_other_call(first: str | None):
    """A call with a refused number of workgroups does not affect other calls of the kernel."""
    a, b = operands(4, 4, 4)
    plan = "16x16x16 data-parallel"
    if first is None:
        assert np.array_equal(codegen.matmul(a, b, plan=plan), a @ b)
    with pytest.raises(CodegenError, match="does not let a plan choose; leave out 'on 5'"):
        codegen.matmul(a, b, plan=f"{plan} on 5")
    assert np.array_equal(codegen.matmul(a, b, plan=plan), a @ b)
    with pytest.raises(CodegenError, match="does not let a plan choose; leave out 'on 6'"):
        codegen.matmul(a, b, plan=f"{plan} on 6")


def test_clusters_need_rows_of_multiples_of_16_bytes(fake: FakeDriver):
    a, b, d = matrix(500, 333, A), matrix(333, 700, B), matrix(500, 700, D)
    with pytest.raises(CodegenError, match="cannot have here: rows or addresses of A and B"):
        codegen.matmul(a, b, out=d, plan="256x256x64@c2x1 stream-k")
    a, b, d = matrix(512, 64, A), matrix(64, 768, B), matrix(512, 768, D)
    with pytest.raises(CodegenError, match="kernels for sm_90a cannot have here: "):
        codegen.matmul(a, b, out=d, plan="250x256x64@c2x1 stream-k")


def test_operands_must_fit():
    a, b = operands(4, 5, 6)
    with pytest.raises(LaunchError, match="k would be 6 and 4"):
        codegen.matmul(a, a)
    with pytest.raises(LaunchError, match=r"a is not contiguous .*; pass a contiguous copy$"):
        codegen.matmul(a[:, ::2], b[:3])
    with pytest.raises(LaunchError, match=r"b holds f64, but the kernel takes f32; convert it$"):
        codegen.matmul(a, b.astype(np.float64))
    with pytest.raises(LaunchError, match=r"^a is 4x6 and b is 4x5: k would be 6 and 4"):
        codegen.matmul(np.asfortranarray(a), b[:4])
    with pytest.raises(LaunchError, match="a scalar"):
        codegen.matmul(np.array(a[0, 0]), b)


def test_a_call_like_one_before_chooses_nothing(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch):
    a, b, d = matrix(512, 1024, A), matrix(768, 1024, B), matrix(512, 768, D)
    codegen.matmul(a, b, out=d, transpose_b=True)
    monkeypatch.setattr(matmul, "first_launch", None)
    codegen.matmul(a, b, out=d, transpose_b=True)
    assert len(fake.launches) == 2
    assert fake.launches[0] == fake.launches[1]


def test_the_best_plan_is_launched(fake: FakeDriver):
    plan = rank(Gemm("bf16", m=512, n=768, k=1024, transpose_b=True))[0].plan
    a, b, d = matrix(512, 1024, A), matrix(768, 1024, B), matrix(512, 768, D)
    codegen.matmul(a, b, out=d, transpose_b=True)
    workgroups = plan.workgroups or -(-512 // plan.tile[0]) * -(-768 // plan.tile[1])
    ctas = plan.cluster[0] * plan.cluster[1] * plan.cluster[2]
    assert fake.launches[-1].grid == (workgroups * ctas, 1, 1)


def test_one_kernel_serves_every_size_of_a_plan(fake: FakeDriver):
    for m in (512, 520, 528):
        plan = "128x128x64 data-parallel"
        codegen.matmul(matrix(m, 64, A), matrix(64, 768, B), out=matrix(m, 768, D), plan=plan)
    assert len(fake.loaded) == 1


def test_rows_of_odd_length_take_another_plan(fake: FakeDriver):
    codegen.matmul(matrix(500, 333, A), matrix(333, 700, B), out=matrix(500, 700, D))
    assert "wgmma" not in fake.loaded[-1]
    assert "mma.sync" in fake.loaded[-1]


@pytest.mark.slow
def test_a_plan_that_spills_gives_way_to_the_next(fake: FakeDriver):
    refused: list[str] = []

    def spills(code: str) -> bool:
        """Report spills for the first kernel, and for all kernels with the same wgmma shape."""
        multiply = re.findall(r"wgmma\.mma_async\S+", code)[0]
        if multiply in refused or not refused:
            refused.append(multiply)
            return True
        return False

    fake.spills = spills
    a, b, d = matrix(512, 1024, A), matrix(1024, 768, B), matrix(512, 768, D)
    codegen.matmul(a, b, out=d)
    assert len(fake.launches) == 1
    tries = len(refused)
    matmul._prepared.clear()  # drops prepared calls; compiled kernels stay
    codegen.matmul(a, b, out=d)
    assert len(refused) == tries
    assert any(isinstance(known, CodegenError) for known in build._kernels.values())


def request_512() -> PlanRequest:
    gemm = Gemm("bf16", "bf16", 512, 768, 1024)
    return PlanRequest(gemm, "sm_90a", "NVIDIA H200", 132)


def test_what_was_measured_is_used(fake: FakeDriver, kernels: Path):
    best = Plan.parse("64x64x64 stream-k{owner=last} on 77")
    measured.remember(request_512(), {best: 1e-5, Plan((64, 64, 64)): 2e-5})
    measured.forget()
    codegen.matmul(matrix(512, 1024, A), matrix(1024, 768, B), out=matrix(512, 768, D))
    assert fake.launches[-1].grid == (77, 1, 1)
    (entry,) = json.loads((kernels / "tuned.json").read_text()).values()
    assert (entry["plan"], entry["seconds"]) == (str(best), 1e-5)
    assert entry["times"] == {str(best): 1e-5, "64x64x64 data-parallel": 2e-5}
    assert entry["problem"].startswith("512x768x1024 nn bf16 bf16")
    codegen.matmul(matrix(512, 1024, A), matrix(1024, 776, B), out=matrix(512, 776, D))
    assert fake.launches[-1].grid != (77, 1, 1)


@pytest.mark.parametrize("text", ["", "[]", '{"x": 1}', '{"x": {"plan": 5}}'])
def test_a_damaged_file_is_done_without(fake: FakeDriver, kernels: Path, text: str):
    (kernels / "tuned.json").write_text(text)
    assert measured.remembered(request_512()) is None
    measured.remember(request_512(), {Plan((64, 64, 64)): 1.0})
    measured.forget()
    assert measured.remembered(request_512()) == measured.Measured(((Plan((64, 64, 64)), 1.0),))


@pytest.mark.parametrize("times", [None, 5, {}, {"64x64x64 data-parallel": "x"}, {"quick": 1.0}])
def test_a_damaged_entry_is_done_without(fake: FakeDriver, kernels: Path, times: Any):
    measured.remember(request_512(), {Plan((64, 64, 64)): 1.0})
    file = kernels / "tuned.json"
    ((key, entry),) = json.loads(file.read_text()).items()
    file.write_text(json.dumps({key: {**entry, "times": times}}))
    measured.forget()
    assert measured.remembered(request_512()) is None


def test_without_a_cache_a_process_remembers_by_itself(
    fake: FakeDriver, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    assert measured.remembered(request_512()) is None
    measured.remember(request_512(), {Plan((64, 64, 64)): 1.0})
    assert measured.remembered(request_512()) == measured.Measured(((Plan((64, 64, 64)), 1.0),))


def test_there_is_nothing_to_tune_on_the_cpu():
    a, b = operands(9, 9, 9)
    assert np.array_equal(codegen.matmul(a, b, tune=True), a @ b)


@pytest.mark.parametrize("value", [5, [], {"tile": 3}, ("128x128x64", "data-parallel")])
def test_what_is_no_plan(value: Any):
    a, b = operands(4, 5, 6)
    with pytest.raises(LaunchError, match=r"plan = .* is neither a Plan nor its text"):
        codegen.matmul(a, b, plan=value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"transpose_a": "no"}, "transpose_a = 'no' is neither True nor False"),
        ({"transpose_b": []}, r"transpose_b = \[\] is neither True nor False"),
        ({"tune": "yes"}, "tune = 'yes' is neither True nor False"),
        ({"tune": np.ones(2)}, "tune = .* is neither True nor False"),
        ({"alpha": "x"}, "alpha = 'x' is not a number"),
        ({"beta": "1"}, "beta = '1' is not a number"),
        ({"beta": np.ones(2)}, "beta = .* is not a number"),
        ({"out": np.zeros((4, 5), np.int32)}, "out holds i32; matrices hold bf16, f16, f32 or f64"),
        ({"out": 4}, "out is an int, not a numpy array; convert it with numpy.asarray"),
        ({"c": [[1]], "beta": 1.0}, "c is a list, not a numpy array"),
        (
            {"c": np.ones(5, np.float32), "beta": 1.0},
            r"c has shape 5; .* np\.broadcast_to\(c, \(m, n\)\), or use an epilogue with bias='n'",
        ),
        ({"stream": "x"}, "kernels for the CPU have no streams"),
    ],
)
def test_options_are_looked_at(options: dict[str, Any], words: str):
    a, b = operands(4, 5, 6)
    with pytest.raises(LaunchError, match=words):
        codegen.matmul(a, b, **options)


@pytest.mark.parametrize("value", [None, 5, [[1.0]], "a"])
def test_what_is_no_array(value: Any):
    with pytest.raises(
        LaunchError, match=r"a is an? .* which is no array; .* for the CPU a numpy array"
    ):
        codegen.matmul(value, value)


class Measured(np.ndarray):
    """A subclass of numpy.ndarray that adds nothing, like those that other libraries define."""


@quick_cases(1)
@pytest.mark.parametrize(
    "kind",
    chosen([np.matrix, np.ma.MaskedArray], [Measured, np.matrix, np.memmap, np.ma.MaskedArray]),
)
def test_subclasses_of_numpy(kind: type[np.ndarray], fake: FakeDriver):
    a, b = operands(4, 5, 6)
    special = a.view(kind)
    kernel = codegen.compile(DataParallel()(Gemm("f32").graph((16, 16, 16))), "cpu")
    reference = codegen.compile(DataParallel()(Gemm("f32").graph((4, 4, 4))), "interpreter")
    calls: list[Any] = [codegen.matmul, kernel, reference]
    for call in calls:
        if kind is np.ma.MaskedArray:
            for given in ((special, b), (b.T.copy(), special), (a, b, None, special)):
                with pytest.raises(LaunchError, match=r"is a masked array, .* pass .*\.filled"):
                    call(*given)
            continue
        assert np.array_equal(call(special, b), a @ b)
        out = np.zeros((4, 5), np.float32).view(kind)
        assert call(a, b, out=out) is out
        assert np.array_equal(out, a @ b)
    if kind is not np.ma.MaskedArray:
        assert np.array_equal(codegen.matmul(b.T.copy(), special.T), (a @ b).T)
    on_gpu = codegen.compile(DataParallel()(Gemm("bf16").graph((64, 64, 64))), "sm_80")
    with pytest.raises(LaunchError, match="a is a numpy array in host memory"):
        on_gpu(special, b)


@pytest.mark.parametrize("value", [np.float32(1), np.dtype("f4"), np.add])
def test_what_else_numpy_has(value: Any):
    with pytest.raises(LaunchError, match=r"a is a .*, not a numpy array; convert it"):
        codegen.matmul(value, value)


def test_numbers_of_numpy_are_numbers():
    a, b = operands(4, 5, 6)
    true: Any = np.True_
    found = codegen.matmul(a, b, ones := np.ones((4, 5), np.float32), beta=np.float64(2))
    assert np.array_equal(found, a @ b + 2 * ones)
    assert np.array_equal(codegen.matmul(a.T, b, transpose_a=true), a @ b)


@pytest.mark.parametrize("value", ["x", None, []])
def test_what_is_no_stream(fake: FakeDriver, value: Any):
    a, b, d = matrix(64, 64, A), matrix(64, 64, B), matrix(64, 64, D)
    if value is None:
        assert codegen.matmul(a, b, out=d, stream=value) is d
        return
    with pytest.raises(LaunchError, match=r"stream = .* is not a stream of PyTorch"):
        codegen.matmul(a, b, out=d, stream=value)
    assert fake.launches == []


@pytest.mark.parametrize("function", [codegen.matmul, codegen.grouped_matmul])
def test_no_operand_has_the_name_of_an_argument(function: Any):
    """A call could not pass such an operand. C, alpha and beta are operands and arguments."""
    for argument in inspect.signature(function).parameters.values():
        name = argument.name
        if argument.kind is argument.VAR_KEYWORD or name in ("c", "alpha", "beta"):
            continue
        added = ep.parse_function(f"f({name}: n) {{ %0 = add(acc, {name}); %0 }}")
        with pytest.raises(VerifyError, match=f"operand '{name}' has a name that kernels already"):
            Gemm("f32", epilogue=added)


def test_arrays_on_the_cpu_that_are_no_numpy_arrays_are_refused_with_advice():
    class Exported:
        """An array of a library that this one does not know, which exports it by DLPack."""

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: Any) -> Any:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[Any, int]:
            return self.array.__dlpack_device__()

    a = np.ones((3, 4), np.float32)
    with pytest.raises(LaunchError, match=r"for the CPU pass .* numpy\.from_dlpack\(a\)"):
        codegen.matmul(Exported(a), a.T)
    assert (codegen.matmul(np.from_dlpack(Exported(a)), a.T) == 4).all()  # type: ignore[arg-type]


def test_c_is_added_if_beta_is_left_out():
    """`beta` is 1 by default if C is given, also with tables and groups; else it is 0."""
    a, b, c = (np.arange(n, dtype=np.float32).reshape(4, -1) for n in (24, 24, 24))
    b = b.T.copy()
    c = c[:, :4].copy()
    assert np.array_equal(codegen.matmul(a, b, c), a @ b + c)
    assert np.array_equal(codegen.matmul(a, b, c, beta=0), a @ b)
    assert np.array_equal(codegen.matmul(a, b), a @ b)
    rows = np.array([1, 0, 3, 2], np.int32)
    assert np.array_equal(codegen.matmul(a, b, c, rows=rows), a[rows] @ b + c)
    ends = np.array([0, 1, 4], np.int32)
    both = np.stack([b, -b])
    grouped = codegen.grouped_matmul(a, both, ends, c=c)
    assert np.array_equal(grouped, np.concatenate([a[:1] @ b, a[1:] @ -b]) + c)
