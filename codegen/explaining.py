"""`explain`: why `matmul` multiplies as it does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

from codegen import tuning
from codegen.checks import LABELS
from codegen.situation import HOPPER, Situation, unaligned
from codegen.tuning import Measured
from coordgraph import CodegenError, Gemm
from coordgraph.given import flag, whole
from passes.choosing import Explanation, Plan, choices, constants_of, sizes
from passes.choosing import explain as explain_plans
from passes.choosing.constants import known_devices
from passes.choosing.explaining import micros, page
from passes.choosing.table import extents
from passes.lowering import LowerToTensorCores

if TYPE_CHECKING:
    from codegen.nvptx.driver import Device

__all__ = ["ByRule", "Tuned", "explain", "explain_problem"]

CPU = "cpu"


@dataclass(frozen=True)
class ByRule:
    """A plan by a simple rule, where there is no model: nothing is predicted.

    Args:
        problem: with its sizes.
        target: `cpu` or an architecture.
        device: the GPU's name; '' for the CPU.
        plan: what is chosen.
        why: sentences.
    """

    problem: Gemm
    target: str
    device: str
    plan: Plan
    why: tuple[str, ...]

    @property
    def best(self) -> ByRule:
        """What has the plan that is chosen, as where a model chooses."""
        return self

    def as_data(self) -> dict[str, Any]:
        """Plain data, with the keys that there are where a model chooses."""
        m, n, k = sizes(self.problem)
        return {
            "problem": {"m": m, "n": n, "k": k, "dtype": self.problem.dtype},
            "device": self.device or self.target,
            "estimated": None,
            "source": None,
            "plans": [{"plan": str(self.plan), "seconds": None, "bound": None, "terms": {}}],
            "why": list(self.why),
        }

    def rows(self) -> list[list[str]]:
        """The table: one plan, and no times."""
        return [["plan"], [str(self.plan)]]

    def reasons(self) -> list[str]:
        """Sentences."""
        return list(self.why)

    def __str__(self) -> str:
        return "\n".join([str(self.plan), "", *self.why])


@dataclass(frozen=True)
class Tuned:
    """A plan that was measured to be the best, and is remembered: see `codegen.tuning`.

    Args:
        prediction: what would be chosen without it, and why.
        measured: what the plans of the short list took.
        predicted: seconds of the same plans; None where the model has no prediction.
    """

    prediction: Explanation
    measured: Measured
    predicted: tuple[float | None, ...]

    @classmethod
    def of(cls, prediction: Explanation, measured: Measured) -> Tuned:
        """Find the predictions for the plans that were measured."""
        found = choices(
            prediction.problem,
            prediction.device,
            batches=prediction.batches,
            reads_c=prediction.reads_c,
        )
        plans = {c.plan: c.seconds for c in found}
        return cls(prediction, measured, tuple(plans.get(plan) for plan, _ in measured.times))

    @property
    def plan(self) -> Plan:
        """What is chosen."""
        return self.measured.plan

    @property
    def best(self) -> Tuned:
        """What has the plan that is chosen, as where a model chooses."""
        return self

    def as_data(self) -> dict[str, Any]:
        """The plain data of the prediction, and as `tuned` what was measured; seconds."""
        times = [
            {"plan": str(plan), "seconds": seconds, "predicted": predicted}
            for (plan, seconds), predicted in zip(self.measured.times, self.predicted, strict=True)
        ]
        return {**self.prediction.as_data(), "tuned": times}

    def rows(self) -> list[list[str]]:
        """The table: the plans that were measured, the fastest first, in microseconds."""
        lines = [["plan", "measured", "predicted", "measured / predicted"]]
        for (plan, seconds), predicted in zip(self.measured.times, self.predicted, strict=True):
            known = (
                ["", ""] if predicted is None else [micros(predicted), f"{seconds / predicted:.2f}"]
            )
            lines.append([str(plan), micros(seconds), *known])
        return lines

    def reasons(self) -> list[str]:
        """Sentences: what is remembered, and how right the model was."""
        m, n, k = sizes(self.prediction.problem)
        products = self.prediction.batches if self.prediction.problem.batched else 1
        rate = 2 * products * m * n * k / self.measured.seconds / 1e12
        found = [
            f"{self.plan} is remembered: tune=True measured {micros(self.measured.seconds)} µs "
            f"({rate:.0f} TFLOP/s), the least of {len(self.measured.times)}."
        ]
        preferred, times = self.prediction.best.plan, dict(self.measured.times)
        if preferred == self.plan:
            found.append("The model prefers it too.")
        elif preferred in times:
            more = times[preferred] / self.measured.seconds - 1
            found.append(f"The model prefers {preferred}, which took {more:.1%} longer.")
        else:
            found.append(f"The model prefers {preferred}, which was not measured.")
        pairs = zip(times.values(), self.predicted, strict=True)
        if errors := [(seconds / x - 1) ** 2 for seconds, x in pairs if x is not None]:
            off = sqrt(sum(errors) / len(errors))
            found.append(f"Its predictions of these plans are off by {off:.0%} (root mean square).")
        return found

    def __str__(self) -> str:
        return f"{page(self.rows(), self.reasons())}\n\n{self.prediction}"


def explain(
    m: int,
    n: int,
    k: int,
    dtype: str = "bf16",
    out_dtype: str | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = False,
    device: str | None = None,
    count: int = 8,
    batches: int | None = None,
    reads_c: bool = False,
) -> Explanation | Tuned | ByRule:
    """The plan that `matmul` takes for a problem, the next best, what each should take, and why.

    It is for contiguous arrays whose addresses are multiples of 16 bytes.

    Args:
        m, n, k: the problem, D (m x n) = A (m x k) · B (k x n).
        dtype, out_dtype: of A and B, and of D.
        transpose_a, transpose_b: the array holds the transpose.
        device: `cpu`, or the name of a GPU that is here or was measured. By default the GPU here,
            or else the one that was measured, and `cpu` for types that GPUs do not multiply.
        count: plans to list.
        batches: of a batch, how many products there are of that size.
        reads_c: C is added, as where beta is not 0; large tiles have no registers for it.

    Returns:
        The predictions of a model, and where `tune=True` has measured, its times beside them;
        where there is no model, the plan by a simple rule and why.

    Raises:
        VerifyError: a size, a type or a count is none.
        CodegenError: the device is unknown, or does not multiply the type.
    """
    problem = Gemm(dtype, out_dtype, m, n, k, transpose_a, transpose_b, batched=batches is not None)
    return explain_problem(
        problem, device, count, batches=1 if batches is None else batches, reads_c=reads_c
    )


def explain_problem(
    problem: Gemm,
    device: str | None = None,
    count: int = 8,
    *,
    batches: int = 1,
    reads_c: bool = False,
) -> Explanation | Tuned | ByRule:
    """As `explain`, of a problem with its sizes: of a batch, or of so many groups together."""
    count, reads_c = whole(count, "count", least=1), flag(reads_c, "reads_c")
    batches = whole(batches, "batches", least=1)
    refusal = LowerToTensorCores().why_not(problem.graph())
    here = _situation(problem, device, gpu=refusal is None)
    found = replace(here, reads_c=reads_c, batches=batches)
    if found.target != CPU and refusal is not None:
        raise CodegenError(f"matmul has no code for it on {found.device}: {refusal}")
    if (constants := found.constants) is not None:
        prediction = explain_plans(problem, constants, count, batches=batches, reads_c=reads_c)
        is_here = any(gpu.name == found.device for gpu in _here())
        measured = tuning.remembered(found) if is_here else None
        return prediction if measured is None else Tuned.of(prediction, measured)
    why = (*_why_no_model(found), "Nothing is predicted: the model is for wgmma alone.")
    return ByRule(problem, found.target, found.device, found.simple_plan, why)


def _situation(problem: Gemm, device: str | None, *, gpu: bool) -> Situation:
    """The problem on a device; `gpu`: where none is named, a GPU rather than the CPU."""
    here = {gpu.name: gpu for gpu in _here()}
    if device is None:
        device = next(iter(here), constants_of().device) if gpu else CPU
    boxes = not unaligned(problem)
    if not isinstance(device, str):
        raise CodegenError(f"device = {device!r} is not the name of a GPU, nor 'cpu'")
    if device == CPU:
        return Situation(problem, CPU)
    if device in here:
        g = here[device]
        return Situation(problem, g.architecture, g.name, g.processors, g.ordinal, boxes)
    measured = known_devices()
    if device in measured:
        return Situation(problem, HOPPER, device, measured[device].processors, boxes=boxes)
    known = ", ".join(f"'{name}'" for name in dict.fromkeys((CPU, *here, *measured)))
    raise CodegenError(
        f"device = {device!r} is not known; there are {known}, and on a machine with another GPU "
        "that one"
    )


def _here() -> Iterator[Device]:
    """The GPUs of this machine that kernels run on."""
    from codegen.nvptx.driver import device, device_count

    for number in range(device_count()):
        with suppress(CodegenError):  # too old
            yield device(number)


def _why_no_model(found: Situation) -> list[str]:
    size = extents(found.gemm, found.batches)
    rows, columns, _ = found.simple_plan.tile
    tiles = int(size["l"] * ceil(size["m"] / rows) * ceil(size["n"] / columns))
    count = f"{tiles} tile{'' if tiles == 1 else 's'}"
    if found.target == CPU:
        return [f"numpy arrays are multiplied on the CPU: {count} that the caches hold."]
    rule = f"cp.async and mma.sync instead: {count} for {found.processors} SMs."
    if found.target != HOPPER:
        return [f"{found.device} ({found.target}) has no wgmma. By {rule}"]
    return [
        *(
            f"Rows of {LABELS[name]} have {size} bytes, no multiple of the 16 that the copy engine "
            "wants."
            for name, size in unaligned(found.gemm)
        ),
        f"So it is {rule}",
    ]
