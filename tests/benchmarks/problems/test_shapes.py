"""Shapes are parsed from the command line, and named groups of shapes are well formed."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.problems.shapes import (
    GROUPS,
    QUICK,
    UNGROUPED,
    Shape,
    parse_shape,
    parse_triple,
    read_shapes,
    select_shapes,
)


def test_names_are_unique_within_a_group():
    for group in GROUPS.values():
        names = [found.name for found in group.shapes]
        assert len(set(names)) == len(names)


def test_a_quick_run_has_one_shape_of_each_group():
    found = select_shapes(None, None, quick=True)
    assert [letter for letter, _ in found] == list(GROUPS) == list(QUICK)


def test_all_groups_where_nothing_is_asked_for():
    assert select_shapes(None, None) == [
        (x, s) for x, group in GROUPS.items() for s in group.shapes
    ]


def test_given_shapes_come_alone_or_before_groups():
    one = Shape("one", 1, 2, 3)
    assert select_shapes(None, [one]) == [(UNGROUPED, one)]
    both = select_shapes(["E", "D", "E"], [one])
    assert list(dict.fromkeys(letter for letter, _ in both)) == [UNGROUPED, "E", "D"]
    assert len(both) == 1 + len(GROUPS["E"].shapes) + len(GROUPS["D"].shapes)


def test_triple():
    assert parse_triple("4096x256X64") == (4096, 256, 64)


@pytest.mark.parametrize("text", ["", "4096", "1x2", "1x2x3x4", "axbxc", "0x1x1", "1x-2x3"])
def test_malformed_triples_say_so(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="should be three positive integers"):
        parse_triple(text)


def test_preset(tmp_path: Path):
    path = tmp_path / "shapes"
    path.write_text("# ours\n\n64 128 256\n1x2x3  # odd\n")
    assert read_shapes(path) == [Shape("64x128x256", 64, 128, 256), parse_shape("1x2x3")]
