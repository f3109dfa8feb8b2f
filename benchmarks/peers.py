"""The libraries that we are measured against."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.contenders import CUBLAS, Contender, Unavailable
from benchmarks.problem import Problem, Run
from benchmarks.timing import quick_seconds

__all__ = ["PEERS", "CuBlas", "CuBlasLt", "Triton", "peers"]

CANDIDATES = 8
TUNING_SECONDS = 5.0


class CuBlas:
    """`torch.matmul`, whose default is cuBLAS's own choice."""

    name, ours = CUBLAS, False

    def __init__(self) -> None:
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Run:
        matmul, views = problem.torch.matmul, problem.as_multiplied

        def run(a: Any, b: Any, out: Any) -> None:
            matmul(*views(a, b), out=out)

        return run


class CuBlasLt:
    """The fastest of the algorithms that cuBLASLt's heuristics propose for a problem."""

    name, ours = "cuBLASLt", False

    def __init__(self) -> None:
        from benchmarks.cublaslt import Lt

        self.lt = Lt()
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Run:
        product = self.lt.product(problem)
        best: tuple[float, int, Run] | None = None
        found = product.algorithms(CANDIDATES)
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
    """A persistent Triton kernel, tuned once for every shape within a few seconds."""

    name, ours = "Triton", False

    def __init__(self, seconds: float = TUNING_SECONDS) -> None:
        try:
            import triton
        except ImportError as error:
            raise Unavailable(f"the package triton cannot be imported ({error})") from None
        self.version = triton.__version__
        self.seconds = seconds
        self.details: dict[str, Any] = {}

    def prepare(self, problem: Problem) -> Run:
        from benchmarks.triton_matmul import Matmul, configurations

        spent, tried = 0.0, 0
        best: tuple[float, Any, Run] | None = None
        for config in configurations(problem.shape.m, problem.shape.n):
            if spent > self.seconds:
                break
            tried += 1
            run = Matmul(config, problem)
            try:
                run(*problem.sets[0])  # compiles; that is paid once for all shapes, so not counted
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
    """A short timing; None where the library refuses (too much shared memory, say)."""
    try:
        run(*problem.sets[0])
        problem.torch.cuda.synchronize()
    except Unavailable:
        return None
    return quick_seconds(lambda number: problem.launch(run, number), len(problem.sets))


PEERS: dict[str, type[Any]] = {"cublas": CuBlas, "cublaslt": CuBlasLt, "triton": Triton}


def peers(names: Iterable[str]) -> Iterator[Contender | tuple[str, str]]:
    """The peers of these names; a name and the reason where one is not here."""
    for name in names:
        try:
            yield PEERS[name]()
        except Unavailable as error:
            yield name, str(error)
