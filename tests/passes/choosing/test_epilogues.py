from __future__ import annotations

from dataclasses import replace

import pytest

import coordgraph as cg
from coordgraph import epilogue as ep
from passes.choosing import choices, constants_of
from passes.choosing.candidates import candidates
from passes.choosing.operand_reads import OperandReads
from passes.lowering import LowerToHopper
from tests.passes.choosing.test_candidates import plans_of
from tests.support.sampling import quick_cases

H200 = constants_of("NVIDIA H200")
SIZE = {"m": 4096, "n": 6144, "k": 512}


@ep.epilogue(bias="n", residual=ep.operand("mn", dtype="f32"))
def residual_f32(acc, bias, residual):
    return ep.gelu(acc + bias) + residual


@ep.epilogue(bias="n", residual="mn")
def residual_bf16(acc, bias, residual):
    return ep.gelu(acc + bias) + residual


@ep.epilogue(bias="n")
def bias_alone(acc, bias):
    return acc + bias


def gemm(epilogue=None) -> cg.Gemm:
    more = {} if epilogue is None else {"epilogue": epilogue}
    return cg.Gemm("bf16", transpose_b=True, **SIZE, **more)


def test_bytes_of_operands():
    extents = {"l": 3, "m": 10, "n": 20, "k": 30}
    read = {
        f.name: OperandReads.of(gemm(f), extents, reads_c=False) for f in (residual_f32, bias_alone)
    }
    assert read["residual_f32"] == OperandReads(4, 2 * 20 + 4 * 10 * 20)
    assert read["bias_alone"] == OperandReads(0, 2 * 20)
    assert OperandReads.of(gemm(), extents, reads_c=False) == OperandReads(0, 0)
    assert OperandReads.of(gemm(), extents, reads_c=True) == OperandReads(2, 3 * 2 * 10 * 20)


def test_outputs_besides_d_are_counted():
    @ep.epilogue(pre=ep.output(), wide=ep.output(dtype="f32"))
    def two_more(acc):
        return acc, acc, acc

    extents = {"l": 3, "m": 10, "n": 20, "k": 30}
    found = OperandReads.of(gemm(two_more), extents, reads_c=False)
    assert found == OperandReads(0, 3 * 10 * 20 * (2 + 4))


@quick_cases(1)
@pytest.mark.parametrize("function", [residual_f32, residual_bf16, bias_alone])
def test_plans_leave_registers_for_what_the_epilogue_reads(function):
    problem = gemm(function)
    for choice in list(choices(problem, H200))[:6]:
        graph = choice.plan.graph(problem)
        lowering = choice.plan.lowering
        assert isinstance(lowering, LowerToHopper)
        assert lowering.why_not(graph) is None, choice.plan


def test_wide_operands_of_every_element_exclude_the_largest_tiles():
    def largest(problem: cg.Gemm) -> float:
        table = candidates(problem, H200)
        parts = table.tile_m * table.tile_n / (table.cluster_m * table.cluster_n)
        return float(parts.max())

    assert largest(gemm(bias_alone)) == largest(gemm())
    assert largest(gemm(residual_f32)) < largest(gemm())


def test_what_is_read_takes_time():
    plain, wide = (candidates(gemm(f), H200) for f in (bias_alone, residual_bf16))
    assert not candidates(gemm(), H200).operand_bytes.any()
    assert (wide.operand_bytes > plain.operand_bytes[0]).all()
    functions = (None, bias_alone, residual_bf16, residual_f32)
    best = [next(iter(choices(gemm(f), H200))).seconds for f in functions]
    assert best == sorted(best)
    assert best[2] > best[1]


@ep.epilogue(squares=ep.output("m", reduce="sum"))
def with_squares(acc):
    return acc, acc * acc


def test_plans_for_reductions_of_rows_keep_rows_in_one_workgroup():
    """No candidate has a cluster along n, or divides the fix-up of a tile among workgroups."""
    for m, n, k in ((300, 500, 9000), (2048, 8192, 4096)):
        product = cg.Gemm("bf16", m=m, n=n, k=k)
        problem = replace(product, epilogue=with_squares)
        plain, table = candidates(product, H200), candidates(problem, H200)
        schedules = {table.schedules[int(number)] for number in table.schedule}
        reductions = {getattr(schedule, "reduction", "") for schedule in schedules}
        assert (table.cluster_n == 1).all()
        assert (plain.cluster_n > 1).any()
        assert "scatter" not in reductions
        for choice in list(choices(problem, H200))[:4]:
            graph = choice.plan.graph(problem)
            assert choice.plan.lowering.why_not(graph) is None, choice.plan


@ep.epilogue(
    squares=ep.output("m", reduce="sum"),
    largest=ep.output("m", reduce="max"),
    total=ep.output("m", reduce="logsumexp"),
)
def with_statistics(acc):
    return acc, acc * acc, acc, acc


@pytest.mark.parametrize("m", [16, 72, 96, 300])
def test_reductions_of_rows_leave_out_tiles_for_which_threads_lack_registers(m: int):
    """With B as wgmma's left operand a thread holds elements of many rows."""
    problem = replace(cg.Gemm("bf16", m=m, n=4096, k=4096), epilogue=with_statistics)
    plans = {(p.tile, p.cluster): p for p in plans_of(candidates(problem, H200))}
    assert len(plans) > 10
    for plan in plans.values():
        if plan.consumers == "cooperative":
            graph = plan.graph(problem)
            assert plan.lowering.why_not(graph) is None, plan


@ep.epilogue(total=ep.output("m", reduce="logsumexp"))
def total_alone(acc):
    return None, acc


@ep.epilogue(total=ep.output("m", reduce="logsumexp"))
def with_total(acc):
    return acc, acc


def test_a_d_that_is_not_stored_takes_no_time_and_no_shared_memory():
    alone, stored = (candidates(gemm(f), H200) for f in (total_alone, with_total))
    assert not alone.out_bytes.any()
    assert stored.out_bytes.all()
    best, slower = (next(iter(choices(gemm(f), H200))) for f in (total_alone, with_total))
    assert best.seconds < slower.seconds
    lowering = best.plan.lowering
    assert isinstance(lowering, LowerToHopper)
    assert lowering.why_not(best.plan.graph(gemm(total_alone))) is None
