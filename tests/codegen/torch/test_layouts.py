"""`Recent` finds what is known about tensors of the same layouts, and nothing about others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.codegen.torch.test_repeated_calls import random

CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "rows": lambda torch, x: random(torch, 9, 8),
    "gaps": lambda torch, x: random(torch, 8, 16)[:, :8],
    "column-major": lambda torch, x: x.t(),
    "type": lambda torch, x: x.half(),
    "device": lambda torch, x: x.to("meta"),
    "Parameter": lambda torch, x: torch.nn.Parameter(x, requires_grad=False),
    "requires a gradient": lambda torch, x: x.clone().requires_grad_(),
    "subclass": lambda torch, x: x.as_subclass(type("Own", (torch.Tensor,), {})),
}


def recent(torch: Any, *layouts: Any) -> Any:
    """A `Recent` to which lists of tensors were added; the value of a list is its position."""
    from codegen.torch.layouts import Recent

    found = Recent()
    for number, tensors in enumerate(layouts):
        found.add(tensors, number)
    return found


@pytest.mark.parametrize("name", CHANGES)
def test_every_property_of_a_layout_is_compared(
    torch: Any, name: str, monkeypatch: pytest.MonkeyPatch
):
    from codegen.torch import plain
    from codegen.torch.layouts import layouts_key

    monkeypatch.setattr(plain, "KEYS_ON_GPU", plain.KEYS)
    x, y = random(torch, 8, 8), random(torch, 8, 8)
    changed = CHANGES[name](torch, x.clone())
    found = recent(torch, [x, y], [y, y.t()])
    assert found.get([y.clone(), x]) == (0, False)
    assert found.get([x, y.t()]) == (1, False)
    assert found.get([changed, y]) is None
    assert found.get([y, changed]) is None or name == "column-major"
    if name in ("rows", "gaps", "column-major", "type"):
        assert layouts_key((), [changed]) != layouts_key((), [x])
    found.add([changed, y], "changed")
    if name not in ("device", "subclass"):
        assert found.get([CHANGES[name](torch, x), y]) == ("changed", changed.requires_grad)


def test_a_thread_in_a_mode_or_transform_finds_nothing(torch: Any):
    x, y = random(torch, 8, 8), random(torch, 8, 8)
    found = recent(torch, [x, y])
    torch.vmap(lambda z: [z, None is found.get([z, y]) or pytest.fail("found")][0])(x[None])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert found.get([x, y]) is None
    with torch.no_grad():
        assert found.get([x, y]) == (0, False)


def test_a_full_object_drops_the_oldest_layouts(torch: Any):
    """A full `Recent` stores few of many new layouts, because storing takes host time."""
    from codegen.torch.layouts import MOST_RECENT, RARELY

    layouts = [[random(torch, 8, 8 + n)] for n in range(MOST_RECENT + RARELY)]
    found = recent(torch, *layouts)
    known = [found.get(each) for each in layouts]
    assert sum(each is not None for each in known) == MOST_RECENT
    assert known[0] is None
    assert known[1:MOST_RECENT] == [(n, False) for n in range(1, MOST_RECENT)]


def test_a_pytorch_without_guards(torch: Any, monkeypatch: pytest.MonkeyPatch):
    from codegen.torch import layouts

    assert layouts.KNOWN
    monkeypatch.setattr(layouts, "KNOWN", False)
    assert recent(torch, [random(torch, 8, 8)]).get([random(torch, 8, 8)]) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_arguments_that_are_never_compared(torch: Any):
    """Calls are not compared if they have sparse tensors, subclasses, or values of other types."""
    from codegen.torch.layouts import sort_arguments

    x = random(torch, 8, 8)
    own = x.as_subclass(type("Own", (torch.Tensor,), {}))
    for other in (x.to_sparse(), torch.nested.nested_tensor([x, x]), own, [1], object()):
        assert sort_arguments("f", (x, other), {}) is None
        assert sort_arguments("f", (x,), {"option": other}) is None
    values, tensors = sort_arguments("f", (x, None, 1), {"option": True}) or ((), [])
    assert tensors == [x]
    others = [((x, 1, None), {"option": True}), ((None, x, 1), {"option": True})]
    others += [((x, None, 1.0), {"option": True}), ((x, None, 1), {"option": 1})]
    others += [((x, None, 1), {"other": True}), ((x, x, 1), {"option": True})]
    assert all((sort_arguments("f", *other) or [()])[0] != values for other in others)
