"""Random operands of a launch, and the product that a correct kernel computes from them.

Elements are small whole numbers, so sums are exact in every element type and in every order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from random import Random
from typing import Any, NamedTuple

import numpy as np
from sympy import Symbol

from coordgraph.elements import Number, dtype
from coordgraph.epilogue.operand import ACCUMULATOR
from coordgraph.epilogue.reduction import reduced
from coordgraph.epilogue.stages import stages_of
from coordgraph.errors import LaunchError
from coordgraph.gemm import AXES, GemmProblem, ld_of, read_of, step_of, tensor_of
from coordgraph.integers import evaluate
from coordgraph.interpreter.arguments import Array, numpy_dtype
from coordgraph.interpreter.layout import strides_of
from coordgraph.interpreter.multiplication import matrix_product
from coordgraph.kernel import KernelGraph
from coordgraph.tensors import Role, Tensor
from coordgraph.tilings import macro_tile
from coordgraph.verification.launch import Launch
from coordgraph.verification.packing import packed_elements, packed_starts

__all__ = ["Operands", "Product", "make_operands", "products"]

SEED = 20
GAP = 3
"""Number of unused elements between two rows of a tensor whose leading dimension is a launch
argument."""


class Operands(NamedTuple):
    """The random operands of one launch.

    Args:
        arrays: the input arrays by tensor, with the shapes that the graph declares.
        scalars: the scalar operands of the epilogue, by operand name.
        values: the values of all parameters and the entries of all tables.
    """

    arrays: dict[str, Array]
    scalars: Mapping[str, float]
    values: dict[str, Any]


class Product(NamedTuple):
    """One matrix of an output: its expected elements, and their positions in the output's array."""

    number: int
    expected: Array
    place: Array
    """The position, in the output's array, of each element of the expected matrix, in elements."""
    tensor: str = "D"
    """The name of the output: D, or another output of the epilogue."""


def make_operands(graph: KernelGraph, launch: Launch) -> Operands:
    """Random operands of a launch, and the values of its parameters.

    Raises:
        LaunchError: the graph's bounds on parameters exclude the launch, or a tensor does not fit
            in memory.
    """
    gemm, random = graph.gemm, Random(SEED)
    given = dict(launch.values)
    if gemm.diagonal:
        given |= packed_elements(gemm, launch.values, launch.tables)
    sums, out = dtype(gemm.accumulator), dtype(gemm.out_dtype or gemm.dtype)
    adds = sums.is_float or out == sums
    for parameter in graph.parameters.given:
        if parameter.minimum == 0:
            given.setdefault(parameter.name, int(adds) if parameter.name.startswith("read_") else 0)
    host = {axis: getattr(gemm, axis) for axis in AXES if getattr(gemm, axis)}
    for tensor in graph.tensors:
        # Rows with a leading dimension get gaps, which no operation may write. The matrices of a
        # batch follow each other without a gap.
        size = 1
        for extent, stride in zip(
            reversed(tensor.shape), reversed(tensor.strides or ()), strict=False
        ):
            if isinstance(stride, Symbol):
                size += GAP if stride.name == ld_of(tensor.name) else 0
                size += stride.name == step_of(tensor.name)
                given[stride.name] = size
            size *= int(evaluate(extent, {**given, **host}))
    values = graph.parameters.launch(given, launch.tables)
    arrays = {
        t.name: _random(t, values, random)
        for t in graph.tensors
        if t.role in (Role.INPUT, Role.OPTIONAL_INPUT, Role.OPERAND)
    }
    scalars = {o.name: int(adds or o.name != "beta") for o in gemm.epilogue.scalars}
    return Operands(arrays, scalars, values)


def _random(tensor: Tensor, values: Mapping[str, Any], random: Random) -> Array:
    shape = tuple(int(evaluate(extent, values)) for extent in tensor.shape)
    least = 0 if dtype(tensor.dtype).number is Number.UNSIGNED else -1
    try:
        # Python's generator, because the import of NumPy's takes as long as all these numbers
        numbers = np.frombuffer(random.randbytes(prod(shape)), np.uint8) % (2 - least)
        return (numbers.astype(np.int8) + least).astype(numpy_dtype(tensor.dtype)).reshape(shape)
    except (MemoryError, OverflowError) as error:
        raise LaunchError(
            f"the tensor {tensor.name} of {prod(shape)} elements does not fit in memory ({error}); "
            "choose a smaller problem"
        ) from error


