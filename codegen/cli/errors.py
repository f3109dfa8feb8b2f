"""How commands end: exit codes, and errors as one message or one JSON document."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from codegen.toolchain import ToolNotFound
from coordgraph import CodegenError, CoordGraphError, ParseError, PassError

__all__ = ["ExitCode", "Unavailable", "describe", "exit_code", "message", "notes"]


class ExitCode(IntEnum):
    """What a script can rely on."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNAVAILABLE = 4
    BUG = 70
    """EX_SOFTWARE of sysexits.h: an error that is none of the user's."""


class Unavailable(CodegenError):
    """The target is known, but cannot be used on this machine."""


def exit_code(error: BaseException) -> ExitCode:
    """The code that a command ends with when this stops it."""
    if isinstance(error, Unavailable | ToolNotFound | MemoryError):
        return ExitCode.UNAVAILABLE
    if isinstance(error, CoordGraphError):
        return ExitCode.REFUSED
    if isinstance(error, OSError | UnicodeError):
        return ExitCode.USAGE
    return ExitCode.BUG


def describe(error: BaseException) -> dict[str, Any]:
    """An error as plain data: kind, message, exit code, and where, if it knows."""
    # numpy raises a private subclass of its own.
    kind = MemoryError if isinstance(error, MemoryError) else type(error)
    found: dict[str, Any] = {"kind": kind.__name__, "message": message(error)}
    found["exit_code"] = int(exit_code(error))
    if said := notes(error):
        found["notes"] = said
    if isinstance(error, ParseError):
        found |= {"line": error.line, "column": error.column}
    if isinstance(error, PassError) and error.reproducer is not None:
        found["reproducer"] = error.reproducer
    return found


def notes(error: BaseException) -> tuple[str, ...]:
    """What was added on the way: which file, where the reproducer is."""
    return tuple(getattr(error, "__notes__", ()))


def message(error: BaseException) -> str:
    """What was wrong, for people."""
    if exit_code(error) is ExitCode.BUG:
        return f"{type(error).__name__}: {error} (a bug of coordgraph; --debug shows where)"
    if isinstance(error, MemoryError):
        what = f" ({error})" if str(error) else ""
        return f"this machine has too little memory{what}; take a smaller problem"
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror}"
    return str(error)
