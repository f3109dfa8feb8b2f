"""Arguments that are no dense tensors are refused, with advice."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

import codegen
from coordgraph import LaunchError
from coordgraph import epilogue as ep
from tests.codegen.torch.conftest import Make


@ep.epilogue()
def swiglu(gate: Any, up: Any) -> Any:
    return ep.silu(gate) * up


def test_several_weights(make: Make):
    """A tuple of weights is refused with the advice to join them."""
    import codegen.torch as cgt

    x, w = make(5, 8), make(6, 8)
    for weights in ((w, w), [w, w]):
        with pytest.raises(LaunchError, match=r"join both weights, as by torch\.cat"):
            cgt.swiglu(x, weights)  # type: ignore[arg-type]


def test_scalars(torch: Any, make: Make):
    import codegen.torch as cgt

    with pytest.raises(LaunchError, match=r"input has no axes, but .* pass at least a vector"):
        cgt.swiglu(torch.tensor(1.0), make(6, 8).float())


def test_no_tensors(torch: Any, make: Make):
    import codegen.torch as cgt

    w, targets = make(6, 8), torch.zeros(5, dtype=torch.int64)
    array: Any = torch.zeros(5, 8).numpy()
    several: Any = (w, w)
    for work, name, kind in (
        (lambda: cgt.matmul(w, array), "other", "ndarray"),
        (lambda: cgt.linear(array, w), "input", "ndarray"),
        (lambda: cgt.linear(w, w, several), "bias", "tuple"),
        (lambda: cgt.addmm(w, several, w), "mat1", "tuple"),
        (lambda: cgt.bmm(w, several), "mat2", "tuple"),
        (lambda: cgt.grouped_mm(w, several), "mat_b", "tuple"),
        (lambda: cgt.gated(array, w), "input", "ndarray"),
        (lambda: cgt.cross_entropy(w, several, targets), "weight", "tuple"),
    ):
        with pytest.raises(LaunchError, match=f"{name} is a {kind}, but a tensor is needed; pass"):
            work()


def test_wrong_arguments_are_named(torch: Any, make: Make):
    """Messages have the names of the function's arguments, also of those that PyTorch refuses."""
    import codegen.torch as cgt

    x, w, targets = make(2, 5, 8), make(6, 8), torch.zeros(2, 5, dtype=torch.int64)
    c, a, b = make(6), make(5, 8), make(8, 6)
    none: Any = None
    function: Any = torch.relu
    text: Any = "a"
    cases = (
        (lambda: cgt.matmul(x, none), "other is None, but a tensor is needed"),
        (lambda: cgt.cross_entropy(x, w, none), "targets is None, but a tensor is needed"),
        (lambda: cgt.linear(x, w[None]), "weight is (1, 6, 8), but linear needs n x k"),
        (lambda: cgt.linear(x, w.t()), "weight is (8, 6): k would be 8 and 6; pass a weight of"),
        (lambda: cgt.linear(x, w, w[0]), "bias of linear) is (8,), which cannot be broadcast"),
        (lambda: cgt.gated(x, w[:, :7]), "weight is (6, 7): k would be 8 and 7"),
        (lambda: cgt.linear(x, w, activation=function), "is unknown; choose one of silu"),
        (lambda: cgt.gated(x, w, activation=function), "is unknown; choose one of silu"),
        (lambda: cgt.matmul(x, make(3, 8, 6)), "before the last two do not broadcast; pass"),
        (lambda: cgt.addmm(c, a, b, alpha=text), "alpha = 'a' is no number; pass"),
        (lambda: cgt.addmm(c, a, b, beta=none), "beta = None is no number; pass"),
        (lambda: cgt.cross_entropy(x, w, targets, ignore_index=1.5), "ignore_index = 1.5 is not"),  # type: ignore[arg-type]
    )
    for work, message in cases:
        with pytest.raises(LaunchError) as error:
            work()
        assert message in str(error.value)


