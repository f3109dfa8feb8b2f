"""Where measures print: the console, progress bars, and the last lines about the files written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

__all__ = ["announce_files", "make_console", "progress_bars"]

WIDTH = 132
"""Columns of tables where the output is a file or a pipe."""


def make_console() -> Console:
    """The terminal, or a console that is wide enough for tables where the output is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def progress_bars(console: Console) -> Progress:
    """Progress bars with a count of what is done and the elapsed time."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console)


def announce_files(record: dict[str, Any], path: Path, console: Console) -> None:
    """Print where a record was written, and draw its plots beside it if matplotlib is installed."""
    console.print(f"written to {path}", highlight=False, soft_wrap=True)
    try:
        from benchmarks.reports.plots import draw
    except ImportError as error:
        console.print(f"no plots: {error}; `python -m benchmarks plot {path}` draws them elsewhere")
        return
    for drawn in draw(record, path):
        console.print(f"drawn: {drawn}", highlight=False, soft_wrap=True)
