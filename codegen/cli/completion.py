"""Shell completion of targets and of the names of passes in pipelines.

`coordgraph --install-completion` installs the completion.
"""

from __future__ import annotations

from collections.abc import Iterable

from codegen.cli.names import GPU_NAMES, TARGET_NAMES, registered_passes

__all__ = ["gpu_targets", "names_of_passes", "pipelines", "schedules", "targets"]


def targets(incomplete: str) -> list[str]:
    """The targets whose names begin with the incomplete text; imports no code generator."""
    return _beginning(incomplete, TARGET_NAMES)


def gpu_targets(incomplete: str) -> list[str]:
    """The targets for GPUs whose names begin with the incomplete text."""
    return _beginning(incomplete, GPU_NAMES)


def names_of_passes(incomplete: str) -> list[str]:
    """The passes, also of installed distributions, whose names begin with the incomplete text."""
    return _beginning(incomplete, registered_passes())


def pipelines(incomplete: str) -> list[str]:
    """Complete the last pass name of an incomplete pipeline; no completions inside `{…}`."""
    before, comma, name = incomplete.rpartition(",")
    if incomplete.count("{") > incomplete.count("}"):
        return []
    return [f"{before}{comma}{found}" for found in names_of_passes(name)]


def schedules(incomplete: str) -> list[str]:
    """Complete the last pass name of a pipeline, without passes that need a scheduled graph."""
    later = {name for name, kind in registered_passes().items() if "scheduled" in kind.requires}
    return [text for text in pipelines(incomplete) if text.rpartition(",")[2] not in later]


def _beginning(start: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(start)]
