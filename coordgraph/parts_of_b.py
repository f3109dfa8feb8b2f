"""`GemmProblem.parts`: its allowed values, and checks of the sums that the parts of B belong to."""

from __future__ import annotations

from coordgraph.errors import VerifyError
from coordgraph.problem_checks import Problem
from coordgraph.problem_names import PARTS, SUMS

__all__ = ["SEPARATE", "checked_parts", "width_of"]

STACKED, INTERLEAVED, SEPARATE = PARTS
MOST_COLUMNS = 1 << 16
"""Largest number of columns of a block of interleaved parts."""


def width_of(parts: str) -> int:
    """The number of adjacent columns of one part of B, if the columns of all parts alternate.

    The result is 1 for `interleaved` and w for `interleaved:w`. It is 0 for `stacked` and
    `separate`, where all columns of a part are adjacent, and for a text that is not allowed.
    """
    if parts == INTERLEAVED:
        return 1
    kind, _, width = parts.partition(":") if isinstance(parts, str) else ("", "", "")
    return int(width) if kind == INTERLEAVED and _is_width(width) else 0


def checked_parts(gemm: Problem) -> str:
    """The field `parts` of a problem, in its shortest form.

    Raises:
        VerifyError: the value is not allowed, or the epilogue has a number of sums that is not
            allowed or does not fit the problem.
    """
    parts = gemm.parts
    kind, colon, width = parts.partition(":") if isinstance(parts, str) else ("", "", "")
    if kind not in PARTS or (colon and (kind != INTERLEAVED or not _is_width(width))):
        raise VerifyError(
            f"Gemm: parts={parts!r} must be {STACKED}, {INTERLEAVED}, {SEPARATE}, or "
            f"{INTERLEAVED}:w with a number w of columns, as in {INTERLEAVED}:16"
        )
    if gemm.sums == 1 and kind != STACKED:
        raise VerifyError(
            f"Gemm: parts={parts} has no effect, because the epilogue "
            f"{gemm.epilogue.name} has one sum; write a function of two sums, as in "
            "def swiglu(gate, up)"
        )
    if gemm.sums not in SUMS:
        raise VerifyError(
            f"Gemm: the epilogue {gemm.epilogue.name} has {gemm.sums} sums, but it can have "
            f"{', '.join(map(str, SUMS[:-1]))} or {SUMS[-1]}; compute others in separate "
            "products"
        )
    if gemm.sums > 1 and gemm.diagonal:
        raise VerifyError(
            f"Gemm: the epilogue {gemm.epilogue.name} has {gemm.sums} sums, which group_axis="
            "mnk does not allow; use group_axis=m, or compute the sums in separate products"
        )
    if colon and gemm.n is not None and gemm.n % int(width):
        raise VerifyError(
            f"Gemm: n = {gemm.n} is no multiple of {width}, the columns of a block of parts="
            f"{parts}; choose another width, or leave out n"
        )
    return f"{kind}:{int(width)}" if colon and int(width) > 1 else kind


def _is_width(text: str) -> bool:
    """Whether a text is a number of columns that a block of interleaved parts may have."""
    return text.isascii() and text.isdigit() and len(text) < 7 and 1 <= int(text) <= MOST_COLUMNS
