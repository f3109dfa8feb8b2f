"""The C functions of an exported kernel: `NAME.h` and `NAME.c`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sympy import Expr, Integer

from codegen.emit.arguments import KERNEL_NAME
from codegen.export.c_expressions import c_expression, c_name
from codegen.export.c_types import c_type
from codegen.export.recipe import WORKGROUPS, Recipe
from codegen.export.templates import filled
from codegen.targets.nvptx.launch.loaded_function import LARGEST_PORTABLE_CLUSTER
from codegen.targets.nvptx.launch.tensormaps import data_type, swizzle_of
from coordgraph import __version__
from coordgraph.integers import to_text
from coordgraph.parameters import Parameter
from coordgraph.tensors import Role, Tensor, dtype

__all__ = ["header", "implementation", "layout_of"]

SIZES = ("m", "n", "k", "batches")
"""Names of the launch parameters that are extents of the problem. The exported code does not check
a stride that is one of these extents, rather than a parameter of its own."""
BUFFER_ALIGNMENT = 256
"""Alignment of each workspace buffer in bytes, as cuMemAlloc guarantees for whole allocations."""


def header(recipe: Recipe) -> str:
    """The text of the C header of an exported kernel."""
    return filled(
        "kernel.h.in",
        name=recipe.name,
        guard=recipe.name.upper(),
        title=f"{recipe.name}: a matrix-multiply kernel for NVIDIA GPUs ({recipe.architecture}).",
        formula=recipe.formula,
        layout="\n   ".join(_preconditions(recipe)),
        pipeline=recipe.pipeline or "made without passes",
        instructions=recipe.instructions,
        architecture=recipe.architecture,
        version=__version__,
        ptxas=recipe.ptxas,
        members="\n".join(_members(recipe)),
    )


def implementation(recipe: Recipe) -> str:
    """The text of the C source file of an exported kernel."""
    facts = recipe.facts
    return filled(
        "kernel.c.in",
        name=recipe.name,
        version=__version__,
        function=KERNEL_NAME,
        threads=str(facts.threads),
        shared=str(facts.shared_bytes),
        cluster=str(facts.cluster),
        architecture=recipe.architecture,
        major=str(recipe.capability // 10),
        minor=str(recipe.capability % 10),
        exact=str(int(recipe.exact)),
        values=_lines(f"wide {c_name(p.name)}; /* {p.note} */" for p in facts.parameters.items)
        or "    int none; /* all sizes are constants */",
        evaluation=_lines(_evaluation(recipe)),
        grid=_value(facts.grid),
        empty=_empty(recipe),
        layout_code=_lines(_workspace(recipe)),
        attributes=_lines(_attributes(recipe)),
        resident_variables=_lines(_resident_variables(recipe)),
        resident=_lines(_resident(recipe)),
        checks=_lines(_checks(recipe)),
        aligned=str(BUFFER_ALIGNMENT),
        buffers=str(max(1, len(recipe.workspace))),
        tensors=str(len(facts.tensors)),
        encode_function=filled("encode.c.in") if recipe.boxes else "",
        launch_variables=_lines(_variables(recipe)),
        launch_code=_lines(_launch(recipe)),
        argument_list=_lines(_argument_list(recipe), "            "),
    )


def layout_of(recipe: Recipe, tensor: Tensor) -> str:
    """The shape and the element type of a tensor, as in `m x k, bf16, row-major`."""
    # `//` between numbers that are not negative is `/` in C
    shape = " x ".join(to_text(e).replace("//", "/") for e in tensor.shape) or "one element"
    order = ", row-major" if len(tensor.shape) > 1 else ""
    return f"{shape}, {tensor.dtype}{order}"


def _lines(lines: Iterable[str], indent: str = "    ") -> str:
    return "\n".join(f"{indent}{line}" if line else "" for line in lines)


def _value(expr: object) -> str:
    """`expr` in C, where `v` is a pointer to the struct of the launch parameters."""
    return c_expression(expr, "v->")  # type: ignore[arg-type]


def _preconditions(recipe: Recipe) -> Iterator[str]:
    """Lines of the comment in the header file that says which matrices a launch accepts."""
    if recipe.alignment > 1:
        yield f"Addresses, rows and strides of matrices are multiples of {recipe.alignment} bytes."
    else:
        yield "Matrices may have any alignment that their element types allow."
    yield "Matrices are row-major without gaps between rows."
    stored = recipe.gemm.stored
    yield f"{' and '.join(stored)} overlap{'s' * (len(stored) == 1)} no other matrix."
    if recipe.parts:
        yield recipe.parts
    for name in recipe.gemm.row_reductions:
        yield f"{name} has a column for each tile along n: reduce its columns to one."
    if "C" in recipe.gemm.operands:
        if recipe.reads_c:
            yield "C may be D itself."
        else:
            yield "The kernel was exported without C, so beta must be 0."
    yield "A launch with m or n of 0 does nothing; k must be at least 1."


def _members(recipe: Recipe) -> Iterator[str]:
    """C declarations: the members of the struct in which the caller passes a launch's arguments."""
    for p in recipe.given:
        note = p.note
        if recipe.stride_tensor(p.name):
            note = f"elements {note}" if note.startswith("from") else note
        if p.name == WORKGROUPS:
            usual = recipe.workgroups or "as many as the GPU runs at once"
            note = f"workgroups to launch; 0 for {usual}"
        yield f"    int64_t {c_name(p.name)}; /* {note} */"
    for tensor in recipe.arguments:
        optional = "; 0 for none" if tensor.role.value == "optional" else ""
        yield f"    CUdeviceptr {c_name(tensor.name)}; /* {layout_of(recipe, tensor)}{optional} */"
    for name, kind in recipe.facts.floats:
        note = "scalar of the formula"
        if recipe.is_default:
            note = "1 for a plain product" if name == "alpha" else "0 for a product without C"
        yield f"    {c_type(kind)} {c_name(name)}; /* {note} */"


