from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.golden import Golden


def test_writes_then_accepts_then_shows_the_difference(tmp_path: Path):
    Golden(tmp_path, update=True)("one\ntwo", "deep/text.txt")
    golden = Golden(tmp_path)
    golden("one\ntwo\n", "deep/text.txt")
    with pytest.raises(pytest.fail.Exception, match=r"(?s)-two\n\+three.*--update-golden"):
        golden("one\nthree", "deep/text.txt")


def test_a_missing_file_fails(tmp_path: Path):
    with pytest.raises(pytest.fail.Exception, match=r"no golden absent\.txt"):
        Golden(tmp_path)("text", "absent.txt")
    assert not list(tmp_path.iterdir())
