"""What the shell completes: names of passes in pipelines, and targets.

`coordgraph --install-completion` installs it.
"""

from __future__ import annotations

from collections.abc import Iterable

from codegen.cli.names import TARGET_NAMES, registered_passes

__all__ = ["names_of_passes", "pipelines", "schedules", "targets"]


def targets(incomplete: str) -> list[str]:
    """The targets that begin like this, without loading what they need."""
    return _beginning(incomplete, TARGET_NAMES)


def names_of_passes(incomplete: str) -> list[str]:
    """The passes that begin like this: those of this library and of installed distributions."""
    return _beginning(incomplete, registered_passes())


def pipelines(incomplete: str) -> list[str]:
    """The pipeline text with each pass that its last name may become; nothing inside `{…}`."""
    before, comma, name = incomplete.rpartition(",")
    if incomplete.count("{") > incomplete.count("}"):
        return []
    return [f"{before}{comma}{found}" for found in names_of_passes(name)]


def schedules(incomplete: str) -> list[str]:
    """As `pipelines`, with the passes that graphs without a lowering take."""
    later = {name for name, kind in registered_passes().items() if "scheduled" in kind.requires}
    return [text for text in pipelines(incomplete) if text.rpartition(",")[2] not in later]


def _beginning(start: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(start)]
