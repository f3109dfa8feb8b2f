"""`explain`: which plan `matmul` chooses for a problem, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

from codegen.call.known_gpus import KNOWN_GPUS, matching, short_name
from codegen.call.measured import Measured, remembered
from codegen.call.request import PlanRequest, unaligned
from codegen.call.views import LABELS
from coordgraph import CodegenError, Gemm
from coordgraph.validation import flag, whole
from passes.choosing import Explanation, Plan, constants_of, sizes
from passes.choosing import explain as explain_plans
from passes.choosing.choosers import modelled
from passes.choosing.constants import known_devices
from passes.choosing.explaining import every_choice, micros, page
from passes.choosing.gpu_figures import known_figures
from passes.choosing.plan_table import extents
from passes.lowering import LowerToTensorCores
from passes.lowering.architectures import ALIGNED_BYTES, native_to

if TYPE_CHECKING:
    from codegen.targets.nvptx.driver import Device

__all__ = ["ByRule", "Tuned", "explain", "explain_problem"]

CPU = "cpu"
COMPILE_FOR_CPU = "; use target='cpu'"
"""The last words of a message that refuses an element type: advice for `codegen.compile`.
`explain` removes them, since it has no argument `target`."""


@dataclass(frozen=True)
class ByRule:
    """The explanation of a plan that a fixed rule has chosen, without a cost model or predictions.

    Args:
        problem: the problem with its sizes.
        target: `cpu` or the name of an architecture.
        device: the GPU's name; '' for the CPU.
        plan: the chosen plan.
        why: sentences with the reasons.
        heading: lines about the problem, the device and the instructions of the code.
    """

    problem: Gemm
    target: str
    device: str
    plan: Plan
    why: tuple[str, ...]
    heading: tuple[str, ...] = field(default=(), compare=False)

    legend = ""
    """The sentence on the units of the table's times: empty, because the table has no times."""

    seconds = bound = None
    """The predicted seconds of the plan and the term that limits its speed: None, as there is no
    prediction."""

    @property
    def best(self) -> ByRule:
        """This object, so that `best.plan` is the chosen plan in explanations of every kind."""
        return self

    def as_data(self) -> dict[str, Any]:
        """The explanation for JSON, with the same keys as one with predicted times."""
        m, n, k = sizes(self.problem)
        return {
            "problem": {
                **{"m": m, "n": n, "k": k, "dtype": self.problem.dtype},
                "out_dtype": self.problem.out_dtype,
                "transpose_a": self.problem.transpose_a,
                "transpose_b": self.problem.transpose_b,
            },
            "device": self.device or self.target,
            "estimated": None,
            "source": None,
            "heading": self.heading,
            "plans": [{"plan": str(self.plan), "seconds": None, "bound": None, "terms": {}}],
            "why": list(self.why),
        }

    def rows(self) -> list[list[str]]:
        """The rows of the table: one plan, without times."""
        return [["plan"], [str(self.plan)]]

    def reasons(self) -> list[str]:
        """Sentences with the reasons for the plan."""
        return list(self.why)

    def __str__(self) -> str:
        return "\n".join([*self.heading, "", str(self.plan), "", *self.why])


