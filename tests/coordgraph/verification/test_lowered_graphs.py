"""Lowered graphs from text: faults of their structure, and the limits of their one check."""

from __future__ import annotations

from functools import cache

import pytest

from coordgraph import Gemm, VerifyError, parse
from coordgraph.errors import UnnamedFault
from coordgraph.verification import checking
from passes import StreamK
from passes.lowering import LowerToHopper, LowerToTensorCores


@cache
def lowered(target: str) -> str:
    """The text of a lowered graph of stream-k for one target."""
    lower, tile = {
        "sm_80": (LowerToTensorCores(), (64, 64, 32)),
        "sm_90a": (LowerToHopper(), (128, 128, 64)),
    }[target]
    return lower(StreamK(workgroups=4)(Gemm("bf16").graph(tile))).text()


def edited(target: str, old: str, new: str, count: int = -1) -> str:
    """The text of a lowered graph in which `old` is replaced by `new`."""
    text = lowered(target)
    assert old in text
    return text.replace(old, new, count)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Advance dim=B.boxes.inside", "Advance dim=B.boxes"),
        ("Advance dim=ring.step", "Advance dim=D.shared.place"),
    ],
)
def test_an_advance_needs_a_counter(old: str, new: str):
    graph = parse(edited("sm_90a", old, new, 1))
    dim = new.partition("=")[2]
    with pytest.raises(VerifyError, match=f"Advance: '{dim}' is not the index of a Counter here"):
        graph.check()


def test_a_foreign_exception_of_the_check_is_named(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise KeyError("B.boxes")

    monkeypatch.setattr(checking, "memory_order", broken)
    with pytest.raises(UnnamedFault, match=r"the check memory order failed: KeyError: 'B.boxes'"):
        parse(lowered("sm_80")).check()


ACCUMULATE = (
    "AccumulateFragment fragment=acc source=partials "
    "registers=(fragment.m, fragment.n, acc.eighth, acc.half) width="
)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            f"{ACCUMULATE}2",
            f"{ACCUMULATE}2147483648",
            r"AccumulateFragment \(operation \d+\): it accesses 2147483648 elements of 'partials', "
            "which has only 16384",
        ),
        (f"{ACCUMULATE}2", f"{ACCUMULATE}0", "AccumulateFragment .*: width is 0"),
        (
            "SetCoordinate dim=B.copy.element value=0",
            "SetCoordinate dim=B.copy.element value=2147483648",
            r"the index 2147483648 lies outside 'B.copy.element'; give an index in 0\.\.7",
        ),
        (
            "SetCoordinate dim=acc.pair value=0",
            "SetCoordinate dim=acc.pair value=-1",
            "the index -1 lies outside 'acc.pair'",
        ),
    ],
)
def test_widths_and_indices_fit(old: str, new: str, problem: str):
    graph = parse(edited("sm_80", old, new, 1))
    with pytest.raises(VerifyError, match=problem):
        graph.check()
