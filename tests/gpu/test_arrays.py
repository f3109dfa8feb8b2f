"""Kernels take arrays of several libraries, unaligned views, and more than 2^31 elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from codegen.targets.nvptx.program import Vectors
from passes import DataParallel, StreamK
from tests.gpu.kernels import Problem, Spec, check, kernel, poisoned

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

F16 = Spec((StreamK(),), dtype="f16")
BF16 = Spec((StreamK(),))
BIG = (128, 64, 64)
"""The tile of kernels for tensors of more than 2^31 elements."""


def shifted(rows: int, columns: int, offset: int) -> Any:
    """A matrix that begins `offset` elements after an aligned address."""
    memory = torch.randn(rows * columns + offset, device="cuda").bfloat16()
    return memory[offset:].view(rows, columns)


@pytest.mark.parametrize(
    "offsets", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (2, 4, 1), (3, 3, 3), (8, 4, 2)]
)
def test_unaligned_views(offsets: tuple[int, int, int]):
    m, n, k = 136, 200, 328
    a, b = shifted(m, k, offsets[0]), shifted(k, n, offsets[1])
    out = shifted(m, n, offsets[2]).fill_(float("nan"))
    kernel(BF16)(a, b, out=out)
    check(out, a, b, None)
    widths = [next(w for w in (8, 4, 2, 1) if offset % w == 0) for offset in offsets]
    made = {variant.vectors for variant in kernel(BF16)._programs}
    assert Vectors(widths[0], widths[1], min(widths[2], 2)) in made


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    chance = np.random.default_rng(m)
    a, b = (chance.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    return a, b, a @ b  # the elements are small integers, so f32 sums are exact


def test_cupy():
    cupy = pytest.importorskip("cupy")
    a, b, exact = operands(100, 72, 264)
    x, y = (cupy.asarray(v.astype(np.float16)) for v in (a, b))
    made = kernel(F16)(x, y)
    assert isinstance(made, cupy.ndarray)
    assert made.dtype == np.float16
    assert np.array_equal(cupy.asnumpy(made), exact)
    out = cupy.full((100, 72), cupy.nan, cupy.float16)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    assert kernel(F16)(x, y, out=out, stream=stream) is out
    stream.synchronize()
    assert np.array_equal(cupy.asnumpy(out), exact)
    with stream:
        out.fill(cupy.nan)
        kernel(F16)(x, y, made, out=out, alpha=2.0, beta=-1.0)
    stream.synchronize()
    assert np.array_equal(cupy.asnumpy(out), exact)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_jax(dtype: str):
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip(f"JAX runs on {jax.default_backend()} here")
    a, b, exact = operands(100, 72, 264)
    # Integers up to 256 are exact in bf16. With k = 16, elements of D are at most 16 * 9.
    a, exact = (a[:, :16], a[:, :16] @ b[:16]) if dtype == "bfloat16" else (a, exact)
    b = b[:16] if dtype == "bfloat16" else b
    x, y = (jax.numpy.asarray(v, getattr(jax.numpy, dtype)) for v in (a, b))
    made = kernel(F16 if dtype == "float16" else BF16)(x, y)
    assert isinstance(made, jax.Array)
    assert str(made.dtype) == dtype
    assert np.array_equal(np.asarray(made.astype(jax.numpy.float32)), exact)


class Exported:
    """An array of an unknown library: its only interface is DLPack."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("spec", [F16, BF16], ids=str)
def test_dlpack(spec: Spec):
    problem = Problem.make(spec, (130, 72, 264))
    out = problem.out()
    kernel(spec)(Exported(problem.a), Exported(problem.b), out=Exported(out))
    torch.cuda.synchronize()
    problem.check(out)


def needs(gibibytes: int) -> None:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < gibibytes * 2**30:
        pytest.skip(f"needs {gibibytes} GiB of GPU memory, {free >> 30} are free")


def sampled(out: Any, a: Any, b: Any) -> None:
    """Check some rows, the first and last among them; 32-bit offsets would overflow in between."""
    chance = torch.Generator().manual_seed(1)
    rows = torch.randint(0, out.shape[0], (24,), generator=chance).tolist()
    rows += [0, 1, out.shape[0] - 2, out.shape[0] - 1]
    picked = torch.tensor(sorted(set(rows)), device="cuda")
    check(out[picked], a[picked], b, None)


@pytest.mark.parametrize("target", ["native", "sm_80"])
@pytest.mark.parametrize("schedule", [DataParallel(), StreamK()], ids=str)
def test_an_operand_of_more_than_2_to_31_elements(schedule: Any, target: str):
    m, n, k = 70000, 72, 40000
    needs(20)
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    assert a.numel() > 2**31
    out = poisoned((m, n), "bf16")
    kernel(Spec((schedule,), BIG, target=target))(a, b, out=out)
    assert not out.isnan().any()
    sampled(out, a, b)
    del a, b, out
    torch.cuda.empty_cache()


@pytest.mark.parametrize("target", ["native", "sm_80"])
def test_a_result_of_more_than_2_to_31_elements(target: str):
    m, n, k = 70000, 40000, 64
    needs(20)
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    out = poisoned((m, n), "bf16")
    kernel(Spec((StreamK(),), BIG, target=target))(a, b, out=out)
    assert not any(part.isnan().any() for part in out.split(4096))
    sampled(out, a, b)
    del a, b, out
    torch.cuda.empty_cache()
