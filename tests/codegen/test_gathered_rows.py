"""Products that gather rows of A, or scatter rows of D, by tables that the call passes."""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

import codegen
from codegen.toolchain import assemble
from coordgraph import Gemm, KernelGraph, LaunchError, VerifyError, parse
from coordgraph import epilogue as ep
from coordgraph.coordinates.edges import Gather
from coordgraph.errors import NotInvertible
from coordgraph.interpreter import interpret
from coordgraph.text import from_json, to_json
from passes import DataParallel, Pipeline, SplitK, StreamK, TwoTileStreamK
from tests.support.ptxas import HAS_WHEEL, assert_clean
from tests.support.sampling import cover, quick_cases

SCHEDULES = (
    DataParallel(persistent=True),
    StreamK(),
    TwoTileStreamK(),
    StreamK(reduction="scatter"),
    SplitK(splits=2),
    DataParallel(),
)
KINDS: dict[str, dict[str, Any]] = {
    "gathered": {"gathered_rows": True},
    "scattered": {"scattered_rows": True},
    "both": {"gathered_rows": True, "scattered_rows": True},
}
OFFSETS = np.array([0, 10, 10, 33], np.int32)
M, N, K, ROWS_A, ROWS_D = 37, 24, 40, 50, 60


@ep.epilogue(bias="n", scale="m")
def scaled(acc: Any, bias: Any, scale: Any) -> Any:
    return ep.relu(acc + bias) * scale


@cache
def graph(kind: str, schedule: str, grouped: bool = False) -> KernelGraph:
    gemm = Gemm("f32", grouped=grouped, epilogue=scaled, **KINDS[kind])
    return Pipeline.parse(schedule)(gemm.graph((16, 16, 16)))


def call(kind: str, grouped: bool, seed: int = 0) -> tuple[dict[str, Any], Any]:
    """Arguments of a call, and the D that it must give; rows that are not written are NaN."""
    rng = np.random.default_rng(seed)
    fields = KINDS[kind]

    def whole(*shape: int) -> Any:
        return rng.integers(-3, 4, shape).astype(np.float32)

    rows = rng.integers(0, ROWS_A, M).astype(np.int32)
    targets = rng.permutation(ROWS_D)[:M].astype(np.int32)
    gathered, scattered = "gathered_rows" in fields, "scattered_rows" in fields
    a = whole(ROWS_A if gathered else M, K)
    b = whole(*((3, K, N) if grouped else (K, N)))
    given: dict[str, Any] = {"a": a, "b": b, "bias": whole(N), "scale": whole(M)}
    given |= {"rows": rows} if gathered else {}
    given |= {"targets": targets} if scattered else {}
    given |= {"offsets": OFFSETS} if grouped else {}
    left = a[rows] if gathered else a
    product = np.full((M, N), np.nan, np.float32)
    for group, (start, end) in enumerate(pairwise(OFFSETS)):
        part = slice(start, end) if grouped else slice(None)
        product[part] = left[part] @ (b[group] if grouped else b)
    d = np.maximum(product + given["bias"], 0) * given["scale"][:, None]
    if grouped:
        d[OFFSETS[-1] :] = np.nan
    expected = np.full((ROWS_D, N) if scattered else (M, N), np.nan, np.float32)
    expected[targets if scattered else slice(None)] = d
    return {**given, "out": np.full_like(expected, np.nan)}, expected


@quick_cases(2)
@pytest.mark.parametrize(
    ("kind", "schedule", "grouped", "target"),
    cover(8, product(KINDS, map(str, SCHEDULES[:4]), (False, True), ("interpreter", "cpu"))),
)
def test_rows_are_gathered_and_scattered(kind: str, schedule: str, grouped: bool, target: str):
    kernel = codegen.compile(graph(kind, schedule, grouped), target)
    given, expected = call(kind, grouped)
    found = kernel(**given)
    assert found is given["out"]
    assert np.array_equal(found, expected, equal_nan=True)


@quick_cases(2)
@pytest.mark.parametrize("schedule", [*map(str, SCHEDULES)])
def test_checks_prove_or_examine_such_graphs(schedule: str):
    """No check refutes a correct graph, and `bounds` is proved for all sizes and tables."""
    found = graph("both", schedule).check()
    assert not found.refuted
    assert found["bounds"].outcome.value == "proved for all sizes" or "scatter" in schedule


