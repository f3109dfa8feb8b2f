"""Draw plots of records (results files of other measures). Plots need matplotlib, and no GPU.

    python -m benchmarks plot benchmarks/results/gemm-h200-nt-2026-11-23.json.gz --format png

Plots are written to the folder of the record. A record of `gemm` has one plot for each group of
shapes: every contender's speed relative to cuBLAS on every problem. Records of `waves` and
`schedules` show utilisation and speed over the number of waves. A record of `traffic` has one plot
for each schedule: bytes from memory and times by order of tiles.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.options import command_line
from benchmarks.reports.plots import FORMATS, draw
from benchmarks.reports.record import load


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks plot`."""
    made = command_line("plot", __doc__)
    made.add_argument(
        "records", type=Path, nargs="+", metavar="FILE",
        help="records (JSON) of gemm, waves, schedules or traffic",
    )  # fmt: skip
    made.add_argument("--format", dest="extension", default="svg", choices=FORMATS)
    return made


def main() -> None:
    """Run `python -m benchmarks plot`."""
    options = parser().parse_args()
    for path in options.records:
        try:
            record = load(path)
        except (OSError, ValueError) as error:
            sys.exit(f"{path} cannot be read as a record: {error}")
        for drawn in draw(record, path, options.extension):
            print(drawn)


if __name__ == "__main__":
    main()
