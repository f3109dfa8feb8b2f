"""`python -m tests.mutants`: draw random mutations and count which tests find them."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from tests.mutants.blocks import PACKAGES, ROOT, Record, read
from tests.mutants.mutations import draw
from tests.mutants.trials import Workplace


def recorded(folder: Path, jobs: int) -> Record:
    """Run the quick tests in `jobs` processes, unless `folder` has a record of an earlier run.

    Returns the record: which code each test executes.
    """
    if not any(folder.glob("*.jsonl")):
        folder.mkdir(parents=True, exist_ok=True)
        print(f"running the quick tests to record in {folder} what each executes", flush=True)
        environment = {
            **os.environ,
            "PYTEST_PLUGINS": "tests.mutants.blocks",
            "COORDGRAPH_BLOCKS": str(folder.resolve()),
        }
        workers = ["-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else []
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *workers], cwd=ROOT, env=environment, check=True
        )
    return read(sorted(folder.glob("*.jsonl")))


def main() -> None:
    parser = ArgumentParser(
        "python -m tests.mutants",
        description=__doc__,
        formatter_class=ArgumentDefaultsHelpFormatter,
    )
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--count", type=int, default=60, help="number of mutants")
    parser.add_argument("--seed", default=today, help="seed of the random mutants and slow tests")
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of the mutants to try")
    parser.add_argument(
        "--seconds",
        type=float,
        default=40,
        help="CPU seconds of the quick tests that run on a mutant",
    )
    parser.add_argument(
        "--slow-seconds",
        type=float,
        default=60,
        help="CPU seconds of the slow tests that run on a mutant; 0: none",
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes that record quick tests")
    parser.add_argument(
        "--record",
        type=Path,
        default=ROOT / ".cache/mutants",
        help="folder that records what quick tests execute",
    )
    given = parser.parse_args()
    record = recorded(given.record, given.jobs)
    mutants = draw(ROOT, PACKAGES, given.count, given.seed)
    verdicts = Counter[str]()
    workplace = Workplace(ROOT)
    try:
        for number, mutation in enumerate(mutants, 1):
            if given.only and number not in given.only:
                continue
            trial = workplace.attempt(
                mutation, record, seconds=given.seconds,
                slow_seconds=given.slow_seconds, seed=given.seed,
            )  # fmt: skip
            verdicts[trial.verdict] += 1
            print(f"{number:4} {trial.verdict:8} {mutation}", flush=True)
            print(f"     {trial.tests} quick tests; {trial.by or 'none failed'}", flush=True)
    finally:
        workplace.close()
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())))


if __name__ == "__main__":
    main()
