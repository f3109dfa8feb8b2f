"""What the command lines of measures have in common."""

from __future__ import annotations

import argparse

from benchmarks.problem import DTYPES
from benchmarks.timing import REGIMES

__all__ = ["add_measuring", "command_line"]


def command_line(measure: str, about: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks MEASURE`, whose help begins with `about` as it is."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks {measure}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_measuring(
    parser: argparse.ArgumentParser, *, regime: str, rounds: int, seconds: float
) -> None:
    """Options of kernels and of how they are timed, with these defaults; CUDA graphs are used."""
    parser.add_argument("--dtype", default="bf16", choices=list(DTYPES))
    parser.add_argument("--target", default="native", help="of our kernels: native, sm_80, …")
    parser.add_argument("--regime", default=regime, choices=list(REGIMES))
    parser.add_argument("--rounds", type=int, default=rounds, help="medians are over them")
    parser.add_argument("--seconds", type=float, default=seconds, help="about, for one sample")
    parser.set_defaults(graphs=True)
