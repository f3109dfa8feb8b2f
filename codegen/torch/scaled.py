"""`scaled_mm` of 8-bit floats: the custom operator `coordgraph::scaled_mm`, and its checks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from codegen.torch.arguments import check_dense
from codegen.torch.derivatives import differentiable, refused
from codegen.torch.direct import direct, operator
from codegen.torch.launching import launch
from codegen.torch.mapping import one_by_one
from codegen.torch.repeats import repeating, uninitialized
from coordgraph import LaunchError
from coordgraph.elements import DTYPES, dtype
from coordgraph.epilogue import EpilogueFunction, epilogue, operand, quantize
from coordgraph.validation import a_type

__all__ = ["scaled_mm"]

WHOLE, ROWS = "TensorWise", "RowWise"
"""The names of the scalings that kernels compute: one scale for a whole factor, and one for each
row of A or column of B."""
FACTORS = {getattr(torch, d.library): d.name for d in DTYPES.values() if d.is_small_float}
"""The types of 8-bit floats in PyTorch, and their names in coordgraph."""
WIDE = (torch.bfloat16, torch.float16, torch.float32)
"""The types that `bias` of `scaled_mm` may have, and its result if that has no 8-bit floats."""


@repeating
def scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    scale_a: Tensor | Sequence[Tensor],
    scale_recipe_a: Any,
    scale_b: Tensor | Sequence[Tensor],
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_mm`: `(mat_a·mat_b)·scale_a·scale_b + bias` of 8-bit floats.

    The kernel scales the sums, which are f32, and rounds the result once. It has no gradient. The
    extents may be any numbers, while PyTorch's function needs multiples of 16.

    Args:
        mat_a: (m, k) of float8_e4m3fn or float8_e5m2. On a GPU it is row-major.
        mat_b: (k, n) of the type of `mat_a`. On a GPU it is column-major, as `weight.t()` is.
        scale_a: float32. With the scaling TensorWise, one element; with RowWise, m elements, as
            (m, 1) or (m).
        scale_recipe_a: the scaling of A, `torch.nn.functional.ScalingType.TensorWise` or `RowWise`,
            or its name as text, which older versions of PyTorch need.
        scale_b: float32. With TensorWise, one element; with RowWise, n elements, as (1, n), (n, 1)
            or (n).
        scale_recipe_b: the scaling of B, as for A. It may be another one.
        swizzle_a, swizzle_b: None or `SwizzleType.NO_SWIZZLE`: scales of rows are not swizzled.
        bias: (n) of bfloat16, float16 or float32, or None.
        output_dtype: bfloat16, float16, float32 or an 8-bit float type, to which results are
            rounded with saturation; None means the type of `mat_a`.
        contraction_dim: the axes of A and of B that are multiplied: (), or the axes 1 and 0.
        use_fast_accum: has no effect. Tensor cores sum as PyTorch's function does with True; the
            CPU sums in float32.

    Returns:
        A tensor (m, n) of the type `output_dtype`.

    Raises:
        LaunchError: arguments do not fit, or the scaling is neither TensorWise nor RowWise; nothing
            was launched.
        CodegenError: the GPU has no instructions for 8-bit floats (compute capability below 8.9).
    """
    check_dense("mat_a mat_b bias?", mat_a, mat_b, bias)
    for name, swizzle in (("swizzle_a", swizzle_a), ("swizzle_b", swizzle_b)):
        if (found := _named(swizzle)) not in ("", "NO_SWIZZLE"):
            raise LaunchError(
                f"{name} is {found}, but kernels read scales in order; leave {name} out, or use "
                "torch.nn.functional.scaled_mm"
            )
    axes = tuple(contraction_dim) if isinstance(contraction_dim, Sequence) else contraction_dim
    if axes not in ((), (1, 0), (1, -2), (-1, 0), (-1, -2)):
        raise LaunchError(
            f"contraction_dim = {axes}, but kernels sum over the last axis of mat_a and the first "
            "axis of mat_b; leave contraction_dim out, and transpose a matrix by .t() if needed"
        )
    if mat_a.dim() != 2 or mat_b.dim() != 2:
        raise LaunchError(
            f"mat_a has {mat_a.dim()} axes and mat_b {mat_b.dim()}, but scaled_mm multiplies two "
            "matrices; call it for each matrix of a batch"
        )
    first = _scales("a", scale_a, scale_recipe_a, mat_a.shape[0])
    second = _scales("b", scale_b, scale_recipe_b, mat_b.shape[1])
    kind = mat_a.dtype if output_dtype is None else output_dtype
    return _product(mat_a, mat_b, first, second, bias, kind)


