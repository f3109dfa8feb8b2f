"""Printing: documents and JSON unchanged, reports through rich.

Results go to stdout, progress and errors to stderr. Only terminals get colours and spinners.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, RenderableType

__all__ = [
    "duration",
    "is_stdout",
    "print_block",
    "print_document",
    "print_error",
    "print_json",
    "progress",
    "speed",
    "stderr",
    "stdout",
    "working",
    "write_document",
]

PLAIN_WIDTH = 1000
"""Line width in characters of output to a file or pipe: rich neither wraps nor cuts lines."""


def stdout() -> Console:
    """The console for results."""
    return _console(stderr=False)


def stderr() -> Console:
    """The console for progress and errors."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    found = Console(stderr=stderr, highlight=False, emoji=False)
    return (
        found
        if found.is_terminal
        else Console(stderr=stderr, highlight=False, emoji=False, width=PLAIN_WIDTH)
    )


@contextmanager
def working(what: str) -> Generator[None]:
    """Show a spinner with a text while the body of the `with` statement runs."""
    with stderr().status(what):
        yield


@contextmanager
def progress(what: str) -> Generator[Callable[[float], None]]:
    """Show a progress bar with a percentage while the body of the `with` statement runs.

    Yields a function to call with the fraction of the work that is done, from 0 to 1.
    """
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

    console = stderr()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task(what, total=1.0)
        yield lambda done: bars.update(task, completed=min(done, 1.0))


def print_block(block: RenderableType, console: Console | None = None) -> None:
    """Print a table; output to a file or pipe has no trailing blanks."""
    console = console or stdout()
    if console.is_terminal:
        console.print(block)
        return
    with console.capture() as capture:
        console.print(block)
    text = "\n".join(line.rstrip() for line in capture.get().splitlines())
    typer.echo(text, err=console.stderr)


def print_document(text: str) -> None:
    """Print text unchanged on stdout, ending in one newline."""
    typer.echo(text, nl=not text.endswith("\n"))


def is_stdout(path: Path | None) -> bool:
    """Whether a path means stdout: it is None or `-`."""
    return path is None or str(path) == "-"


def write_document(text: str, path: Path | None) -> None:
    """Write text to a file, or to stdout if the path is None or `-`."""
    if path is None or is_stdout(path):
        print_document(text)
        return
    path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON document; NaN and infinities become null."""
    typer.echo(json.dumps(_finite(data), indent=2, allow_nan=False))


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(k): _finite(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(v) for v in data]
    return data


def print_error(message: str, notes: tuple[str, ...] = ()) -> None:
    """Print an error message and its notes on stderr."""
    console = stderr()
    console.print("[bold red]error:[/]", end=" ")
    console.print(message, markup=False, soft_wrap=True)
    for note in notes:
        console.print(note, markup=False, soft_wrap=True, style="dim")


def duration(seconds: float) -> str:
    """A time, given in seconds, as text in s, ms, µs or ns."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def speed(flops_per_second: float) -> str:
    """An arithmetic speed, given in FLOP/s, as text in TFLOP/s or GFLOP/s."""
    if flops_per_second >= 1e12:
        return f"{flops_per_second / 1e12:.3g} TFLOP/s"
    return f"{flops_per_second / 1e9:.3g} GFLOP/s"


def utf8() -> None:
    """Make stdout and stderr replace characters that their encoding lacks, instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
