"""Assemble PTX in tests, and check that ptxas spilled no register and gave no speed warning."""

from __future__ import annotations

import platform
import re
import sys

from codegen.toolchain import PtxasReport, assemble

__all__ = ["HAS_WHEEL", "PtxasReport", "assemble", "assert_clean"]

# Whether the test extra installs ptxas on this platform; if so, a missing ptxas is a failure.
HAS_WHEEL = sys.platform == "linux" and platform.machine() in {"x86_64", "aarch64"}

_PERFORMANCE = re.compile(r"\(C75\d\d\)")


def assert_clean(report: PtxasReport) -> None:
    """Fail if ptxas spilled registers, serialized wgmma or ignored setmaxnreg (warnings C75xx)."""
    spilled = {
        name: use for name, use in report.functions.items() if use.spill_stores or use.spill_loads
    }
    assert report.registers, f"ptxas reported no kernel:\n{report.log}"
    assert not spilled, f"registers are spilled: {spilled}"
    advice = [line for line in report.warnings if _PERFORMANCE.search(line)]
    assert not advice, "\n".join(advice)
