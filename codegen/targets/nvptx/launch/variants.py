"""`variant_of`: which variant of a kernel's code a call runs, by the alignment of its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codegen.architectures import Alignment, Variant, Vectors
from codegen.call.alignment import alignment_of_factors
from codegen.call.views import TensorView
from codegen.targets.nvptx.building import Builder
from codegen.targets.nvptx.launch.access_widths import access_widths
from coordgraph.gemm import ld_of, read_of, stride_of
from passes.lowering.architectures import ALIGNED_BYTES

__all__ = ["NARROW", "variant_of"]

NARROW = Vectors(1, 1, 1)
"""The access widths for tensors that are not aligned to 16 bytes: one element per access."""


def variant_of(
    builder: Builder, views: Mapping[str, TensorView], given: Mapping[str, int]
) -> Variant:
    """The fastest variant that accepts the tensors of a call.

    Args:
        builder: the builder of the kernel, which knows the kernel's variants.
        views: the arrays that a call passes, by the name of the tensor.
        given: the parameters of the call, by name.
    """
    gemm = builder.graph.gemm
    if gemm.diagonal:
        # In a list of products, one vector per operand holds all matrices. Every row is aligned
        # to 16 bytes if the vector is, so it is enough to check the vectors' addresses.
        reads_c = bool(given.get(read_of("C"), 0))
        names = {"A", "B", "D", *gemm.operands, *gemm.outputs}
        names -= {"C"} if not reads_c else set()
        moved = (view for name, view in views.items() if name in names)
        aligned = all(view.pointer % ALIGNED_BYTES == 0 for view in moved)
        alignment = builder.aligned if aligned else Alignment(NARROW, 1)
        return builder.variant(alignment, reads_c=reads_c)
    shape = tuple(getattr(gemm, axis) or given[axis] for axis in "mn")
    strides = (given.get(ld_of("D"), shape[1]), 1)
    if gemm.batched:
        step = given.get(stride_of("D"), shape[0] * shape[1])
        shape, strides = (given["batches"], *shape), (step, *strides)
    elif "D" in gemm.batched_tensors:
        step = given.get(stride_of("D"), shape[0] * shape[1])
        shape, strides = (given["groups"], *shape), (step, *strides)
    made = TensorView(0, shape, strides, gemm.out_dtype or gemm.dtype)
    aligned = alignment_of_factors(gemm, views)
    along_rows = [
        name
        for name in (*gemm.operands, *gemm.outputs)
        if "n" in gemm.axes[name] and gemm.in_rows(name)
    ]
    most = builder.aligned.vectors
    boxed = [x for x in along_rows if x in gemm.operands and not gemm.operands[x].optional]
    new = {name: replace(made, dtype=builder.graph.tensor(name).dtype) for name in gemm.outputs}
    every = {**({"D": made} if gemm.epilogue.stores_d else {}), **new, **views}
    part = (gemm.part_width or shape[-1]) if gemm.parts_in_rows else 0
    vectors = access_widths(every, most, along_rows, boxed, part=part)
    reads_c = bool(given.get(read_of("C"), 0))
    return builder.variant(Alignment(vectors, aligned), reads_c=reads_c)