def test_tensors_on_the_cpu_for_epilogues(make: Make):
    """A call with an epilogue refuses CPU tensors, and takes the numpy arrays of their memory."""
    x, w = make(5, 8).detach(), make(8, 6).detach()
    options: Any = {"epilogue": swiglu}
    with pytest.raises(LaunchError, match=r"an epilogue .*, pass numpy arrays: a\.detach"):
        codegen.matmul(x, w, **options)
    gate, up = (x @ w).chunk(2, 1)
    d = codegen.matmul(x.numpy(), w.numpy(), **options)
    assert abs(d - (gate * gate.sigmoid() * up).numpy()).max() < 1e-6


def test_factors_that_require_a_gradient_are_refused(torch: Any, make: Make):
    """A factor becomes a number, so that its gradient would silently be missing."""
    import codegen.torch as cgt

    c, a, b = make(6), make(5, 8), make(8, 6)
    factor: Any = make().detach()
    torch.testing.assert_close(
        cgt.addmm(c, a, b, alpha=factor), torch.addmm(c, a, b, alpha=factor.item())
    )
    with pytest.raises(LaunchError, match=r"alpha is a tensor that requires a gradient, .* pass"):
        cgt.addmm(c, a, b, alpha=factor.requires_grad_())
    with pytest.raises(LaunchError, match="beta is a tensor that requires a gradient"):
        torch.func.grad(lambda x: cgt.addmm(c, a, b, beta=x).sum())(factor.detach())


def test_sparse_tensors(torch: Any, make: Make):
    import codegen.torch as cgt

    x, w = make(5, 8).detach(), make(6, 8).detach()
    with pytest.raises(LaunchError, match=r"input is torch\.sparse_coo, .* convert it"):
        cgt.swiglu(x.to_sparse(), w)
    with pytest.raises(LaunchError, match=r"weight is torch\.sparse_coo, .* convert it"):
        cgt.cross_entropy(x, w.to_sparse(), torch.zeros(5, dtype=torch.int64))


def test_use_kernels_leaves_calls_without_tensors_to_pytorch(torch: Any):
    import codegen.torch as cgt

    with cgt.use_kernels(), pytest.raises(TypeError, match="must be Tensor"):
        torch.matmul(1, 2)


def test_products_without_k(torch: Any, make: Make):
    """`gated` of several axes of rows takes k = 0, whose product is zero."""
    import codegen.torch as cgt

    bias = make(6)
    d = cgt.gated(make(2, 5, 0), make(6, 0), bias)
    torch.testing.assert_close(d, cgt.gated(make(2, 5, 4) * 0, make(6, 4), bias))


def test_broadcast_tensors_without_memory(torch: Any, make: Make):
    """Tensors of the device "meta", for which there is no autocast, are broadcast."""
    import codegen.torch as cgt

    a, b = make(2, 1, 5, 8).to("meta"), make(3, 8, 6)
    assert cgt.matmul(a, b.to("meta")).shape == (2, 3, 5, 6)
    with pytest.raises(LaunchError, match="lie on meta and cpu; move them"):
        cgt.matmul(a, b)


@pytest.mark.parametrize("options", [{"alpha": 0}, {"beta": 0}])
def test_vmap_checks_what_is_not_read(torch: Any, make: Make, options: Any):
    """With a factor of 0, vmap of `addmm` still refuses shapes that do not fit."""
    import codegen.torch as cgt

    c, a, b = make(3, 5, 6), make(3, 5, 8), make(3, 8, 6)
    wrong = (c[:, :4], a, b) if "beta" in options else (c, a, b[:, :7])
    with pytest.raises(LaunchError, match="pass"):
        torch.vmap(lambda *x: cgt.addmm(*x, **options))(*wrong)
    assert torch.vmap(lambda *x: cgt.addmm(*x, **options))(c, a, b).shape == c.shape


