"""`interpret` computes products of all types, and refuses wrong arguments and wrong schedules."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from sympy import Integer

import codegen
from coordgraph import EvaluationError, Gemm, KernelGraph, LaunchError, VerifyError, parse
from coordgraph.control.operations import (
    For,
    InitAccumulator,
    LoadTile,
    Operation,
    ReceivePartial,
    SendPartial,
    StoreTile,
)
from coordgraph.coordinates.traverse import Solution, solve
from coordgraph.integers import Minimum
from coordgraph.interpreter import SCHEDULERS, Deadlock, Event, interpret
from coordgraph.interpreter.program import program
from coordgraph.interpreter.schedulers import InOrder
from passes import DataParallel, StreamK
from tests.support.sampling import quick_cases

M, N, K = 7, 10, 9
TYPES = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}


def whole(*shape: int, dtype: object = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def graph(gemm: Gemm | None = None, workgroups: int = 5, **options: object) -> KernelGraph:
    return StreamK(workgroups=workgroups, **options)((gemm or Gemm("f32")).graph((4, 4, 4)))


def test_schedulers_are_given_by_object_or_name():
    a, b = whole(M, K), whole(K, N, seed=1)
    for schedule in (*SCHEDULERS, InOrder()):
        np.testing.assert_array_equal(interpret(graph(), a, b, schedule=schedule).d, a @ b)
    for wrong in ("shufled", InOrder, 3):
        with pytest.raises(LaunchError, match="is no scheduler; give an object with a method choo"):
            interpret(graph(), a, b, schedule=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["2", b"2"])
def test_text_is_no_number(text: object):
    a, b = whole(M, K), whole(K, N, seed=1)
    with pytest.raises(LaunchError, match=f"alpha = {text!r} is not a number"):
        interpret(graph(), a, b, alpha=text)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match=f"alpha = {text!r} is not a number"):
        codegen.matmul(a, b, alpha=text)  # type: ignore[arg-type]


@quick_cases(9)
@pytest.mark.parametrize("out", TYPES)
@pytest.mark.parametrize("name", TYPES)
def test_types(name: str, out: str):
    a, b = whole(M, K, dtype=TYPES[name]), whole(K, N, dtype=TYPES[name], seed=1)
    d = interpret(graph(Gemm(name, out)), a, b).d
    assert d.dtype == np.dtype(TYPES[out])
    assert d.shape == (M, N)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(d.astype(np.float64), exact.astype(TYPES[out]).astype(np.float64))


@pytest.mark.parametrize(("name", "large"), [("bf16", 1024), ("f16", 2048)])
def test_sums_are_kept_in_the_accumulator_type(name: str, large: int):
    # In bf16 or f16, large + 1 rounds to `large`, so a sum in that type would lose the ten ones.
    a = np.array([[large, *[1] * 10]], TYPES[name])
    b = np.ones((11, 1), TYPES[name])
    assert interpret(graph(Gemm(name, "f32")), a, b).d.item() == large + 10


def test_a_graph_is_asked_once(monkeypatch: pytest.MonkeyPatch):
    """Only the first run of a graph solves the coordinate graph for index formulas."""
    asked: list[tuple[object, ...]] = []

    def noted(*question: object) -> Solution:
        asked.append(question)
        return solve(*question)

    program.cache_clear()
    monkeypatch.setattr("coordgraph.control.scope.solve", noted)
    g, a, b = graph(), whole(M, K), whole(K, N, seed=1)
    first = interpret(g, a, b)
    assert asked
    asked.clear()
    assert np.array_equal(interpret(g, a, b).d, first.d)
    assert asked == []


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_transposed_operands(transpose_a: bool, transpose_b: bool):
    a, b = whole(M, K), whole(K, N, seed=1)
    g = graph(Gemm("f32", transpose_a=transpose_a, transpose_b=transpose_b))
    d = interpret(g, a.T if transpose_a else a, b.T if transpose_b else b).d
    assert np.array_equal(d, a @ b)


def test_alpha_beta_and_c():
    a, b, c = whole(M, K), whole(K, N, seed=1), whole(M, N, seed=2)
    d = interpret(graph(), a, b, c, alpha=2.0, beta=-0.5).d
    assert np.array_equal(d, 2 * (a @ b) - 0.5 * c)


def test_c_is_not_read_where_beta_is_zero():
    a, b = whole(M, K), whole(K, N, seed=1)
    d = interpret(graph(), a, b, np.full((M, N), np.nan, np.float32), beta=0.0).d
    assert np.array_equal(d, a @ b)


def test_c_is_added_by_default():
    """The default of beta is 1 if C is given."""
    a, b, c = whole(M, K), whole(K, N, seed=1), whole(M, N, seed=2)
    assert np.array_equal(interpret(graph(), a, b, c).d, a @ b + c)


def test_nan_and_infinity_pass_through_and_padding_adds_neither():
    a, b = whole(M, K), whole(K, N, seed=1)
    a[2, 3], b[0, 1] = np.inf, np.nan
    with np.errstate(all="ignore"):
        assert np.array_equal(interpret(graph(), a, b).d, a @ b, equal_nan=True)


def test_the_trace_comes_with_the_result():
    a, b = whole(M, K), whole(K, N, seed=1)
    assert interpret(graph(), a, b).trace is None
    found = interpret(graph(), a, b, trace=True).trace
    assert found is not None
    assert found.problems() == ()
    assert found.tiles == (2, 3, 3)
    assert len(found.workgroups) == 5


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"a": whole(M, K + 1)}, r"B has the shape \(9, 10\): axis 0 of \(k, n\) must be 10"),
        ({"c": whole(N, M)}, r"C has the shape \(10, 7\): axis 0 of \(m, n\) must be 7"),
        ({"a": whole(M, K, dtype=np.float64)}, "A has elements of type f64; the graph needs f32"),
        ({"b": whole(K, N, dtype=np.int32)}, "B has elements of type i32"),
        ({"b": whole(K, N, dtype=np.uint16)}, "B has elements of type uint16"),
        ({"b": whole(K, N, dtype=np.uint8)}, "B has elements of type u8; the graph needs f32"),
        ({"a": whole(M)}, "A has 1 axes, but the graph needs 2"),
        ({"a": [[1.0]]}, "A is a list, not a numpy array"),
        ({"beta": 1.0}, "beta = 1.0 needs c"),
        ({"parameters": {"m": 8}}, r"A has the shape \(7, 9\): axis 0 of \(m, k\) must be 8"),
        ({"parameters": {"workgroups": 8}}, "not a parameter of this kernel: workgroups"),
        ({"resident": 0}, "resident = 0 workgroups is too few"),
        ({"a": whole(0, K)}, "m = 0 is outside"),
    ],
)
def test_arguments_that_do_not_fit(changed: dict[str, object], why: str):
    arguments = {"a": whole(M, K), "b": whole(K, N), **changed}
    with pytest.raises(LaunchError, match=why):
        interpret(graph(), **arguments)


def test_a_batch_of_none():
    batched = DataParallel()(Gemm("f32", batched=True).graph((4, 4, 4)))
    with pytest.raises(LaunchError, match="batches = 0 is outside"):
        interpret(batched, np.ones((0, M, K), np.float32), np.ones((0, K, N), np.float32))


def test_a_graph_of_numbers_takes_no_other_size():
    g = graph(Gemm("f32", m=M, n=N, k=K))
    assert np.array_equal(interpret(g, whole(M, K), whole(K, N)).d, whole(M, K) @ whole(K, N))
    with pytest.raises(
        LaunchError, match=r"A has the shape \(8, 9\): axis 0 of \(7, 9\) must be 7"
    ):
        interpret(g, whole(M + 1, K), whole(K, N))


def test_a_launch_argument_is_missing():
    with pytest.raises(LaunchError, match="'workgroups' needs a value"):
        interpret(StreamK()(Gemm("f32").graph()), whole(M, K), whole(K, N))


def test_a_graph_without_a_schedule():
    with pytest.raises(VerifyError, match="this graph has no schedule"):
        interpret(Gemm("f32").graph(), whole(M, K), whole(K, N))


def changed(g: KernelGraph, kind: type[Operation], *instead: Operation) -> KernelGraph:
    """The graph with every operation of a kind replaced by other operations."""
    with g.edit("broken") as e:
        e.control = e.control.rewrite(lambda op: instead if isinstance(op, kind) else op)
    return e.graph


def run(g: KernelGraph, kind: str = "in-order") -> np.ndarray:
    a, b = whole(M, K), whole(K, N, seed=1)
    return interpret(g, a, b, schedule=SCHEDULERS[kind]()).d


SEND, RECEIVE = SendPartial("partial.slot"), ReceivePartial("partial.slot")


def test_nobody_sends():
    with pytest.raises(
        Deadlock, match="all 3 running workgroups wait for flags of workspace slots: 0 for slot 1"
    ) as caught:
        run(changed(graph(), SendPartial))
    assert caught.value.waiting == {0: 1, 1: 2, 3: 4}
    assert isinstance(caught.value, EvaluationError)


def test_nobody_receives():
    with pytest.raises(EvaluationError, match=r"flags\[1\] is still set .* workgroup 1 set it"):
        run(changed(graph(), ReceivePartial))


def test_a_partial_is_received_twice():
    with pytest.raises(Deadlock, match="0 for slot 1"):
        run(changed(graph(), ReceivePartial, RECEIVE, RECEIVE))


def test_a_partial_is_sent_before_the_last_one_is_received():
    with pytest.raises(
        EvaluationError, match=r"workgroup 4 overwrites workspace slot 4 before .* workgroup 4"
    ):
        run(changed(graph(), SendPartial, SEND, SEND), "reversed")


def test_an_output_tile_is_written_by_its_peers_too():
    store = StoreTile("D", ("D.tile.0", "D.tile.1"))
    with pytest.raises(EvaluationError, match="elements of D are written more than once"):
        run(changed(graph(), SendPartial, SEND, store))


def test_an_output_tile_is_not_written():
    with pytest.raises(EvaluationError, match=r"70 elements of D are written never.*\(0, 0\)"):
        run(changed(graph(), StoreTile))


def test_an_index_that_no_guard_keeps_inside():
    """The interpreter refuses a load outside a tensor if no guard masks it."""
    g = DataParallel()(Gemm("f32", m=4, n=4, k=4).graph((4, 4, 4)))
    (loop,) = g.control.of_kind(For)
    with g.edit("broken") as e:
        e.control = e.control.rewrite(
            lambda op: For("k_tile", Integer(0), Integer(2), body=op.body) if op == loop else op
        )
    # k is a multiple of the tile, so the graph has no guard. The loop's second iteration, which the
    # edit added, loads outside A and B.
    a = whole(4, 4)
    with pytest.raises(EvaluationError, match=r"are outside 0\.\.15, and no guard"):
        interpret(e.graph, a, a)


def test_an_accumulator_without_a_beginning():
    with pytest.raises(EvaluationError, match="'acc' is used before it is zeroed"):
        run(changed(graph(), InitAccumulator))


def test_a_loop_that_goes_nowhere():
    g = graph()
    (loop,) = (op for op in g.control.of_kind(For) if op.dim == "for_tile")
    still = For(loop.dim, loop.start, loop.stop, Minimum(loop.symbol, 0), loop.body)
    with g.edit("broken") as e:
        e.control = e.control.rewrite(lambda op: still if op == loop else op)
    with pytest.raises(EvaluationError, match="the loop over for_tile steps by 0"):
        run(e.graph)


def test_product_of_what_was_not_loaded():
    with pytest.raises(EvaluationError, match="no LoadTile loads A and B"):
        run(changed(graph(), LoadTile))


def test_every_point_is_an_interruption():
    """After every event, the interpreter asks its scheduler which workgroup runs next."""

    class Watching(InOrder):
        def __init__(self) -> None:
            self.seen: list[tuple[int, str, int]] = []

        def choose(self, ready: dict[int, Event]) -> int:
            chosen = super().choose(ready)
            self.seen.append((chosen, ready[chosen].point.value, ready[chosen].slot))
            return chosen

    g, watching = graph(workgroups=2), Watching()
    interpret(g, whole(4, 8), whole(8, 4), schedule=watching)
    assert watching.seen == [
        (0, "begin", -1),
        (0, "segment", -1),
        (1, "begin", -1),
        (1, "segment", -1),
        (1, "send", 1),
        (1, "raise", 1),
        (0, "wait", 1),
        (0, "clear", 1),
        (0, "cleared", 1),
    ]


def test_the_order_of_dimensions_changes_nothing():
    graph = DataParallel(persistent=True, workgroups=2)(Gemm("f32", grouped=True).graph((4, 4, 4)))
    lines = graph.text().split("\n")
    first, second = (
        next(i for i, line in enumerate(lines) if line.startswith(f"dim D.{axis}:"))
        for axis in (0, 1)
    )
    lines[first], lines[second] = lines[second], lines[first]
    a, b = whole(4, 3), whole(2, 3, 9)
    tables = {"offsets": np.array([0, 1, 4], np.int32)}
    d = interpret(parse("\n".join(lines)), a, b, tables=tables).d
    assert np.array_equal(d, interpret(graph, a, b, tables=tables).d)


def test_a_workspace_larger_than_the_memory_is_refused():
    graph = StreamK(workgroups=3)(Gemm("f64", n=64).graph((3, 2**31, 2)))
    with pytest.raises(LaunchError, match="bytes, more than this machine has"):
        interpret(graph, whole(5, 4, dtype=np.float64), whole(4, 64, dtype=np.float64))


def test_memory_that_cannot_be_allocated_is_an_error_of_the_library(
    monkeypatch: pytest.MonkeyPatch,
):
    def full(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "full", full)
    with pytest.raises(LaunchError, match="the outputs and the workspace of the launch need"):
        interpret(DataParallel()(Gemm("f32").graph((4, 4, 4))), whole(5, 4), whole(4, 6))
