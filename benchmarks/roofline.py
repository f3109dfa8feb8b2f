"""The roof: how fast this GPU copies and multiplies, and the least time of a problem under it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.shapes import Shape
from benchmarks.timing import REGIMES, Sampler, take_turns

__all__ = ["Roof", "measure_roof"]

COPIED_BYTES = 4 << 30
LARGE = 8192
ROUNDS = 9


@dataclass(frozen=True)
class Roof:
    """Bytes and floating-point operations a second; an fma counts as two."""

    bytes_per_second: float
    flops_per_second: float

    def floor(self, m: int, n: int, k: int, element_bytes: int = 2) -> float:
        """The least seconds: every operand moved once, or all operations at full rate.

        >>> Roof(4e12, 800e12).floor(4096, 4096, 4096)
        0.00017179869184
        """
        flops = 2 * m * n * k
        moved = element_bytes * (m * k + k * n + m * n)
        return max(flops / self.flops_per_second, moved / self.bytes_per_second)

    def json(self) -> dict[str, Any]:
        how = (
            f"copy of {COPIED_BYTES >> 30} GiB on the device, bytes read and written; "
            f"the fastest cuBLAS product of {LARGE} x {LARGE} x {LARGE} after a pause"
        )
        return {**asdict(self), "how": how}


def measure_roof(dtype: str) -> Roof:
    """Both rates, the best of a few samples with pauses between."""
    import torch

    from benchmarks.peers import CuBlas
    from benchmarks.problem import Problem

    source = torch.empty(COPIED_BYTES, device="cuda", dtype=torch.uint8)
    source.random_()
    goal = torch.empty_like(source)
    copy = Sampler(lambda _: goal.copy_(source), 1, 5e-3)
    problem = Problem(Shape("roof", LARGE, LARGE, LARGE), "nt", dtype)
    run = CuBlas().prepare(problem)
    product = Sampler(lambda number: problem.launch(run, number), len(problem.sets), 3e-3)
    copies, products = take_turns([copy, product], ROUNDS, REGIMES["burst"])
    return Roof(2 * COPIED_BYTES / min(copies), 2 * LARGE**3 / min(products))
