"""How often calls of `codegen.torch` look for a launch to repeat, and calls that have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from codegen.targets.nvptx.launch.call import CheckedCall
from coordgraph import CodegenError, LaunchError
from tests.codegen.torch.test_repeated_calls import Launches, launches, random
from tests.codegen.torch.test_repeats import K, M, N, gpu, only_launched, repeated_linear

__all__ = ["gpu", "launches"]
pytestmark = pytest.mark.usefixtures("forgotten")


def keys_made(calls: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of calls that are compared with earlier calls while `calls` runs."""
    from codegen.torch import repeats

    compared: list[Any] = []
    sort = repeats.sort_arguments

    def noted(*given: Any) -> Any:
        compared.append(given)
        return sort(*given)

    with monkeypatch.context() as patch:
        patch.setattr(repeats, "sort_arguments", noted)
        calls()
    return len(compared)


def test_calls_with_out_launch_the_product_at_once(
    torch: Any, launches: Launches, monkeypatch: pytest.MonkeyPatch
):
    """Repeated calls launch the known kernel and copy its result to `out`, which they check."""
    import codegen.torch as cgt

    a, b, out = random(torch, M, K), random(torch, K, N), random(torch, M, N)
    for _ in range(8):
        cgt.matmul(a, b, out=out)
    assert only_launched(lambda: cgt.matmul(a, b, out=out), monkeypatch) is out
    assert keys_made(lambda: cgt.matmul(a, b, out=out), monkeypatch) == 1
    assert out.data_ptr() not in launches.made[-1][1]
    with pytest.raises(LaunchError, match="out is"):
        cgt.matmul(a, b, out=random(torch, M, N + 1))


def test_calls_that_are_never_repeated_make_few_keys(
    torch: Any, launches: Launches, monkeypatch: pytest.MonkeyPatch
):
    """A bias with gaps is copied; later calls of the function that can be repeated still are."""
    import codegen.torch as cgt

    x, w, bias = random(torch, M, K), random(torch, N, K), random(torch, N)
    apart = random(torch, 2 * N)[::2]

    def calls(count: int, bias: Any) -> Callable[[], None]:
        def work() -> None:
            for _ in range(count):
                cgt.linear(x, w, bias)

        return work

    calls(100, apart)()
    assert keys_made(calls(310, apart), monkeypatch) <= 30
    calls(200, bias)()  # also resets the count of misses for other tests
    only_launched(calls(1, bias), monkeypatch)
    for _ in range(100):  # as long as some calls are repeated, all of them are
        cgt.linear(x, w, apart)
        only_launched(calls(1, bias), monkeypatch)
    assert launches.made


def test_calls_that_are_repeatable_late(torch: Any, monkeypatch: pytest.MonkeyPatch):
    """Once a kernel that was built in the background is ready, later calls soon only launch it."""
    import codegen.torch as cgt
    from codegen.torch import repeats

    given = [random(torch, M, K), random(torch, N, K), random(torch, N)]
    with monkeypatch.context() as patch:
        patch.setattr(repeats, "_repeat", lambda *_: None)
        for _ in range(100):
            cgt.linear(*given)
    for _ in range(2 * repeats.MOST_MISSES):
        cgt.linear(*given)
    only_launched(lambda: cgt.linear(*given), monkeypatch)


def test_functions_that_do_more_than_launch(torch: Any, launches: Launches):
    """A call that writes `out`, or sums products by PyTorch, is never only launched."""
    import codegen.torch as cgt

    a, b, out = random(torch, M, K), random(torch, K, N), random(torch, M, N)
    ends = torch.tensor([10, 10, M], dtype=torch.int32)
    weights = random(torch, 3, K, N)
    for _ in range(9):
        out.fill_(3)
        assert cgt.matmul(a, b, out=out) is out
        assert not cgt.linear(a, b[:, 0], random(torch, 1)).isnan().all()
        launches.made.clear()
        assert not cgt.grouped_mm(a, weights, offs=ends).any()  # nothing is computed here
        assert len(launches.made) == 1


def test_a_launch_that_fails_is_reported(
    torch: Any, launches: Launches, monkeypatch: pytest.MonkeyPatch
):
    """If the kept launch fails, the call is made in full, and its error is that of the call."""
    import codegen.torch as cgt

    kind: Any = CheckedCall
    launch, failures = kind.launch, list[str]()

    def fail(*arguments: Any) -> None:
        if failures:
            raise CodegenError(failures.pop(0))
        launch(*arguments)

    monkeypatch.setattr(kind, "launch", fail)  # first, as the launches that are kept refer to it
    given = repeated_linear(torch)
    failures += ["kept"]
    d = cgt.linear(*given)
    assert not failures
    assert d.data_ptr() in launches.made[-1][1]
    failures += ["kept", *["full"] * 99]
    with pytest.raises(CodegenError, match="full"):
        cgt.linear(*given)
    failures.clear()
    only_launched(lambda: cgt.linear(*given), monkeypatch)