@dataclass(frozen=True)
class Tuned:
    """The explanation of a plan that was measured to be the fastest; see `codegen.call.measured`.

    Args:
        prediction: the explanation of the plan that the model alone would choose.
        measured: the measured times of plans.
        predicted: predicted seconds of the same plans; None for a plan without a prediction.
    """

    prediction: Explanation
    measured: Measured
    predicted: tuple[float | None, ...]

    @classmethod
    def of(cls, prediction: Explanation, measured: Measured) -> Tuned:
        """Combine measured times with the model's predictions for the same plans."""
        found = every_choice(
            prediction.problem,
            prediction.device,
            batches=prediction.batches,
            reads_c=prediction.reads_c,
        )
        plans = {c.plan: c.seconds for c in found}
        return cls(prediction, measured, tuple(plans.get(plan) for plan, _ in measured.times))

    legend = "In microseconds."
    """A sentence on the unit of the times in the table of plans."""

    @property
    def heading(self) -> tuple[str, ...]:
        """The first lines of the explanation: the problem, the device, the matrix instructions."""
        return self.prediction.heading

    @property
    def plan(self) -> Plan:
        """The chosen plan: the fastest measured one."""
        return self.measured.plan

    @property
    def best(self) -> Tuned:
        """This object, so that `best.plan` is the chosen plan in every kind of explanation."""
        return self

    def as_data(self) -> dict[str, Any]:
        """The prediction as plain data for JSON, with the measured seconds under `tuned`."""
        times = [
            {"plan": str(plan), "seconds": seconds, "predicted": predicted}
            for (plan, seconds), predicted in zip(self.measured.times, self.predicted, strict=True)
        ]
        return {**self.prediction.as_data(), "tuned": times}

    def rows(self) -> list[list[str]]:
        """The rows of the table: the measured plans, the fastest first, in microseconds."""
        lines = [["plan", "measured", "predicted", "measured / predicted"]]
        for (plan, seconds), predicted in zip(self.measured.times, self.predicted, strict=True):
            known = (
                ["", ""] if predicted is None else [micros(predicted), f"{seconds / predicted:.2f}"]
            )
            lines.append([str(plan), micros(seconds), *known])
        return lines

    def reasons(self) -> list[str]:
        """Sentences about the measured plan and the errors of the model's predictions."""
        m, n, k = sizes(self.prediction.problem)
        products = self.prediction.batches if self.prediction.problem.batched else 1
        rate = 2 * products * m * n * k / self.measured.seconds / 1e12
        found = [
            f"{self.plan} is remembered: tune=True measured {micros(self.measured.seconds)} µs "
            f"({rate:.0f} TFLOP/s), the least of {len(self.measured.times)}."
        ]
        preferred, times = self.prediction.best.plan, dict(self.measured.times)
        if preferred == self.plan:
            found.append("The cost model prefers the same plan.")
        elif preferred in times:
            more = times[preferred] / self.measured.seconds - 1
            found.append(f"The cost model prefers {preferred}, which took {more:.1%} longer.")
        else:
            found.append(f"The cost model prefers {preferred}, which was not measured.")
        pairs = zip(times.values(), self.predicted, strict=True)
        if errors := [(seconds / x - 1) ** 2 for seconds, x in pairs if x is not None]:
            off = sqrt(sum(errors) / len(errors))
            found.append(
                f"The model's times of the measured plans are off by {off:.0%} (root mean square)."
            )
        return found

    def __str__(self) -> str:
        measured = page(self.rows(), [self.legend, *self.reasons()])
        return "\n".join([*self.heading, "", measured, "", self.prediction.page])


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
    invariant: bool = False,
) -> Explanation | Tuned | ByRule:
    """Explain which plan `matmul` chooses for a problem: the best plans, their times, the reasons.

    A and B are taken to be contiguous arrays whose addresses are multiples of 16 bytes.

    Args:
        m, n, k: extents of the problem, D (m x n) = A (m x k) · B (k x n).
        dtype, out_dtype: element types of A and B, and of D.
        transpose_a, transpose_b: whether A, and whether B, is given as its transpose.
        device: `cpu`, or a GPU's name: one of this machine, or a model of
            `codegen.call.known_gpus` by its full name or a short one, such as `H100`. The default
            is a GPU of this machine, else the GPU on which the cost model was measured; `cpu` for
            types and layouts that GPUs cannot multiply. The heading says which device was assumed
            and why.
        count: number of plans to list.
        batches: number of products of that size in a batch; None for a single product.
        reads_c: whether C is added (beta is not 0); large tiles have no registers for it.
        invariant: whether to explain the choice for a batch-invariant product; the heading then has
            the order of additions along k.

    Returns:
        The predictions of the cost model, with measured times if `tune=True` has measured the
        problem; without a cost model, the plan that a fixed rule has chosen.

    Raises:
        VerifyError: a size, a type or a count is not valid.
        CodegenError: the device is unknown, or cannot multiply the type.
    """
    problem = Gemm(dtype, out_dtype, m, n, k, transpose_a, transpose_b, batched=batches is not None)
    products = 1 if batches is None else batches
    return explain_problem(
        problem, device, count, batches=products, reads_c=reads_c, invariant=invariant
    )


