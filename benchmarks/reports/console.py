"""Terminal output of measures: the console, progress bars, and the names of the files written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

__all__ = ["announce_files", "make_console", "progress_bars"]

WIDTH = 132
"""Width of tables in characters if the output is a file or a pipe."""


def make_console() -> Console:
    """A rich console for the standard output, `WIDTH` characters wide if that is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def progress_bars(console: Console) -> Progress:
    """Progress bars that show how many items are done and the elapsed time."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def announce_files(record: dict[str, Any], path: Path, console: Console) -> None:
    """Print the path of a results file; draw its plots beside it if matplotlib is installed."""
    console.print(f"written to {path}", highlight=False, soft_wrap=True)
    try:
        from benchmarks.reports.plots import draw
    except ImportError as error:
        console.print(f"no plots: {error}; to draw them later: python -m benchmarks plot {path}")
        return
    for drawn in draw(record, path):
        console.print(f"drawn: {drawn}", highlight=False, soft_wrap=True)
