"""GPU kernels of gated products and of their gradients assemble, with few spills or none."""

from __future__ import annotations

from typing import Any

import pytest

import codegen
from codegen.toolchain import PtxasReport
from coordgraph import Gemm
from passes import DataParallel
from tests.support.ptxas import assemble, assert_clean

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
SLICES = ("D", "gate_sums", "up_sums", "of_up", "gate", "up")
"""The tensors whose rows are halves of the rows of another tensor."""
MOST_SPILLED = 128
"""The most bytes that a thread of a gradient's kernel may spill: the epilogue reads up to three
operands for each register, beside an accumulator of 128 registers."""
every_kernel = pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
every_activation = pytest.mark.parametrize("activation", ACTIVATIONS)


def assembled(epilogue: Any, target: str, **fields: Any) -> PtxasReport:
    stored = {"D", *(o.name for o in epilogue.outputs), *(o.name for o in epilogue.tensors)}
    sliced = tuple(name for name in SLICES if name in stored)
    gemm = Gemm("bf16", epilogue=epilogue, leading_dimensions=sliced, **fields)
    schedule = DataParallel(persistent=gemm.grouped)
    kernel = codegen.compile(schedule(gemm.graph(tile=(128, 128, 64))), target)
    assert ("wgmma" in kernel.ptx) == (target == "sm_90a")
    return assemble(kernel.ptx, target)


@every_kernel
@every_activation
def test_products_assemble_without_spills(activation: str, target: str):
    from codegen.torch import activations

    epilogue = activations.gated(activation, biased=True, kept=True)
    assert_clean(assembled(epilogue, target, transpose_b=True))


@every_kernel
@every_activation
def test_gradients_assemble_with_few_spills(activation: str, target: str):
    from codegen.torch import activations

    product = activations.gradient(activation, biased=True)
    for epilogue, fields in (
        (product, {"transpose_b": True}),
        (activations.gradient_of_sums(activation), {}),
    ):
        report = assembled(epilogue, target, **fields)
        assert report.registers
        assert max(use.spill_stores for use in report.functions.values()) <= MOST_SPILLED


@every_kernel
def test_products_of_groups_assemble(target: str):
    """Groups of rows have a bias each; their product and its gradient spill no more than others."""
    from codegen.torch import activations

    product = activations.gated("silu", biased=True, kept=True)
    assert_clean(assembled(product, target, transpose_b=True, grouped=True))
    gradient = activations.gradient("silu", biased=True)
    report = assembled(gradient, target, transpose_b=True, grouped=True)
    assert max(use.spill_stores for use in report.functions.values()) <= MOST_SPILLED
