"""Assemble PTX in the tests, and hold kernels to what a fast kernel needs: no spill, no advice."""

from __future__ import annotations

import platform
import re
import sys

from codegen.toolchain import PtxasReport, assemble

__all__ = ["HAS_WHEEL", "PtxasReport", "assemble", "assert_clean"]

# The platforms on which the test extra installs ptxas; there, a missing ptxas is a failure.
HAS_WHEEL = sys.platform == "linux" and platform.machine() in {"x86_64", "aarch64"}

_PERFORMANCE = re.compile(r"\(C75\d\d\)")


def assert_clean(report: PtxasReport) -> None:
    """No register is spilled, and ptxas serialized no wgmma and ignored no setmaxnreg (C75xx)."""
    spilled = {
        name: use for name, use in report.functions.items() if use.spill_stores or use.spill_loads
    }
    assert report.registers, f"ptxas reported no kernel:\n{report.log}"
    assert not spilled, f"registers are spilled: {spilled}"
    advice = [line for line in report.warnings if _PERFORMANCE.search(line)]
    assert not advice, "\n".join(advice)
