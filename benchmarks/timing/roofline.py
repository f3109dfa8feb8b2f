"""The roofline: a lower bound on a problem's time, by measured rates of copies and products."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.problems.problem import Problem, Run
from benchmarks.problems.shapes import Shape
from benchmarks.timing.sampler import REGIMES, Sampler, sample_in_rounds

__all__ = ["PEAK_SHAPE", "Roofline", "measure_roofline"]

COPIED_BYTES = 4 << 30
PEAK_SHAPE = Shape("roof", 8192, 8192, 8192)
"""The size of the matrix product whose rate is taken as the GPU's peak."""
ROUNDS = 9


@dataclass(frozen=True)
class Roofline:
    """Measured peak rates of a GPU.

    Args:
        bytes_per_second: the rate of a copy in device memory, bytes read plus bytes written.
        flops_per_second: the rate of the fastest product; a multiply-add is two operations.
    """

    bytes_per_second: float
    flops_per_second: float

    def least_seconds(self, m: int, n: int, k: int, element_bytes: int = 2) -> float:
        """A lower bound on the time of a product, in seconds.

        The bound is the longer of the time to move A, B and D once, and the time of all
        multiply-adds.

        >>> Roofline(4e12, 800e12).least_seconds(4096, 4096, 4096)
        0.00017179869184
        """
        flops = 2 * m * n * k
        moved = element_bytes * (m * k + k * n + m * n)
        return max(flops / self.flops_per_second, moved / self.bytes_per_second)

    def json(self) -> dict[str, Any]:
        """The peak rates of copying and multiplying, and how they were measured, for a JSON
        record.
        """
        how = (
            f"copy of {COPIED_BYTES >> 30} GiB on the device, bytes read and written; "
            f"the fastest cuBLAS product of {PEAK_SHAPE.size.replace('x', ' x ')} after a pause"
        )
        return {**asdict(self), "how": how}


def measure_roofline(problem: Problem, run: Run) -> Roofline:
    """Measure the peak rates of copying and of multiplying: the best of a few samples each.

    The GPU rests between samples.

    Args:
        problem: the problem of size `PEAK_SHAPE`.
        run: the fastest known function that computes the problem.
    """
    import torch

    source = torch.empty(COPIED_BYTES, device="cuda", dtype=torch.uint8)
    source.random_()
    destination = torch.empty_like(source)
    copy = Sampler(lambda _: destination.copy_(source), 1, 5e-3)
    product = Sampler(lambda number: problem.launch(run, number), len(problem.sets), 3e-3)
    copies, products = sample_in_rounds([copy, product], ROUNDS, REGIMES["burst"])
    shape = problem.shape
    flops = 2 * shape.m * shape.n * shape.k
    return Roofline(2 * COPIED_BYTES / min(copies), flops / min(products))
