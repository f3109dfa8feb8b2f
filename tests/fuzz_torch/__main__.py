"""Try random calls of `codegen.torch`; the exit status is 1 if one of them shows a defect.

python -m tests.fuzz_torch --seconds 60            calls of today's seed
python -m tests.fuzz_torch --count 500 --seed 7    the first 500 calls of seed 7
python -m tests.fuzz_torch --seed 7 --only 123     call number 123 of seed 7
python -m tests.fuzz_torch --device cuda           on a GPU
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime

from rich.console import Console
from rich.progress import Progress

from codegen.targets.cpu import code
from tests.fuzz_torch.cases import case
from tests.fuzz_torch.trial import FINDINGS, Outcome, attempt


def main() -> int:
    """Run `python -m tests.fuzz_torch`; return the exit status."""
    today = int(datetime.now(UTC).strftime("%Y%m%d"))
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_torch", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=today, help="seed of the calls; default: today")
    parser.add_argument("--count", type=int, default=0, help="number of calls; 0: until --seconds")
    parser.add_argument("--seconds", type=float, default=60, help="how long calls are tried")
    parser.add_argument("--only", type=int, help="try the call with this number only")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    given = parser.parse_args()
    code.QUICK_LEVEL = 0  # kernels are optimised less, since each runs a few times only
    with tempfile.TemporaryDirectory(prefix="coordgraph-fuzz-") as cache:
        os.environ["COORDGRAPH_CACHE"] = cache
        return _run(given)


def _run(given: argparse.Namespace) -> int:
    if given.only is not None:
        result = attempt(case(given.seed, given.only), given.device)
        print(case(given.seed, given.only), result.outcome, result.detail, sep="\n")
        return int(result.outcome in FINDINGS)
    counts, start, findings = Counter[Outcome](), time.monotonic(), 0
    with Progress(console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("calls", total=given.count or given.seconds)
        while True:
            done, passed = counts.total(), time.monotonic() - start
            progress.update(
                bar,
                completed=done if given.count else passed,
                description=f"{done} calls, {findings} findings",
            )
            if done >= given.count if given.count else passed >= given.seconds:
                break
            tried = case(given.seed, done)
            result = attempt(tried, given.device)
            counts[result.outcome] += 1
            if result.outcome in FINDINGS:
                findings += 1
                print(f"--seed {given.seed} --only {done}: {tried}")
                print(f"  {result.outcome}: {result.detail}", flush=True)
    print(f"seed {given.seed}: {counts.total()} calls in {time.monotonic() - start:.0f} s")
    for outcome in Outcome:
        print(f"  {counts[outcome]:6}  {outcome.value}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
