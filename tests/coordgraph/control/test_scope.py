"""Inside the body of a `SetCoordinate`, bounds and values of indices are known to proofs."""

from __future__ import annotations

import pytest
from sympy import Integer

from coordgraph import CoordinateGraph, VerifyError
from coordgraph.control.operations import For, SetCoordinate
from coordgraph.control.scope import Scoped
from coordgraph.coordinates.dimensions import ForLoop, Linear, Workgroup
from coordgraph.integers import Ranges, minimum

SIZE, COUNT = 100, 8


def scope() -> Scoped:
    """The scope at the start of a kernel, where only the workgroup number is known."""
    with CoordinateGraph().edit() as e:
        for dimension in (
            Workgroup("workgroup", Integer(COUNT)),
            Linear("begin", Integer(SIZE)),
            Linear("place", Integer(SIZE)),
            ForLoop("loop", name="Loop"),
        ):
            e.add(dimension)
    return Scoped(e.graph, Ranges()).hardware(["workgroup"])


def test_what_is_set_to_what_never_changes_bounds_what_is_set_inside():
    here = scope()
    workgroup, begin, place = map(here.coordinates.symbol, ("workgroup", "begin", "place"))
    value, inside = here.enter_set(SetCoordinate("begin", 12 * workgroup))
    assert value == 12 * workgroup
    assert begin in inside.fixed
    _, within = inside.enter_set(SetCoordinate("place", minimum(workgroup**2, 99 - begin)))
    # The proof needs the fact `place <= 99 - begin`: the largest values of `begin` and `place`, 84
    # and 49, add up to more than SIZE.
    assert within.ranges.prove_less(begin + place, Integer(SIZE))


def test_what_is_set_to_what_changes_does_not():
    here = scope()
    loop, begin, place = map(here.coordinates.symbol, ("loop", "begin", "place"))
    _, turn = here.enter_for(For("loop", Integer(0), Integer(50)))
    _, inside = turn.enter_set(SetCoordinate("begin", 2 * loop))
    assert begin not in inside.fixed
    _, within = inside.enter_set(SetCoordinate("place", minimum(2 * loop + 1, 99 - begin)))
    assert not within.ranges.prove_less(begin + place, Integer(SIZE))


def test_what_never_changes_is_not_set_again():
    here = scope()
    workgroup = here.coordinates.symbol("workgroup")
    _, inside = here.enter_set(SetCoordinate("begin", 12 * workgroup))
    with pytest.raises(VerifyError, match="gives 'begin' a value, but an enclosing operation"):
        inside.enter_set(SetCoordinate("begin", workgroup + 1))
    # `beside` is the scope in the body of another `SetCoordinate`.
    _, beside = here.enter_set(SetCoordinate("begin", workgroup + 1))
    assert beside.ranges.prove_less(here.coordinates.symbol("begin"), Integer(COUNT + 1))
