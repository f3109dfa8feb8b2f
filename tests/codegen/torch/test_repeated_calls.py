"""Repeated calls of `matmul` on tensors launch what the first call launched, without its checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import codegen
from codegen.call import arrays
from codegen.call.prepared_calls import forget_prepared
from codegen.call.views import TensorView, type_name
from codegen.targets.nvptx.cuda_kernel import CudaKernel
from codegen.targets.nvptx.launch.call import CheckedCall
from coordgraph import LaunchError
from coordgraph.epilogue import epilogue, operand, output, relu
from tests.codegen.nvptx.fake_driver import FakeDriver

pytestmark = pytest.mark.usefixtures("forgotten")

M, N, K = 64, 96, 128
STREAM = 77


@epilogue(scale="", bias="n")
def scaled(acc: Any, scale: Any, bias: Any) -> Any:
    """Epilogue function: `scale·acc + bias`."""
    return acc * scale + bias


@epilogue(beta="", c=operand("mn", optional=True))
def added(acc: Any, beta: Any, c: Any) -> Any:
    """Epilogue function: `acc + beta·c`, with a C that may be left out."""
    return acc + beta * c


@epilogue(bias="n", pre=output("mn"))
def kept(acc: Any, bias: Any) -> Any:
    """Epilogue function: D and, as another output, the value before a ReLU."""
    pre = acc + bias
    return relu(pre), pre


@dataclass
class Launches:
    """Launches of kernels on a fake GPU, whose tensors are in host memory.

    Attributes:
        made: (checked call, addresses, scalars, stream) of each launch.
        called: the number of calls of `CudaKernel.__call__`, which checks a call in full.
    """

    made: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    called: int = 0


@pytest.fixture
def launches(fake: FakeDriver, torch: Any, monkeypatch: pytest.MonkeyPatch) -> Launches:
    found = Launches()
    kind: Any = type(arrays.library(torch.zeros(1)))
    kernel = CudaKernel.__call__

    def view(_: Any, array: Any, what: str) -> TensorView:
        name = type_name(str(array.dtype).removeprefix("torch."), what)
        return TensorView(array.data_ptr(), tuple(array.shape), array.stride(), name, 0)

    def call(*given: Any, **options: Any) -> Any:
        found.called += 1
        return kernel(*given, **options)

    monkeypatch.setattr(kind, "view", view)
    monkeypatch.setattr(kind, "current_stream", lambda *_: 0)
    monkeypatch.setattr(kind, "stream_of", lambda *_: lambda: 0)
    monkeypatch.setattr(CudaKernel, "__call__", call)
    monkeypatch.setattr(CheckedCall, "launch", lambda *given: found.made.append(given))
    assert not fake.launches
    return found


def random(torch: Any, *shape: int, dtype: str = "bfloat16") -> Any:
    return torch.randn(*shape).to(getattr(torch, dtype))


Arguments = dict[str, Any]
CALLS: dict[str, Callable[[Any], Arguments]] = {
    "product": lambda torch: {},
    "out": lambda torch: {"out": random(torch, M, N)},
    "out with gaps": lambda torch: {"out": random(torch, M, 2 * N)[:, :N]},
    "transposed": lambda torch: {"b": random(torch, N, K).t()},
    "a view of rows": lambda torch: {"a": random(torch, M, 2 * K)[:, K:]},
    "alpha and stream": lambda torch: {"alpha": 2.5, "stream": STREAM},
    "C": lambda torch: {"c": random(torch, M, N), "beta": 0.5, "alpha": 2.0},
    "C with gaps": lambda torch: {"c": random(torch, M, 2 * N)[:, N:], "beta": 0.5},
    "C is D": lambda torch: dict.fromkeys(("c", "out"), random(torch, M, N)) | {"beta": 1.0},
    "C that is not read": lambda torch: {"c": random(torch, M, N), "beta": 0.0},
    "batch": lambda torch: {"a": random(torch, 3, M, K), "b": random(torch, 3, K, N)},
    "batch of one": lambda torch: {"a": random(torch, 1, M, K), "b": random(torch, 1, K, N)},
    "batch, one B": lambda torch: {
        "a": random(torch, 3, M, K),
        "c": random(torch, 3, M, N),
        "beta": 0.5,
    },
    "batch, one B, out": lambda torch: {
        "a": random(torch, 3, M, K),
        "out": random(torch, 3, M, N),
    },
    "batch, one A": lambda torch: {"b": random(torch, 3, K, N)},
    "batch, one A, epilogue": lambda torch: {
        "b": random(torch, 3, K, N),
        "epilogue": kept,
        "bias": random(torch, N),
        "pre": random(torch, 3, M, N),
    },
    "column-major D": lambda torch: {"out": random(torch, N, M).t()},
    "epilogue": lambda torch: {"epilogue": scaled, "scale": 2.0, "bias": random(torch, N)},
    "epilogue, out": lambda torch: {
        "epilogue": scaled,
        "scale": 0.0,
        "bias": random(torch, N),
        "out": random(torch, M, N),
        "stream": STREAM,
    },
    "epilogue, no C": lambda torch: {"epilogue": added, "beta": 0.0},
    "epilogue, C": lambda torch: {"epilogue": added, "beta": 2.0, "c": random(torch, M, N)},
    "outputs": lambda torch: {"epilogue": kept, "bias": random(torch, N)},
    "an output given": lambda torch: {
        "epilogue": kept,
        "bias": random(torch, N),
        "pre": random(torch, M, N),
    },
    "groups": lambda torch: {"b": random(torch, 3, K, N), "offsets": offsets(torch)},
    "groups, out": lambda torch: {
        "b": random(torch, 3, K, N),
        "offsets": offsets(torch),
        "out": random(torch, M, N),
    },
    "groups, C": lambda torch: {
        "b": random(torch, 3, K, N),
        "offsets": offsets(torch),
        "c": random(torch, M, N),
        "beta": 0.5,
    },
    "groups, epilogue": lambda torch: {
        "b": random(torch, 3, K, N),
        "offsets": offsets(torch),
        "epilogue": scaled,
        "scale": 2.0,
        "bias": random(torch, N),
    },
    "tables": lambda torch: {
        "rows": torch.randint(0, M, (M,), dtype=torch.int32),
        "targets": torch.randperm(M).int(),
        "out": random(torch, M, N),
    },
    "groups, tables": lambda torch: {
        "b": random(torch, 3, K, N),
        "offsets": offsets(torch),
        "rows": torch.randint(0, M, (M,), dtype=torch.int32),
        "epilogue": kept,
        "bias": random(torch, N),
    },
}


def offsets(torch: Any) -> Any:
    return torch.tensor([0, 10, 10, M], dtype=torch.int32)


def call(**given: Any) -> Any:
    """Call `matmul`, or `grouped_matmul` if there are offsets of groups."""
    return (codegen.grouped_matmul if "offsets" in given else codegen.matmul)(**given)


def arguments(torch: Any, name: str) -> Arguments:
    """New arguments of a call of CALLS."""
    return {"a": random(torch, M, K), "b": random(torch, K, N)} | CALLS[name](torch)


def addresses(found: Any) -> list[int]:
    """The addresses of the tensors that a call returned."""
    return [x.data_ptr() for x in (found if isinstance(found, tuple) else (found,))]


def test_a_call_with_other_addresses_is_only_launched(torch: Any, launches: Launches):
    """The third call launches without `CudaKernel.__call__`, which checks all arguments."""
    for name in CALLS:
        for _ in range(2):
            call(**arguments(torch, name))
        launches.called = 0
        call(**arguments(torch, name))
        assert (launches.called == 0) is (name != "column-major D"), name


@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_launches_what_a_first_call_does(torch: Any, launches: Launches, name: str):
    given = [arguments(torch, name) for _ in range(2)]
    expected: list[tuple[Any, ...]] = []
    for each in given:  # a call that no other has prepared is checked in full
        forget_prepared()
        call(**each)
        expected.append(launches.made[-1])
    for number in (0, 0, 1, 0, 1):
        found = call(**given[number])
        returned = addresses(found)
        assert len(returned) == (2 if given[number].get("epilogue") is kept else 1)
        _, pointers, scalars, stream = launches.made[-1]
        _, first_pointers, first_scalars, first_stream = expected[number]
        for own, first in zip(pointers, first_pointers, strict=True):
            assert own == first or own in returned
        assert set(returned) <= set(pointers)
        assert (tuple(scalars), stream) == (tuple(first_scalars), first_stream)


def repeated(torch: Any, name: str, **changes: Any) -> Any:
    """Make a call of CALLS three times, then with some arguments changed."""
    given = arguments(torch, name)
    for _ in range(3):
        call(**given)
    return call(**given | changes)


@pytest.mark.parametrize("name", ["C", "groups, C"])
def test_another_c_is_checked(torch: Any, launches: Launches, name: str):
    """A call with a C or a beta of another kind launches or raises what it would do first."""
    for changes in (
        {"c": random(torch, M, N).half()},
        {"c": random(torch, M, N).float()},
        {"c": random(torch, N, M)},
        {"c": random(torch, M + 1, N)},
        {"c": None},
    ):
        before = len(launches.made)
        with pytest.raises(LaunchError):
            repeated(torch, name, **changes)
        assert len(launches.made) == before + 3
    for changes in (
        {"c": off_16_bytes(torch, M, N)},
        {"c": random(torch, M, 2 * N)[:, :N]},
        {"beta": 0.0},
        {"beta": 2},
        {"beta": float("nan")},
        {"alpha": 3},
    ):
        given = arguments(torch, name)
        repeated(torch, name, **given | changes)
        checked, pointers, scalars, _ = launches.made[-1]
        forget_prepared()
        call(**given | changes)
        first, first_pointers, first_scalars, _ = launches.made[-1]
        assert (checked.function, checked._integers) == (first.function, first._integers)
        assert pointers[:3] == first_pointers[:3]
        assert repr(tuple(scalars)) == repr(tuple(first_scalars))  # NaNs have equal texts
    given = arguments(torch, name)
    repeated(torch, name, **given)
    launches.called = 0
    call(**given | {"c": given["c"].to("meta")})  # as if it were on another GPU
    assert launches.called == 1


def test_c_that_overlaps_d_is_refused(torch: Any, launches: Launches):
    """C may be the array D, but no other array that has some of D's memory."""
    both = random(torch, M + 8, N)
    with pytest.raises(LaunchError, match="overlap"):
        repeated(torch, "C is D", c=both[:M], out=both[8:])


