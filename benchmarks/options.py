"""Command-line options that several measures share; each is declared here once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.problems.problem import DTYPES, LAYOUTS
from benchmarks.problems.shapes import GROUPS, parse_shape
from benchmarks.reports.record import RESULTS
from benchmarks.timing.sampler import REGIMES

__all__ = [
    "add_dtype",
    "add_layouts",
    "add_results",
    "add_sampling",
    "add_shapes",
    "add_target",
    "add_time_limit",
    "command_line",
    "require_positive",
]


def command_line(measure: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks MEASURE`; `description` is printed without wrapping."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks {measure}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_shapes(parser: argparse._ActionsContainer, *, groups: bool = True) -> None:
    """Add --shapes and, where a measure knows groups of shapes, --groups."""
    if groups:
        titles = ", ".join(f"{letter} {group.title}" for letter, group in GROUPS.items())
        parser.add_argument(
            "--groups", nargs="+", choices=list(GROUPS), help=f"groups of shapes: {titles}"
        )
    parser.add_argument(
        "--shapes", type=parse_shape, nargs="+", metavar="MxNxK", help="as 4096x4096x64"
    )


class Layouts(argparse.Action):
    """Reads layouts that are separated by spaces, commas or both, and refuses unknown ones."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        layouts = [layout for value in values for layout in value.split(",") if layout]
        for layout in layouts:
            if layout not in LAYOUTS:
                choices = ", ".join(LAYOUTS)
                raise argparse.ArgumentError(self, f"invalid choice: '{layout}' (of {choices})")
        setattr(namespace, self.dest, list(dict.fromkeys(layouts)))


def add_layouts(parser: argparse._ActionsContainer, *layouts: str) -> None:
    """Add --layouts, with these as the default."""
    parser.add_argument(
        "--layouts", action=Layouts, nargs="+", default=list(layouts), metavar="LAYOUT",
        help="how A and B are stored: n as they are multiplied, t as the transpose; "
        f"of {', '.join(LAYOUTS)}; default {' '.join(layouts)}",
    )  # fmt: skip


def add_dtype(parser: argparse._ActionsContainer) -> None:
    """Add --dtype."""
    parser.add_argument(
        "--dtype", default="bf16", choices=list(DTYPES), help="of A, B and D; default bf16"
    )


def add_target(parser: argparse._ActionsContainer) -> None:
    """Add --target."""
    parser.add_argument(
        "--target", default="native", help="target of the plans: native, sm_80, …; default native"
    )


def add_sampling(
    parser: argparse._ActionsContainer,
    *,
    rounds: int,
    seconds: float,
    regime: str | None = None,
    both: bool = False,
) -> None:
    """Add how often and how long kernels are timed, with these defaults.

    Args:
        parser: where to add them.
        rounds: default of --rounds.
        seconds: default of --seconds.
        regime: default of --regime, which is not added where this is None.
        both: whether `--regime both` is allowed.
    """
    parser.add_argument(
        "--rounds", type=int, default=rounds, metavar="N",
        help=f"samples of each contender, whose median counts; default {rounds}",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"of one sample, about; default {seconds}"
    )
    if regime is not None:
        parser.add_argument(
            "--regime", default=regime, choices=[*REGIMES, "both"] if both else list(REGIMES),
            help="burst: the GPU rests before every sample; sustained: samples follow each other "
            f"under the power limit; default {regime}",
        )  # fmt: skip
    parser.add_argument(
        "--no-graphs", dest="graphs", action="store_false",
        help="launch one by one, not by CUDA graphs: includes the host's time",
    )  # fmt: skip


def add_time_limit(parser: argparse._ActionsContainer, minutes: float) -> None:
    """Add --time-limit with a default."""
    parser.add_argument(
        "--time-limit", type=float, default=minutes, metavar="MINUTES",
        help=f"of the whole run; slow problems get fewer rounds; default {minutes}",
    )  # fmt: skip


def add_results(parser: argparse._ActionsContainer) -> None:
    """Add --results, the folder of records and plots."""
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="FOLDER",
        help=f"for the record (JSON) and its plots; default benchmarks/{RESULTS.name}",
    )  # fmt: skip


def require_positive(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End the command with an error where --rounds, --seconds or --time-limit is not positive."""
    names = ("rounds", "seconds", "time_limit")
    for name in names:
        if getattr(options, name, 1) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be positive")
