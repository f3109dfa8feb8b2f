"""Names that options and shell completion accept: targets, axes of groups, passes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from passes.base import Pass

__all__ = [
    "GPU_NAMES",
    "GROUP_NAMES",
    "HOSTS",
    "TARGET_NAMES",
    "import_lowerings",
    "registered_passes",
]

# Copies of `codegen.TARGETS` and `coordgraph.gemm.GROUP_AXES`: the modules of the originals import
# sympy, which help and completion do not need. A test compares the copies with the originals.
TARGET_NAMES = (
    *("interpreter", "cpu", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a"),
    *("sm_100", "sm_120", "native"),
)
GROUP_NAMES = ("m", "k", "mnk")
HOSTS = ("interpreter", "cpu")
"""Targets whose kernels run on the CPU."""
GPU_NAMES = tuple(name for name in TARGET_NAMES if name not in HOSTS)
"""The architectures of GPUs, and `native`."""


def registered_passes() -> dict[str, type[Pass]]:
    """All passes by name, with those of lowering and of installed distributions."""
    import_lowerings()
    from passes.registry import all_passes

    return all_passes()


def import_lowerings() -> None:
    """Register the passes of lowering, which `import passes` alone does not load."""
    for module in ("passes.lowering", "passes.lowering.host", "passes.timeline"):
        import_module(module)
