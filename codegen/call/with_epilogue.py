"""`launch_with_epilogue`: products with an epilogue, or with tables of rows, of any plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codegen.call.arrangement import Prepared, Repeat
from codegen.call.checks import ArgumentMismatch
from codegen.call.describe import array_key
from codegen.call.gradients import refuse_gradients
from codegen.call.launch import first_launch, launch_prepared, repeated
from codegen.call.outputs import finished
from codegen.call.prepared_calls import prepared_calls, prepared_epilogues
from codegen.call.quick_keys import quick_key
from codegen.call.separate_parts import joined_parts
from coordgraph import CodegenError, LaunchError
from coordgraph.epilogue import EpilogueFunction
from coordgraph.gemm import OFFSETS, ROWS, TARGETS, tensor_of
from coordgraph.interpreter.arguments import with_defaults

__all__ = ["launch_with_epilogue"]


def launch_with_epilogue(
    matrices: Mapping[str, Any],
    scalars: tuple[Any, float, Any],
    epilogue: EpilogueFunction,
    operands: Mapping[str, Any],
    *,
    tables: Mapping[str, Any],
    offsets: Any = None,
    **options: Any,
) -> Any:
    """Launch a product with an epilogue, or with tables of rows; see `matmul`.

    Args:
        matrices: the arguments `a`, `b`, `c` and `out`, by the names A, B, C and D.
        scalars: the arguments `alpha`, `beta` and `stream`.
        epilogue: the epilogue.
        operands: the arguments by the names of the epilogue's operands and outputs.
        tables: the arguments `rows` and `targets` by name; None for one that is left out.
        offsets: the offsets of groups, or None.
        options: the other arguments of `matmul` or `grouped_matmul`.

    Raises:
        LaunchError, CodegenError, PassError, ParseError, VerifyError: as for `matmul`.
    """
    alpha, beta, _ = scalars
    if not isinstance(epilogue, EpilogueFunction):
        raise LaunchError(
            f"epilogue = {epilogue!r} is not a traced epilogue; make one from a function with "
            "@coordgraph.epilogue.epilogue(…)"
        )
    matrices, epilogue, options = joined_parts(matrices, epilogue, options)
    a, b, c, out = (matrices[name] for name in "ABCD")
    quick = quick_key(epilogue, matrices, (alpha, beta), operands, tables, offsets, options)
    known = None if quick is None else prepared_epilogues.get(quick)
    # A key has the id() of an epilogue; an entry keeps the epilogue alive, so no other gets the id.
    if known is not None and known[0] is epilogue:
        try:
            rest = {**operands, **{name: x for name, x in tables.items() if x is not None}}
            return _again(*known[1:], a, b, c, out, *scalars, rest, offsets)
        except (ArgumentMismatch, CodegenError):
            pass  # this launch was refused; the code below reports why, or tries the next plan
    tables = {name: table for name, table in tables.items() if table is not None}
    if tables:
        options |= {"gathered_rows": ROWS in tables, "scattered_rows": TARGETS in tables}
        if options.get("tune"):
            raise LaunchError(
                f"tune=True does not measure products with {' and '.join(tables)}; leave out tune"
            )
    given = {"c": c, "alpha": alpha, "beta": beta, **operands}
    what = f"a product with {' and '.join(tables) or 'this epilogue'}"
    refuse_gradients({"a": a, "b": b, **given}, what)
    outputs = [o.name for o in epilogue.outputs]
    for output in epilogue.outputs:
        if output.reduce and operands.get(output.name) is not None:
            raise LaunchError(
                f"{output.name} is an output that reduces rows, and matmul makes its array; leave "
                "the argument out, or call a kernel of codegen.compile"
            )
    with_defaults(epilogue, {name: x for name, x in given.items() if name not in outputs})
    arrays = {
        tensor_of(name): operands[name]
        for name in (*(o.name for o in epilogue.tensors), *outputs)
        if operands.get(name) is not None
    }
    numbers = {name: x for name, x in operands.items() if tensor_of(name) not in arrays}
    numbers = {name: x for name, x in numbers.items() if name not in outputs}
    arrays, operands = arrays | tables, {**operands, **tables}
    groups: dict[str, Any] = {} if offsets is None else {OFFSETS: offsets}
    inputs = {"a": a, "b": b, **groups, **arrays}
    # The key has the operands' names, as arrays of one layout may be given for different operands.
    key = (array_key(inputs, c, out), *arrays, beta == 0, epilogue, *sorted(options.items()))
    prepared = None if options.get("tune") else prepared_calls.get(key)
    try:
        if prepared is not None:
            found = launch_prepared(prepared, a, b, c, out, *scalars, **groups, **operands)
            if quick is not None:
                repeat = repeated(
                    prepared, a, b, c, out, alpha, beta, operands=operands, offsets=offsets
                )
                prepared_epilogues.put(quick, (epilogue, prepared, repeat))
            return finished(epilogue, found, scalars[2], invariant=options["invariant"])
    except (ArgumentMismatch, CodegenError):
        pass  # this launch was refused; `first_launch` reports why, or tries the next plan
    every = {**matrices, **groups, **arrays}
    found = first_launch(
        prepared_calls, key, every, scalars, numbers=numbers, epilogue=epilogue, **options
    )
    return finished(epilogue, found, scalars[2], invariant=options["invariant"])


def _again(prepared: Prepared, repeat: Repeat | None, a: Any, b: Any, *arguments: Any) -> Any:
    """Repeat a call with an epilogue by `repeat`, or if that refuses, by the prepared call.

    `arguments` are C, D, alpha, beta, the stream, a mapping with the operands and the tables of
    rows, and the offsets of groups.
    """
    found = None if repeat is None else repeat(a, b, *arguments)
    if found is not None:
        return found
    *first, operands, offsets = arguments
    groups: dict[str, Any] = {} if offsets is None else {OFFSETS: offsets}
    return launch_prepared(prepared, a, b, *first, **groups, **operands)
