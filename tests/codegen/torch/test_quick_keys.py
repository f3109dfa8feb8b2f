"""`quick_key` of a call: if an earlier call has an equal key, the call is only launched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import codegen
from codegen.call import with_epilogue
from codegen.call.prepared_calls import prepared_epilogues
from codegen.call.quick_keys import quick_key
from coordgraph.epilogue import epilogue, output

matmul: Any = __import__("sys").modules["codegen.call.matmul"]


@epilogue(scale="", bias="n")
def scaled(acc: Any, scale: Any, bias: Any) -> Any:
    """Epilogue function: `scale·acc + bias`."""
    return acc * scale + bias


@epilogue(scale="", bias="n", total=output("m", reduce="sum"))
def reducing(acc: Any, scale: Any, bias: Any) -> Any:
    """Epilogue function: `scaled`, and the sums of its rows."""
    d = acc * scale + bias
    return d, d


def key(torch: Any, **changes: Any) -> Any:
    """The cache key that `quick_key` makes for a call of `matmul` with changed arguments."""
    zeros = torch.zeros
    given = {"a": zeros(4, 8), "b": zeros(8, 6), "c": None, "out": None, "bias": zeros(6)}
    given |= {"scale": 2.0, "alpha": 1.0, "beta": 0.0, "rows": None, "offsets": None, "tune": False}
    given |= {"epilogue": scaled, "invariant": False} | changes
    a, b, c, out = (given.pop(name) for name in ("a", "b", "c", "out"))
    return quick_key(
        given["epilogue"],
        {"A": a, "B": b, "C": c, "D": out},
        (given["alpha"], given["beta"]),
        {name: given[name] for name in ("scale", "bias")},
        {"rows": given["rows"]},
        given["offsets"],
        {name: given[name] for name in ("tune", "invariant")},
    )


def test_keys(torch: Any):
    zeros = torch.zeros
    assert key(torch) == key(torch, scale=3.0) is not None  # values of scalars are not in the key
    other = epilogue(scale="", bias="n")(lambda acc, scale, bias: acc * scale + bias)
    changes: list[dict[str, Any]] = [
        {},
        {"a": zeros(5, 8)},
        {"a": zeros(8, 4).t()},
        {"a": zeros(4, 9)[:, :8]},
        {"a": zeros(33)[1:].view(4, 8)},
        {"a": zeros(4, 8, device="meta")},
        {"b": zeros(8, 6).double()},
        {"bias": zeros(12)[::2]},
        {"bias": None},
        {"scale": zeros(())},
        {"scale": None},
        {"alpha": 2.0},
        {"beta": 1.0},
        {"c": zeros(4, 6)},
        {"out": zeros(4, 6)},
        {"invariant": True},
        {"rows": zeros(4)},
        {"rows": zeros(5)},
        {"offsets": zeros(4)},
        {"offsets": zeros(8)[::2]},
        {"epilogue": other},
    ]
    keys = [key(torch, **each) for each in changes]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_calls_without_a_key(torch: Any):
    for changes in (
        {"a": np.zeros((4, 8))},
        {"offsets": np.zeros(4)},
        {"tune": True},
        {"invariant": []},
        {"scale": "2"},
        {"alpha": torch.ones(())},
        {"bias": torch.zeros(6, requires_grad=True)},
        {"a": torch.zeros(4, 8).to_sparse()},
        {"epilogue": reducing},
    ):
        assert key(torch, **changes) is None, changes
    with torch.no_grad():
        assert key(torch, bias=torch.zeros(6, requires_grad=True)) is not None


def test_the_third_call_only_launches(monkeypatch: pytest.MonkeyPatch):
    a, b, bias = (np.random.default_rng(0).random(s, np.float32) for s in ((4, 8), (8, 6), (6,)))
    right = 2 * (a @ b) + bias
    call = lambda: codegen.matmul(a, b, epilogue=scaled, scale=2.0, bias=bias)  # noqa: E731
    monkeypatch.setattr(with_epilogue, "quick_key", lambda *_: "one key")
    matmul.forget()
    for _ in range(2):
        np.testing.assert_allclose(call(), right, rtol=1e-5)
    with monkeypatch.context() as patch:
        patch.setattr(with_epilogue, "array_key", None)  # calls without a quick key would fail
        np.testing.assert_allclose(call(), right, rtol=1e-5)
    # An epilogue at the address of a deleted one has the same quick key, but its own result.
    other = epilogue(scale="", bias="n")(lambda acc, scale, bias: acc * scale - bias)
    d = codegen.matmul(a, b, epilogue=other, scale=2.0, bias=bias)
    np.testing.assert_allclose(d, right - 2 * bias, rtol=1e-5)
    assert len(prepared_epilogues) == 1
    matmul.forget()
    assert len(prepared_epilogues) == 0