def test_text_reads_back():
    for kind in KINDS:
        for grouped in (False, True):
            made = graph(kind, "stream-k", grouped)
            assert parse(made.text()) == made
            assert from_json(to_json(made)) == made
    text = graph("both", "stream-k").text()
    assert "table rows [m] <= rows_a - 1 any" in text
    assert "table targets [m] <= rows_d - 1 distinct" in text


def test_a_table_that_may_leave_the_array_is_refuted():
    """`verify` refuses a table whose entries may be too large for the array, or too few."""
    text = graph("both", "stream-k").text()
    for before, after in (("<= rows_a - 1 any", "<= rows_a any"), ("rows [m]", "rows [m - 1]")):
        assert before in text
        with pytest.raises(VerifyError, match=r"Gather\(A.0 -> A.product_row\): .*table 'rows'"):
            parse(text.replace(before, after, 1)).verify()


def test_tables_swapped_between_tensors_are_refuted():
    """`verify` refuses a graph in which A's table, not D's, says where rows of D are stored."""
    text = graph("both", "stream-k").text()
    wrong = text.replace("D.product_row table=targets", "D.product_row table=rows")
    assert wrong != text
    with pytest.raises(VerifyError, match="table 'rows'"):
        parse(wrong).verify("default")


def test_there_is_no_way_from_the_rows_of_the_array():
    with pytest.raises(NotInvertible, match="several times in the table 'rows', or not at all"):
        graph("both", "stream-k").coordinates.forward(("A.0",), ("A.product_row",))


def test_wrong_tables_are_refused():
    kernel = codegen.compile(graph("both", "stream-k"), "cpu")
    given, expected = call("both", False)
    wrong: dict[str, tuple[Any, str]] = {
        "rows": (given["rows"] + ROWS_A, rf"rows\[\d+\] = \d+ is larger than {ROWS_A - 1}"),
        "targets": (given["targets"][:-1], r"targets has the shape \(36,\)"),
        "out": (None, "argument 'out' is missing, but targets holds numbers of rows of out"),
    }
    for name, (value, why) in wrong.items():
        with pytest.raises(LaunchError, match=why):
            kernel(**{**given, name: value})
    with pytest.raises(LaunchError, match="rows is missing: an i32 vector"):
        kernel(**{name: value for name, value in given.items() if name != "rows"})
    repeated = given["targets"].copy()
    repeated[7] = repeated[3]
    with pytest.raises(LaunchError, match=r"targets\[7\] = \d+ is equal to targets\[3\]; give"):
        kernel(**{**given, "targets": repeated})
    negative = given["rows"].copy()
    negative[5] = -1
    with pytest.raises(LaunchError, match=r"rows\[5\] = -1 is negative"):
        kernel(**{**given, "rows": negative})
    assert np.array_equal(kernel(**given), expected, equal_nan=True)


def test_problems_without_one_table_of_rows_are_refused():
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"batched": True}, "which batched=True does not allow"),
        ({"grouped": True, "group_axis": "k"}, "which group_axis=k does not allow"),
        ({"transpose_a": True}, "set transpose_a=False"),
    )
    for fields, why in cases:
        with pytest.raises(VerifyError, match=why):
            Gemm("bf16", gathered_rows=True, **fields)


def test_an_empty_product_writes_nothing():
    kernel = codegen.compile(graph("both", "stream-k"), "cpu")
    given, _ = call("both", False)
    none = np.zeros(0, np.int32)
    empty = {**given, "rows": none, "targets": none, "scale": np.zeros(0, np.float32)}
    assert np.isnan(kernel(**empty)).all()


@quick_cases(1)
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("architecture", "kind", "family"),
    [
        ("sm_80", "both", "mma.sync"),
        ("sm_90a", "both", "wgmma"),
        ("sm_90a", "scattered", "wgmma"),
    ],
)
def test_gpu_kernels_assemble(architecture: str, kind: str, family: str, grouped: bool):
    """Kernels that gather or scatter rows assemble, without register spills."""
    gemm = Gemm("bf16", transpose_b=True, grouped=grouped, epilogue=scaled, **KINDS[kind])
    tile = (128, 128, 64 if family == "wgmma" else 32)
    kernel = codegen.compile(StreamK()(gemm.graph(tile)), architecture)
    assert kernel.instruction_family.startswith(family)
    assert not kernel.lowered.check().refuted
    found = {e.coordinate: e.index for e in kernel.index_expressions}
    assert "load(targets, min(" in found["D"]
    assert ("load(rows, min(" in found.get("A", "")) == (kind == "both")
    if HAS_WHEEL:
        assert_clean(assemble(kernel.ptx, architecture))


