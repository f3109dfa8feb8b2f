"""Repeated calls of `codegen.torch` only launch, unless PyTorch must see or change the calls."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

import codegen
from codegen.call.prepared_calls import forget_prepared, repeated_functions
from coordgraph import LaunchError
from tests.codegen.torch.test_direct import dispatched
from tests.codegen.torch.test_repeated_calls import Launches, launches, off_16_bytes, random

__all__ = ["launches"]
pytestmark = pytest.mark.usefixtures("forgotten")

M, N, K = 64, 96, 128
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "linear": lambda t, r: (t.linear, [r(M, K), r(N, K), r(N)], {}),
    "linear, no bias": lambda t, r: (t.linear, [r(M, K), r(N, K)], {}),
    "linear, three axes": lambda t, r: (t.linear, [r(2, 32, K), r(N, K), r(N)], {}),
    "linear, vector": lambda t, r: (t.linear, [r(K), r(N, K), r(N)], {}),
    "linear, activation": lambda t, r: (
        t.linear,
        [r(M, K), r(N, K), r(N)],
        {"activation": "relu"},
    ),
    "matmul": lambda t, r: (t.matmul, [r(M, K), r(K, N)], {}),
    "matmul, vectors": lambda t, r: (t.matmul, [r(K), r(K)], {}),
    "matmul, transposed": lambda t, r: (t.matmul, [r(K, M).t(), r(N, K).t()], {}),
    "matmul, invariant": lambda t, r: (t.matmul, [r(M, K), r(K, N)], {"invariant": True}),
    "bmm": lambda t, r: (t.bmm, [r(3, M, K), r(3, K, N)], {}),
    "bmm, batch of one": lambda t, r: (t.bmm, [r(1, M, K), r(1, K, N)], {}),
    "addmm": lambda t, r: (t.addmm, [r(N), r(M, K), r(K, N)], {"beta": 0.5, "alpha": 2}),
    "addmm, matrix": lambda t, r: (
        t.addmm,
        [r(M, N), r(M, K), r(K, N)],
        {"beta": 0.5, "alpha": 2},
    ),
    "gated": lambda t, r: (t.gated, [r(M, K), r(2 * N, K)], {}),
    "gated, bias": lambda t, r: (t.gated, [r(M, K), r(2 * N, K), r(2 * N)], {}),
    "swiglu": lambda t, r: (t.swiglu, [r(M, K), r(2 * N, K)], {}),
    "wide result": lambda t, r: (t.bmm, [r(3, M, K), r(3, K, N), t.torch_float32], {}),
}
"""For each name: a function, tensors or other positional arguments, and options."""


@pytest.fixture(autouse=True)
def gpu(launches: Launches, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tensors in host memory pass for tensors on a GPU; nothing is computed."""
    from codegen.torch import plain

    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(plain, "KEYS_ON_GPU", plain.KEYS)


def made(torch: Any, name: str) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """The function that CALLS[name] names, and new positional and keyword arguments for it."""
    import codegen.torch as cgt

    class Functions:
        torch_float32 = torch.float32

        def __getattr__(self, name: str) -> Any:
            return getattr(cgt, name)

    return CALLS[name](Functions(), lambda *shape: random(torch, *shape))