def _named(option: Any) -> str:
    """The name of a member of PyTorch's enumerations, given also as text or in a list of one.

    The name of None is empty, and that of anything else is its type with an article.
    """
    if isinstance(option, list | tuple):
        option = option[0] if len(option) == 1 else ", ".join(map(_named, option))
    if option is None or isinstance(option, str):
        return option or ""
    name = getattr(option, "name", None)  # a tensor has a name, too: None
    return name if isinstance(name, str) else a_type(option)


def _scales(factor: str, given: Tensor | Sequence[Tensor], recipe: Any, extent: int) -> Tensor:
    """The scales of a factor as a vector, of one element or of `extent` elements.

    Raises:
        LaunchError: kernels do not compute this scaling, or the scales have another shape.
    """
    name, found = f"scale_{factor}", _named(recipe)
    if found not in (WHOLE, ROWS):
        raise LaunchError(
            f"scale_recipe_{factor} is {found or 'None'}, but kernels scale by {WHOLE} (one scale) "
            f"or {ROWS} (one for each row of A or column of B); quantize with one of these, or use "
            "torch.nn.functional.scaled_mm for scales of blocks"
        )
    if not isinstance(given, Tensor):
        if not isinstance(given, Sequence):
            check_dense(name, given)
        if len(given) != 1:
            raise LaunchError(
                f"{name} has {len(given)} tensors, but the scaling {found} needs one; pass one "
                "tensor"
            )
        (given,) = given
        check_dense(name, given)
    count = 1 if found == WHOLE else extent
    long = len([size for size in given.shape if size != 1])
    if given.numel() != count or long > 1:
        shape = {"a": f"({extent}, 1)", "b": f"(1, {extent})"}[factor]
        raise LaunchError(
            f"{name} is {tuple(given.shape)}, but the scaling {found} needs "
            f"{'one element' if found == WHOLE else shape}; pass a tensor of this shape"
        )
    return given.reshape(-1)


def _check(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, kind: torch.dtype
) -> tuple[int, int]:
    """Check the tensors of `scaled_mm`, and return the shape (m, n) of its result.

    Args:
        a, b: A (m x k) and B (k x n).
        scale_a, scale_b: vectors of one element, or of m and of n elements.
        bias: n elements, or None.
        kind: the element type of the result.

    Raises:
        LaunchError: shapes, element types, layouts or devices do not fit.
    """
    if a.dim() != 2 or b.dim() != 2 or a.shape[1] != b.shape[0]:
        raise LaunchError(
            f"mat_a is {tuple(a.shape)} and mat_b is {tuple(b.shape)}; pass matrices of m x k and "
            "k x n"
        )
    _check_types(a, b, scale_a, scale_b, bias, kind)
    shape = a.shape[0], b.shape[1]
    for name, scales, extent in (("scale_a", scale_a, shape[0]), ("scale_b", scale_b, shape[1])):
        if scales.dim() != 1 or scales.shape[0] not in (1, extent):
            raise LaunchError(f"{name} is {tuple(scales.shape)}; pass 1 or {extent} elements")
    if bias is not None and tuple(bias.shape) != shape[1:]:
        raise LaunchError(
            f"bias is {tuple(bias.shape)}, but ({shape[1]},) is needed; pass an element for each "
            "column of mat_b"
        )
    tensors = (a, b, scale_a, scale_b, *(() if bias is None else (bias,)))
    if len({x.device for x in tensors}) > 1:
        places = ", ".join(dict.fromkeys(str(x.device) for x in tensors))
        raise LaunchError(f"the tensors lie on {places}; move them to one device")
    if a.is_cuda and not (_along_k(a) and _along_k(b.t())):
        raise LaunchError(
            f"mat_a has the strides {a.stride()} and mat_b {b.stride()}, but GPUs multiply 8-bit "
            "floats only along contiguous k; pass mat_a row-major, and mat_b column-major, as "
            "weight.t() of a row-major n x k weight"
        )
    return shape