def explain_problem(
    problem: Gemm,
    device: str | None = None,
    count: int = 8,
    *,
    batches: int = 1,
    reads_c: bool = False,
    invariant: bool = False,
) -> Explanation | Tuned | ByRule:
    """Explain which plan is chosen for a `Gemm` with sizes and with `batches` products."""
    count, reads_c = whole(count, "count", least=1), flag(reads_c, "reads_c")
    batches = whole(batches, "batches", least=1)
    here = {gpu.name: gpu for gpu in _here()}
    gpu = next(iter(here), constants_of().device) if device is None else device
    on = _request(problem, gpu, here)
    refusal = None if on.target == CPU else _refusal(problem, on.target)
    assumed = "" if device is not None else _assumed(here, refusal)
    if device is None and refusal is not None:
        on = _request(problem, CPU, here)
    invariant = flag(invariant, "invariant")
    found = replace(on, reads_c=reads_c, batches=batches, invariant=invariant)
    if found.target != CPU and refusal is not None:
        raise CodegenError(
            f"codegen.matmul has no code for this problem on {found.device}: {refusal}; "
            f"{'or ' if ';' in refusal else ''}choose device='cpu' (--device cpu) to explain what "
            "matmul does with numpy arrays"
        )
    heading = (*_heading(found), f"device   {_device_text(found)}{assumed}", _code_text(found))
    if (order := found.order) is not None:
        heading = (*heading, f"order    {order}")
    if (known := found.constants or found.figures) is not None:
        limits: dict[str, Any] = {"batches": batches, "reads_c": reads_c, "order": order}
        prediction = explain_plans(problem, known, count, **limits)
        prediction = replace(prediction, heading=heading)
        measured = found.device in here and not invariant
        times = remembered(found) if measured else None
        return prediction if times is None else Tuned.of(prediction, times)
    why = (*_why_no_model(found), _why_no_times(found))
    return ByRule(problem, found.target, found.device, found.simple_plan, why, heading)


def _refusal(problem: Gemm, architecture: str) -> str | None:
    """Why a GPU of an architecture, such as `sm_90a`, cannot multiply a problem; else None."""
    refusal = LowerToTensorCores(architecture=architecture).why_not(problem.graph())
    return None if refusal is None else refusal.removesuffix(COMPILE_FOR_CPU)


def _assumed(here: Mapping[str, Device], refusal: str | None) -> str:
    """The end of a heading for a device that the caller did not name: why `explain` assumes it.

    Args:
        here: the GPUs of this machine by name.
        refusal: why no GPU can multiply the problem, so that the CPU is assumed; else None.
    """
    if refusal is not None:
        return f", assumed: no GPU can be used, since {refusal}"
    if here:
        return ", the GPU of this machine"
    return ", assumed: this machine has no GPU; device= or --device names another"


def _heading(found: PlanRequest) -> list[str]:
    """Lines about the problem: extents, element types, and whether A and B are transposed."""
    gemm, (m, n, k) = found.gemm, sizes(found.gemm)
    count = f"{found.batches} products of " if gemm.leading else ""
    kinds = f"{gemm.dtype} to {gemm.out_dtype}, sums in {gemm.accumulator}"
    a = f"A as its transpose, {k} x {m}" if gemm.transpose_a else f"A as {m} x {k}"
    b = f"B as its transpose, {n} x {k}" if gemm.transpose_b else f"B as {k} x {n}"
    return [
        f"problem  {count}D ({m} x {n}) = A ({m} x {k}) x B ({k} x {n}), {kinds}",
        f"layout   given row-major: {a}; {b}",
    ]


