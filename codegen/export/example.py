"""The example program of an exported kernel: `example.cpp`, and the `Makefile` that compiles it."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from sympy import Expr, Integer

from codegen.export.c_expressions import c_expression, c_name
from codegen.export.c_types import c_type, is_declared
from codegen.export.recipe import WORKGROUPS, Recipe
from codegen.export.templates import filled
from coordgraph import __version__
from coordgraph.integers import FloorDiv, to_text
from coordgraph.tensors import Tensor, dtype

__all__ = ["example", "makefile"]

NO_SIZES = """    if (count > 1) {
        std::fprintf(stderr, "%s takes no sizes: they are constants of the kernel\\n", given[0]);
        return 2;
    }
"""
"""C++ code that refuses sizes on the command line, for kernels whose sizes are all constants."""
DIVISION = """
static int64_t floor_div(int64_t a, int64_t b) { return a / b; } // of numbers that are not negative
"""
"""C++ code of `floor_div`, which the example program calls if a tensor's shape has a quotient."""
DEFAULT_SIZES = {"m": 2048, "n": 2304, "k": 4096, "batches": 4}
"""The sizes that the exported example program uses if its command line gives none."""


def example(recipe: Recipe) -> str:
    """The text of `example.cpp`, a program that runs and checks an exported kernel."""
    result = _result(recipe)
    free = [axis for axis in DEFAULT_SIZES if any(p.name == axis for p in recipe.given)]
    return filled(
        "example.cpp.in",
        name=recipe.name,
        version=__version__,
        usage="".join(f" {axis.upper()}" for axis in free),
        read_sizes=filled("sizes.cpp.in", **_command_line(free))
        if free
        else "    (void)count, (void)given;\n",
        conversions=_conversions(recipe),
        sizes="\n".join(f"    {line}" for line in _sizes(recipe, free)),
        fill="\n".join(f"    {line}" for line in _fill(recipe)),
        result=_array(result),
        operations=f"{2 * recipe.gemm.sums}e-12",
        verification=filled("verification.cpp.in", **_verified(recipe))
        if recipe.is_default
        else filled("unverified.cpp.in", tensor=result.name, array=_array(result)),
    )


def makefile(recipe: Recipe) -> str:
    """The text of the `Makefile` that compiles the example program of an exported kernel."""
    return filled("Makefile.in", name=recipe.name)


def _command_line(free: list[str]) -> dict[str, str]:
    """Texts for the placeholders of `sizes.cpp.in`, which reads sizes from the command line.

    `free` names the sizes that are read, such as `m`; the kernel does not fix them.
    """
    return {
        "usage": "".join(f" {axis.upper()}" for axis in free),
        "count": str(1 + len(free)),
        "sizes": ", ".join(str(DEFAULT_SIZES[axis]) for axis in free),
    }


def _conversions(recipe: Recipe) -> str:
    """C++ functions, as text, that convert elements of the kernel's types from and to double."""
    kinds = {t.dtype for t in recipe.arguments}
    structs = "".join(filled(f"{kind}.cpp.in") for kind in sorted(kinds) if is_declared(kind))
    division = any(e.has(FloorDiv) for t in recipe.arguments for e in t.shape)
    return filled("conversions.cpp.in") + structs + DIVISION * division


def _sizes(recipe: Recipe, free: list[str]) -> Iterator[str]:
    """Lines of C++ that declare m, n, k and the number of products."""
    for axis in DEFAULT_SIZES:
        fixed = 1 if axis == "batches" else getattr(recipe.gemm, axis)
        value = f"sizes[{free.index(axis)}]" if axis in free else str(fixed)
        yield f"const int64_t {axis} = {value};"


def _count(tensor: Tensor, recipe: Recipe) -> str:
    """The number of elements of a tensor's array, which has no gaps, as a C++ expression."""
    return c_expression(prod(tensor.shape, start=Integer(1)))


def _fill(recipe: Recipe) -> Iterator[str]:
    """C++ statements that fill the struct of a launch's arguments."""
    for p in recipe.given:
        if p.name in DEFAULT_SIZES:
            yield f"x.{c_name(p.name)} = {p.name};"
        elif tensor := recipe.stride_tensor(p.name):
            yield f"x.{c_name(p.name)} = {c_expression(prod(_matrix(recipe, tensor)))};"
        elif tensor := recipe.leading_tensor(p.name):
            row = c_expression(_matrix(recipe, tensor)[-1])
            yield f"x.{c_name(p.name)} = {row}; // no gaps between rows"
        elif p.name != WORKGROUPS:
            yield f"x.{c_name(p.name)} = 0; // {p.note}: set it for your launch"
    for seed, tensor in enumerate(recipe.arguments, 1):
        host = c_type(tensor.dtype)
        name = _array(tensor)
        yield f"Array<{host}> {name}({_count(tensor, recipe)}, {seed}); // {_shape(tensor)}"
        yield f"x.{c_name(tensor.name)} = {name}.upload();"
    for name, _ in recipe.facts.floats:
        value = "0" if name == "beta" and not recipe.reads_c and recipe.is_default else "1"
        yield f"x.{c_name(name)} = {value};"


def _matrix(recipe: Recipe, tensor: str) -> tuple[Expr, ...]:
    """The numbers of rows and columns of one matrix of a tensor, as it is stored."""
    return recipe.tensor(tensor).shape[-2:]


def _result(recipe: Recipe) -> Tensor:
    """The tensor that the example prints or checks: D, or the first output if D is not stored."""
    return recipe.tensor(recipe.gemm.stored[0])


def _array(tensor: Tensor) -> str:
    """The C++ variable of a tensor: `a` to `d` for A to D, `NAME_array` for an operand NAME."""
    return tensor.name.lower() if tensor.name in "ABCD" else f"{c_name(tensor.name)}_array"


def _shape(tensor: Tensor) -> str:
    """The extents of a tensor, as text of a comment in C++, in which `/` divides integers."""
    return " x ".join(to_text(extent).replace("//", "/") for extent in tensor.shape)


def _verified(recipe: Recipe) -> dict[str, str]:
    """Placeholder texts of `verification.cpp.in`, C++ that recomputes elements of D on the host."""
    gemm = recipe.gemm
    result = dtype(gemm.out_dtype or gemm.dtype)
    batch_b = "batch * k * n" if gemm.batched and gemm.is_apart("B") else "0"
    return {
        "a": "batch * m * k + " + ("l * m + row" if gemm.transpose_a else "row * k + l"),
        "b": f"{batch_b} + " + ("column * k + l" if gemm.transpose_b else "l * n + column"),
        "add_c": "        sum += to_double(c.host[size_t(at)]);\n" if recipe.reads_c else "",
        "relative": f"{2.0 ** (1 - result.digits):g}" if result.is_float else "0",
        "absolute": "1e-5" if result.is_float else "0",
    }
