"""B as a tuple of matrices, one for each sum of the epilogue: their memory is read in place."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import codegen
import coordgraph as cg
from codegen.call.overlap import check_overlap
from codegen.call.separate_parts import joined_parts
from codegen.call.views import numpy_view
from coordgraph import epilogue as ep
from tests.support.gated import swiglu

RNG = np.random.default_rng(35)


def draw(*shape: int) -> Any:
    return RNG.normal(size=shape).astype("f4")


def gated(a: Any, gate: Any, up: Any) -> Any:
    x = (a @ gate).astype("f8")
    return x / (1 + np.exp(-x)) * (a @ up)


@pytest.mark.parametrize("turned", [False, True])
def test_two_arrays_in_either_order_of_addresses(turned: bool):
    a, one, other = draw(40, 30), draw(30, 48), draw(30, 48)
    for gate, up in ((one, other), (other, one), (one, one), (one[:, 5:31], other[:, 5:31])):
        given = (gate.T, up.T) if turned else (gate, up)
        d = codegen.matmul(a, given, epilogue=swiglu, transpose_b=turned)
        assert np.allclose(d, gated(a, gate, up), atol=1e-3)


def test_column_major_arrays_and_views_of_one_array():
    a, layers = draw(40, 30), draw(5, 48, 30)
    d = codegen.matmul(a, (layers[3].T, layers[1].T), epilogue=swiglu)
    assert np.allclose(d, gated(a, layers[3].T, layers[1].T), atol=1e-3)


def test_stack_of_parts():
    a, both = draw(40, 30), draw(2, 30, 48)
    d = codegen.matmul(a, both, epilogue=swiglu, parts="separate")
    assert np.allclose(d, gated(a, *both), atol=1e-3)


def test_no_copy_is_made():
    """The array for the kernel has the memory of both matrices, and their distance as a stride."""
    a, both = draw(8, 30), draw(3, 30, 48)
    for gate, up, sums in ((0, 2, ("gate", "up")), (2, 0, ("up", "gate"))):
        given = {"A": a, "B": (both[gate], both[up]), "C": None, "D": None}
        matrices, function, options = joined_parts(given, swiglu, {})
        assert matrices["B"].ctypes.data == both.ctypes.data
        assert matrices["B"].strides == (2 * both.strides[0], *both.strides[1:])
        assert function.sums == sums
        assert options == {"parts": "separate"}


def test_groups_with_a_tuple():
    a, gate, up = draw(40, 30), draw(3, 30, 48), draw(3, 30, 48)
    offsets = np.array([0, 10, 10, 37], "i4")
    for left, right in ((gate, up), (up, gate)):
        d = codegen.grouped_matmul(a, (left, right), offsets, epilogue=swiglu)
        for group, (begin, end) in enumerate(pairwise(offsets)):
            expected = gated(a[begin:end], left[group], right[group])
            assert np.allclose(d[begin:end], expected, atol=1e-3)


def test_outputs_and_four_sums():
    @ep.epilogue(rest=ep.output("mn"))
    def mixed(w: Any, x: Any, y: Any, z: Any) -> Any:
        return w - x, y * z

    a, parts = draw(20, 12), draw(4, 12, 10)
    w, x, y, z = (a @ part for part in parts)
    d, rest = codegen.matmul(a, tuple(parts), epilogue=mixed)
    assert np.allclose(d, w - x, atol=1e-4)
    assert np.allclose(rest, y * z, atol=1e-4)
    d, rest = codegen.matmul(a, tuple(parts[::-1]), epilogue=mixed)
    assert np.allclose(d, z - y, atol=1e-4)
    assert np.allclose(rest, x * w, atol=1e-4)


def test_an_output_between_two_parts_does_not_overlap_them():
    memory = draw(3 * 48 * 30)
    gate, out, up = (memory[first : first + 1440].reshape(30, 48) for first in (0, 1440, 2880))
    a = draw(30, 30)
    exact = gated(a, gate, up)
    codegen.matmul(a, (gate, up), epilogue=swiglu, out=out)
    assert np.allclose(out, exact, atol=1e-3)
    views = {"B": numpy_view(memory[:2880].reshape(2, 30, 48), "b"), "D": numpy_view(up[:3], "out")}
    check_overlap(views)
    views["D"] = numpy_view(gate[29:], "out")
    with pytest.raises(cg.LaunchError, match="'out' overlaps b"):
        check_overlap(views)


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(cg.CoordGraphError) as error:
        call()
    return str(error.value)


def test_refusals():
    a, gate, up = draw(40, 30), draw(30, 48), draw(30, 48)
    assert "has 1 sum; pass a single array" in refusal(lambda: codegen.matmul(a, (gate, up)))
    three = refusal(lambda: codegen.matmul(a, (gate, up, up), epilogue=swiglu))
    assert "a tuple of 3 arrays, but the epilogue swiglu has 2 sums" in three
    short = refusal(lambda: codegen.matmul(a, (gate, up[:, :40]), epilogue=swiglu))
    assert "b[1] has the shape (30, 40), but b[0] has (30, 48)" in short
    turned = refusal(lambda: codegen.matmul(a, (gate, np.asfortranarray(up)), epilogue=swiglu))
    assert "b[1] has the strides (1, 30)" in turned
    several = draw(2, 40, 30)
    assert "a is 2x40x30" in refusal(lambda: codegen.matmul(several, (gate, up), epilogue=swiglu))
    named: Any = {"epilogue": swiglu, "parts": "interleaved"}
    assert "leave out parts" in refusal(lambda: codegen.matmul(a, (gate, up), **named))
    tuned = refusal(lambda: codegen.matmul(a, (gate, up), epilogue=swiglu, tune=True))
    assert "leave out tune" in tuned
    over = refusal(lambda: codegen.matmul(a[:30], (gate, up), epilogue=swiglu, out=up))
    assert "argument 'out' overlaps b" in over