def _along_k(x: Tensor) -> bool:
    """Whether the elements of each row of a matrix are adjacent."""
    return x.shape[1] == 1 or x.stride(1) == 1


def _check_types(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None, kind: torch.dtype
) -> None:
    """Raise LaunchError unless the tensors, and the result, have element types that fit."""
    if a.dtype not in FACTORS or a.dtype is not b.dtype:
        known = " or ".join(map(str, FACTORS))
        raise LaunchError(
            f"mat_a holds {a.dtype} and mat_b {b.dtype}, but both must hold one type, {known}; "
            "convert them, use matmul for other types, or torch.nn.functional.scaled_mm for two "
            "types"
        )
    for name, scales in (("scale_a", scale_a), ("scale_b", scale_b)):
        if scales.dtype is not torch.float32:
            raise LaunchError(f"{name} holds {scales.dtype}; convert it to float32 by .float()")
    for name, held, types in (
        ("output_dtype is", kind, (*WIDE, *FACTORS)),
        ("bias holds", WIDE[0] if bias is None else bias.dtype, WIDE),
    ):
        if held not in types:
            raise LaunchError(f"{name} {held}, but must be one of {', '.join(map(str, types))}")


@cache
def _epilogue(row: str, column: str, bias: str, to: str) -> EpilogueFunction:
    """The epilogue function that scales sums, adds the bias, and rounds to 8 bits.

    Args:
        row, column: the axes of the scales of A and B: `m` and `n`, or '' for one scale.
        bias: the element type of the bias, or '' if there is none.
        to: the 8-bit type of the result, or '' for another type.
    """

    def scaled(acc: Any, scale_a: Any, scale_b: Any) -> Any:
        x = acc * scale_a * scale_b
        return quantize(x, to=to) if to else x

    def scaled_with_bias(acc: Any, scale_a: Any, scale_b: Any, bias: Any) -> Any:
        x = acc * scale_a * scale_b + bias
        return quantize(x, to=to) if to else x

    scales = {
        "scale_a": operand(row, "f32", in_memory=not row),
        "scale_b": operand(column, "f32", in_memory=not column),
    }
    if not bias:
        return epilogue(**scales)(scaled)
    return epilogue(**scales, bias=operand("n", bias))(scaled_with_bias)


def _scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    output_dtype: torch.dtype,
) -> Tensor:
    """`(A·B)·scale_a·scale_b + bias` of matrices of 8-bit floats.

    Args:
        a, b: A (m x k) and B (k x n).
        scale_a, scale_b: vectors of one element, or of m and of n elements.
        bias: n elements, or None.
        output_dtype: the element type of the result.

    Raises:
        LaunchError: the arguments do not fit; nothing was launched.
        CodegenError: the GPU has no instructions for 8-bit floats.
    """
    shape = _check(a, b, scale_a, scale_b, bias, output_dtype)
    out = uninitialized(a, shape, output_dtype)
    axes = ("m" * (scale_a.shape[0] != 1), "n" * (scale_b.shape[0] != 1))
    added = "" if bias is None else dtype(str(bias.dtype).removeprefix("torch.")).name
    function = _epilogue(*axes, added, FACTORS.get(output_dtype, ""))
    scales = (
        x.contiguous() if along else x.reshape(())
        for x, along in zip((scale_a, scale_b), axes, strict=True)
    )
    operands: dict[str, Any] = dict(zip(("scale_a", "scale_b"), scales, strict=True))
    if bias is not None:
        operands["bias"] = bias.contiguous()
    return launch(a, b, epilogue=function, out=out, **operands)


scaled_mm_op = operator(
    "scaled_mm",
    _scaled_mm,
    "(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, "
    "ScalarType output_dtype) -> Tensor",
)
SCALED_MM = torch.ops.coordgraph.scaled_mm.default
DERIVATIVES = refused(
    "scaled_mm",
    "multiply tensors of a wider type by codegen.torch.matmul where gradients are needed",
)
differentiable(SCALED_MM, DERIVATIVES)
scaled_mm_op.register_vmap(one_by_one(SCALED_MM))
_product = direct(SCALED_MM, 5, _scaled_mm, DERIVATIVES, casts=False)


@scaled_mm_op.register_fake
def _(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None,
    output_dtype: torch.dtype,
) -> Tensor:
    return a.new_empty(_check(a, b, scale_a, scale_b, bias, output_dtype), dtype=output_dtype)
