"""Helpers that run a `coordgraph` command in this process, or Python in a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from codegen.cli import app

__all__ = ["Outcome", "coordgraph", "process"]

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Outcome:
    """The exit code, standard output and standard error of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The JSON document on standard output; standard error must be empty."""
        assert self.err == ""
        return json.loads(self.out)


def coordgraph(*words: str, stdin: str | None = None) -> Outcome:
    """Run a `coordgraph` command in this process, with `stdin` as its standard input."""
    done = CliRunner().invoke(app, list(words), input=stdin, prog_name="coordgraph")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Outcome(done.exit_code, done.stdout, done.stderr)


def process(*words: str, stdin: str = "", code: str | None = None) -> Outcome:
    """Run `python -m codegen.cli` in a new process; if `code` is given, run that Python code
    instead.
    """
    start = ["-m", "codegen.cli"] if code is None else ["-c", code]
    done = subprocess.run(
        [sys.executable, "-W", "error", *start, *words],
        input=stdin.encode(),
        capture_output=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())