def products(graph: KernelGraph, operands: Operands) -> Iterator[Product]:
    """The expected matrix of every output for every product, and where its elements are."""
    gemm, values = graph.gemm, operands.values
    count = 1
    if gemm.leading:
        count = int(values["batches" if gemm.batched else "groups"])
    kind = gemm.out_dtype or gemm.dtype
    places = {t: _places(graph.tensor(t), values) for t in gemm.stored}
    for number in range(count):

        def matrix(tensor: str, array: Array, number: int = number) -> Array:
            return _matrix(gemm, tensor, array, number, values)

        n = gemm.n or int(values.get("n", 0))
        a, b = (matrix(t, operands.arrays[t]).astype(numpy_dtype(gemm.accumulator)) for t in "AB")
        parts = dict(zip(gemm.epilogue.sums, _parts(gemm, b, n), strict=True))
        sums = {name: matrix_product(a, part) for name, part in parts.items()}
        numbers: dict[str, Any] = {**sums, **operands.scalars}
        numbers |= {o.name: np.zeros((), a.dtype) for o in gemm.epilogue.tensors}
        numbers |= _indices(gemm, number, *sums[gemm.epilogue.sums[0]].shape)
        for stage in stages_of(gemm.epilogue, gemm.accumulator, kind):
            if stage.optional and not values.get(read_of(tensor_of(stage.optional)), 1):
                continue
            for operand in stage.function.tensors:
                tensor = tensor_of(operand.name)
                if values.get(read_of(tensor), 1):
                    numbers[operand.name] = matrix(tensor, operands.arrays[tensor])
            found, more = stage.function.evaluate_all(numbers, gemm.accumulator, kind)
            numbers |= {ACCUMULATOR: found, **more}
        for tensor in places:
            place = matrix(tensor, places[tensor])
            value = numbers[ACCUMULATOR if tensor == "D" else tensor]
            if tensor != "D" and (reduce := gemm.outputs[tensor].reduce):
                whole = np.broadcast_to(value, sums[gemm.epilogue.sums[0]].shape)
                value = _reduced_tiles(reduce, whole, macro_tile(graph.coordinates)[1])
            value = np.broadcast_to(value, place.shape)
            expected = value.astype(numpy_dtype(graph.tensor(tensor).dtype))
            yield Product(number, expected, place, tensor)


def _indices(gemm: GemmProblem, number: int, rows: int, columns: int) -> dict[str, Array]:
    """The values of the epilogue's operands that are indices, for one product, by operand name.

    Args:
        gemm: the problem.
        number: the number of the product.
        rows, columns: the extents of the product's D.
    """
    along = {
        "l": np.full((1, 1), number),
        "m": np.arange(rows).reshape(-1, 1),
        "n": np.arange(columns).reshape(1, -1),
    }
    return {o.name: along[o.axes].astype(np.int32) for o in gemm.epilogue.indices}


def _reduced_tiles(reduce: str, value: Array, width: int) -> Array:
    """Reduce each row of a matrix within each column tile; the result has a column for each tile.

    Args:
        reduce: the name of the reduction.
        value: the matrix.
        width: number of columns of a tile.
    """
    parts = [value[:, first : first + width] for first in range(0, value.shape[1], width)]
    made = [reduced(reduce, part, np.ones(part.shape, np.bool_)) for part in parts]
    return np.concatenate(made, axis=1) if made else np.zeros((len(value), 0))


def _places(tensor: Tensor, values: Mapping[str, Any]) -> Array:
    """The offset of each element of a tensor from its first element, in elements."""
    shape = tuple(int(evaluate(extent, values)) for extent in tensor.shape)
    steps = zip(np.indices(shape, sparse=True), strides_of(tensor, values), strict=True)
    return sum((index * stride for index, stride in steps), start=np.zeros(shape, np.intp))


def _parts(gemm: GemmProblem, b: Array, columns: int) -> list[Array]:
    """Divide B into parts of `columns` columns: each sum of the epilogue is a product with a part.

    `b` is a matrix, or has a matrix for each part if `gemm.parts` is `separate`.
    """
    if gemm.parts_apart:
        return list(b)
    if gemm.part_width:
        blocks = b.reshape(len(b), -1, gemm.sums, gemm.part_width)
        parts = (blocks[:, :, part].reshape(len(b), -1) for part in range(gemm.sums))
        return [part[:, :columns] for part in parts]
    return np.split(b, gemm.sums, axis=1)


def _matrix(
    gemm: GemmProblem, tensor: str, array: Array, number: int, values: Mapping[str, Any]
) -> Array:
    """The matrix of one product in a tensor's array; axis 0 is its rows, even if stored transposed.

    Args:
        gemm: the problem.
        tensor: the name of the tensor.
        array: the array of the whole tensor.
        number: the number of the product.
        values: the parameters of the launch and the entries of its tables.
    """
    axes = gemm.axes[tensor]
    for table, of in gemm.tables_of_rows.items():
        if of == tensor:
            array = array[np.array(values[table], np.intp)]
    transposed = gemm.is_transposed(tensor)
    stored = axes[::-1] if transposed else axes
    borders = {axis: values[gemm.offsets(axis)] for axis in AXES if gemm.ragged(axis)}
    if gemm.diagonal and axes:
        starts = packed_starts(gemm, tensor, values)
        rows, columns = (borders[x][number + 1] - borders[x][number] for x in stored)
        flat = array.reshape(-1)[starts[number] : starts[number + 1]]
        found = flat.reshape(rows, -1 if rows else columns)[:, :columns]
    else:
        found = (
            array[number]
            if gemm.is_apart(tensor) or (gemm.diagonal and "l" in _all(gemm, tensor))
            else array
        )
        for position, axis in enumerate(stored):
            if axis in borders:
                part = slice(borders[axis][number], borders[axis][number + 1])
                found = found[(slice(None),) * position + (part,)]
    if transposed:
        found = found.swapaxes(-1, -2)
    return {"m": lambda: found.reshape(-1, 1), "": lambda: found.reshape(-1)[0]}.get(
        axes, lambda: found
    )()


def _all(gemm: GemmProblem, tensor: str) -> str:
    """The axes of an epilogue operand, such as `mn` or `l` (products); '' for other tensors."""
    return gemm.operands[tensor].axes if tensor in gemm.operands else ""
