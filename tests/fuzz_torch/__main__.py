"""Try random calls of `codegen.torch`; the exit status is 1 if one of them shows a defect.

python -m tests.fuzz_torch --seconds 60            calls of today's seed
python -m tests.fuzz_torch --count 500 --seed 7    the first 500 calls of seed 7
python -m tests.fuzz_torch --seed 7 --only 123     call number 123 of seed 7
python -m tests.fuzz_torch --device cuda --count 20000 --jobs 14
                                                   on a GPU, in 14 processes that share kernels
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime

from tests.fuzz_torch.cases import case
from tests.fuzz_torch.processes import in_processes
from tests.fuzz_torch.trial import FINDINGS, attempt


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
    parser.add_argument("--jobs", type=int, default=1, help="number of processes; default: 1")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="coordgraph-fuzz-") as cache:
        os.environ["COORDGRAPH_CACHE"] = cache
        return _only(given) if given.only is not None else in_processes(given)


def _only(given: argparse.Namespace) -> int:
    """Try the call with the number `given.only`; return the exit status."""
    tried = case(given.seed, given.only)
    result = attempt(tried, given.device)
    print(tried, result.outcome, result.detail, sep="\n")
    return int(result.outcome in FINDINGS)


if __name__ == "__main__":
    sys.exit(main())