def _device_text(found: PlanRequest) -> str:
    if found.target == CPU:
        return CPU
    return f"{found.device} ({found.target}, {found.processors} SMs)"


def _code_text(found: PlanRequest) -> str:
    lowering = found.lowering
    return f"code     {'vector instructions by LLVM' if lowering is None else lowering.family}"


def _request(problem: Gemm, device: str, here: Mapping[str, Device]) -> PlanRequest:
    """The `PlanRequest`, from which a plan is chosen, for a problem on a device.

    Args:
        problem: the problem with its sizes.
        device: `cpu`, or the name of a GPU, full or short.
        here: the GPUs of this machine by name.

    Raises:
        CodegenError: the device is not known.
    """
    if not isinstance(device, str):
        raise CodegenError(f"device = {device!r} is not text; give the name of a GPU, or 'cpu'")
    if device.lower() == CPU:
        return PlanRequest(problem, CPU)
    alignment = 1 if unaligned(problem) else ALIGNED_BYTES
    if name := device if device in here else matching(device, here):
        g = here[name]
        return PlanRequest(problem, g.architecture, g.name, g.processors, g.ordinal, alignment)
    measured = known_devices()
    models = {name: gpu for gpu in KNOWN_GPUS for name in (gpu.name, *gpu.others)}
    if name := device if device in models else matching(device, models):
        gpu = models[name]
        target = native_to(gpu.capability).name
        return PlanRequest(problem, target, gpu.name, gpu.processors, alignment=alignment)
    if name := device if device in measured else matching(device, measured):
        (target, *_), processors = modelled(), measured[name].processors
        return PlanRequest(problem, target, name, processors, alignment=alignment)
    known = (CPU, *here, *(short_name(name) for name in (*models, *measured)))
    raise CodegenError(
        f"device = {device!r} is not known here; choose one of "
        f"{', '.join(repr(name) for name in dict.fromkeys(known))}, or run this where the GPU is"
    )


def _here() -> Iterator[Device]:
    """The GPUs of this machine, except those that are too old to run kernels."""
    from codegen.targets.nvptx.driver import device, device_count

    for number in range(device_count()):
        with suppress(CodegenError):  # `device` raises CodegenError for a GPU that is too old
            yield device(number)


def _why_no_times(found: PlanRequest) -> str:
    """A sentence that says why no times are predicted for a plan that a fixed rule has chosen."""
    if found.target == CPU:
        return "No times are predicted: the cost model covers GPUs."
    if found.target in modelled():
        return (
            "No times are predicted: for this GPU the cost model covers wgmma, and this kernel "
            "does not use it."
        )
    return (
        f"No times are predicted: for kernels with mma.sync they are predicted on {_figured()}, "
        "for aligned operands without groups, reductions of rows, several sums or a pinned order "
        "of additions."
    )


def _figured() -> str:
    """The names of the GPUs for which there are files of data-sheet rates."""
    return ", ".join(known_figures())


def _why_no_model(found: PlanRequest) -> list[str]:
    size = extents(found.gemm, found.batches)
    rows, columns, _ = found.simple_plan.tile
    tiles = int(size["l"] * ceil(size["m"] / rows) * ceil(size["n"] / columns))
    count = f"{tiles} tile{'' if tiles == 1 else 's'}"
    if found.target == CPU:
        return [f"numpy arrays are multiplied on the CPU: {count}, which fit in the caches."]
    rule = f"Kernels copy by cp.async, multiply by mma.sync: {count} for {found.processors} SMs."
    if found.target not in modelled():
        return [f"{found.device} ({found.target}) has no wgmma.", rule]
    return [
        *(
            f"Rows of {LABELS[name]} have {size} bytes; TMA needs a multiple of 16."
            for name, size in unaligned(found.gemm)
        ),
        rule,
    ]
