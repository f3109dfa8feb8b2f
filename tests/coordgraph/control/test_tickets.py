"""Dynamic loops, whose next index is a ticket (the value of a counter): form, text and proofs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgraph import Gemm, KernelGraph, VerifyError, parse
from coordgraph.control.tickets import next_value
from coordgraph.verification import Outcome
from passes import DataParallel

DYNAMIC = DataParallel(persistent=True, scheduler="dynamic")(Gemm("f32").graph((4, 4, 4)))
TAKE = "        TakeTicket dim=tile counter=counter first=workgroups count=tiles_m*tiles_n\n"


def edited(*edits: tuple[str, str]) -> KernelGraph:
    text = DYNAMIC.text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return parse(text)


@given(st.integers(1, 40), st.integers(0, 3))
def test_tickets_are_unique_and_consecutive_and_the_counter_ends_at_0(count: int, launches: int):
    value = 0
    for _ in range(launches):
        tickets: list[int] = []
        for _ in range(count):
            tickets.append(value)
            value = next_value(value, count)
        assert tickets == list(range(count))
        assert value == 0


def test_the_text_parses_back():
    assert parse(DYNAMIC.text()).text() == DYNAMIC.text()


def test_the_loop_as_pseudo_code_and_as_a_diagram():
    code = DYNAMIC.pseudocode()
    assert "for (uint tile = workgroup; tile < tiles_m*tiles_n; tile = tile_following)" in code
    take = "tile_following = workgroups + atomicInc(&counter[0], tiles_m*tiles_n - 1);"
    assert take in code
    picture = DYNAMIC.control.mermaid()
    assert "DynamicFor tile in workgroup .. tiles_m*tiles_n" in picture
    assert "TakeTicket tile = workgroups + ticket of counter" in picture


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (((TAKE, ""),), "has 0 operations TakeTicket"),
        (((TAKE, 2 * TAKE),), "has 2 operations TakeTicket"),
        (
            ((TAKE, f"        If condition=tile % 2 == 0 {{\n  {TAKE}        }}\n"),),
            "not directly in the body",
        ),
        (
            (
                ("      DynamicFor", "      If condition=workgroup < 3 {\n      DynamicFor"),
                (TAKE + "      }\n", TAKE + "      }\n      }\n"),
            ),
            "is in a If",
        ),
    ],
)
def test_a_loop_that_loses_indices_is_refused(edits: tuple[tuple[str, str], ...], message: str):
    with pytest.raises(VerifyError, match=message):
        edited(*edits).verify()


def test_a_loop_whose_work_depends_on_the_workgroup_is_not_proved():
    """`cover` does not prove loops whose body reads `workgroup`.

    The check `cover` traces only one order in which workgroups take the loop's indices.
    """
    graph = edited(
        (
            "        InitAccumulator\n",
            "        Assign name=mine value=workgroup\n        InitAccumulator\n",
        ),
        ("For dim=k_tile start=0 ", "For dim=k_tile start=mine // workgroups "),
    )
    graph.verify()
    (cover,) = (v for v in graph.check() if v.name == "cover")
    assert cover.outcome is Outcome.UNKNOWN
    assert "depends on the workgroup" in cover.detail


def test_what_a_check_says_of_a_correct_graph():
    report = DYNAMIC.check()
    assert not report.refuted
    (cover,) = (v for v in report if v.name == "cover")
    assert "every order in which workgroups take tickets" in cover.detail
