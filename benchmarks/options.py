"""Command-line options that several measures share; each is declared here once."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.problems.log_uniform import HIGH, LOW, STEP
from benchmarks.problems.problem import DTYPES, LAYOUTS
from benchmarks.problems.shapes import GROUPS, parse_shape
from benchmarks.reports.record import RESULTS
from benchmarks.timing.sampler import REGIMES

__all__ = [
    "add_device",
    "add_dtype",
    "add_layouts",
    "add_results",
    "add_sampling",
    "add_shapes",
    "add_target",
    "add_time_limit",
    "command_line",
    "parse_for_gpu",
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
    """Add --shapes and, if `groups` is True, --groups (named groups of shapes)."""
    if groups:
        titles = ", ".join(f"{letter} {group.title}" for letter, group in GROUPS.items())
        parser.add_argument(
            "--groups", nargs="+", choices=list(GROUPS), help=f"groups of shapes: {titles}"
        )
    parser.add_argument(
        "--shapes",
        type=parse_shape,
        nargs="+",
        metavar="MxNxK",
        help="problem sizes, such as 4096x4096x64",
    )


class Layouts(argparse.Action):
    """The argparse action of --layouts: accepts layouts separated by spaces, commas or both."""

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
                raise argparse.ArgumentError(
                    self, f"invalid choice: '{layout}' (choose from {choices})"
                )
        setattr(namespace, self.dest, list(dict.fromkeys(layouts)))


def add_extents(parser: argparse._ActionsContainer) -> None:
    """Add options for the ranges of random m, n and k, and --step: extents are multiples of it."""
    parser.add_argument("--low", type=int, default=LOW, help=f"smallest extent; default {LOW}")
    parser.add_argument("--high", type=int, default=HIGH, help=f"largest extent; default {HIGH}")
    for axis in "mnk":
        for bound in ("low", "high"):
            parser.add_argument(
                f"--{axis}-{bound}", type=int, metavar="N", help=f"--{bound} for {axis} alone"
            )
    parser.add_argument(
        "--step", type=int, default=STEP,
        help=f"extents are multiples of this number; default {STEP}, as TMA needs",
    )  # fmt: skip


def extent_ranges(
    parser: argparse.ArgumentParser, options: argparse.Namespace
) -> dict[str, tuple[int, int]]:
    """For each axis, the smallest and the largest extent, read from the options of `add_extents`.

    Ends the program with an error message if a range is empty, or `--step` is not positive.
    """
    found: dict[str, tuple[int, int]] = {}
    for axis in "mnk":
        low, high = getattr(options, f"{axis}_low"), getattr(options, f"{axis}_high")
        low, high = options.low if low is None else low, options.high if high is None else high
        if not 1 <= low <= high:
            parser.error(
                f"{axis} cannot be between {low} and {high}; give limits from 1 on, lower first"
            )
        found[axis] = low, high
    if options.step < 1:
        parser.error("--step must be positive")
    return found


def add_layouts(parser: argparse._ActionsContainer, *layouts: str) -> None:
    """Add --layouts (how A and B are stored), whose default is `layouts`."""
    parser.add_argument(
        "--layouts", action=Layouts, nargs="+", default=list(layouts), metavar="LAYOUT",
        help="how A and B are stored: n as they are multiplied, t as the transpose; "
        f"of {', '.join(LAYOUTS)}; default {' '.join(layouts)}",
    )  # fmt: skip


def add_dtype(parser: argparse._ActionsContainer) -> None:
    """Add --dtype, the element type of A, B and D."""
    parser.add_argument(
        "--dtype",
        default="bf16",
        choices=list(DTYPES),
        help="element type of A, B and D; default bf16",
    )


def add_target(parser: argparse._ActionsContainer) -> None:
    """Add --target, the code generation target of coordgraph's kernels."""
    parser.add_argument(
        "--target",
        default="native",
        help="target of coordgraph's kernels: native, sm_80, …; default native",
    )


def add_sampling(
    parser: argparse._ActionsContainer,
    *,
    rounds: int,
    seconds: float,
    regime: str | None = None,
    both: bool = False,
) -> None:
    """Add --rounds, --seconds, --regime and --no-graphs, which say how kernels are timed.

    Args:
        parser: the parser to add the options to.
        rounds: the default of --rounds.
        seconds: the default of --seconds.
        regime: the default of --regime; if None, that option is not added.
        both: True to allow `--regime both`.
    """
    parser.add_argument(
        "--rounds", type=int, default=rounds, metavar="N",
        help=f"samples of each contender, whose median is reported; default {rounds}",
    )  # fmt: skip
    parser.add_argument(
        "--seconds",
        type=float,
        default=seconds,
        help=f"approximate seconds of one sample; default {seconds}",
    )
    if regime is not None:
        parser.add_argument(
            "--regime", default=regime, choices=[*REGIMES, "both"] if both else list(REGIMES),
            help="burst: the GPU rests before every sample; sustained: samples follow each other "
            f"under the power limit; default {regime}",
        )  # fmt: skip
    parser.add_argument(
        "--no-graphs", dest="graphs", action="store_false",
        help="launch kernels one by one instead of by CUDA graphs: times include the host's",
    )  # fmt: skip


def add_time_limit(parser: argparse._ActionsContainer, minutes: float) -> None:
    """Add --time-limit in minutes, with the default `minutes`."""
    parser.add_argument(
        "--time-limit", type=float, default=minutes, metavar="MINUTES",
        help=f"time limit of the whole run; slow problems get fewer rounds; default {minutes}",
    )  # fmt: skip


def add_device(parser: argparse._ActionsContainer) -> None:
    """Add --device, the GPU whose cost model a measure of recorded times uses.

    `passes.choosing.times.device_of` gives the name of the device for the option's value.
    """
    parser.add_argument(
        "--device", metavar="NAME",
        help="the GPU whose cost model is used, such as H100; default: the one that the files name",
    )  # fmt: skip


def add_results(parser: argparse._ActionsContainer) -> None:
    """Add --results, the folder of results files and plots."""
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="FOLDER",
        help=f"folder for the record (JSON) and its plots; default benchmarks/{RESULTS.name}",
    )  # fmt: skip


def parse_for_gpu(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line of a measure that needs a GPU.

    The command ends with a message if there is no GPU, or if a value that must be positive is not.
    """
    from codegen.targets.nvptx import driver

    options = parser.parse_args()
    require_positive(parser, options)
    if reason := driver.unavailable():
        sys.exit(f"no GPU: {reason}; run this measure on a machine with an NVIDIA GPU")
    return options


def require_positive(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """End the command with an error if --rounds, --seconds or --time-limit is not positive."""
    names = ("rounds", "seconds", "time_limit")
    for name in names:
        if getattr(options, name, 1) <= 0:
            given = getattr(options, name)
            parser.error(f"--{name.replace('_', '-')} {given} must be positive")