def only_launched(work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Call `work` while the functions of `codegen.torch` that check tensors raise an error."""
    functions, gated = (import_module(f"codegen.torch.{x}") for x in ("functions", "gated"))

    def fail(*_: Any) -> None:
        raise AssertionError("the call was checked")

    with monkeypatch.context() as patch:
        patch.setattr(functions, "check_dense", fail)
        patch.setattr(gated, "check_dense", fail)
        return work()


@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_is_only_launched(
    torch: Any, launches: Launches, name: str, monkeypatch: pytest.MonkeyPatch
):
    """It launches what a first call launches, with new results in memory of their own."""
    expected: list[Any] = []
    for _ in range(2):
        function, given, options = made(torch, name)
        forget_prepared()
        d = function(*given, **options)
        expected = [*launches.made[-1], d]
        for _ in range(8):
            function(*given, **options)
    function, given, options = made(torch, name)
    found = only_launched(lambda: function(*given, **options), monkeypatch)
    checked, pointers, scalars, _ = launches.made[-1]
    first, _, first_scalars, _, d = expected
    assert (checked.function, checked.shapes) == (first.function, first.shapes)
    assert tuple(scalars) == tuple(first_scalars)
    assert (found.shape, found.dtype, found.stride()) == (d.shape, d.dtype, d.stride())
    assert found.data_ptr() in pointers
    assert {x.data_ptr() for x in given if isinstance(x, torch.Tensor)} <= {*pointers}
    again = function(*given, **options)
    assert again.data_ptr() != found.data_ptr()


def repeated_linear(torch: Any) -> list[Any]:
    """Make a call of `linear` so often that it is only launched, and return its arguments."""
    import codegen.torch as cgt

    given = [random(torch, M, K), random(torch, N, K), random(torch, N)]
    for _ in range(8):
        cgt.linear(*given)
    return given


CHANGES: dict[str, Callable[[Any, list[Any]], Any]] = {
    "type": lambda torch, x: ([y.half() for y in x], {}),
    "rows": lambda torch, x: ([random(torch, M + 8, K), *x[1:]], {}),
    "gaps": lambda torch, x: ([random(torch, M, 2 * K)[:, :K], *x[1:]], {}),
    "column-major weight": lambda torch, x: ([x[0], random(torch, K, N).t(), x[2]], {}),
    "no bias": lambda torch, x: (x[:2], {}),
    "bias with gaps": lambda torch, x: ([*x[:2], random(torch, 2 * N)[::2]], {}),
    "activation": lambda torch, x: (x, {"activation": "relu"}),
    "invariant": lambda torch, x: (x, {"invariant": True}),
    "unaligned input": lambda torch, x: ([off_16_bytes(torch, M, K), *x[1:]], {}),
    "bias by name": lambda torch, x: (x[:2], {"bias": x[2]}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_layouts_and_options(torch: Any, launches: Launches, name: str):
    """A call that differs launches what it launches without earlier calls."""
    import codegen.torch as cgt

    given, options = CHANGES[name](torch, repeated_linear(torch))
    d = cgt.linear(*given, **options)
    checked, pointers, scalars, _ = launches.made[-1]
    forget_prepared()
    expected = cgt.linear(*given, **options)
    first, first_pointers, first_scalars, _ = launches.made[-1]
    assert checked.function is first.function
    assert tuple(scalars) == tuple(first_scalars)
    assert (d.shape, d.dtype) == (expected.shape, expected.dtype)
    if name != "bias with gaps":  # such a bias is copied
        assert pointers[:3] == first_pointers[:3]
    if name != "invariant" and name != "unaligned input":
        assert given[0].data_ptr() == pointers[0]


CHANGES_OF_ADDMM: dict[str, Callable[[Any, list[Any]], Any]] = {
    "nothing": lambda torch, x: (x, {"beta": 0.5}),
    "beta": lambda torch, x: (x, {"beta": 0.25}),
    "beta of 0": lambda torch, x: (x, {"beta": 0}),
    "alpha": lambda torch, x: (x, {"beta": 0.5, "alpha": 2}),
    "gaps in C": lambda torch, x: ([random(torch, M, 2 * N)[:, :N], *x[1:]], {"beta": 0.5}),
    "column-major C": lambda torch, x: ([random(torch, N, M).t(), *x[1:]], {"beta": 0.5}),
    "unaligned C": lambda torch, x: ([off_16_bytes(torch, M, N), *x[1:]], {"beta": 0.5}),
    "one row of C": lambda torch, x: ([x[0][:1], *x[1:]], {"beta": 0.5}),
    "one column of C": lambda torch, x: ([x[0][:, :1], *x[1:]], {"beta": 0.5}),
    "C is A": lambda torch, x: ([x[1], x[1], random(torch, K, K)], {"beta": 0.5}),
    "wide C": lambda torch, x: (
        [x[0].float(), *x[1:]],
        {"beta": 0.5, "out_dtype": torch.float32},
    ),
    "wide result": lambda torch, x: (x, {"beta": 0.5, "out_dtype": torch.float32}),
}


@pytest.mark.parametrize("name", CHANGES_OF_ADDMM)
def test_other_matrices_that_are_added(torch: Any, launches: Launches, name: str):
    """A call of `addmm` that differs from earlier calls launches what it launches without them."""
    import codegen.torch as cgt

    given = [random(torch, M, N), random(torch, M, K), random(torch, K, N)]
    for _ in range(8):
        cgt.addmm(*given, beta=0.5)
    given, options = CHANGES_OF_ADDMM[name](torch, given)
    d = cgt.addmm(*given, **options)
    checked, pointers, scalars, _ = launches.made[-1]
    forget_prepared()
    expected = cgt.addmm(*given, **options)
    first, first_pointers, first_scalars, _ = launches.made[-1]
    assert (checked.function, checked._integers) == (first.function, first._integers)
    assert tuple(scalars) == tuple(first_scalars)
    assert (d.shape, d.dtype, d.stride()) == (expected.shape, expected.dtype, expected.stride())
    copied = name in ("column-major C", "one column of C", "wide result")
    places = (0, 1) if copied else (0, 1, 2)
    assert [pointers[x] for x in places] == [first_pointers[x] for x in places]


def test_a_c_of_another_type_is_refused(torch: Any):
    import codegen.torch as cgt

    given = [random(torch, M, N), random(torch, M, K), random(torch, K, N)]
    for _ in range(8):
        cgt.addmm(*given)
    with pytest.raises(LaunchError, match=r"bfloat16 and torch\.float16"):
        cgt.addmm(given[0].half(), *given[1:])


def test_types_of_options_are_compared(torch: Any):
    """A call with the number 1 does not repeat calls with True, although both are equal."""
    import codegen.torch as cgt

    a, b = random(torch, M, K), random(torch, K, N)
    for _ in range(8):
        cgt.addmm(random(torch, N), a, b, beta=True)
    before = len(repeated_functions)
    cgt.addmm(random(torch, N), a, b, beta=1)
    assert len(repeated_functions) == before + 2  # one without layouts, one with


def test_gradients(torch: Any, launches: Launches, monkeypatch: pytest.MonkeyPatch):
    """After calls without a gradient, a call records one, and its forward pass only launches."""
    import codegen.torch as cgt

    x, w, bias = repeated_linear(torch)
    weight = torch.nn.Parameter(w)
    for _ in range(8):
        assert cgt.linear(x, weight, bias).requires_grad
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                assert not cgt.linear(x, weight, bias).requires_grad
    launches.called = 0
    with torch.no_grad():
        only_launched(lambda: cgt.linear(x, weight, bias), monkeypatch)
    d = cgt.linear(x, weight, bias)
    assert launches.called == 0
    d.sum().backward()
    assert weight.grad.shape == weight.shape
    with torch.inference_mode():
        assert cgt.linear(x, weight, bias).is_inference()


def vmapped(torch: Any, call: Any, x: Any) -> Any:
    return torch.vmap(call)(x[None])


def with_tangents(torch: Any, call: Any, x: Any) -> Any:
    with torch.autograd.forward_ad.dual_level():
        return call(torch.autograd.forward_ad.make_dual(x, x))


def in_function_mode(torch: Any, call: Any, x: Any) -> Any:
    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return func(*args, **(kwargs or {}))

    with Mode():
        return call(x)


def in_dispatch_mode(torch: Any, call: Any, x: Any) -> Any:
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return func(*args, **(kwargs or {}))

    with Mode():
        return call(x)


def of_a_subclass(torch: Any, call: Any, x: Any) -> Any:
    return call(x.as_subclass(type("Own", (torch.Tensor,), {})))


def compiled(torch: Any, call: Any, x: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(torch.Tensor, "is_cuda")  # Dynamo cannot trace the patched `is_cuda`
        return torch.compile(call, backend="eager", fullgraph=True)(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch calls its own torch.jit
@pytest.mark.parametrize(
    "way",
    [vmapped, with_tangents, in_function_mode, in_dispatch_mode, of_a_subclass, compiled],
)
def test_calls_for_the_dispatcher(torch: Any, way: Callable[..., Any]):
    """PyTorch's dispatcher sees calls in transforms and modes, also after calls bypassed it."""
    import codegen.torch as cgt

    x, w, bias = repeated_linear(torch)
    assert not dispatched(torch, lambda: cgt.linear(x, w, bias))
    assert dispatched(torch, lambda: way(torch, lambda x: cgt.linear(x, w, bias), x))
    assert not dispatched(torch, lambda: cgt.linear(x, w, bias))


def test_autocast(torch: Any, launches: Launches, monkeypatch: pytest.MonkeyPatch):
    """Calls in a region of autocast return its type; those that need no cast are only launched."""
    import codegen.torch as cgt
    from codegen.torch import direct

    cast = direct.cast

    given = repeated_linear(torch)
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)  # torch.autocast would need a GPU
    try:
        monkeypatch.setattr(direct, "cast", lambda x, to, _: cast(x, to, "cpu"))
        for dtype in (torch.float16, torch.bfloat16, torch.float16):
            torch.set_autocast_dtype("cuda", dtype)
            for _ in range(8):
                assert cgt.linear(*given).dtype == dtype
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        d = only_launched(lambda: cgt.linear(*given), monkeypatch)
        assert d.dtype == torch.bfloat16
        assert launches.made[-1][1][:2] == tuple(x.data_ptr() for x in given[:2])
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)
    assert cgt.linear(*given).dtype == torch.bfloat16