def test_numbers_may_be_inputs_of_compiled_functions(torch: Any, make: Make):
    """With `dynamic=True` factors and `ignore_index` are symbols, which the checks accept."""
    import codegen.torch as cgt

    def ours(c: Any, a: Any, b: Any, targets: Any, factor: float, ignored: int) -> Any:
        loss = cgt.cross_entropy(a, b.t(), targets, ignore_index=ignored)
        return cgt.addmm(c, a, b, alpha=factor, beta=factor).sum() + loss

    def theirs(c: Any, a: Any, b: Any, targets: Any, factor: float, ignored: int) -> Any:
        loss = torch.nn.functional.cross_entropy(a @ b, targets, ignore_index=ignored)
        return torch.addmm(c, a, b, alpha=factor, beta=factor).sum() + loss

    compiled = torch.compile(ours, fullgraph=True, dynamic=True, backend="aot_eager")
    given = make(6), make(5, 8), make(8, 6), torch.arange(5)
    for factor, ignored in ((1.0, -100), (0.5, 2), (3.0, 4)):
        right = theirs(*given, factor, ignored)
        torch.testing.assert_close(compiled(*given, factor, ignored), right)


def test_a_bias_on_another_device_is_refused(torch: Any):
    import codegen.torch as cgt

    bias = torch.zeros((), device="meta")
    with pytest.raises(LaunchError, match="lie on cpu and meta; move them to one device"):
        cgt.linear(torch.zeros(2, 7), torch.zeros(7), bias)


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_factor_with_a_tangent_is_refused(torch: Any):
    """`torch.addmm` accepts such an alpha, and returns a tangent of zeros."""
    import codegen.torch as cgt

    c, a, b = torch.zeros(4, 5), torch.zeros(4, 3), torch.zeros(3, 5)
    with pytest.raises(LaunchError, match=r"alpha .* may have a tangent, .* pass alpha"):
        torch.func.jvp(lambda x: cgt.addmm(c, a, b, alpha=x), (a[0, 0],), (c[0, 0],))


def test_out_must_be_a_dense_tensor(torch: Any):
    import codegen.torch as cgt

    a, b = torch.zeros(3, 5, 8), torch.zeros(3, 8, 6)
    wrong: Any
    for wrong, message in (
        (3, "out is a int, but a tensor is needed"),
        ([a], "out is a list, but a tensor is needed"),
        (torch.zeros(3, 5, 6).to_sparse(), "out is torch.sparse_coo, but"),
    ):
        for work in (
            partial(cgt.matmul, a, b),
            partial(cgt.bmm, a, b),
            partial(cgt.addmm, a[0, 0, :6], a[0], b[0]),
        ):
            with pytest.raises(LaunchError, match=message):
                work(out=wrong)
    with pytest.raises(LaunchError, match="other is a list, but a tensor is needed"):
        cgt.matmul(a, [b], out=a)  # type: ignore[arg-type]


def test_recompute_must_be_true_or_false(torch: Any, make: Make):
    import codegen.torch as cgt

    text: Any = "no"
    for work in (
        lambda: cgt.gated(make(5, 8), make(6, 8), recompute=text),
        lambda: cgt.swiglu(make(5, 8), make(6, 8), recompute=text),
        lambda: cgt.SwiGLU(8, 6, recompute=text),
    ):
        with pytest.raises(LaunchError, match="recompute = 'no' is neither True nor False; give"):
            work()


def test_replace_linears_refuses_lists_and_names(torch: Any):
    import codegen.torch as cgt

    layer = torch.nn.Linear(3, 3)
    several: Any = [layer]
    name: Any = "x"
    with pytest.raises(LaunchError, match=r"model is a list, .*; pass .* as torch\.nn\.ModuleList"):
        cgt.replace_linears(several)
    with pytest.raises(LaunchError, match="where = 'x' is no function; pass a function of a layer"):
        cgt.replace_linears(layer, name)
    assert type(layer) is torch.nn.Linear


@pytest.mark.filterwarnings("ignore")  # PyTorch deprecates quantized tensors
def test_quantized_tensors_are_refused(torch: Any):
    """Kernels would read their integers without the scale."""
    import codegen.torch as cgt

    x = torch.quantize_per_tensor(torch.ones(6, 6), 0.1, 0, torch.qint8)
    for function, name in ((cgt.matmul, "input"), (cgt.linear, "input"), (cgt.gated, "input")):
        with pytest.raises(LaunchError, match=rf"{name} is quantized, .* as by \.dequantize\(\)"):
            function(x, x)
