"""Libraries as contenders: cuBLAS by `torch.matmul`, cuBLASLt, and a Triton kernel."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.peers.contender import CUBLAS, CUBLASLT, Contender, Unavailable
from benchmarks.problems.problem import Problem, Run
from benchmarks.timing.sampler import quick_seconds

__all__ = ["PEERS", "CuBlas", "CuBlasLt", "Triton", "find_peers"]

CANDIDATES = 8
"""How many of cuBLASLt's algorithms are timed for a problem."""
TUNING_SECONDS = 5.0
"""Number of seconds after which no further configuration of the Triton kernel is timed."""


class CuBlas:
    """Contender: `torch.matmul`, which calls cuBLAS with the algorithm its heuristics choose."""

    name, ours = CUBLAS, False

    def __init__(self) -> None:
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Run:
        """A function that calls `torch.matmul` on views of the stored operands."""
        matmul, views = problem.torch.matmul, problem.as_multiplied

        def run(a: Any, b: Any, out: Any) -> None:
            matmul(*views(a, b), out=out)

        return run


class CuBlasLt:
    """Contender: cuBLASLt, with the fastest of the algorithms that its heuristics propose.

    Args:
        candidates: how many proposed algorithms are timed.
    """

    name, ours = CUBLASLT, False

    def __init__(self, candidates: int = CANDIDATES) -> None:
        from benchmarks.peers.cublaslt import Lt

        self.lt, self.candidates = Lt(), candidates
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Run:
        """Time the algorithms that cuBLASLt proposes; return a function that runs the fastest."""
        product = self.lt.product(problem)
        best: tuple[float, int, Run] | None = None
        found = product.algorithms(self.candidates)
        for number, algorithm in enumerate(found):
            run = product.run_with(algorithm)
            seconds = _time(problem, run)
            if seconds is not None and (best is None or seconds < best[0]):
                best = seconds, number, run
        if best is None:
            raise Unavailable("cuBLASLt proposes no algorithm that runs")
        self.details = {"algorithm": best[1], "algorithms": len(found)}
        return best[2]


class Triton:
    """Contender: a persistent Triton kernel, with its fastest configuration for each problem.

    Args:
        seconds: the time after which no further configuration is timed, in seconds.
    """

    name, ours = "Triton", False

    def __init__(self, seconds: float = TUNING_SECONDS) -> None:
        try:
            import triton
        except ImportError as error:
            raise Unavailable(
                f"the package triton cannot be imported ({error}); install triton"
            ) from None
        self.version = triton.__version__
        self.seconds = seconds
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Run:
        """Time configurations of the Triton kernel; return a function that runs the fastest.

        Configurations are timed in a fixed order, until timing has taken `self.seconds` seconds.
        """
        from benchmarks.peers.triton_matmul import Matmul, configurations

        spent, tried = 0.0, 0
        best: tuple[float, Any, Run] | None = None
        for config in configurations(problem.shape.m, problem.shape.n):
            if spent > self.seconds:
                break
            tried += 1
            run = Matmul(config, problem)
            try:
                run(*problem.sets[0])  # the first call compiles, so it is not timed
            except Unavailable:
                continue
            start = time.monotonic()
            seconds = _time(problem, run)
            spent += time.monotonic() - start
            if seconds is not None and (best is None or seconds < best[0]):
                best = seconds, config, run
        if best is None:
            raise Unavailable("no Triton configuration runs")
        self.details = {"configuration": str(best[1]), "configurations": tried}
        return best[2]


def _time(problem: Problem, run: Run) -> float | None:
    """Time a variant of a kernel briefly; None if it cannot run, as for lack of shared memory."""
    try:
        run(*problem.sets[0])
        problem.torch.cuda.synchronize()
    except Unavailable:
        return None
    return quick_seconds(lambda number: problem.launch(run, number), len(problem.sets))


PEERS: dict[str, type[Any]] = {"cublas": CuBlas, "cublaslt": CuBlasLt, "triton": Triton}
"""The libraries to compare with, by their names for the option --peers."""


def find_peers(names: Iterable[str]) -> Iterator[Contender | tuple[str, str]]:
    """Yield each named library as a contender, or (name, reason) if it is not installed."""
    for name in names:
        try:
            yield PEERS[name]()
        except Unavailable as error:
            yield name, str(error)
