"""Try random mutants of kernel graphs; the exit status is 1 if one of them shows a defect.

    python -m tests.fuzz --seconds 60            mutants of today's seed
    python -m tests.fuzz --count 500 --seed 7    the first 500 mutants of seed 7
    python -m tests.fuzz --seed 7 --only 123     one mutant in this process, with its text

Mutants that show a defect are written to build/fuzz.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from codegen.targets.cpu import code
from tests.fuzz.bases import BASES, base_data, base_text
from tests.fuzz.mutants import mutant
from tests.fuzz.trial import FINDINGS, Outcome, Result, attempt
from tests.fuzz.workers import Workers

FOLDER = Path("build") / "fuzz"
REFRESHED = 10
"""Number of mutants after which the progress bar is drawn again."""
LOGGED = 60.0
"""Seconds between two lines of progress if the output is no terminal."""
LIMIT = 20.0
"""CPU seconds after which a mutant counts as a hang."""


def main() -> int:
    """Run `python -m tests.fuzz`; return the exit status."""
    given = _arguments()
    code.QUICK_LEVEL = 0  # kernels are optimised less, since each runs a few times only
    with tempfile.TemporaryDirectory(prefix="coordgraph-fuzz-") as cache:
        # Mutants with equal LLVM IR share one compilation. The cache folder is new, so no other run
        # can have stored a kernel in it.
        os.environ["COORDGRAPH_CACHE"] = cache
        return _run(given)


def _run(given: argparse.Namespace) -> int:
    if given.only is not None:
        return _one(given.seed, given.only)
    # The graphs are built and cached before worker processes are forked, so that workers have them.
    for base in BASES:
        base_text(base)
        base_data(base)
    counts, start = Counter[Outcome](), time.monotonic()
    progress = _bar if sys.stdout.isatty() else _log
    with Workers(given.limit) as workers, progress(given.count or given.seconds) as (update, show):
        while True:
            done, passed = counts.total(), time.monotonic() - start
            findings = sum(counts[each] for each in FINDINGS)
            update(f"{done} mutants, {findings} findings", done if given.count else passed)
            if done >= given.count if given.count else passed >= given.seconds:
                break
            number = given.start + done
            result = workers.try_mutant(given.seed, number)
            counts[result.outcome] += 1
            if result.outcome in FINDINGS:
                show(_report(given.seed, number, result))
    print(f"seed {given.seed}: {counts.total()} mutants in {time.monotonic() - start:.0f} s")
    for outcome in Outcome:
        print(f"  {counts[outcome]:6}  {outcome.value}")
    return 1 if findings else 0


Update = Callable[[str, float], None]
"""Type: shows progress, given a description and how much of the total is done."""
Show = Callable[[str], None]
"""Type: prints a text, such as a report of a failure."""


@contextmanager
def _bar(total: float) -> Iterator[tuple[Update, Show]]:
    """Show a progress bar; yield (a function that updates it, a function that prints above it).

    `total` is the number of mutants or of seconds at which the bar is full.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, auto_refresh=False) as progress:
        task, calls = progress.add_task("0 mutants", total=total), 0

        def update(text: str, done: float) -> None:
            nonlocal calls
            calls += 1
            progress.update(task, description=text, completed=done)
            if calls % REFRESHED == 1:
                progress.refresh()

        yield update, lambda text: progress.console.print(text, markup=False)


@contextmanager
def _log(total: float) -> Iterator[tuple[Update, Show]]:
    """Like `_bar` for outputs that are no terminal: progress is a line every `LOGGED` seconds."""
    printed = time.monotonic()

    def update(text: str, done: float) -> None:
        nonlocal printed
        if time.monotonic() - printed > LOGGED:
            printed = time.monotonic()
            print(f"{text}, {done / total:.0%}", flush=True)

    yield update, lambda text: print(text, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    today = int(datetime.now(UTC).strftime("%Y%m%d"))
    parser.add_argument("--seed", type=int, default=today, help="default: today's date")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to try mutants")
    parser.add_argument("--count", type=int, default=0, help="number of mutants; 0: by --seconds")
    parser.add_argument("--start", type=int, default=0, help="the number of the first mutant")
    parser.add_argument("--only", type=int, help="the number of the one mutant to try")
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT,
        help="CPU seconds after which a mutant counts as a hang",
    )
    return parser.parse_args()


def _one(seed: int, number: int) -> int:
    made = mutant(seed, number)
    print(made.shown)
    found = attempt(made, lambda stage: print(f"-- {stage}"))
    print(f"{found.outcome.value} ({found.stage})\n{found.detail}")
    return 1 if found.outcome in FINDINGS else 0


def _report(seed: int, number: int, result: Result) -> str:
    """The report on a mutant that shows a defect, which is also written to a file."""
    made = mutant(seed, number)
    text = f"--seed {seed} --only {number}: {made.kind}, {result.stage}: {result.outcome.value}"
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{seed}-{number}.txt"
    path.write_text(f"{text}\n{result.detail}\n\n{made.shown}\n", encoding="utf-8")
    lines = [line for line in result.detail.strip().split("\n") if line.strip()]
    return f"{text}\n  {lines[-1] if lines else ''}"


if __name__ == "__main__":
    raise SystemExit(main())
