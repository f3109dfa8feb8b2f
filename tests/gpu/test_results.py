"""Kernels give the float64 result on the GPU for all shapes, schedules, layouts and types."""

from __future__ import annotations

from typing import Any

import pytest

from passes import (
    DataParallel,
    Grouped,
    HeterogeneousTiles,
    HybridStreamK,
    Rasterize,
    Reorder,
    SplitK,
    StreamK,
    TwoTileStreamK,
)
from tests.gpu.kernels import CORNERS, Problem, Spec, kernel, shapes

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("gpu")

# Every schedule, tile, layout and type occurs at least once. Sizes are launch arguments, so one
# kernel serves all shapes; it has code for copies of 16 bytes and for copies of one element.
SPECS = (
    Spec((DataParallel(),), (128, 128, 32), "nn"),
    Spec((DataParallel(),), (128, 256, 64), "nt", "f16"),
    Spec((DataParallel(persistent=True),), (64, 64, 64), "tn", "bf16", "f32"),
    Spec((StreamK(),), (64, 64, 64), "nt", "bf16"),
    Spec((StreamK(),), (128, 256, 64), "nn", "bf16"),
    Spec((StreamK(owner="last"),), (128, 64, 32), "nn", "f16", "f32"),
    Spec((TwoTileStreamK(),), (64, 128, 32), "tt", "bf16", "f16"),
    Spec((TwoTileStreamK(owner="last"),), (64, 64, 32), "nn", "bf16"),
    Spec((TwoTileStreamK(first="dp"),), (64, 64, 32), "tn", "f16"),
    Spec((TwoTileStreamK(owner="last", first="dp"),), (32, 32, 64), "nt", "bf16", "f32"),
    Spec((Reorder(swap=True, group=3), StreamK()), (64, 64, 32), "nn", "f16"),
    Spec((Reorder(group=4), DataParallel()), (16, 16, 16), "tt", "bf16"),
    Spec((HybridStreamK(owner="last"),), (64, 64, 32), "nt", "bf16", target="sm_80"),
    Spec((StreamK(reduction="turnstile"),), (64, 64, 32), "tn", "bf16", target="sm_80"),
    Spec((StreamK(reduction="scatter"),), (64, 64, 32), "nt", "bf16", target="sm_80"),
    Spec((StreamK(k_order="interleaved"),), (64, 64, 32), "nn", "bf16", target="sm_80"),
    Spec((SplitK(splits=5),), (64, 64, 32), "nn", "f16", "f32", target="sm_80"),
    Spec((SplitK(splits=3, owner="first", reduction="peers"),), (64, 64, 32), target="sm_80"),
    Spec((Rasterize(width=4, order="hilbert"), DataParallel()), (32, 32, 32), target="sm_80"),
    Spec((Grouped(groups=4), StreamK(owner="last")), (64, 64, 32), "tt", target="sm_80"),
    Spec((StreamK(),), (96, 96, 48), "nn", "f16", target="sm_80"),
    # Tiles that are lowered to TMA and wgmma if the GPU has them.
    Spec((DataParallel(persistent=True),), (256, 128, 64), "nn", "bf16"),
    Spec((StreamK(owner="last"),), (128, 128, 64), "tn", "f16", "f32"),
    Spec((TwoTileStreamK(),), (128, 192, 64), "nt", "bf16"),
    Spec((Reorder(swap=True, group=2), TwoTileStreamK()), (128, 64, 64), "tt", "bf16", "f32"),
    Spec((HeterogeneousTiles(),), (128, 128, 32), "nn", "bf16", target="sm_80"),
    Spec((HeterogeneousTiles(small_m=64, small_n=64),), (128, 256, 64), "nt", "f16"),
    Spec((Rasterize(width=4), HeterogeneousTiles(small_m=32)), (64, 128, 64), "tt", "bf16", "f32"),
)
COUNT = 7
SCALES = ((1.0, 0.0), (0.5, 2.0), (-1.5, 1.0), (0.0, 1.0), (2.0, -0.25))


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "odd"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_shapes(spec: Spec, aligned: bool):
    """Every kernel gives right results, for aligned and odd extents; a second launch has
    equal bits.
    """
    for number, shape in enumerate(shapes(SPECS.index(spec), COUNT, aligned=aligned)):
        problem = Problem.make(spec, shape)
        first, again = problem.run(), problem.run()
        problem.check(first)
        assert torch.equal(first, again), f"{shape}: another result the second time"
        alpha, beta = SCALES[number % len(SCALES)]
        problem.check(problem.run(c=problem.c, alpha=alpha, beta=beta), alpha=alpha, beta=beta)