@pytest.mark.parametrize("name", ["out", "groups, out"])
def test_out_with_gaps_after_out_without(torch: Any, launches: Launches, name: str):
    """Every call passes the strides of its own `out`, so gaps between rows are not written."""
    repeated(torch, name, out=random(torch, M, 2 * N)[:, :N])
    before, after = (made[0] for made in launches.made[-2:])
    assert (after.function, after._integers) != (before.function, before._integers)


@pytest.mark.parametrize("name", ["batch, one B", "batch, one B, out", "batch, one A"])
def test_wrong_arrays_of_a_batch_are_refused(torch: Any, launches: Launches, name: str):
    """The matrices of a batch may be joined or repeated for a kernel: a later call is checked."""
    given = arguments(torch, name)
    wrong = [{"b": given["b"].half()}]
    wrong += [{x: random(torch, 3 * M, N)} for x in ("c", "out") if x in given]
    for changes in wrong:
        before = len(launches.made)
        with pytest.raises(LaunchError):
            repeated(torch, name, **changes)
        assert len(launches.made) == before + 3


@pytest.mark.parametrize("name", ["batch, one B, out", "batch, one A"])
def test_addresses_of_a_batch_off_16_bytes(torch: Any, launches: Launches, name: str):
    """A call that is refused by the function that only launches returns what a first call does."""
    odd = off_16_bytes(torch, 3 * M, N).view(3, M, N)
    found = repeated(torch, name, out=odd)
    (first, *_), (other, pointers, *_) = launches.made[-2:]
    assert first.function is not other.function
    assert pointers[3] == odd.data_ptr()
    assert found is odd


