"""Copies of a kernel are the kernel; a pickled kernel is compiled again from its graph."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import codegen
from coordgraph import Gemm, KernelGraph
from coordgraph import epilogue as ep
from passes import StreamK
from passes.lowering.sm_90a import LowerToHopper


def graph(kind: str = "f32", tile: tuple[int, int, int] = (16, 16, 16)) -> KernelGraph:
    rectified = ep.epilogue(bias="n")(lambda acc, bias: ep.relu(acc + bias))
    return StreamK(workgroups=4)(Gemm(kind, epilogue=rectified).graph(tile=tile))


@pytest.mark.parametrize("target", ["cpu", "interpreter"])
def test_a_kernel_is_copied_and_pickled(target: str):
    """As a part of a model is, when the model is copied or saved."""
    kernel = codegen.compile(graph(), target)
    assert copy.deepcopy({"kernel": kernel})["kernel"] is copy.copy(kernel) is kernel
    again = pickle.loads(pickle.dumps(kernel))
    assert again.graph == kernel.graph
    assert again.target == target
    a, b, bias = (np.ones(shape, np.float32) for shape in ((20, 30), (30, 40), 40))
    assert np.array_equal(again(a, b, bias=bias), kernel(a, b, bias=bias))


def test_a_pickled_kernel_keeps_its_options():
    lowering = LowerToHopper(cluster_m=2)
    kernel = codegen.compile(graph("bf16", (128, 128, 64)), "sm_90a", lowering=lowering)
    again = pickle.loads(pickle.dumps(kernel))
    assert again.target == "sm_90a"
    assert again.ptx == kernel.ptx
    checked = codegen.compile(graph(), "cpu", debug=True, timeline=7)
    again = pickle.loads(pickle.dumps(checked))
    assert type(again) is type(checked)
    assert again.lowered == checked.lowered


def test_a_kernel_is_read_in_another_process():
    kernel = codegen.compile(graph(), "cpu")
    code = (
        "import pickle, sys, numpy\n"
        "kernel = pickle.load(sys.stdin.buffer)\n"
        "a, b, bias = (numpy.ones(s, numpy.float32) for s in ((20, 30), (30, 40), 40))\n"
        "print(kernel(a, b, bias=bias)[19, 39])"
    )
    work = [sys.executable, "-c", code]
    found = subprocess.run(work, input=pickle.dumps(kernel), capture_output=True, check=True)
    assert found.stdout.split() == [b"31.0"]
