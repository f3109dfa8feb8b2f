"""`ElementwiseEmitter`: emits the operations of epilogue functions as LLVM IR."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from codegen.emit.small_floats import from_f32, to_f32
from coordgraph import CodegenError
from coordgraph.elements import dtype
from coordgraph.epilogue.operation import QUANTIZED

__all__ = ["KINDS", "ElementwiseEmitter"]

KINDS: dict[str, Any] = {
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
    "i32": ir.IntType(32),
    "bool": ir.IntType(1),
    **{name: ir.IntType(dtype(name).bits) for name in QUANTIZED},
}
"""LLVM's type of each kind of value that epilogues compute with, by the kind's name."""
RELATIONS = ("<", "<=", ">", ">=", "==", "!=")
"""Allowed values of the argument `relation` of `ElementwiseEmitter.compare`."""
_SUFFIX = {"f32": "f", "f64": ""}


class ElementwiseEmitter:
    """Implements `coordgraph.epilogue.Emitter`, the interface of epilogue operations, for LLVM.

    Args:
        builder: the LLVM IR builder that inserts the instructions.
        gpu: whether the target is PTX; else it is a CPU.
        fast: whether less exact instructions may be used, because results are stored in 16 bits.
    """

    def __init__(self, builder: ir.IRBuilder, *, gpu: bool, fast: bool) -> None:
        self.builder: Any = builder  # llvmlite's type hints are incomplete
        self.gpu, self.fast = gpu, fast

    def constant(self, value: bool | int | float, kind: str) -> Any:
        """The constant `value` of the kind `kind`; for f32, `value` is rounded to nearest."""
        if kind in ("i32", "bool"):
            return ir.Constant(KINDS[kind], int(value))
        return ir.Constant(KINDS[kind], float(value))

    def add(self, kind: str, a: Any, b: Any) -> Any:
        """Emit `a + b`."""
        _check("add", kind, a, b)
        return (self.builder.add if kind == "i32" else self.builder.fadd)(a, b)

    def sub(self, kind: str, a: Any, b: Any) -> Any:
        """Emit `a - b`."""
        _check("sub", kind, a, b)
        return (self.builder.sub if kind == "i32" else self.builder.fsub)(a, b)

    def mul(self, kind: str, a: Any, b: Any) -> Any:
        """Emit `a * b`."""
        _check("mul", kind, a, b)
        return (self.builder.mul if kind == "i32" else self.builder.fmul)(a, b)

    def div(self, kind: str, a: Any, b: Any) -> Any:
        """Emit `a / b` of two floats."""
        _check("div", kind, a, b)
        return self.builder.fdiv(a, b)

    def neg(self, kind: str, a: Any) -> Any:
        """Emit `-a`."""
        _check("neg", kind, a)
        return self.builder.neg(a) if kind == "i32" else self.builder.fneg(a)

    def compare(self, kind: str, relation: str, a: Any, b: Any) -> Any:
        """Emit the comparison of a and b by `relation`; if either is NaN, only `!=` is true.

        Raises:
            CodegenError: `kind` or `relation` is unknown, for example because the arguments are in
                the wrong order.
        """
        if not (isinstance(kind, str) and kind in KINDS and relation in RELATIONS):
            raise CodegenError(
                f"emit.compare({kind!s:.20}, {relation!s:.20}, …) is not possible; write "
                f"compare(kind, relation, a, b), with a kind of {', '.join(KINDS)} and a relation "
                f"of {' '.join(RELATIONS)}"
            )
        _check("compare", kind, a, b)
        if kind in ("i32", "bool"):
            return self.builder.icmp_signed(relation, a, b)
        if relation == "!=":
            return self.builder.fcmp_unordered(relation, a, b)
        return self.builder.fcmp_ordered(relation, a, b)

    def select(self, condition: Any, yes: Any, no: Any) -> Any:
        """Emit a select: `yes` if the bool `condition` is true, else `no`."""
        return self.builder.select(condition, yes, no)

    def convert(self, value: Any, source: str, target: str) -> Any:
        """Emit a conversion of `value` from the kind `source` to the kind `target`."""
        _check("convert", source, value)
        b, kind = self.builder, KINDS[target]
        if source == target:
            return value
        if source == "bool":
            return b.zext(value, kind) if target == "i32" else b.uitofp(value, kind)
        if source in QUANTIZED and dtype(source).is_small_float:
            value = to_f32(b, value, dtype(source), gpu=self.gpu)
            return self.convert(value, "f32", target)
        if source in QUANTIZED and target == "i32":
            return b.sext(value, kind) if dtype(source).least else b.zext(value, kind)
        if source in ("i32", *QUANTIZED):
            return b.sitofp(value, kind) if dtype(source).least else b.uitofp(value, kind)
        if target == "i32":
            return b.fptosi(value, kind)
        return b.fpext(value, kind) if target == "f64" else b.fptrunc(value, kind)

    def saturate(self, value: Any, kind: str, target: str) -> Any:
        """Emit the rounding of a float to the nearest value of an 8-bit type, with saturation.

        NaN becomes 0 in an integer type. For integers a GPU executes PTX's `cvt.rni.sat`, and a CPU
        LLVM's `rint`, then `fptosi.sat` or `fptoui.sat`.
        """
        if dtype(target).is_small_float:
            single = self.convert(value, kind, "f32")
            return from_f32(self.builder, single, dtype(target), gpu=self.gpu)
        b, signed = self.builder, dtype(target).least < 0
        if self.gpu:
            half = ir.IntType(16)  # PTX has no 8-bit registers
            text = f"cvt.rni.sat.{'s' if signed else 'u'}8.f32 $0, $1;"
            found = b.asm(ir.FunctionType(half, [KINDS["f32"]]), text, "=h,f", [value], False)
            return b.trunc(found, KINDS[target])
        name = f"llvm.fpto{'si' if signed else 'ui'}.sat.i8.{kind}"
        rounded = self.intrinsic("llvm.rint", kind, value)
        return self._call(name, target, (rounded,))

    def intrinsic(self, name: str, kind: str, *arguments: Any) -> Any:
        """Emit a call of the LLVM intrinsic `name` for arguments and a result of kind `kind`.

        Raises:
            CodegenError: LLVM has no intrinsic of this name with these arguments, or an argument is
                not of the kind `kind`.
        """
        _check("intrinsic", kind, *arguments)
        if not _is_intrinsic(f"{name}.{kind}", str(KINDS[kind]), len(arguments)):
            raise CodegenError(
                f"emit.intrinsic('{name}', {kind}, …): LLVM has no intrinsic of this name that "
                f"takes {len(arguments)} of {kind} and returns {kind}; give a name without the "
                "suffix, such as llvm.fma"
            )
        return self._call(f"{name}.{kind}", kind, arguments)

    def library(self, name: str, kind: str, *arguments: Any) -> Any:
        """Emit a call of the C library function `name`, which LLVM's execution engine links.

        Raises:
            CodegenError: the target is a GPU, `kind` is not a float, or this process has no
                function of that name.
        """
        if self.gpu:
            raise CodegenError(
                f"emit.library('{name}'): a GPU has no C library; call it only if not emit.gpu, "
                "else emit.asm or emit.intrinsic"
            )
        if kind not in _SUFFIX:
            raise CodegenError(
                f"emit.library('{name}') calls functions of f32 and f64, not {kind}; convert the "
                "arguments"
            )
        _check("library", kind, *arguments)
        symbol = f"{name}{_SUFFIX[kind]}"
        if not _in_process(symbol):
            raise CodegenError(
                f"emit.library('{name}'): this process has no C function '{symbol}'; give the f64 "
                "name of a function of the C library, such as tanh"
            )
        return self._call(symbol, kind, arguments)

    def asm(self, instruction: str, *arguments: Any) -> Any:
        """Emit one PTX instruction that maps f32 `arguments` to an f32 result.

        Raises:
            CodegenError: the target is a CPU.
        """
        if not self.gpu:
            raise CodegenError(
                f"emit.asm('{instruction}'): a CPU has no PTX; call it only if emit.gpu, else "
                "emit.library or emit.intrinsic"
            )
        f32 = KINDS["f32"]
        names = ", ".join(f"${i}" for i in range(len(arguments) + 1))
        constraints = ",".join(("=f", *("f" for _ in arguments)))
        kind = ir.FunctionType(f32, [f32] * len(arguments))
        text = f"{instruction} {names};"
        return self.builder.asm(kind, text, constraints, list(arguments), side_effect=False)

    def _call(self, name: str, kind: str, arguments: tuple[Any, ...]) -> Any:
        module = self.builder.module
        function = module.globals.get(name)
        if function is None:
            result = ir.FunctionType(KINDS[kind], [a.type for a in arguments])
            function = ir.Function(module, result, name)
        return self.builder.call(function, list(arguments))


def _check(method: str, kind: str, *arguments: Any) -> None:
    """Raise an error unless every argument is an LLVM value of the type that `kind` stands for.

    The check is needed because LLVM, given arguments of wrong types, generates wrong code or ends
    the process.

    Raises:
        CodegenError: `kind` is unknown, an argument is a Python number, or an argument has another
            kind.
    """
    if kind not in KINDS:
        raise CodegenError(
            f"emit.{method}: '{kind}' is not a known kind; choose one of {', '.join(KINDS)}"
        )
    for argument in arguments:
        found = getattr(argument, "type", None)
        if found is None:
            raise CodegenError(
                f"emit.{method}({kind}, …): {argument!r:.40} is no emitted value; write "
                f"emit.constant({argument!r:.40}, '{kind}')"
            )
        if found != KINDS[kind]:
            other = next((name for name, known in KINDS.items() if known == found), str(found))
            raise CodegenError(
                f"emit.{method}({kind}, …): an argument is of {other}; write "
                f"emit.convert(value, '{other}', '{kind}')"
            )


@cache
def _is_intrinsic(symbol: str, kind: str, arguments: int) -> bool:
    """Whether LLVM knows an intrinsic `symbol` whose arguments and result have one type.

    The check is needed because a call of an unknown intrinsic ends the process. LLVM's parser adds
    attributes to the declaration of a known intrinsic, and none to other declarations.

    Args:
        symbol: the full name, such as `llvm.fma.f32`.
        kind: LLVM's type of each argument and of the result, as text, such as `float`.
        arguments: the number of arguments.
    """
    declared = f"declare {kind} @{symbol}({', '.join([kind] * arguments)})"
    try:
        module = llvm.parse_assembly(declared)
        return bool([*module.get_function(symbol).attributes])
    except (RuntimeError, NameError):
        return False


def _in_process(symbol: str) -> bool:
    """Whether this process has a C function named `symbol`; LLVM aborts on a missing function.

    LLVM's symbol lookup also finds functions that `llvmlite.binding.add_symbol` added. Before the
    first execution engine exists, LLVM does not find the process's own functions; ctypes does. On
    systems other than POSIX the result is always True.
    """
    if os.name != "posix" or llvm.address_of_symbol(symbol):
        return True
    return hasattr(ctypes.CDLL(None), symbol)