def _empty(recipe: Recipe) -> str:
    """A C expression that is true if D has no elements."""
    given = {p.name for p in recipe.given}
    free = [axis for axis in ("batches", "m", "n") if axis in given]
    if not free:
        return "0"
    signs = " && ".join(f"x->{axis} >= 0" for axis in free)
    return f"{signs} && ({' || '.join(f'x->{axis} == 0' for axis in free)})"


def _evaluation(recipe: Recipe) -> Iterator[str]:
    """C statements that compute each launch parameter (struct `v`) and check its bounds."""
    given = {p.name for p in recipe.given}
    for p in recipe.facts.parameters.items:
        name = c_name(p.name)
        if p.value is not None:
            yield f"v->{name} = {_value(p.value)};"
        elif p.name not in given:
            yield f"v->{name} = {recipe.reads.get(p.name, '0')};"
            continue
        elif p.name == WORKGROUPS:
            usual = recipe.workgroups or "kernel->resident"
            yield f"v->{name} = x->{name} ? x->{name} : {usual};"
        else:
            yield f"v->{name} = x->{name};"
        yield from _bounds(p, f"v->{name}")
    for a in recipe.facts.parameters.assumptions:
        what = f"{to_text(a.expr)} is larger than {a.maximum}; make the problem or the grid smaller"
        yield f"if ({_value(a.expr)} > {a.maximum})"
        yield f"    return {_quoted(what)};"


def _bounds(p: Parameter, value: str) -> Iterator[str]:
    """C statements that return an error message if the C expression `value` is out of bounds."""
    advice = "pass another value" if p.value is None else "the problem is too large"
    if p.name == WORKGROUPS and p.value is None:
        advice = "pass 0 for as many as the GPU runs at once"
    what = f"{p.name} ({p.note}) is not in {p.minimum} to {p.maximum}; {advice}"
    yield f"if ({value} < {p.minimum} || {value} > {p.maximum})"
    yield f"    return {_quoted(what)};"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _checks(recipe: Recipe) -> Iterator[str]:
    """C statements that check addresses, alignment and the number of workgroups."""
    for tensor in recipe.arguments:
        name = c_name(tensor.name)
        if tensor.role.value != "optional":
            yield f'if (!x->{name}) return "{name} is 0; pass the address of the tensor";'
        if recipe.alignment > 1:
            yield f"if (x->{name} % {recipe.alignment})"
            what = f"the address of {name} is no multiple of {recipe.alignment} bytes"
            yield f'    return "{what}; export with alignment 1";'
            yield from _row_checks(recipe, tensor)
        yield from _stride_checks(recipe, tensor)
    if "C" in recipe.gemm.operands:
        scale = c_name(recipe.gemm.epilogue.scale_of("c"))
        there = "x->C == 0 && " if recipe.reads_c else ""
        what = "pass C" if recipe.reads_c else "the kernel was exported without C"
        if scale:
            yield f"if ({there}x->{scale} != 0)"
            yield f'    return "{scale} is not 0, but there is no C; {what}";'
    if recipe.facts.together:
        yield "if (workgroups_of(v) > kernel->resident)"
        free = any(p.name == WORKGROUPS for p in recipe.given)
        advice = "pass workgroups = 0" if free else "export a schedule with fewer workgroups"
        what = f"more workgroups wait for each other than the GPU runs at once; {advice}"
        yield f'    return "{what}";'


