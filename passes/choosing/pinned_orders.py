"""`pinned_order`: the order of additions along k of batch-invariant products, whatever m is.

If m is small, dividing k into several segments keeps all SMs busy; if m is large, the division
costs time, because workgroups write partial sums to memory and read them. One order serves every m,
so the number of segments is a compromise, chosen by predicted times for many m. The number depends
on n, k, the element types and the layout, but not on the GPU of the machine or on a calibration, so
that results have the same bits on every machine: the times are always predicted with the constants
of the H200, from the library's own file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import prod

from coordgraph import Gemm
from passes.choosing.candidates import candidates
from passes.choosing.constants import MEASURED, Constants, file_of
from passes.choosing.model import cost
from passes.choosing.summation_order import SummationOrder
from passes.choosing.tuned_schedules import SEGMENTS
from passes.lowering import WGMMA

__all__ = ["ROWS", "Prediction", "forget", "pinned_order", "predict"]

ROWS = tuple(1 << power for power in range(14))
"""Values of m for which times are predicted: 1, 2, 4, … 8192."""
ENOUGH = 0.97
"""Fixed orders of additions with more segments of k are not tried once an order reaches this
fraction of the default plan's predicted speed at every m. The default plan is the one that is
chosen without a fixed order of additions."""
GAIN = 1.05
"""A fixed order of additions with more segments of k is chosen only if its predicted speed (the
geometric mean over the m of `ROWS`) is more than GAIN times that of the order with fewer
segments."""


@dataclass(frozen=True)
class Prediction:
    """Predicted times of a product with one order of additions, for several m.

    Args:
        order: the order of additions along k.
        default: predicted seconds of the plan that is chosen without the order, for each of `ROWS`.
        pinned: predicted seconds of the best plan with the order, for each of `ROWS`.
    """

    order: SummationOrder
    default: tuple[float, ...]
    pinned: tuple[float, ...]

    @property
    def ratios(self) -> Mapping[int, float]:
        """For each m of `ROWS`: predicted speed with the fixed order / speed of default plan."""
        times = zip(ROWS, self.default, self.pinned, strict=True)
        return {m: usual / pinned for m, usual, pinned in times}

    @property
    def mean(self) -> float:
        """The geometric mean of `ratios` (speeds as fractions of the default plan's) over all m."""
        found = self.ratios.values()
        return prod(found) ** (1 / len(found))

    @property
    def least(self) -> float:
        """The smallest of `ratios` (speeds as fractions of the default plan's) over all m."""
        return min(self.ratios.values())


def pinned_order(problem: Gemm, instructions: str, unit: int) -> SummationOrder:
    """The order of additions along k for every m, and for every number of products in a batch.

    Args:
        problem: the problem, with values for n and k; its m is not read.
        instructions: the lowering's `Lowering.instructions`, such as `wgmma`; '' on the CPU.
        unit: smallest extent of a k tile, in elements.

    Raises:
        ValueError: n or k has no value.
    """
    n, k = problem.n, problem.k
    if n is None or k is None:
        raise ValueError("the order of additions depends on n and k; give both")
    if instructions != WGMMA.instructions or problem.grouped:
        # k is not divided into several segments, since the cost model, which chooses their number,
        # covers only wgmma and needs the number of tiles, which the host does not know for groups.
        return SummationOrder.of(instructions, k, unit)
    single = Gemm(
        problem.dtype,
        problem.out_dtype,
        n=n,
        k=k,
        transpose_a=problem.transpose_a,
        transpose_b=problem.transpose_b,
    )
    return _best(single, unit)


@lru_cache(maxsize=4096)
def _best(problem: Gemm, unit: int) -> SummationOrder:
    best: Prediction | None = None
    for each in predict(problem, unit):
        if best is None or each.mean > GAIN * best.mean:
            best = each
        if each.least >= ENOUGH:
            break
    assert best is not None
    return best.order


def forget() -> None:
    """Clear this process's cache of results of `pinned_order` (orders of additions along k)."""
    _best.cache_clear()
    _constants.cache_clear()


def predict(problem: Gemm, unit: int) -> Iterator[Prediction]:
    """Yield a `Prediction` (times for several m) for each order of additions along k that is tried.

    Orders with fewer segments come first. An order that no plan has for some m is left out.

    Args:
        problem: a problem that wgmma multiplies, with values for n and k.
        unit: smallest extent of a k tile, in elements.
    """
    device = _constants()
    assert problem.k is not None
    sized = [replace(problem, m=m) for m in ROWS]
    whole = SummationOrder.of(WGMMA.instructions, problem.k, unit)
    default: list[float] = []
    pinned: list[float] = []
    for each in sized:
        default.append(float(cost(candidates(each, device), device).total.min()))
        pinned.append(float(cost(candidates(each, device, order=whole), device).total.min()))
    yield Prediction(whole, tuple(default), tuple(pinned))
    for segments in SEGMENTS:
        order = SummationOrder.of(WGMMA.instructions, problem.k, unit, segments)
        if order.segments != segments:
            continue
        tables = [candidates(each, device, order=order) for each in sized]
        if all(map(len, tables)):
            times = (float(cost(table, device).total.min()) for table in tables)
            yield Prediction(order, tuple(default), tuple(times))


@cache
def _constants() -> Constants:
    """The constants of the GPU on which the cost model was measured, from the library's file."""
    return Constants.from_json(file_of(MEASURED).read_text("utf-8"))