def test_a_type_of_b_before_column_major_d(torch: Any, launches: Launches):
    """With a column-major D, the kernel's A is the call's B: a B of another type is refused."""
    with pytest.raises(LaunchError):
        repeated(torch, "column-major D", b=random(torch, K, N).half())


@pytest.mark.parametrize("name", ["out", "epilogue, out"])
def test_what_differs_is_checked(torch: Any, launches: Launches, name: str):
    """A wrong argument is refused also if all that `matmul` has in its key is as before."""
    b = random(torch, K, N)
    for changes, words in {
        "another type of B": ({"b": b.half()}, "bf16 and f16|f16"),
        "another shape of D": ({"out": random(torch, M + 1, N)}, "out"),
        "D is B": ({"b": (both := random(torch, K, N)), "out": both[:M]}, "overlap"),
    }.values():
        before = len(launches.made)
        with pytest.raises(LaunchError, match=words):
            repeated(torch, name, **changes)
        assert len(launches.made) == before + 3


def off_16_bytes(torch: Any, rows: int, columns: int) -> Any:
    """A matrix whose address is no multiple of 16 bytes."""
    found = random(torch, rows * columns + 1)[1:].view(rows, columns)
    assert found.data_ptr() % 16
    return found


@pytest.mark.parametrize(("name", "place"), [("product", 0), ("out", 3), ("epilogue, out", 3)])
def test_addresses_off_16_bytes_need_another_kernel(
    torch: Any, launches: Launches, name: str, place: int
):
    odd = off_16_bytes(torch, M, N if place else K)
    repeated(torch, name, **{"out" if place else "a": odd})
    (first, *_), (other, pointers, *_) = launches.made[-2:]
    assert first.function is not other.function
    assert pointers[place] == odd.data_ptr()


