"""`progress`: a progress bar on stderr for work that takes seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

__all__ = ["Advance", "progress"]

Advance = Callable[[str, int, int], None]
"""A function that reports progress. The arguments are the current step as text, the number of items
(such as kernels) that are done, and the number of all items."""


@contextmanager
def progress(title: str) -> Generator[Advance]:
    """Yield a function that draws a progress bar if stderr is a terminal, else does nothing."""
    if not sys.stderr.isatty():
        yield lambda step, done, of: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
    )

    text = TextColumn(f"{title}: {{task.description}}")
    columns = text, BarColumn(), TaskProgressColumn(), MofNCompleteColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda step, done, of: bar.update(task, description=step, completed=done, total=of)
