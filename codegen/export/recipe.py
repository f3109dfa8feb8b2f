"""`Recipe`: what a program needs to launch an exported kernel, without Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from codegen.emit.arguments import KERNEL_NAME
from codegen.export.c_expressions import c_name
from codegen.targets.nvptx.facts import Facts
from coordgraph import CodegenError, __version__
from coordgraph.epilogue import ALPHA_BETA
from coordgraph.epilogue.text import statements
from coordgraph.gemm import GemmProblem, ld_of, read_of, stride_of
from coordgraph.parameters import Parameter
from coordgraph.tensors import Role, Tensor, dtype

__all__ = ["Recipe", "refuse"]

WORKGROUPS = "workgroups"
"""The name of the launch parameter that is the number of workgroups."""
STRIDES_OF_C = (stride_of("C"),)
"""The name of the launch parameter that is the stride between the matrices of C in a batch."""


def refuse(gemm: GemmProblem) -> None:
    """Refuse problems whose launches need more than sizes, addresses and scalars.

    Raises:
        CodegenError: the problem has groups, whose extents the kernel reads from device memory.
    """
    if gemm.grouped:
        raise CodegenError(
            "kernels of grouped products cannot be exported, because their launches also check "
            "tables of offsets; export a kernel of single products or of a batch, or launch "
            "grouped products from Python with codegen.grouped_matmul"
        )


@dataclass(frozen=True)
class Recipe:
    """What a program needs to launch an exported kernel.

    Args:
        name: the prefix of the C functions and the base name of the files.
        gemm: the problem that the kernel solves.
        facts: the properties of the compiled program that launches need.
        architecture: the GPU architecture of the machine code, such as `sm_90a`.
        instructions: the instructions that multiply and copy, such as `wgmma + TMA`.
        alignment: a number of bytes; addresses and row sizes must be multiples of this number.
        reads_c: whether launches may pass C.
        pipeline: the passes that made the schedule, as text.
        ptxas: the version of ptxas that assembled the machine code.
        workgroups: the number of workgroups of a launch that passes no number, for schedules with
            `workgroups=None`; None for as many as the GPU runs at once.
    """

    name: str
    gemm: GemmProblem
    facts: Facts
    architecture: str
    instructions: str
    alignment: int
    reads_c: bool
    pipeline: str
    ptxas: str
    workgroups: int | None = None

    @property
    def capability(self) -> int:
        """Ten times the compute capability that the machine code is for: 90 for `sm_90a`."""
        return int("".join(filter(str.isdigit, self.architecture)))

    @property
    def exact(self) -> bool:
        """Whether only GPUs of exactly this compute capability run the code, as for `sm_90a`."""
        return self.architecture[-1].isalpha()

    @cached_property
    def given(self) -> tuple[Parameter, ...]:
        """The sizes, strides and number of workgroups that the caller of a launch gives."""
        left_out = {read_of(name) for name in self.gemm.operands} | {*self.unused}
        return tuple(p for p in self.facts.parameters.given if p.name not in left_out)

    @cached_property
    def unused(self) -> tuple[str, ...]:
        """The names of the parameters in `STRIDES_OF_C`, if launches pass no C; else ().

        A launch does not read the values of these parameters.
        """
        if self.reads_c or "C" not in self.gemm.operands:
            return ()
        return tuple(p.name for p in self.facts.parameters.given if p.name in STRIDES_OF_C)

    @cached_property
    def arguments(self) -> tuple[Tensor, ...]:
        """The tensors whose addresses the caller of a launch gives."""
        found = (t for t in self.facts.tensors if not t.role.workspace)
        return tuple(t for t in found if self.reads_c or t.name != "C")

    @cached_property
    def workspace(self) -> tuple[Tensor, ...]:
        """The workspace buffers, in the order in which they lie in the caller's workspace."""
        return tuple(t for t in self.facts.tensors if t.role.workspace)

    @cached_property
    def reads(self) -> dict[str, str]:
        """For each parameter `read_NAME`, the C expression of its value.

        `read_NAME` is 1 if the kernel must read the optional operand NAME: the operand's address is
        not 0, and the scalar that multiplies the operand in the epilogue, if there is one, is not
        0. The expression reads the struct `x` that the caller passes.
        """
        found: dict[str, str] = {}
        for tensor, operand in self.gemm.operands.items():
            if operand.optional:
                scale = self.gemm.epilogue.scale_of(operand.name)
                there = f"x->{c_name(tensor)} != 0"
                if tensor == "C" and not self.reads_c:
                    there = "0"
                elif scale:
                    there += f" && x->{c_name(scale)} != 0"
                found[read_of(tensor)] = there
        return found

    @property
    def formula(self) -> str:
        """D, and the epilogue's other outputs, as formulas in the product and the operands.

        A and B stand for the tensors as they are stored. If the epilogue has several sums, B_NAME
        stands for the columns that belong to the sum NAME; `parts` says which these are.
        """
        function, a = self.gemm.epilogue, "transpose(A)" if self.gemm.transpose_a else "A"
        b = "transpose(B)" if self.gemm.transpose_b else "B"
        if self.is_default:
            return f"D = alpha * {a} @ {b}" + (" + beta * C" if self.reads_c else "")
        several = self.gemm.sums > 1
        sums = {name: f"({a} @ {f'B_{name}' if several else b})" for name in function.sums}
        outputs = {output.name for output in function.outputs}
        of_d, others, terms = sums[function.sums[0]][1:-1], list[str](), list[str]()
        for line in statements(function, sums):
            name, _, value = line.removesuffix(";").partition(" = ")
            if name.startswith("auto "):
                terms.append(f"where {name.removeprefix('auto ')} = {value}")
            elif name in outputs:
                others.append(f"{name} = {value}")
            else:  # the line that assigns D; there is none if D is a sum itself
                of_d = value
        return "; ".join([*(f"D = {of_d}",) * function.stores_d, *others, *terms])

    @property
    def parts(self) -> str:
        """A sentence about which columns of B belong to which sum; '' if there is only one sum."""
        gemm, names = self.gemm, [f"B_{name}" for name in self.gemm.epilogue.sums]
        if gemm.sums == 1:
            return ""
        b = "transpose(B)" if gemm.transpose_b else "B"
        if gemm.parts == "stacked":
            return f"{b} has the n columns of {', then those of '.join(names)}."
        return f"The columns of {b} belong to {', '.join(names)} in turn."

    @property
    def is_default(self) -> bool:
        """Whether D = alpha * A @ B + beta * C, which the example program can check."""
        return self.gemm.epilogue == ALPHA_BETA

    def stride_tensor(self, parameter: str) -> str:
        """The tensor (by name) for which `parameter` is the stride between matrices; '' if none."""
        return next((t for t in self.gemm.strided_batches if stride_of(t) == parameter), "")

    def leading_tensor(self, parameter: str) -> str:
        """The tensor (by name) for which `parameter` is the leading dimension; '' if none."""
        return next((t for t in self.gemm.leading_dimensions if ld_of(t) == parameter), "")

    def bytes(self, tensor: Tensor) -> int:
        """The number of bytes of one element of a tensor."""
        return dtype(tensor.dtype).bytes

    def to_json(self) -> Mapping[str, Any]:
        """The recipe as plain data; expressions are text, as in the text form of graphs."""
        return {
            "made_by": f"coordgraph {__version__}",
            "code": f"{self.name}.cubin",
            "function": KERNEL_NAME,
            "architecture": self.architecture,
            "instructions": self.instructions,
            "pipeline": self.pipeline,
            "assembled_by": self.ptxas,
            "formula": self.formula,
            "alignment": self.alignment,
            "reads_c": self.reads_c,
            "workgroups": self.workgroups,
            "arguments": [
                *(t.name for t in self.facts.tensors),
                *(f"tensor map of {t}, box {list(box)}" for t, box in self.boxes),
                *(name for name, _ in self.facts.floats),
                *(str(scalar) for scalar in self.facts.scalars),
                *(f"{word} for {d}" for d in self.facts.divisors for word in ("factor", "shift")),
            ],
            "launch": self.facts.to_json(),
        }

    @cached_property
    def boxes(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(tensor, TMA box) for each tensor map, in the order of the kernel's arguments."""
        return tuple((name, box) for name, boxes in self.facts.boxes.items() for box in boxes)

    def tensor(self, name: str) -> Tensor:
        """The tensor argument named `name`."""
        return next(t for t in self.facts.tensors if t.name == name)

    @cached_property
    def timed(self) -> bool:
        """Whether the kernel writes timeline records, which the exported functions do not read."""
        return any(t.role is Role.TIMELINE for t in self.facts.tensors)
