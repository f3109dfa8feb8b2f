"""Files in `benchmarks/results` are small; each is linked in a page or used to fit the model."""

from __future__ import annotations

import re

import pytest

from benchmarks.reports.record import RESULTS, load
from passes.choosing import constants_of

ROOT = RESULTS.parents[1]
PAGES = [ROOT / "README.md", RESULTS.parent / "NOTES.md", *sorted((ROOT / "docs").rglob("*.md"))]
FIT = RESULTS / "fit"
DEVICES = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")
LIMIT = 2_000_000
"""Limit of the total size of all results, in bytes. Remove old results instead of raising it."""


def test_results_are_under_two_megabytes():
    sizes = {path.name: path.stat().st_size for path in RESULTS.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < LIMIT, sorted(sizes.items(), key=lambda item: -item[1])[:5]


def test_every_result_outside_the_fit_is_linked_by_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    linked = set(re.findall(r"results/([\w.-]+\.(?:json\.gz|json))[)`]", text))
    assert {path.name for path in RESULTS.iterdir() if path.is_file()} == linked


def test_the_times_of_the_fit_are_those_that_the_constants_name():
    """The constants of devices name exactly the files with the times to which they were fitted."""
    sources = " ".join(constants_of(device).source for device in DEVICES)
    named = {re.sub(r"\.json(\.gz)?:?$", "", word) for word in sources.split() if ".json" in word}
    assert {path.name.removesuffix(".json.gz") for path in FIT.iterdir()} == named


@pytest.mark.parametrize("path", sorted(FIT.iterdir()), ids=lambda path: path.name)
def test_a_file_of_the_fit_is_the_record_of_a_sweep(path):
    record = load(path)
    assert record["kind"] == "sweep"
    assert record["device"] in DEVICES
    for row in record["rows"]:
        assert row.keys() >= {"m", "n", "k", "layout", "plan", "t"}
        assert 0 < row["t"] < 1
