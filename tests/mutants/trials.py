"""Run the tests that execute a mutated line, and see whether one of them fails."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from resource import RLIMIT_CPU, setrlimit
from signal import SIGKILL, SIGXCPU
from tempfile import mkdtemp

from tests.mutants.blocks import Record, block_at
from tests.mutants.mutations import Mutation

__all__ = ["Trial", "Workplace", "covering_tests"]

NEAR_FILES = 6
"""Number of test files whose tests run first on a mutant: those whose paths have most folder and
file names in common with the path of the mutated module. Slow tests run only from these files.
"""


@dataclass(frozen=True)
class Trial:
    """The result of running tests on a mutant.

    Attributes:
        mutation: the mutation.
        verdict: `quick` or `slow` if a quick or a slow test failed on the mutant, else `survived`.
        by: the test that failed first; empty if no test failed or time ran out.
        tests: the number of quick tests that were run on the mutant.
    """

    mutation: Mutation
    verdict: str
    by: str
    tests: int


class Workplace:
    """A copy of the repository, in which one file at a time is mutated."""

    def __init__(self, root: Path) -> None:
        self.folder = Path(mkdtemp(prefix="mutants-"))
        # The cache is outside the copy, since tests of the docs list files of the current folder.
        self.cache = Path(mkdtemp(prefix="mutants-cache-"))
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
            cwd=root, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (root / name).is_file():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(root / name, self.folder / name)

    def close(self) -> None:
        """Delete the copy of the repository, and the cache of the tests that ran in it."""
        shutil.rmtree(self.folder)
        shutil.rmtree(self.cache, ignore_errors=True)

    def attempt(
        self, mutation: Mutation, record: Record, *, seconds: float, slow_seconds: float, seed: str
    ) -> Trial:
        """Run quick tests on a mutant, then slow tests if no quick test fails.

        Args:
            mutation: the mutation.
            record: which blocks each quick test executes.
            seconds: limit of the total recorded CPU time of the quick tests; if all would take
                longer, only tests in files that are named most like the mutated file are run.
            slow_seconds: CPU time for a sample of the slow tests; 0 runs none.
            seed: the seed by which the sample of slow tests is drawn.
        """
        path = self.folder / mutation.path
        source = path.read_bytes()
        tests = covering_tests(mutation, source, record, seconds)
        path.write_bytes(mutation.apply(source))
        try:
            # A mutant that takes far longer than recorded counts as killed, because it may loop for
            # ever.
            limit = 60 + 6 * seconds
            files = [*dict.fromkeys(test.partition("::")[0] for test in tests)][:NEAR_FILES]
            first = [test for test in tests if test.partition("::")[0] in files]
            for some in (first, [test for test in tests if test not in first]):
                code, by = self._pytest(some, limit) if some else (0, "")
                if code:
                    path.write_bytes(source)
                    self._demand(some if not by or by.startswith("exit") else [by], limit)
                    by = by or f"no end after {limit:.0f} s"
                    return Trial(mutation, "quick", by, len(tests))
            if slow_seconds and tests:
                options = ["-m", "slow", "--sample", "80", "--sample-seed", seed]
                code, by = self._pytest([*options, *files], slow_seconds)
                if code and by:
                    path.write_bytes(source)
                    self._demand(["-m", "slow", by], slow_seconds)
                    return Trial(mutation, "slow", by, len(tests))
            return Trial(mutation, "survived", "", len(tests))
        finally:
            path.write_bytes(source)

    def _demand(self, tests: Sequence[str], limit: float) -> None:
        """RuntimeError unless `tests` pass on the unchanged source within `limit` CPU seconds.

        These tests failed on a mutant; if they fail without it too, the mutant is not the cause.
        """
        code, by = self._pytest(tests, limit)
        if code:
            raise RuntimeError(
                f"{by or 'the time limit'} fails without a mutation too; if tests have been added "
                "or renamed, delete the folder of --record, so that tests are recorded again"
            )

    def _pytest(self, arguments: Sequence[str], seconds: float) -> tuple[int, str]:
        """Run pytest; return (exit status, the first test or file that failed).

        The limit is CPU time, since other processes may slow this one down; wall time is limited to
        20 times as much. A run that reaches a limit has a negative status and no test.
        """
        listing = self.folder / "arguments.txt"
        listing.write_text("\n".join(arguments))
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COORDGRAPH_CACHE": str(self.cache),
            "HYPOTHESIS_PROFILE": "ci",
        }
        shutil.rmtree(self.cache, ignore_errors=True)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
        try:
            done = subprocess.run(
                [*command, f"@{listing}"], cwd=self.folder, env=environment,
                capture_output=True, text=True, timeout=20 * seconds,
                preexec_fn=lambda: setrlimit(RLIMIT_CPU, (int(seconds), int(seconds) + 9)),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return -1, ""
        failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
        if done.returncode in (0, 5):  # pytest's exit status 5: no test was selected
            return 0, ""
        if done.returncode in (-SIGXCPU, -SIGKILL):
            return -1, ""
        if done.returncode == 4:  # a test file cannot be imported, or has other tests than recorded
            return 4, "exit status 4: pytest does not find the recorded tests"
        return done.returncode, failed[1] if failed else f"exit status {done.returncode}"


def covering_tests(mutation: Mutation, source: bytes, record: Record, seconds: float) -> list[str]:
    """Tests that execute the mutated block of Python statements, up to a total of `seconds`.

    Test files are sorted by the likeness of their names to the mutated file's name. The cheapest
    tests of the first `NEAR_FILES` files come first, one of each file in turn; the tests of the
    other files follow. If no test executes the block, the tests that execute another block of the
    same source file are returned.
    """
    found = record.executing(mutation.path, block_at(source, mutation.line))
    near = {part.removesuffix(".py") for part in mutation.path.split("/")}
    files = dict[str, list[str]]()
    for name in sorted(found, key=record.seconds.__getitem__):
        files.setdefault(name.partition("::")[0], []).append(name)

    def distance(file: str) -> tuple[int, float]:
        parts = {part.removesuffix(".py").removeprefix("test_") for part in file.split("/")}
        return -len(parts & near), record.seconds[files[file][0]]

    ranks = {
        name: (place // NEAR_FILES, number, place)
        for place, file in enumerate(sorted(files, key=distance))
        for number, name in enumerate(files[file])
    }
    chosen, total = list[str](), 0.0
    for name in sorted(ranks, key=ranks.__getitem__):
        total += record.seconds[name]
        if chosen and total > seconds:
            break
        chosen.append(name)
    return chosen