def test_gather_reads_inside_its_table_in_padding():
    """In rows of padding, `Gather` reads the table's last entry instead of one past its end."""
    made = graph("both", "stream-k").coordinates
    (edge,) = (e for e in made.edges if isinstance(e, Gather) and e.table == "rows")
    index = str(made.reverse({"A.tile.0": 3, "A.index.0": 5}, ("A.0",))[0])
    assert edge.table in index
    assert "m - 1" in index


def test_the_interpreter_takes_tables_by_name():
    given, expected = call("both", False)
    scheduled = graph("both", "stream-k")
    tables = {name: given[name] for name in ("rows", "targets")}
    operands = {name: given[name] for name in ("bias", "scale")}
    parameters = {"workgroups": 5, "rows_d": ROWS_D}
    options: Any = {"parameters": parameters, "tables": tables, "operands": operands}
    found = interpret(scheduled, given["a"], given["b"], **options)
    assert np.array_equal(found.d, expected, equal_nan=True)
    assert found.written.sum() == M * N


def test_matmul_chooses_a_kernel_for_tables():
    given, expected = call("both", False)
    a, b, rows, targets = (given[name] for name in ("a", "b", "rows", "targets"))
    exact = a[rows] @ b
    for _ in range(2):  # the second call finds the first one's kernel
        assert np.array_equal(codegen.matmul(a, b, rows=rows), exact)
    out = np.zeros_like(expected)
    assert (
        codegen.matmul(a, b.T.copy(), transpose_b=True, rows=rows, targets=targets, out=out) is out
    )
    assert np.array_equal(out[targets], exact)
    assert not np.delete(out, targets, axis=0).any()
    operands = {"epilogue": scaled, "bias": given["bias"], "scale": given["scale"]}
    codegen.matmul(a, b, rows=rows, targets=targets, out=out, **operands)
    assert np.array_equal(out[targets], expected[targets])


@pytest.mark.parametrize("table", ["rows", "targets"])
@pytest.mark.parametrize("n", [16, 24])
def test_out_may_be_column_major_where_a_table_has_an_entry_for_each_row(table: str, n: int):
    """Rows are gathered and scattered, not columns, also if D is square."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((16, 40), (40, n)))
    entries = rng.permutation(16).astype(np.int32)
    out = np.zeros((16, n), np.float32, order="F")
    tables: dict[str, Any] = {table: entries}
    codegen.matmul(a, b, out=out, **tables)
    exact = a[entries] @ b if table == "rows" else (a @ b)[np.argsort(entries)]
    assert np.array_equal(out, exact)


def test_grouped_matmul_takes_tables():
    """A mixture of experts: rows of tokens are gathered by expert, and scattered back."""
    given, _ = call("both", True)
    a, b, rows, targets = (given[name] for name in ("a", "b", "rows", "targets"))
    out = np.zeros((ROWS_D, N), np.float32)
    codegen.grouped_matmul(a, b, OFFSETS, rows=rows, targets=targets, out=out)
    for group, (start, end) in enumerate(pairwise(OFFSETS)):
        assert np.array_equal(out[targets[start:end]], a[rows[start:end]] @ b[group])
    assert not np.delete(out, targets[: OFFSETS[-1]], axis=0).any()


def test_refusals_of_matmul_say_what_to_pass():
    given, _ = call("both", False)
    a, b, rows, targets = (given[name] for name in ("a", "b", "rows", "targets"))
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        (
            {"targets": targets},
            "argument 'out' is missing, but targets holds numbers of rows of out",
        ),
        ({"rows": rows.astype(np.int64)}, r"convert it by rows\.to\(torch\.int32\)"),
        ({"rows": [0, 1]}, "rows is a list, which is no array"),
        ({"rows": rows, "tune": True}, "leave out tune"),
    )
    for options, why in cases:
        with pytest.raises(LaunchError, match=why):
            codegen.matmul(a, b, **options)
    column_major: tuple[tuple[Any, bool], ...] = ((np.asfortranarray(a), False), (a.T.copy(), True))
    for array, transpose_a in column_major:
        with pytest.raises(LaunchError, match=r"pass a row-major a .* np\.ascontiguousarray\(a\)"):
            codegen.matmul(array, b, rows=rows, transpose_a=transpose_a)
    with pytest.raises(VerifyError, match="which group_axis=k does not allow"):
        codegen.grouped_matmul(a, b, OFFSETS, group_axis="k", rows=rows)
