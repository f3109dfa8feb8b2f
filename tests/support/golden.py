"""Golden files: expected outputs as text under tests/goldens, for reviewers to read."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["Golden"]


@dataclass(frozen=True, slots=True)
class Golden:
    """Compares text with a golden file, or writes the file if `update` is set."""

    folder: Path
    update: bool = False

    def __call__(self, text: str, name: str) -> None:
        """Fail with a diff unless the golden file `name` equals `text`, up to trailing newlines."""
        path = self.folder / name
        actual = text.rstrip("\n") + "\n"
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(actual, encoding="utf-8", newline="\n")
            return
        if not path.exists():
            pytest.fail(f"no golden {name}: pytest --update-golden writes it", pytrace=False)
        expected = path.read_text(encoding="utf-8")
        if actual != expected:
            diff = difflib.unified_diff(
                expected.splitlines(), actual.splitlines(), name, "this run", lineterm=""
            )
            told = "\n".join([*diff, "", "if this run is right: pytest --update-golden"])
            pytest.fail(told, pytrace=False)
