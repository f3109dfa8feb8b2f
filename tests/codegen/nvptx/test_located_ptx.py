"""`located_ptx` has the instructions of `ptx`, each with the operation that it belongs to."""

from __future__ import annotations

from functools import cache

import pytest

from codegen import compile
from codegen.targets.nvptx import CudaKernel
from coordgraph import Gemm
from passes import StreamK
from tests.support.sampling import quick_cases


@cache
def kernel(target: str) -> CudaKernel:
    found = compile(StreamK()(Gemm("bf16").graph((128, 128, 64))), target)
    assert isinstance(found, CudaKernel)
    return found


@quick_cases(1)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_locations_change_no_instruction(target: str):
    lines = [text for text, _ in kernel(target).located_code]
    assert lines == kernel(target).ptx.splitlines()


@quick_cases(3)
@pytest.mark.parametrize(
    ("target", "instruction", "operations"),
    [
        ("sm_80", "mma.sync", {"MultiplyFragments"}),
        ("sm_80", "cp.async.cg", {"CopyElements"}),
        ("sm_90a", "wgmma.mma_async", {"MultiplyShared"}),
        ("sm_90a", "cp.async.bulk.tensor.2d.shared", {"CopyBox"}),
        ("sm_90a", "cp.async.bulk.tensor.2d.global", {"StoreBox"}),
        ("sm_90a", "mbarrier.init", {"InitBarrier"}),
    ],
)
def test_instructions_belong_to_their_operations(
    target: str, instruction: str, operations: set[str]
):
    control = kernel(target).lowered.control.operations
    found = {control[n].kind for text, n in kernel(target).located_code if instruction in text}
    assert found == operations


def test_targets_without_ptx_have_no_located_code():
    assert compile(StreamK()(Gemm("f32").graph()), "cpu").located_code == ()
