"""`matching`: find the GPU that a short name, such as `H200`, stands for."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["matching", "short_name"]

MAKERS = {"nvidia", "geforce", "tesla", "rtx"}
"""Words of a GPU's full name, in lower case, that a short name may leave out."""


def matching(name: str, known: Iterable[str]) -> str | None:
    """The first of the known GPU names that a short name may stand for, or None.

    Case is ignored, and `NVIDIA`, `GeForce`, `Tesla` and `RTX` may be left out. The model, such as
    `H100`, must be there; each further word must begin a word of the known name, so that `A100 SXM`
    stands for `NVIDIA A100-SXM4-80GB`.
    """
    model, *more = _words(name) or ("",)
    for candidate in known:
        first, *others = _words(candidate) or ("",)
        if model == first and all(any(w.startswith(word) for w in others) for word in more):
            return candidate
    return None


def short_name(name: str) -> str:
    """The model in a GPU's name: `H100` of `NVIDIA H100 80GB HBM3`."""
    return (_words(name) or [name])[0].upper()


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in MAKERS]
