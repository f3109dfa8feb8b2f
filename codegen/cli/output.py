"""What commands print: documents and JSON as they are, the rest through rich.

Results go to stdout, progress and errors to stderr. Colours and spinners appear on terminals only.
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
"""Columns where the output is no terminal: nothing is cut off or wrapped."""


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
    """A spinner while something takes time."""
    with stderr().status(what):
        yield


@contextmanager
def progress(what: str) -> Generator[Callable[[float], None]]:
    """A bar with a percentage while something takes time whose end is known.

    What it yields takes the part that is done, from 0 to 1.
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
    """A table or the like; without the blanks at the ends of lines where it is piped on."""
    console = console or stdout()
    if console.is_terminal:
        console.print(block)
        return
    with console.capture() as capture:
        console.print(block)
    text = "\n".join(line.rstrip() for line in capture.get().splitlines())
    typer.echo(text, err=console.stderr)


def print_document(text: str) -> None:
    """Text as it is: it may be piped on."""
    typer.echo(text, nl=not text.endswith("\n"))


def is_stdout(path: Path | None) -> bool:
    """Whether a document for this path goes to stdout: there is none, or it is `-`."""
    return path is None or str(path) == "-"


def write_document(text: str, path: Path | None) -> None:
    """Text to a file, or to stdout where there is none or it is `-`."""
    if path is None or is_stdout(path):
        print_document(text)
        return
    path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")


def print_json(data: Mapping[str, Any]) -> None:
    """One document; what JSON has no number for becomes null."""
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
    """One message on stderr."""
    console = stderr()
    console.print("[bold red]error:[/]", end=" ")
    console.print(message, markup=False, soft_wrap=True)
    for note in notes:
        console.print(note, markup=False, soft_wrap=True, style="dim")


def duration(seconds: float) -> str:
    """A time in a unit that suits it."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def speed(flops_per_second: float) -> str:
    """Arithmetic speed in a unit that suits it."""
    if flops_per_second >= 1e12:
        return f"{flops_per_second / 1e12:.3g} TFLOP/s"
    return f"{flops_per_second / 1e9:.3g} GFLOP/s"


def utf8() -> None:
    """Never fail to print a sign that the terminal does not know."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