def _row_checks(recipe: Recipe, tensor: Tensor) -> Iterator[str]:
    """C statements that check whether rows of a tensor, and matrices of a batch, are aligned."""
    # A vector has no rows, and threads store reductions of rows one by one.
    if len(tensor.shape) < 2 or tensor.name in recipe.gemm.row_reductions:
        return
    name, size = c_name(tensor.name), recipe.bytes(tensor)
    steps = {_value(tensor.shape[-1]): f"the rows of {name}"}
    for stride in (tensor.strides or ())[:-1]:
        steps.setdefault(_value(stride), f"the stride {to_text(stride)} of {name}")
    there = f"x->{name} && " if tensor.role.value == "optional" else ""
    for step, which in steps.items():
        yield f"if ({there}{step} * {size} % {recipe.alignment})"
        verb = "are" if which.startswith("the rows") else "is"
        what = f"{which} {verb} no multiple of {recipe.alignment} bytes"
        yield f'    return "{what}; export with alignment 1";'


def _stride_checks(recipe: Recipe, tensor: Tensor) -> Iterator[str]:
    """C statements that check the strides between matrices and between rows of a tensor.

    Matrices of D must not overlap, and TMA needs positive strides. Other strides may be 0.
    """
    least: Expr = Integer(1)
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.strides or ()), strict=False):
        free = any(p.symbol == stride and p.name not in SIZES for p in recipe.given)
        if free and tensor.role is Role.OUTPUT:
            yield f"if ({_value(stride)} < {_value(least)})"
            size = to_text(least.expand())
            what = f"the stride {to_text(stride)} is less than the {size} elements of D"
            yield f'    return "{what} that it must step over";'
        elif free and any(name == tensor.name for name, _ in recipe.boxes):
            yield f"if ({_value(stride)} < 1)"
            what = f"the stride {to_text(stride)} is 0, but TMA needs at least 1"
            yield f'    return "{what}; export with alignment 1";'
        least = stride * (extent - 1) + least


def _workspace(recipe: Recipe) -> Iterator[str]:
    """C statements that compute the offset of each workspace buffer, and the total size."""
    for number, tensor in enumerate(recipe.workspace):
        yield f"offsets[{number}] = size; /* {tensor.name} */"
        size = f"({_value(tensor.elements)}) * {recipe.bytes(tensor)}"
        rounded = f"(size_t)({size} + {BUFFER_ALIGNMENT - 1}) / {BUFFER_ALIGNMENT}"
        yield f"size += {rounded} * {BUFFER_ALIGNMENT};"


def _attributes(recipe: Recipe) -> Iterator[str]:
    """C statements that set CUDA launch attributes.

    The attributes are the cluster size, cooperative launch and programmatic dependent launch.
    """
    facts = recipe.facts
    one = "attributes[config->numAttrs]"
    if facts.cluster > 1:
        yield f"{one}.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;"
        yield f"{one}.value.clusterDim.x = CLUSTER;"
        yield f"{one}.value.clusterDim.y = {one}.value.clusterDim.z = 1;"
        yield "config->numAttrs++;"
    if facts.together:
        yield f"{one}.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;"
        yield f"{one}.value.cooperative = 1;"
        yield "config->numAttrs++;"
    if facts.overlaps:
        yield f"{one}.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;"
        yield f"{one}.value.programmaticStreamSerializationAllowed = 1;"
        yield "config->numAttrs++;"


def _resident_variables(recipe: Recipe) -> Iterator[str]:
    if recipe.facts.cluster > 1:
        yield "CUlaunchConfig config;"
        yield "CUlaunchAttribute attributes[3];"
    else:
        yield "CUdevice device;"
        yield "int processors = 0, each = 0;"


def _resident(recipe: Recipe) -> Iterator[str]:
    """C statements that store how many workgroups or clusters run at once, or return an error."""
    if recipe.facts.cluster > 1:
        if recipe.facts.cluster > LARGEST_PORTABLE_CLUSTER:
            yield "status = cuFuncSetAttribute("
            yield ("    kernel->function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);")
            yield "if (status != CUDA_SUCCESS) return status;"
        yield "configure(1, &config, attributes);"
        yield "return cuOccupancyMaxActiveClusters(&kernel->resident, kernel->function, &config);"
        return
    yield "status = cuCtxGetDevice(&device);"
    yield "if (status != CUDA_SUCCESS) return status;"
    yield (
        "status = cuDeviceGetAttribute(&processors, "
        "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);"
    )
    yield "if (status != CUDA_SUCCESS) return status;"
    yield "status = cuOccupancyMaxActiveBlocksPerMultiprocessor("
    yield "    &each, kernel->function, THREADS, SHARED_BYTES);"
    yield "kernel->resident = each * processors;"
    yield "return status;"


