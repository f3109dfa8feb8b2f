"""Draw traced launches as Gantt charts, simulated above measured; needs matplotlib, but no GPU.

    python -m benchmarks gantt benchmarks/results/one-bad-shape-h200-2026-11-23.json.gz

A chart (SVG) has a line for each SM, with a colour for each activity; all charts of a record have
the same scale of time. A map of each launch shows which workgroups sum which k tiles of each output
tile. A table lists the time of each launch, and the percentage of the SMs' time for each activity.
A record is made on a machine with a GPU, from files that `coordgraph trace --events` writes:

    coordgraph trace --m 2304 --n 2304 --k 4096 --tile 128x256x64 -s data-parallel --events dp.json
    python -m benchmarks gantt new.json.gz --events dp.json --size 2304x2304x4096 \\
        --tile 128x256x64 --device 'NVIDIA H200' --driver 580.159
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.options import command_line
from benchmarks.problems.problem import DTYPES
from benchmarks.problems.shapes import parse_shape
from benchmarks.reports.gantt import compact, draw, table
from benchmarks.reports.record import header, load, write
from benchmarks.reports.tile_maps import draw_tiles

KIND = "gantt"
FIGURES = Path(__file__).parents[2] / "docs" / "assets" / "figures"


def parser() -> argparse.ArgumentParser:
    """The argument parser of `python -m benchmarks gantt`."""
    made = command_line("gantt", __doc__)
    made.add_argument("record", type=Path, metavar="RECORD", help="a record of traced launches")
    made.add_argument(
        "--figures", type=Path, default=FIGURES, metavar="FOLDER",
        help="folder for the charts; default docs/assets/figures",
    )  # fmt: skip
    packing = made.add_argument_group("to make the record first")
    packing.add_argument(
        "--events", type=Path, nargs="+", metavar="FILE", help="files of coordgraph trace --events"
    )
    packing.add_argument("--size", type=parse_shape, metavar="MxNxK", help="the traced problem")
    packing.add_argument("--tile", metavar="MxNxK", help="the output tile and the k tile")
    packing.add_argument("--dtype", default="bf16", choices=list(DTYPES), help="default bf16")
    packing.add_argument("--device", help="the GPU, such as 'NVIDIA H200'")
    packing.add_argument("--driver", help="version of the GPU's driver")
    packing.add_argument("--date", help="the day of the traces, such as 2026-01-31; default today")
    return made


def packed(options: argparse.Namespace) -> dict[str, Any]:
    """Make a record of launches from their traces, which are the files of `--events`."""
    size, about = options.size, header(KIND)
    about["date"] = options.date or about["date"]
    about["command"] = (
        f"coordgraph trace --m {size.m} --n {size.n} --k {size.k} --dtype {options.dtype}"
        f" --tile {options.tile} -s SCHEDULE --events FILE"
    )
    traces = [json.loads(path.read_text("utf-8")) for path in options.events]
    return {
        **about,
        "device": options.device,
        "driver": options.driver,
        **{axis: getattr(size, axis) for axis in "mnk"},
        "dtype": options.dtype,
        "tile": [int(extent) for extent in options.tile.split("x")],
        "rows": [compact(trace["name"], trace["events"]) for trace in traces],
    }


def main() -> None:
    """Run `python -m benchmarks gantt`."""
    made = parser()
    options = made.parse_args()
    if options.events:
        missing = [x for x in ("size", "tile", "device", "driver") if getattr(options, x) is None]
        if missing:
            made.error(f"--events needs --{', --'.join(missing)}")
        write(options.record, packed(options))
    try:
        record = load(options.record)
    except (OSError, ValueError) as error:
        sys.exit(f"{options.record} cannot be read as a record: {error}")
    if record.get("kind") != KIND:
        sys.exit(f"{options.record} has no traced launches; make it with --events")
    print(table(record))
    stem = options.record.name.partition(".")[0]
    for path in chain(
        *(draw_all(record, options.figures, stem) for draw_all in (draw, draw_tiles))
    ):
        print(path)


if __name__ == "__main__":
    main()
