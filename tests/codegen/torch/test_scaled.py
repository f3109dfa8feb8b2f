"""`codegen.torch.scaled_mm`: results of float64, PyTorch's function, fake tensors, and refusals."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from coordgraph import LaunchError
from tests.support.sampling import quick_cases

KINDS = ("float8_e4m3fn", "float8_e5m2")
both = pytest.mark.parametrize("kind", KINDS)
RECIPES = ("TensorWise", "RowWise")


def problem(torch: Any, kind: str, m: int, n: int, k: int) -> tuple[Any, ...]:
    """(A, B as the transpose of a row-major matrix, scales of A's rows, scales of B's columns)."""
    torch.manual_seed(0)
    a, b = (torch.randn(x, k).to(getattr(torch, kind)) for x in (m, n))
    return a, b.t(), torch.rand(m, 1) + 0.5, torch.rand(1, n) + 0.5


@quick_cases(4)
@both
@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32", "same", None])
@pytest.mark.parametrize("recipe_b", RECIPES)
@pytest.mark.parametrize("recipe_a", RECIPES)
@pytest.mark.parametrize("bias", [None, "bfloat16", "float32"])
def test_results_are_those_of_float64(
    torch: Any, kind: str, out: str | None, recipe_a: str, recipe_b: str, bias: str | None
):
    import codegen.torch as cgt

    a, b, rows, columns = problem(torch, kind, 33, 48, 50)
    scale_a = rows if recipe_a == "RowWise" else rows[:1]
    scale_b = columns if recipe_b == "RowWise" else columns[0, 0]
    added = torch.randn(48).to(getattr(torch, bias)) if bias else None
    to = getattr(torch, kind if out == "same" else out) if out else None
    found = cgt.scaled_mm(
        *(a, b, scale_a, recipe_a, scale_b, recipe_b), bias=added, output_dtype=to
    )
    want = (a.double() @ b.double()) * scale_a.double() * scale_b.double()
    want = want if added is None else want + added.double()
    assert found.dtype == (to or a.dtype)
    step = 2 * torch.finfo(found.dtype).eps
    least = torch.finfo(found.dtype).smallest_normal * step  # the distance of the smallest numbers
    torch.testing.assert_close(found.double(), want, rtol=step, atol=max(least, 1e-5))


@both
def test_it_has_the_signature_and_the_results_of_pytorch(torch: Any, kind: str):
    import codegen.torch as cgt

    function = getattr(torch.nn.functional, "scaled_mm", None)
    if function is None:
        pytest.skip("this version of PyTorch has no torch.nn.functional.scaled_mm")
    ours, theirs = (inspect.signature(f).parameters for f in (cgt.scaled_mm, function))
    assert [*ours] == [*theirs]
    assert [x.default for x in ours.values()] == [x.default for x in theirs.values()]
    scaling = torch.nn.functional.ScalingType
    a, b, rows, columns = problem(torch, kind, 32, 48, 64)
    for recipe, pair in (
        (scaling.RowWise, (rows, columns)),
        ("TensorWise", (rows[0], columns[0, 0])),
    ):
        scales = pair[0], recipe, pair[1], recipe
        found = cgt.scaled_mm(a, b, *scales)
        if not isinstance(recipe, str):
            try:
                want = function(a, b, *scales)
            except NotImplementedError:
                pytest.skip("this version of PyTorch multiplies 8-bit floats on GPUs only")
            assert found.dtype == want.dtype
            torch.testing.assert_close(found, want, rtol=2**-7, atol=1e-5)
            listed = cgt.scaled_mm(a, b, [pair[0]], [recipe], [pair[1]], [recipe])
            assert torch.equal(found, listed)
        else:
            exact = (a.float() @ b.float()) * pair[0] * pair[1]
            torch.testing.assert_close(found.float(), exact, rtol=2**-7, atol=1e-5)


@both
def test_results_of_8_bits_saturate(torch: Any, kind: str):
    import codegen.torch as cgt

    a, b, rows, columns = problem(torch, kind, 16, 16, 32)
    to = getattr(torch, kind)
    found = cgt.scaled_mm(
        *(a, b, rows * 1e6, "RowWise", columns, "RowWise"), output_dtype=to
    ).float()
    assert found.isfinite().all()
    assert found.abs().max() == torch.finfo(to).max


@pytest.mark.parametrize(
    "shape", [(0, 5, 7), (5, 0, 7), (1, 1, 1), (5, 1, 7), (1, 9, 1), (3, 4, 0)]
)
def test_small_and_empty_extents(torch: Any, shape: tuple[int, int, int]):
    import codegen.torch as cgt

    a, b, rows, columns = problem(torch, KINDS[0], *shape)
    bias = torch.ones(shape[1])
    found = cgt.scaled_mm(a, b, rows, "RowWise", columns, "RowWise", bias=bias)
    want = (a.double() @ b.double()) * rows * columns + 1
    torch.testing.assert_close(found.double(), want, rtol=2**-7, atol=1e-5)


def test_the_compiler_and_meta_tensors_know_the_result(torch: Any):
    import codegen.torch as cgt

    a, b, rows, columns = problem(torch, KINDS[0], 17, 24, 40)

    def scaled(a: Any, b: Any, rows: Any, columns: Any) -> Any:
        return cgt.scaled_mm(a, b, rows, "RowWise", columns, "RowWise") * 2

    for dynamic in (False, True):
        compiled = torch.compile(scaled, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        assert torch.equal(compiled(a, b, rows, columns), scaled(a, b, rows, columns))
    made = scaled(*(x.to("meta") for x in (a, b, rows, columns)))
    assert (made.shape, made.dtype) == ((17, 24), torch.bfloat16)
    arguments = (a, b, rows.reshape(-1), columns.reshape(-1), None, torch.float32)
    checks = "test_faketensor", "test_autograd_registration"  # others multiply 8-bit floats
    torch.library.opcheck(torch.ops.coordgraph.scaled_mm.default, arguments, test_utils=checks)


WRONG: dict[str, dict[str, Any]] = {
    "scale_recipe_a is BlockWise1x128, .* use torch.nn.functional.scaled_mm for scales of blocks": {
        "scale_recipe_a": "BlockWise1x128"
    },
    "scale_recipe_b is BlockWise1x32, BlockWise1x16, but": {
        "scale_recipe_b": ["BlockWise1x32", "BlockWise1x16"]
    },
    "swizzle_a is SWIZZLE_32_4_4, but kernels read": {"swizzle_a": "SWIZZLE_32_4_4"},
    r"contraction_dim = \(0, 1\), .* transpose a matrix by .t": {"contraction_dim": (0, 1)},
    r"scale_a is \(1, 1\), but the scaling RowWise needs \(8, 1\)": {
        "scale_a": lambda torch: torch.ones(1, 1)
    },
    r"scale_b is \(3, 4\), but the scaling RowWise needs \(1, 12\)": {
        "scale_b": lambda torch: torch.ones(3, 4)
    },
    "scale_recipe_a is a Tensor, but kernels scale by TensorWise": {
        "scale_recipe_a": lambda torch: torch.ones(8)
    },
    "scale_recipe_b is an int, but kernels scale by TensorWise": {"scale_recipe_b": 1},
    "scale_a is a float, but a tensor is needed": {"scale_a": 0.5},
    "scale_a is None, but a tensor is needed": {"scale_a": [None]},
    "mat_a is a ndarray, but a tensor is needed": {"mat_a": lambda torch: torch.ones(8).numpy()},
    "contraction_dim = 1, but kernels sum over the last axis": {"contraction_dim": 1},
    "scale_b has 2 tensors, but": {"scale_b": lambda torch: [torch.ones(12), torch.ones(12)]},
    "scale_a holds torch.float16; convert it": {"scale_a": lambda torch: torch.ones(8).half()},
    "both must hold one type, torch.float8_e4m3fn or torch.float8_e5m2; .*two types": {
        "mat_a": lambda torch: torch.ones(8, 16).to(torch.float8_e5m2)
    },
    "mat_a holds torch.float32 .* use matmul for other types": {
        "mat_a": lambda torch: torch.ones(8, 16)
    },
    "mat_a has 3 axes .* for each matrix of a batch": {
        "mat_a": lambda torch: torch.ones(1, 8, 16).to(torch.float8_e4m3fn)
    },
    r"mat_a is \(8, 15\) and mat_b is \(16, 12\); pass": {
        "mat_a": lambda torch: torch.ones(8, 15).to(torch.float8_e4m3fn)
    },
    r"bias is \(8,\), but \(12,\) is needed": {"bias": lambda torch: torch.ones(8)},
    "bias holds torch.float64, but must be one of": {"bias": lambda torch: torch.ones(12).double()},
    "output_dtype is torch.float64, but must be one of torch.bfloat16": {
        "output_dtype": lambda torch: torch.float64
    },
    "the tensors lie on cpu, meta; move": {"bias": lambda torch: torch.ones(12, device="meta")},
}


@pytest.mark.parametrize("why", WRONG)
def test_wrong_calls_are_refused(torch: Any, why: str):
    import codegen.torch as cgt

    a, b, rows, columns = problem(torch, KINDS[0], 8, 12, 16)
    given = {
        **{"mat_a": a, "mat_b": b, "scale_a": rows, "scale_b": columns},
        **{"scale_recipe_a": "RowWise", "scale_recipe_b": "RowWise"},
    }
    given |= {name: x(torch) if callable(x) else x for name, x in WRONG[why].items()}
    with pytest.raises(LaunchError, match=why):
        cgt.scaled_mm(**given)


def test_gpus_need_factors_along_k(torch: Any):
    """Fake tensors of a GPU show, without one, what is refused there."""
    import codegen.torch as cgt

    with torch._subclasses.fake_tensor.FakeTensorMode():
        a, b = (torch.empty(16, 16, dtype=torch.float8_e4m3fn, device="cuda") for _ in range(2))
        one = torch.ones(1, device="cuda")
        scales = one, "TensorWise", one, "TensorWise"
        assert cgt.scaled_mm(a, b.t(), *scales).shape == (16, 16)
        with pytest.raises(LaunchError, match=r"mat_b column-major, as weight\.t\(\)"):
            cgt.scaled_mm(a, b, *scales)
        with pytest.raises(LaunchError, match="pass mat_a row-major"):
            cgt.scaled_mm(a.t(), b.t(), *scales)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_vmap_has_a_rule(torch: Any, axes: tuple[int | None, int | None]):
    """PyTorch's fallback for operators without a rule, which warns, is not used."""
    import codegen.torch as cgt

    a, b, scale, *_ = problem(torch, "float8_e4m3fn", 5, 6, 8)
    scales = torch.stack([scale, scale * 2])
    bytes_ = torch.stack([a.view(torch.uint8)] * 2).view(a.dtype)
    given = (a if axes[0] is None else bytes_, scale if axes[1] is None else scales)
    one = torch.ones((), dtype=torch.float32)

    def work(a: Any, scale: Any) -> Any:
        return cgt.scaled_mm(a, b, scale, "RowWise", one, "TensorWise")

    torch._C._functorch._set_vmap_fallback_enabled(False)
    try:
        found = torch.vmap(work, in_dims=axes)(*given)
    finally:
        torch._C._functorch._set_vmap_fallback_enabled(True)
    for index in range(2):
        each = (x if axis is None else x[index] for x, axis in zip(given, axes, strict=True))
        assert torch.equal(found[index], work(*each))
