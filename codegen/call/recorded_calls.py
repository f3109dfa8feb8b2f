"""`RecordedCall`: the arrays' layouts and the options of a call, which may be given other sizes.

`warm_calls` records the calls of a block of code, and describes them again with other extents of m,
n and k, to find the kernels that such calls need. A recorded call keeps no array alive.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from codegen.call.arrays import library
from codegen.call.describe import Call, describe
from codegen.call.views import TensorView, label, single
from coordgraph.epilogue import ALPHA_BETA, EpilogueFunction
from coordgraph.gemm import ROWS, TARGETS, tensor_of

__all__ = ["RecordedCall", "Recording", "note", "open_recordings"]

Recording = list["RecordedCall"]
"""The calls that were made during a block of code, in order."""

open_recordings: list[Recording] = []
"""The recordings of all blocks that are being run, by all threads."""
_lock = threading.Lock()


@dataclass(frozen=True)
class RecordedCall:
    """A call of `matmul` or `grouped_matmul` on a GPU.

    Attributes:
        arrays: the arrays as the caller gave them, by the names of the graph's tensors.
        scalars: the numbers that the call passes to the epilogue, by name.
        options: arguments of `codegen.call.describe.describe` other than the arrays and `beta`,
            such as `transpose_a`.
    """

    arrays: Mapping[str, TensorView]
    scalars: Mapping[str, float]
    options: Mapping[str, Any]

    @property
    def sizes(self) -> dict[str, int]:
        """The extents m, n and k; n is the number of columns of D, not of B with several parts."""
        found: dict[str, int] = {}
        for name in "AB":
            shape = self.arrays[name].shape
            for axis, extent in zip(self._axes(name), shape[-2:], strict=True):
                found[axis] = extent // self._sums if axis == "n" else extent
        # If rows of A are gathered, m is the number of indices, not that of rows of A.
        tables = (self.arrays[name].shape[0] for name in (ROWS, TARGETS) if name in self.arrays)
        return {**found, "m": next(tables, found.get("m", 0))}

    def described(self, extents: Mapping[str, int]) -> Call:
        """The call with other extents of m, n and k, whose arrays have the same kind of layout.

        Arrays without gaps stay without gaps; the distance between rows with gaps is kept where
        the rows still fit, and is a multiple of it elsewhere.

        Args:
            extents: the new extents, by axis; other axes keep theirs.

        Raises:
            LaunchError: kernels do not support arrays of this layout and these extents.
        """
        arrays = {
            name: _resized(view, self._extents(name, view, extents))
            for name, view in self.arrays.items()
        }
        beta = self.scalars.get("beta", 0.0)
        return describe(dict.fromkeys("ABCD") | arrays, beta=beta, **self.options)

    @property
    def _function(self) -> EpilogueFunction:
        return self.options.get("epilogue", ALPHA_BETA)

    @property
    def _sums(self) -> int:
        return len(self._function.sums)

    def _axes(self, name: str) -> str:
        """A letter for each of an array's last dimensions, such as `mk` for A.

        The letter says which of m, n and k is the extent of the dimension. A dot stands for an
        extent that is none of them: the rows of A if a table selects rows of A, and the rows of D
        if a table selects rows of D. The result is '' if no extent depends on m, n or k.

        Args:
            name: the name of the array's tensor.
        """
        if name in (ROWS, TARGETS):
            return "m"
        if name in "ABCD":
            turned = {"A": self.options["transpose_a"], "B": self.options["transpose_b"]}
            axes = {"A": "mk", "B": "kn"}.get(name, "mn")
            axes = axes[::-1] if turned.get(name) else axes
            held = {"A": "gathered_rows", "D": "scattered_rows"}.get(name, "")
            return axes.replace("m", ".") if self.options.get(held) else axes
        operands = {tensor_of(o.name): o.axes for o in self._function.tensors}
        outputs = {o.name: "m" if o.reduce else o.axes for o in self._function.outputs}
        return {**operands, **outputs}.get(name, "").replace("l", "")

    def _extents(self, name: str, view: TensorView, extents: Mapping[str, int]) -> dict[int, int]:
        """The new extents of an array, by the number of the dimension."""
        axes = self._axes(name)
        first = len(view.shape) - len(axes)
        return {
            first + place: extents[axis] * (self._sums if (name, axis) == ("B", "n") else 1)
            for place, axis in enumerate(axes)
            if axis in extents
        }


def note(
    target: str,
    arrays: Mapping[str, Any],
    scalars: Mapping[str, Any],
    options: Mapping[str, Any],
) -> bool:
    """Record a call for the blocks of `warm_calls` that are being run; CPU calls are left out.

    Args:
        target: `cpu`, or the name of the GPU's architecture.
        arrays: the arrays by the names of tensors; None for one that the call leaves out.
        scalars: the numbers of the call, by name.
        options: arguments of `codegen.call.describe.describe` other than the arrays and `beta`.

    Returns:
        Whether any block of `warm_calls` is being run.
    """
    if not open_recordings:
        return False
    if target == "cpu":
        return True
    views = {
        name: single(name, library(array).view(array, label(name)))
        for name, array in arrays.items()
        if array is not None
    }
    if not any(0 in view.shape for view in views.values()):  # an empty call may launch no kernel
        call = RecordedCall(views, scalars, options)
        with _lock:
            for recording in open_recordings:
                recording.append(call)
    return True


def _resized(view: TensorView, extents: Mapping[int, int]) -> TensorView:
    """An array of other extents, which has gaps where `view` has them.

    Args:
        view: the array.
        extents: the new extents, by the number of the dimension.
    """
    shape = tuple(extents.get(axis, extent) for axis, extent in enumerate(view.shape))
    strides = list(view.strides)
    before, after = 1, 1  # elements from the first to the last so far, in `view` and in the result
    for axis in sorted(range(len(shape)), key=lambda axis: (view.strides[axis], -axis)):
        step = view.strides[axis]
        if step <= 0:
            continue  # a matrix that is repeated
        strides[axis] = after if step == before else step * ceil(after / step)
        before, after = step * view.shape[axis], strides[axis] * shape[axis]
    return replace(view, shape=shape, strides=tuple(strides))
