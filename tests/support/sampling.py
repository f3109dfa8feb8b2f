"""A repeatable sample of the selected tests: `pytest -m slow --sample 40`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

__all__ = ["sample"]


def sample(names: Sequence[str], count: int) -> set[str]:
    """Pick `count` of the names, the same ones every time and whatever their order."""
    return set(sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())[:count])