@pytest.mark.parametrize("name", ["product", "epilogue", "outputs"])
def test_new_arrays_off_16_bytes_need_another_kernel(
    torch: Any, launches: Launches, name: str, monkeypatch: pytest.MonkeyPatch
):
    """A library may allocate D at any address."""
    make, odd = torch.empty, False

    def empty(*shape: int, **options: Any) -> Any:
        return off_16_bytes(torch, *shape) if odd else make(*shape, **options)

    monkeypatch.setattr(torch, "empty", empty)
    repeated(torch, name)
    odd = True
    found = call(**arguments(torch, name))
    (first, *_), (other, pointers, *_) = launches.made[-2:]
    assert first.function is not other.function
    assert addresses(found)[0] == pointers[3]


def test_offsets_of_another_kind_are_checked(torch: Any, launches: Launches):
    """Offsets of another type, or with gaps, are refused as in a first call.

    The key under which a call is kept has the shape of its offsets, but not their type and strides.
    """
    wide = torch.tensor([0, 0, 10, 0, 10, 0, M, 0], dtype=torch.int32)[::2]
    for wrong, words in ((offsets(torch).long(), "offsets holds int64"), (wide, "offsets")):
        with pytest.raises(LaunchError, match=words):
            repeated(torch, "groups", offsets=wrong)
    launched = repeated(torch, "groups", offsets=(other := offsets(torch)))
    assert launches.made[-1][1][4] == other.data_ptr()
    assert launches.made[-1][1][3] == launched.data_ptr()


def test_scalars(torch: Any, launches: Launches):
    """A scalar that becomes 0, or is given as an int, is checked; its value is launched."""
    for scale in (3.0, 0.0, 5):
        repeated(torch, "epilogue", scale=scale)
        (before, *_), (checked, _, scalars, _) = launches.made[-2:]
        assert list(scalars) == [scale]
        assert (checked is before) is (scale != 0)
    d = repeated(torch, "product", alpha=2)
    _, pointers, scalars, _ = launches.made[-1]
    assert tuple(scalars) == (2, 0)
    assert pointers[3] == d.data_ptr()


def test_c_after_calls_without_c(torch: Any, launches: Launches):
    c = random(torch, M, N)
    repeated(torch, "product", c=c, beta=0.5)
    _, pointers, scalars, _ = launches.made[-1]
    assert pointers[2] == c.data_ptr()
    assert tuple(scalars) == (1, 0.5)
    repeated(torch, "epilogue, no C", c=c, beta=0.5)
    _, pointers, scalars, _ = launches.made[-1]
    assert pointers[2] == c.data_ptr()
    assert tuple(scalars) == (0.5,)


def test_parameters_and_tensors_are_mixed(torch: Any, launches: Launches):
    """Weights are often `torch.nn.Parameter`, a class of its own."""
    weight = torch.nn.Parameter(random(torch, K, N), requires_grad=False)
    for _ in range(3):
        codegen.matmul(random(torch, M, K), weight)
    launches.called = 0
    d = codegen.matmul(random(torch, M, K), weight)
    assert launches.called == 0
    assert launches.made[-1][1][3] == d.data_ptr()
