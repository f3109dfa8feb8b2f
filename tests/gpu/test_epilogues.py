"""GPU kernels with epilogues agree with float64 within rounding, for all schedules and types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import codegen
from coordgraph import Gemm, LaunchError
from passes import Pipeline
from tests.support.epilogues import EPILOGUES, Case, operands

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

SCHEDULES = (
    ("data-parallel", (128, 128, 64)),
    ("data-parallel{persistent=true}", (64, 64, 64)),
    ("two-tile-stream-k", (128, 256, 64)),
    ("stream-k{owner=last}", (128, 128, 32)),
    ("stream-k{owner=last,reduction=turnstile}", (128, 64, 64)),
    ("stream-k{reduction=scatter}", (128, 128, 64)),
    ("stream-k{owner=last,reduction=atomic}", (128, 128, 64)),
    ("split-k{splits=3}", (64, 128, 64)),
    ("heterogeneous-tiles", (128, 128, 64)),
)
SIZES = ((256, 512, 192), (200, 328, 72), (129, 131, 77), (1, 7, 5), (300, 17, 1000))
BOUNDS = {"bf16": 2.0**-7, "f16": 2.0**-9}


def to_gpu(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.name == "bfloat16":
        return torch.from_numpy(value.view(np.int16).copy()).view(torch.bfloat16).cuda()
    return torch.from_numpy(value).cuda()


def check(made: Any, exact: Any, kind: str) -> None:
    error = made.double().cpu().numpy() - exact
    assert (np.abs(error) <= BOUNDS[kind] * np.maximum(1, np.abs(exact))).all()


def numpy_kind(kind: str) -> Any:
    from coordgraph.interpreter.arguments import numpy_dtype

    return numpy_dtype(kind)


@pytest.mark.parametrize("case", EPILOGUES, ids=str)
@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize(("schedule", "tile"), SCHEDULES, ids=str)
def test_results(schedule: str, tile: tuple[int, int, int], kind: str, case: Case):
    """Repeated launches give equal bits, near the float64 result, for sizes that end inside tiles.

    D is filled with NaN before each launch.
    """
    kernel = codegen.compile(
        Pipeline.parse(schedule)(Gemm(kind, epilogue=case.function).graph(tile)), debug=True
    )
    rng = np.random.default_rng(5)
    for m, n, k in SIZES:
        a, b = ((rng.normal(size=s) / k**0.5).astype(numpy_kind(kind)) for s in ((m, k), (k, n)))
        given, wide = operands(case, {"l": 1, "m": m, "n": n}, numpy_kind(kind), apart=False)
        exact = case.meaning({"acc": (a.astype(float) @ b.astype(float))[None], **wide})[0]
        there = {name: to_gpu(value) for name, value in given.items()}
        one, other = to_gpu(a), to_gpu(b)
        first = None
        for _ in range(3):
            out = torch.full((m, n), float("nan"), dtype=one.dtype, device="cuda")
            kernel(one, other, out=out, **there)
            check(out, exact, kind)
            assert "atomic" in schedule or first is None or torch.equal(out, first)
            first = out


@pytest.mark.parametrize("case", EPILOGUES, ids=str)
def test_batches(case: Case):
    kernel = codegen.compile(
        Pipeline.parse("stream-k")(
            Gemm("bf16", batched=True, epilogue=case.function).graph((128, 128, 64))
        )
    )
    l, m, n, k = 3, 130, 264, 200  # noqa: E741
    rng = np.random.default_rng(5)
    a, b = (
        (rng.normal(size=s) / k**0.5).astype(numpy_kind("bf16")) for s in ((l, m, k), (l, k, n))
    )
    given, wide = operands(case, {"l": l, "m": m, "n": n}, numpy_kind("bf16"), apart=True)
    exact = case.meaning({"acc": a.astype(float) @ b.astype(float), **wide})
    made = kernel(to_gpu(a), to_gpu(b), **{name: to_gpu(value) for name, value in given.items()})
    check(made, exact, "bf16")


def test_a_number_in_memory_may_change_between_launches():
    case = EPILOGUES[1]
    kernel = codegen.compile(
        Pipeline.parse("data-parallel")(Gemm("f16", epilogue=case.function).graph())
    )
    a, b = (torch.randn(128, 128, dtype=torch.float16, device="cuda") for _ in range(2))
    row, factor = torch.ones(128, device="cuda"), torch.zeros((), device="cuda")
    before = kernel(a, b, row=row, scale=1.0, factor=factor)
    factor.fill_(3.0)
    after = kernel(a, b, row=row, scale=1.0, factor=factor)
    exact = torch.relu(a.double() @ b.double() - 3)
    assert (after.double() - exact).abs().max() <= 2.0**-9 * exact.abs().max()
    assert not torch.equal(before, after)


def test_unaligned_operands():
    """Results are right if bias and residual begin at addresses that are not aligned to 16 bytes.
    """
    case = EPILOGUES[0]
    kernel = codegen.compile(
        Pipeline.parse("data-parallel")(Gemm("bf16", epilogue=case.function).graph())
    )
    a, b = (torch.randn(256, 256, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    residual = torch.randn(256 * 256 + 1, dtype=torch.bfloat16, device="cuda")[1:].view(256, 256)
    bias = torch.randn(257, dtype=torch.bfloat16, device="cuda")[1:]
    made = kernel(a, b, bias=bias, residual=residual)
    x = a.double() @ b.double() + bias.double()
    exact = torch.nn.functional.gelu(x, approximate="tanh") + residual.double()
    assert (made.double() - exact).abs().max() <= 2.0**-7 * exact.abs().max()


def test_arguments_that_do_not_fit():
    kernel = codegen.compile(
        Pipeline.parse("data-parallel")(Gemm("bf16", epilogue=EPILOGUES[0].function).graph())
    )
    a, b = (torch.ones(64, 64, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    with pytest.raises(LaunchError, match="residual is missing"):
        kernel(a, b, bias=a[0])
    with pytest.raises(
        LaunchError, match=r"bias has the shape \(63,\), but \(n,\) = \(64,\) is needed"
    ):
        kernel(a, b, bias=a[0, :63], residual=b)
    with pytest.raises(
        LaunchError, match=r"bias lies on 'cpu'; move it to the GPU with \.cuda\(\)"
    ):
        kernel(a, b, bias=a[0].cpu(), residual=b)
