"""`warm`: build a limited set of kernels before the first call, so that no later call compiles.

A plan's kernel takes every size. A family of kernels, selected by the cost model for a range of
sizes (see `passes.choosing.kernel_family`), therefore serves all sizes of the range: `matmul` then
chooses the best plan whose kernel is built.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from codegen.cache import cache_directory, key_of
from codegen.call import families
from codegen.call.alignment import alignment_of
from codegen.call.build import kernel_of, refuse
from codegen.call.compile_workers import CompileWorkers, Job
from codegen.call.progress import Advance, progress
from codegen.call.request import EACH, PlanRequest
from codegen.call.views import TensorView
from codegen.kernel import Kernel
from coordgraph import CodegenError, CoordGraphError, Gemm, LaunchError
from coordgraph.validation import flag, whole
from passes.choosing import Plan
from passes.choosing.drawn_sizes import SizeRange, draw_sizes
from passes.choosing.kernel_family import COUNT, KernelFamily, choose_family
from passes.lowering.architectures import ALIGNED_BYTES

if TYPE_CHECKING:
    from codegen.targets.nvptx.cuda_kernel import CudaKernel

__all__ = ["Example", "Extents", "Warmed", "build_kernels", "warm"]

SUFFIX = ".family.json"
"""The suffix of a file of the kernel cache that holds the kernels of a family."""
MOST_WORKERS = 16
"""Largest number of processes that compile kernels."""
BY_RULE = 400
"""Number of random sizes whose plans decide which kernels are built if there is no cost model."""
Extents = int | tuple[int, int]
"""Type: an extent, or the smallest and the largest one, inclusive."""


@dataclass(frozen=True)
class Warmed:
    """What a call of `warm` built.

    Attributes:
        kernels: for each built kernel, a plan without a grid, in the order of selection: first the
            kernel that lowers the predicted times of random sizes most or, without a cost model,
            the kernel that is chosen for most of them.
        ranges: the ranges of sizes for which `matmul` now chooses among built kernels.
        loss: the geometric mean, over random sizes, of the predicted time of the best of these
            kernels divided by that of the best of all plans, less 1; 0.0 if there is no cost model.
        refused: for each kernel that cannot be built, the reason.
        kind: for `warm_calls`, what distinguishes the kind of call from others, as text.
    """

    kernels: tuple[Plan, ...]
    ranges: tuple[SizeRange, ...]
    loss: float
    refused: dict[str, str]
    kind: str = ""

    def __str__(self) -> str:
        ranges = "; ".join(map(str, self.ranges))
        loss = f", {self.loss:.1%} slower than the best of all by prediction" if self.loss else ""
        kind = f"{self.kind}: " if self.kind else ""
        return f"{kind}{len(self.kernels)} kernels for {ranges}{loss}"


def warm(
    dtype: str = "bf16",
    *,
    m: Extents | None = None,
    n: Extents | None = None,
    k: Extents | None = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    out_dtype: str | None = None,
    reads_c: bool = False,
    kernels: int = COUNT,
    device: int = 0,
) -> Warmed:
    """Build kernels for a range of sizes, so that `matmul` compiles nothing for sizes in it.

    For other kinds of calls, such as those with an epilogue, batches or groups, see `warm_calls`.
    Kernels are compiled in parallel processes, stored in the kernel cache on disk, and loaded on
    the GPU. From then on, for single products of these types and layouts whose rows have a multiple
    of 16 bytes, `matmul` chooses among these kernels if the size is in the range; for other sizes
    it chooses as before. After several calls of `warm`, the kernels of all of them are candidates.
    Another process that calls `warm` with the same arguments loads what this one compiled.

    Args:
        dtype: the element type of A and B.
        m, n, k: an extent, or the smallest and the largest one, inclusive; None is 128 to 8192.
        transpose_a, transpose_b: whether `matmul` gets the transpose of a row-major array, by
            `transpose_a=True` or as a view such as `b.T`.
        out_dtype: the element type of D; None for that of A and B.
        reads_c: whether calls add C.
        kernels: the largest number of kernels. More kernels cost less time per call, and more time
            to build and memory on the GPU.
        device: the number of the GPU.

    Returns:
        The kernels, and how much slower than the best of all plans they are predicted to be.

    Raises:
        CodegenError: there is no GPU, or none of the kernels can be built.
        LaunchError: `kernels` or `device` is not a valid number, or a flag is not a bool.
        PassError: an extent is not an integer of at least 1, or a range is empty.
        VerifyError: an element type is unknown, or not supported.
    """
    whole(kernels, "kernels", LaunchError, least=1)
    whole(device, "device", LaunchError, least=0)
    for name, value in (("transpose_a", transpose_a), ("transpose_b", transpose_b)):
        flag(value, name, LaunchError)
    ranges = (SizeRange.of(m=m, n=n, k=k),)
    gemm = Gemm(dtype, out_dtype, transpose_a=transpose_a, transpose_b=transpose_b)
    from codegen.targets.nvptx.driver import device as gpu

    where = gpu(device)
    sized = replace(gemm, m=ranges[0].m[1], n=ranges[0].n[1], k=ranges[0].k[1])
    request = PlanRequest(
        sized,
        where.architecture,
        where.name,
        where.processors,
        device,
        reads_c=flag(reads_c, "reads_c", LaunchError),
    )
    with progress("warm") as advance:
        return build_kernels(request, ranges, kernels, advance, [Example()])


@dataclass(frozen=True)
class Example:
    """The arrays and numbers of a call, for which kernels are loaded.

    Attributes:
        views: the arrays that kernels get, by the names of tensors; empty for arrays whose
            addresses and rows are multiples of 16 bytes.
        scalars: the numbers of the call, by name.
    """

    views: Mapping[str, TensorView] = field(default_factory=dict[str, TensorView])
    scalars: Mapping[str, float] = field(default_factory=dict[str, float])

    def job(self, request: PlanRequest, plan: Plan) -> Job:
        """The job to compile the kernel of a plan for this example."""
        return Job(request, plan, self.views, self.scalars)

    def variant(self, request: PlanRequest) -> Hashable:
        """A key made of the alignments by which a kernel selects the variant of its code.

        Every kernel runs the same variant for examples with equal keys. Examples with different
        keys may run the same variant, too.
        """
        found = sorted(self.views.items())
        arrays = ((x, alignment_of(v), gcd(v.shape[-1], ALIGNED_BYTES)) for x, v in found)
        return request.alignment, gcd(request.gemm.n or 0, ALIGNED_BYTES), *arrays

    def load(self, kernel: Kernel, request: PlanRequest) -> None:
        """Load the code of a kernel that a call with these arrays and numbers runs.

        Raises:
            CodegenError: the driver cannot assemble the code, or registers spill.
        """
        from codegen.targets.nvptx.driver import device as gpu

        if self.views:
            kernel.load_for(self.views, self.scalars)
        else:
            cuda_kernel: CudaKernel = kernel  # type: ignore[assignment]
            cuda_kernel.preload(gpu(request.ordinal), reads_c=request.reads_c)


def build_kernels(
    request: PlanRequest,
    ranges: tuple[SizeRange, ...],
    most: int,
    advance: Advance,
    examples: Iterable[Example],
) -> Warmed:
    """Select, compile and load the kernels for ranges of sizes, and record them for later calls.

    Args:
        request: the problem and the device; its sizes are ignored.
        ranges: the ranges of sizes.
        most: the largest number of kernels.
        advance: a function to report progress.
        examples: a call for each variant of the kernels' code that is loaded.

    Raises:
        CodegenError: none of the kernels can be built.
    """
    family, examples = _family(request, ranges, most, advance), tuple(examples)
    count = len(family) * len(examples)
    jobs = [each.job(request, plan) for plan in family.kernels for each in examples]
    with CompileWorkers(request, most=MOST_WORKERS) as workers:
        workers.run(jobs, lambda done: advance("compiling", done, count))
    refused: dict[str, str] = {}
    for done, plan in enumerate(family.kernels):
        advance("loading", done, len(family))
        try:
            kernel = kernel_of(plan, request)
        except CoordGraphError as error:
            refused[str(plan)] = str(error)
            continue
        try:
            for example in examples:
                example.load(kernel, request)
        except CodegenError as error:
            refuse(kernel, error)
            refused[str(plan)] = str(error)
    built = tuple(plan for plan in family.kernels if str(plan) not in refused)
    if not built:
        raise CodegenError(f"warm: no kernel can be built: {next(iter(refused.values()))}")
    families.add(request, replace(family, kernels=built))
    loss = family.losses[-1] if family.losses else 0.0
    return Warmed(built, family.ranges, loss, refused)


def _family(
    request: PlanRequest, ranges: tuple[SizeRange, ...], count: int, advance: Advance
) -> KernelFamily:
    """The kernels to build: from the cache on disk, or selected now and stored there."""
    device = request.constants
    if device is None or request.order is not None:
        return _by_rule(request, ranges, count)
    options = request.reads_c, request.batches, ranges, count
    key = key_of("family", repr((request.any_size, device, *options)))
    folder = cache_directory()
    file = None if folder is None else folder / f"{key}{SUFFIX}"
    if file is not None and (found := _read(file, ranges)) is not None:
        return found
    step = partial(advance, "selecting kernels: sizes")
    limits: dict[str, Any] = {"batches": request.batches, "reads_c": request.reads_c}
    found = choose_family(request.any_size, device, ranges, count, **limits, advance=step)
    if file is not None:
        data = {"kernels": [str(plan) for plan in found.kernels], "losses": found.losses}
        with suppress(OSError):  # an unwritable cache is no error: it only saves time
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partly = file.with_suffix(f".{id(found)}.tmp")
            partly.write_text(json.dumps(data | {"ranges": [asdict(r) for r in ranges]}), "utf-8")
            partly.replace(file)
    return found


def _read(file: Path, ranges: tuple[SizeRange, ...]) -> KernelFamily | None:
    try:
        data: dict[str, Any] = json.loads(file.read_text("utf-8"))
        kernels = tuple(Plan.parse(text) for text in data["kernels"])
        return KernelFamily(kernels, tuple(map(float, data["losses"])), ranges)
    except (OSError, ValueError, KeyError, TypeError):  # a damaged file is written again
        return None


def _by_rule(request: PlanRequest, ranges: tuple[SizeRange, ...], count: int) -> KernelFamily:
    """Select the kernels that are chosen most often for random sizes in the ranges.

    This is for lowerings without a cost model and for batch-invariant products. For each size the
    kernel of the first plan of `PlanRequest.plans` is counted. The most frequent kernel is the
    first of the result. One of the kernels computes whole tiles in row-major order, which suits
    every size.
    """
    used: dict[Plan, int] = {}
    for m, n, k in draw_sizes(ranges, BY_RULE):
        plan = next(replace(request, gemm=replace(request.gemm, m=m, n=n, k=k)).plans())
        kernel = replace(plan, workgroups=None)
        used[kernel] = used.get(kernel, 0) + 1
    most_used = sorted(used, key=lambda plan: -used[plan])
    kernels, whole_tiles = most_used[:count], [p for p in most_used if p.pipeline == EACH]
    if whole_tiles and whole_tiles[0] not in kernels:
        kernels[-1] = whole_tiles[0]
    return KernelFamily(tuple(kernels), ranges=ranges)
