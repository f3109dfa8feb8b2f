"""`out_dtype` of `addmm` and `bmm`: sums of 16-bit factors that are not rounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordgraph import LaunchError
from tests.codegen.torch.conftest import Make


def shapes_of(c: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    return c, (5, 8), (8, 6)


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("c", [(5, 6), (6,), (5, 1)])
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (2, 0.5), (0, 1), (2, 0), (0, 0)])
def test_addmm(
    torch: Any, make: Make, name: str, wide: bool, c: tuple[int, ...], beta: float, alpha: float
):
    """The result is the sum in f32, and each gradient has the type of its argument."""
    import codegen.torch as cgt

    kind = getattr(torch, name)
    types = (torch.float32 if wide else kind, kind, kind)
    given = [make(*s, dtype=t) for s, t in zip(shapes_of(c), types, strict=True)]
    d = cgt.addmm(*given, out_dtype=torch.float32, beta=beta, alpha=alpha)
    exact = torch.addmm(*(x.float() for x in given), beta=beta, alpha=alpha)
    assert d.dtype is torch.float32
    torch.testing.assert_close(d, exact, atol=1e-5, rtol=1e-5)
    grad = torch.randn(5, 6).to(kind).float()  # exact in the type of the factors
    for one, right, x in zip(
        torch.autograd.grad(d, given, grad, materialize_grads=True),
        torch.autograd.grad(exact, given, grad, materialize_grads=True),
        given,
        strict=True,
    ):
        assert one.dtype is x.dtype
        torch.testing.assert_close(one, right, atol=2e-2, rtol=2e-2)


def test_bmm(torch: Any, make: Make):
    import codegen.torch as cgt

    a, b = make(2, 5, 8, dtype=torch.bfloat16), make(2, 8, 6, dtype=torch.bfloat16)
    d, exact = cgt.bmm(a, b, torch.float32), torch.bmm(a.float(), b.float())
    torch.testing.assert_close(d, exact, atol=1e-5, rtol=1e-5)
    found, right = (torch.autograd.grad(x.sum(), (a, b)) for x in (d, exact))
    torch.testing.assert_close(found, right, atol=2e-2, rtol=2e-2)
    same = cgt.bmm(a, b, out_dtype=torch.bfloat16)
    assert torch.equal(same, cgt.bmm(a, b))
    with torch.no_grad():
        out = torch.empty(2, 5, 6)
        assert torch.equal(cgt.bmm(a, b, torch.float32, out=out), d)


def transforms(torch: Any) -> dict[str, Callable[..., Any]]:
    return {
        "vmap": lambda f, *x: torch.vmap(f)(*(torch.stack([y, y * 2]) for y in x)),
        "jvp": lambda f, *x: torch.func.jvp(f, x, tuple(y.cos() for y in x)),
        "compile": lambda f, *x: torch.compile(f, backend="aot_eager", fullgraph=True)(*x),
    }


@pytest.mark.parametrize("name", ["vmap", "jvp", "compile"])
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_transforms(torch: Any, make: Make, name: str):
    import codegen.torch as cgt

    given = [make(*s, dtype=torch.bfloat16).detach() for s in shapes_of((5, 6))]
    found = transforms(torch)[name](
        lambda *x: cgt.addmm(*x, out_dtype=torch.float32, beta=2), *given
    )
    exact = transforms(torch)[name](
        lambda c, a, b: torch.addmm(c.float(), a.float(), b.float(), beta=2), *given
    )
    torch.testing.assert_close(found, exact, atol=1e-4, rtol=1e-4)


def test_other_types_are_refused(torch: Any, make: Make):
    import codegen.torch as cgt

    c, a, b = (make(*s, dtype=torch.bfloat16) for s in shapes_of((5, 6)))
    for kind in (torch.float16, torch.float64, torch.int32):
        with pytest.raises(LaunchError, match=r"but the factors hold torch\.bfloat16; leave out"):
            cgt.addmm(c, a, b, out_dtype=kind)
    with pytest.raises(LaunchError, match="but the factors hold"):
        cgt.bmm(make(2, 5, 8), make(2, 8, 6), torch.float32)
    with pytest.raises(LaunchError, match=r"hold torch\.bfloat16 and torch\.float16; convert"):
        cgt.addmm(c.half(), a, b, out_dtype=torch.float32)
    with pytest.raises(LaunchError, match=r"hold torch\.bfloat16 and torch\.float32; convert"):
        cgt.addmm(c.float(), a, b)
    with pytest.raises(LaunchError, match="lie on cpu and meta; move them"):
        cgt.addmm(c.float().to("meta"), a, b, out_dtype=torch.float32)


def test_pytorch_computes_calls_inside_use_kernels(torch: Any, make: Make):
    """`use_kernels` leaves products with `out_dtype` to PyTorch, which has none on the CPU."""
    import codegen.torch as cgt

    if not hasattr(torch.ops.aten.mm, "dtype"):
        pytest.skip("this PyTorch has no out_dtype")
    a, b = make(5, 8, dtype=torch.bfloat16), make(8, 6, dtype=torch.bfloat16)
    with cgt.use_kernels(devices=("cpu",)), pytest.raises(NotImplementedError, match="aten::mm"):
        torch.mm(a, b, torch.float32)
