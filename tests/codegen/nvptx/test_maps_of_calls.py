"""Calls of a GPU kernel make tensor maps (TMA descriptors), keep them, and pass the right ones."""

from __future__ import annotations

import pytest

from codegen.targets.nvptx.launch import tensormaps
from passes import HeterogeneousTiles
from tests.codegen.nvptx.called import (
    A_AT,
    B_AT,
    D_AT,
    K,
    M,
    N,
    count_arguments,
    kernel,
    operands,
)
from tests.codegen.nvptx.fake_driver import FakeDriver
from tests.support.sampling import quick_cases

pytestmark = pytest.mark.usefixtures("shared_cache")


def test_maps_are_made_once_for_an_address(fake_driver: FakeDriver):
    made = kernel(target="sm_90a")
    assert made.instructions == "wgmma"
    boxes = made.program().walker.boxes
    sets = [operands(a=A_AT + i * 4096, b=B_AT + i * 4096) for i in range(50)]
    for _ in range(3):
        for a, b, _, d in sets:
            made(a, b, out=d)
    of_a = [x for x in fake_driver.encoded if x.shape == (M, K)]
    of_b = [x for x in fake_driver.encoded if x.shape == (K, N)]
    assert len(of_a) == len(of_b) == 50
    # 9 is CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3 is CU_TENSOR_MAP_SWIZZLE_128B.
    assert {(x.stride, x.box, x.kind, x.swizzle) for x in of_a} == {(2 * K, *boxes["A"], 9, 3)}
    assert {(x.stride, x.box, x.kind, x.swizzle) for x in of_b} == {(2 * N, *boxes["B"], 9, 3)}
    assert len([x for x in fake_driver.encoded if x.shape == (M, N)]) == ("D" in boxes)


@pytest.mark.slow
def test_each_shape_of_box_has_a_map_of_its_own(fake_driver: FakeDriver):
    made = kernel(HeterogeneousTiles(small_n=16), target="sm_90a")
    count_arguments(made, fake_driver)
    boxes = made.program().walker.boxes
    assert {name: len(shapes) for name, shapes in boxes.items()} == {"A": 1, "B": 2, "D": 2}
    a, b, _, d = operands()
    for _ in range(2):
        made(a, b, out=d)
    encoded = [(x.shape, x.box) for x in fake_driver.encoded]
    shapes = {"A": (M, K), "B": (K, N), "D": (M, N)}
    assert encoded == [(shapes[name], box) for name, every in boxes.items() for box in every]
    at = {"A": a.pointer, "B": b.pointer, "D": d.pointer}
    wanted = tuple(at[name] for name, every in boxes.items() for _ in every)
    assert fake_driver.launches[-1].values[4 : 4 + len(wanted)] == wanted


def test_each_launch_has_the_maps_of_its_tensors(fake_driver: FakeDriver):
    """Every launch passes tensor maps with the addresses of its own tensors."""
    made = kernel(target="sm_90a")
    count_arguments(made, fake_driver)
    order = list(made.program().walker.boxes)
    for i in (0, 1, 0, 2, 1):
        a, b, _, d = operands(a=A_AT + 64 * i, b=B_AT + 128 * i)
        made(a, b, out=d)
        at = {"A": a.pointer, "B": b.pointer, "D": d.pointer}
        found = fake_driver.launches[-1].values[4 : 4 + len(order)]
        assert found == tuple(at[name] for name in order)


def test_maps_are_bounded(fake_driver: FakeDriver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tensormaps, "MOST_MAPS", 4)
    made = kernel(target="sm_90a")
    for _ in range(2):
        for i in range(20):
            a, b, _, d = operands(a=A_AT + 64 * i)
            made(a, b, out=d)
    assert len([x for x in fake_driver.encoded if x.shape == (M, K)]) == 40
    assert len([x for x in fake_driver.encoded if x.shape == (K, N)]) == 1


@quick_cases(1)
@pytest.mark.parametrize(
    ("at", "boxes"),
    [({}, True), ({"a": 8}, False), ({"b": 2}, False), ({"d": 2}, True), ({"d": 8}, True)],
)
def test_which_code_serves_which_address(fake_driver: FakeDriver, at: dict[str, int], boxes: bool):
    made = kernel(target="sm_90a")
    base = {"a": A_AT, "b": B_AT, "d": D_AT}
    a, b, _, d = operands(**{name: base[name] + off for name, off in at.items()})
    made(a, b, out=d)
    used = ["cp.async.bulk.tensor" in code for code in fake_driver.loaded]
    assert used == [boxes]
