"""`warm_calls`: build kernels for the kinds of calls that a block of code makes.

`warm` knows only plain products. A block of `warm_calls` shows by example which epilogues, batches,
groups and layouts a program multiplies, and says in which ranges the sizes will be.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from types import TracebackType

from codegen.call import recorded_calls
from codegen.call.describe import Call
from codegen.call.families import kind_of
from codegen.call.prepared_calls import forget_prepared
from codegen.call.progress import Advance, progress
from codegen.call.recorded_calls import RecordedCall, Recording
from codegen.call.request import PlanRequest
from codegen.call.warming import Example, Extents, Warmed, build_kernels
from coordgraph import CodegenError, LaunchError
from coordgraph.epilogue import ALPHA_BETA
from coordgraph.validation import whole
from passes.choosing import sizes
from passes.choosing.drawn_sizes import SizeRange
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["warm_calls"]

KERNELS = 32
"""The default of `kernels`: the largest number of kernels built for each kind of call."""


class warm_calls:
    """Build the kernels of calls like those of a block of code, for ranges of their sizes.

    ```
    with codegen.warm_calls(m=(1, 8192)) as warmed, torch.no_grad():
        model(example)
    for kind in warmed.kinds:
        print(kind)
    ```

    During the block, calls of `matmul` and `grouped_matmul` on GPUs, also by functions of
    `codegen.torch` and in other threads, are computed as usual and recorded. At its end, kernels
    are selected, compiled in parallel processes, stored in the kernel cache on disk, and loaded:
    for each kind of recorded call (element types, layouts, epilogue, whether batched or grouped), a
    set of kernels that serves all sizes in the ranges. From then on, calls of these kinds with
    sizes in the ranges are computed by these kernels, and compile nothing. Batches may have any
    number of products, and grouped products any number of groups. Calls with `plan` or `tune=True`
    are computed as usual, but not recorded.

    A kernel has code of its own for arrays whose addresses or rows are no multiples of 16 bytes. It
    is built if recorded calls have such arrays. It is also built if the length of rows has a range,
    such as k for a row-major A, and the smallest or the largest extent of this range is no multiple
    of 16 elements. If both are multiples of 16, later calls should only have such extents.

    Several blocks add up, also with `warm`. A process that runs the same block later loads the
    kernels that this one compiled.

    Args:
        m, n, k: the smallest and the largest extent, inclusive, that later calls have instead of
            the extent of the recorded call, or one extent; None if the extent stays the same. In
            batches and groups, m, n and k are those of the arrays: with groups of rows, m is the
            number of rows of all groups.
        kernels: the largest number of kernels for each kind of call.

    Attributes:
        kinds: after the block, for each kind of call, what was built.

    Raises:
        CodegenError: at the end of the block: no call on a GPU was recorded, or no kernel can be
            built for a kind of call. The calls of the block raise what they raise without it.
        LaunchError: `kernels` is not a valid number.
        PassError: an extent is not an integer of at least 1, or a range is empty.
    """

    def __init__(
        self,
        *,
        m: Extents | None = None,
        n: Extents | None = None,
        k: Extents | None = None,
        kernels: int = KERNELS,
    ) -> None:
        given = {axis: x for axis, x in (("m", m), ("n", n), ("k", k)) if x is not None}
        checked = SizeRange.of(**given)
        self._extents: dict[str, tuple[int, int]] = {x: getattr(checked, x) for x in given}
        self._kernels = whole(kernels, "kernels", LaunchError, least=1)
        self._recording: Recording = []
        self.kinds: tuple[Warmed, ...] = ()

    def __enter__(self) -> warm_calls:
        self._recording = []
        recorded_calls.open_recordings.append(self._recording)
        # A call that is prepared is only launched, so it would not be recorded.
        forget_prepared()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        places = recorded_calls.open_recordings
        del places[next(i for i, each in enumerate(places) if each is self._recording)]
        if kind is None:
            self.kinds = self._build()
        self._recording = []

    def _build(self) -> tuple[Warmed, ...]:
        found: dict[Hashable, _Kind] = {}
        for call in self._recording:
            for described in _described(call, self._extents):
                request = described.request
                kind = found.setdefault(kind_of(request), _Kind(request))
                kind.add(described, call)
        if not found:
            raise CodegenError(
                "warm_calls: the block has made no call of matmul or grouped_matmul on a GPU; run "
                "in the block what the program will compute, with arrays on the GPU"
            )
        with progress("warm") as advance:
            return tuple(kind.build(self._kernels, advance) for kind in found.values())


@dataclass
class _Kind:
    """Recorded calls whose plans are chosen among the same kernels.

    Attributes:
        request: the request of one of the calls.
        examples: a call for each variant of the kernels' code, which the alignment of its arrays
            decides.
    """

    request: PlanRequest
    examples: dict[Hashable, Example] = field(default_factory=dict[Hashable, Example])
    _sizes: dict[int, list[tuple[int, int, int]]] = field(
        default_factory=dict[int, list[tuple[int, int, int]]]
    )
    """For each recorded call, by its `id()`: its sizes (m, n, k) with all extents of `_tried`."""

    def add(self, call: Call, recorded: RecordedCall) -> None:
        """Add a call that was recorded, or the same call with other extents."""
        self._sizes.setdefault(id(recorded), []).append(sizes(call.request.gemm))
        example = Example(call.views, recorded.scalars)
        self.examples.setdefault(example.variant(call.request), example)

    def build(self, most: int, advance: Advance) -> Warmed:
        """Build at most `most` kernels for calls of this kind."""
        request, examples = self.request, self.examples.values()
        found = build_kernels(request, self.ranges, most, advance, examples)
        return replace(found, kind=_text(request))

    @property
    def ranges(self) -> tuple[SizeRange, ...]:
        """For each recorded call: the range from its smallest to its largest m, n and k."""
        found = dict[SizeRange, None]()
        for each in self._sizes.values():
            m, n, k = ((min(extents), max(extents)) for extents in zip(*each, strict=True))
            found[SizeRange(m, n, k)] = None
        return tuple(found)


def _text(request: PlanRequest) -> str:
    """What distinguishes a kind of call, such as `bf16, grouped along m, epilogue swiglu`."""
    gemm = request.any_size
    parts = {
        gemm.dtype: True,
        f"D {gemm.out_dtype}": gemm.out_dtype not in (None, gemm.dtype),
        "batched": gemm.batched,
        f"grouped along {gemm.group_axis}": gemm.grouped,
        "A transposed": gemm.transpose_a,
        "B transposed": gemm.transpose_b,
        "with gaps": bool(gemm.leading_dimensions),
        f"epilogue {gemm.epilogue.name}": gemm.epilogue != ALPHA_BETA,
        "C added": request.reads_c and gemm.epilogue == ALPHA_BETA,
        "batch-invariant": request.invariant,
        request.instructions: True,
    }
    return ", ".join(part for part, is_so in parts.items() if is_so)


def _described(call: RecordedCall, extents: dict[str, tuple[int, int]]) -> Iterable[Call]:
    """The call as it was made, and with extents of the ranges that may be other kinds of calls."""
    yield call.described({})
    tried = {axis: _tried(*ends) for axis, ends in extents.items()}
    for values in product(*tried.values()):
        with suppress(LaunchError):  # a call that is refused with these extents needs no kernel
            yield call.described(dict(zip(tried, values, strict=True)))


def _tried(low: int, high: int) -> list[int]:
    """Extents of a range with which a call is described, to find all kinds of calls in the range.

    A matrix with a single row or column has no gaps, and may count as its transpose, so the extent
    1 may give another kind of call. The length of a row decides how wide accesses to memory are: it
    depends on the largest power of two, up to ALIGNED_BYTES, that divides the number of elements.
    If ALIGNED_BYTES divides both ends of the range, other extents than multiples are not tried.
    """
    found = {low, high, min(max(low, 2), high)}
    if low % ALIGNED_BYTES or high % ALIGNED_BYTES:
        for power in range(ALIGNED_BYTES.bit_length()):
            step = 1 << power
            every = range(-(-max(low, 2) // step) * step, high + 1, step)
            known = [x for x in every if step == ALIGNED_BYTES or x % (2 * step)]
            found |= {*known[:1], *known[-1:]}
    return sorted(found)