def _variables(recipe: Recipe) -> Iterator[str]:
    """C declarations of the variables that hold kernel arguments other than addresses."""
    if recipe.boxes:
        yield f"CUtensorMap maps[{len(recipe.boxes)}];"
        yield "CUresult status;"
    for name, kind in recipe.facts.floats:
        yield f"{c_type(kind)} scalar_{name} = x->{c_name(name)};"
    if count := len(recipe.facts.scalars) + 2 * len(recipe.facts.divisors):
        yield f"uint64_t integers[{count}];"


def _launch(recipe: Recipe) -> Iterator[str]:
    """C statements that compute the kernel's arguments from the launch parameters."""
    facts, buffer = recipe.facts, 0
    for number, tensor in enumerate(facts.tensors):
        if tensor.role.workspace:
            yield f"pointers[{number}] = workspace + offsets[{buffer}]; /* {tensor.name} */"
            buffer += 1
        elif tensor in recipe.arguments:
            yield f"pointers[{number}] = x->{c_name(tensor.name)};"
        else:
            yield f"pointers[{number}] = 0; /* {tensor.name} */"
    numbers = {t.name: number for number, t in enumerate(facts.tensors)}
    for number, (name, box) in enumerate(recipe.boxes):
        yield from _map(recipe, number, name, box, numbers[name])
    place = 0
    for scalar in facts.scalars:
        yield f"integers[{place}] = (uint64_t)({_spelled(scalar)});"
        place += 1
    for divisor in facts.divisors:
        yield f"divisor({_spelled(divisor)}, &integers[{place}], &integers[{place + 1}]);"
        place += 2


def _spelled(expr: object) -> str:
    """`expr` in C, where the local variable `v` is the struct of the launch parameters."""
    return c_expression(expr, "v.")  # type: ignore[arg-type]


def _map(
    recipe: Recipe, number: int, name: str, box: tuple[int, ...], argument: int
) -> Iterator[str]:
    """C statements that encode one tensor map, argument number `argument` of the kernel."""
    tensor = recipe.tensor(name)
    shape, size = tensor.shape, recipe.bytes(tensor)
    rank = len(shape)
    if tensor.strides is None:
        steps = [" * ".join(f"({_spelled(e)})" for e in shape[axis + 1 :]) for axis in range(rank)]
    else:
        steps = [_spelled(stride) for stride in tensor.strides]
    extents = ", ".join(f"(cuuint64_t)({_spelled(e)})" for e in reversed(shape))
    strides = ", ".join(f"(cuuint64_t)({step}) * {size}" for step in reversed(steps[:-1]))
    yield "{"
    yield f"    const cuuint64_t extents[] = {{{extents}}};"
    yield f"    const cuuint64_t strides[] = {{{strides or '0'}}};"
    yield f"    const cuuint32_t box[] = {{{', '.join(map(str, box))}}};"
    yield (
        f"    status = encode(&maps[{number}], CU_TENSOR_MAP_DATA_TYPE_{data_type(tensor.dtype)}, "
        f"{rank},"
    )
    yield f"                    pointers[{argument}], extents, strides, box,"
    mode = swizzle_of(box, dtype(tensor.dtype).bytes, rank)
    yield f"                    CU_TENSOR_MAP_SWIZZLE_{mode}); /* {name} */"
    yield "    if (status != CUDA_SUCCESS) return status;"
    yield "}"


def _argument_list(recipe: Recipe) -> Iterator[str]:
    """C expressions: the addresses of the kernel's arguments, in the kernel's order."""
    facts = recipe.facts
    yield from (f"&pointers[{i}], /* {t.name} */" for i, t in enumerate(facts.tensors))
    yield from (f"&maps[{i}], /* {name} */" for i, (name, _) in enumerate(recipe.boxes))
    yield from (f"&scalar_{name}," for name, _ in facts.floats)
    names = [
        *map(to_text, facts.scalars),
        *(f"{part} of / {to_text(d)}" for d in facts.divisors for part in ("factor", "shift")),
    ]
    yield from (f"&integers[{i}], /* {name} */" for i, name in enumerate(names))
