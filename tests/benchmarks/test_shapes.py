"""Groups of shapes, and what the command line makes of shapes."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.shapes import GIVEN, GROUPS, QUICK, Shape, chosen, preset, shape, triple


def test_names_are_unique_within_a_group():
    for group in GROUPS.values():
        names = [found.name for found in group.shapes]
        assert len(set(names)) == len(names)


def test_a_quick_run_has_one_shape_of_each_group():
    found = chosen(None, None, quick=True)
    assert [letter for letter, _ in found] == list(GROUPS) == list(QUICK)


def test_all_groups_where_nothing_is_asked_for():
    assert chosen(None, None) == [(x, s) for x, group in GROUPS.items() for s in group.shapes]


def test_given_shapes_come_alone_or_before_groups():
    one = Shape("one", 1, 2, 3)
    assert chosen(None, [one]) == [(GIVEN, one)]
    both = chosen(["E", "D", "E"], [one])
    assert list(dict.fromkeys(letter for letter, _ in both)) == [GIVEN, "E", "D"]
    assert len(both) == 1 + len(GROUPS["E"].shapes) + len(GROUPS["D"].shapes)


def test_triple():
    assert triple("4096x256X64") == (4096, 256, 64)


@pytest.mark.parametrize("text", ["", "4096", "1x2", "1x2x3x4", "axbxc", "0x1x1", "1x-2x3"])
def test_malformed_triples_say_so(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="is not like"):
        triple(text)


def test_preset(tmp_path: Path):
    path = tmp_path / "shapes"
    path.write_text("# ours\n\n64 128 256\n1x2x3  # odd\n")
    assert preset(path) == [Shape("64x128x256", 64, 128, 256), shape("1x2x3")]