def test_fake_tensors(torch: Any):
    import codegen.torch as cgt

    given = repeated_linear(torch)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in given]
        assert type(cgt.linear(*fake)) is type(fake[0])


def test_one_tensor_given_twice(torch: Any, launches: Launches):
    """Each call multiplies its own tensors, also after calls with one tensor as both factors."""
    import codegen.torch as cgt

    x = random(torch, K, K)
    for _ in range(8):
        cgt.matmul(x, x)
    y = random(torch, K, K)
    for given in [(x, y)] * 8 + [(y, x), (x, x)]:
        cgt.matmul(*given)
        assert launches.made[-1][1][:2] == tuple(z.data_ptr() for z in given)


def test_a_block_of_warm_calls_forgets_repeated_calls(torch: Any):
    """`warm_calls` records the calls of its block, and calls that only launch are not recorded."""
    repeated_linear(torch)
    assert len(repeated_functions)
    codegen.warm_calls().__enter__()
    from codegen.call import recorded_calls

    recorded_calls.open_recordings.clear()
    assert not len(repeated_functions)


def test_calls_with_other_stream(torch: Any, launches: Launches, monkeypatch: pytest.MonkeyPatch):
    """Each call is launched on the stream that is current at that time."""
    import codegen.torch as cgt
    from codegen.call import arrays

    kind: Any = type(arrays.library(torch.zeros(1)))
    given, stream = [random(torch, M, K), random(torch, N, K)], 5
    monkeypatch.setattr(kind, "current_stream", lambda *_: stream)
    monkeypatch.setattr(kind, "stream_of", lambda *_: lambda: stream)
    for _ in range(8):
        cgt.linear(*given)
    stream = 6
    cgt.linear(*given)
    assert launches.made[-1][3] == 6


def test_the_kernel_is_kept(torch: Any, monkeypatch: pytest.MonkeyPatch):
    """Each entry of `repeated_functions` holds its kernel, so that its code stays loaded."""
    from gc import collect
    from weakref import ref

    from codegen.call import build, prepared_calls
    from codegen.targets.nvptx.cuda_kernel import CudaKernel

    kernels: list[Any] = []
    called = CudaKernel.__call__

    def call(self: Any, *given: Any, **options: Any) -> Any:
        kernels.append(ref(self))
        return called(self, *given, **options)

    monkeypatch.setattr(CudaKernel, "__call__", call)
    given = repeated_linear(torch)
    prepared_calls.prepared_calls.clear()
    prepared_calls.prepared_epilogues.clear()
    build.forget()
    collect()
    assert len(given) == 3
    assert kernels[0]() is not None
    repeated_functions.clear()
    collect()
    assert kernels[0]() is None
