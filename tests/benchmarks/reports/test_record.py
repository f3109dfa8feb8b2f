"""Results of benchmarks in JSON files can be written, compressed and read back."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks.reports.record import load, result_path, write
from tests.benchmarks.reports.made_up import record


def test_records_round_trip(tmp_path: Path):
    made = record()
    path = result_path(tmp_path / "new", made)
    assert path.name == "gemm-20260131T120000.json"
    for rows in (made["rows"], []):
        write(path, made | {"rows": rows})
        found = load(path)
        assert found | {"rows": []} == made | {"rows": []}
        assert [sorted(one) for one in found["rows"]] == [sorted(one) for one in rows]
        assert [one["name"] for one in found["rows"]] == [one["name"] for one in rows]
        write(path, found)
        assert load(path) == found
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_other_files_are_no_records(tmp_path: Path):
    path = tmp_path / "x.json"
    path.write_text("[]")
    with pytest.raises(ValueError, match="is not a record"):
        load(path)


def test_compressed_records_hold_the_same_and_are_the_same_bytes_each_time(tmp_path: Path):
    plain, small = tmp_path / "x.json", tmp_path / "x.json.gz"
    for path in (plain, small):
        write(path, record())
    assert load(small) == load(plain)
    data = small.read_bytes()
    assert gzip.decompress(data) == plain.read_bytes()
    assert data[4:8] == bytes(4), "no time in gzip's header, so that the bytes do not change"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.json.gz"]


def test_a_file_that_is_not_compressed_as_it_says_is_no_record(tmp_path: Path):
    path = tmp_path / "x.json.gz"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"x\.json\.gz is no JSON"):
        load(path)
    write(path, record())
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"x\.json\.gz is no JSON"):
        load(path)


def test_numbers_have_six_digits_and_counts_all_of_them(tmp_path: Path):
    path = tmp_path / "x.json"
    made = {"kind": "x", "rate": 2711140565101.2236, "rows": [{"t": 1.23456789e-5, "n": 123456789}]}
    write(path, made)
    assert load(path) == {
        "kind": "x",
        "rate": 2.71114e12,
        "rows": [{"t": 1.23457e-5, "n": 123456789}],
    }