@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_every_width_of_copies(layout: str):
    """A and B are copied 1, 2, 4 or 8 elements at a time, in all combinations."""
    spec = Spec((StreamK(),), (32, 32, 16), layout)
    for width in (1, 2, 4, 8):
        for other in (1, 2, 4, 8):
            # Contiguous axes: k and n of row-major operands, m and k of transposed ones.
            shape = (11, other * 13, width * 5) if layout == "nn" else (width * 11, 13, other * 5)
            Problem.make(spec, shape).check(Problem.make(spec, shape).run())
    made = {(v.vectors.a, v.vectors.b) for v in kernel(spec)._programs}
    assert len(made) == 16


def test_whole_numbers_are_exact():
    """Sums of small integers have no rounding errors, so results are exact in any order."""
    for spec in (SPECS[4], SPECS[2], SPECS[6]):
        for m, n, k in CORNERS:
            k = min(k, 4000)
            problem = Problem.make(spec, (m, n, k))
            for operand in (problem.a, problem.b):
                operand.copy_(torch.randint_like(operand, -2, 3))
            a = problem.a.T if spec.layout[0] == "t" else problem.a
            b = problem.b.T if spec.layout[1] == "t" else problem.b
            exact = (a.double() @ b.double()).to(problem.out().dtype)
            assert torch.equal(problem.run(), exact), (spec, m, n, k)


def test_the_epilogue():
    problem = Problem.make(SPECS[3], (200, 136, 320))
    a, b, c = problem.a, problem.b, problem.c
    run = kernel(problem.spec)
    # C is not read if beta is zero, so NaN in C has no effect.
    nan = torch.full_like(c, float("nan"))
    problem.check(problem.run(c=nan, alpha=2.0, beta=0.0), alpha=2.0)
    # By default C is added.
    problem.check(problem.run(c=c), beta=1.0)
    # A new tensor is returned if `out` is not given.
    made = run(a, b)
    assert made.dtype == c.dtype
    problem.check(made)
    problem.check(run(a, b, c, alpha=0.0, beta=1.0), alpha=0.0, beta=1.0)
    # C and D may be the same tensor.
    inout = c.clone()
    assert run(a, b, inout, out=inout, alpha=0.5, beta=-1.0) is inout
    problem.check(inout, alpha=0.5, beta=-1.0)


def test_padding_is_not_read():
    """NaN around the operands does not change the result, and no element around D is written."""
    m, n, k = 65, 72, 40
    spec = SPECS[7]

    def framed(rows: int, columns: int) -> tuple[Any, Any]:
        memory = torch.full((rows * columns + 2 * 4096,), float("nan"), device="cuda").bfloat16()
        return memory, memory[4096 : 4096 + rows * columns].view(rows, columns)

    (_, a), (_, b), (around, out) = framed(m, k), framed(k, n), framed(m, n)
    for operand in (a, b):
        operand.copy_(torch.randn_like(operand))
    kernel(spec)(a, b, out=out)
    Problem(spec, (m, n, k), a, b, out).check(out)
    assert around[:4096].isnan().all()
    assert around[-4096:].isnan().all()


def test_the_same_ptx_for_every_architecture():
    """On one GPU, PTX for sm_80 and code for sm_86 give the same bits."""
    shape = (300, 264, 520)
    for schedule in ((DataParallel(),), (StreamK(workgroups=50),)):
        spec = Spec(schedule, target="sm_80")
        other = Spec(schedule, target="sm_86")
        one, two = Problem.make(spec, shape), Problem.make(other, shape)
        assert torch.equal(one.a, two.a)
        assert torch.equal(one.run(), two.run())


@pytest.mark.parametrize("target", ["native", "sm_80"])
def test_targets_agree(target: str):
    problem = Problem.make(
        Spec((TwoTileStreamK(),), (128, 128, 64), target=target), (777, 520, 1032)
    )
    problem.check(problem.run())
