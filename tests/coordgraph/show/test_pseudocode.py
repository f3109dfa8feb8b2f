"""Tests of `KernelGraph.pseudocode`, which prints the loop nest of a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from sympy import And, Eq, Expr, Lt, Not, Or

from coordgraph import Gemm, KernelGraph
from coordgraph.control.asynchronous import Advance, Counter
from coordgraph.control.graph import ControlGraph
from coordgraph.control.lowered import Barrier, CopyElements, Prefetch
from coordgraph.control.operations import (
    For,
    Kernel,
    LoadTile,
    SetCoordinate,
)
from coordgraph.coordinates.dimensions import MacroTileNumber
from coordgraph.coordinates.edges import Flatten, Swizzle
from coordgraph.integers import (
    BitXor,
    FloorDiv,
    FloorMod,
    Minimum,
    Ranges,
    Select,
    index_symbol,
    size_symbol,
)
from coordgraph.show import ccode
from coordgraph.show.ccode import to_c
from passes import Pass, Pipeline
from tests.coordgraph.text.graphs import PIPELINES, lowered, scheduled
from tests.support.golden import Golden
from tests.support.sampling import quick_cases

SEED = Gemm(m=1280, n=1536, k=16384)


@quick_cases(4)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_golden(pipeline: str, golden: Golden):
    name = re.sub(r"\W+", "-", pipeline).strip("-") or "problem"
    golden(scheduled(Gemm(), pipeline).pseudocode(), f"coordgraph/show/{name}.c")


def test_lowered_operations_have_every_index_written_out():
    lines = [line.strip() for line in lowered().pseudocode().splitlines()]
    copies = [line for line in lines if line.startswith("CopyElements")]
    stores = [line for line in lines if line.startswith("StoreFragment")]
    assert copies
    assert all(re.match(r"CopyElements [AB]\[.*\] -> [AB]\.shared\[.*\] \(", c) for c in copies)
    assert stores
    assert all(re.search(r"destination (D|partials)\[.*workitem.*\]", s) for s in stores)
    assert any(re.fullmatch(r"SignalFlag \(flag flags\[workgroup\].*\);", line) for line in lines)
    assert "#pragma unroll" in lines


def test_a_table_that_sorts_is_code():
    """For a table made by sorting, the pseudocode has a loop over keys, and a call that sorts."""
    lines = (
        scheduled(Gemm("f32", grouped=True, group_axis="k"), "longest-first")
        .pseudocode()
        .splitlines()
    )
    at = lines.index("int order[groups] = {0};  // groups, those with most k tiles first")
    assert lines[at + 1 : at + 3] == [
        "int order_keys[groups] = {0};",
        "for (uint order_at = 0; order_at < groups; order_at++)",
    ]
    assert re.fullmatch(r"    order_keys\[order_at\] = \(.*\) / \d+;", lines[at + 3])
    assert lines[at + 4] == (
        "argsort_descending(order, order_keys, groups);  // equal keys in their order"
    )


def test_stream_k_of_a_fixed_problem():
    """Stream-K's pseudocode has the expected lines for 10 x 12 tiles and 32 workgroups."""
    text = scheduled(SEED, "stream-k{workgroups=32}").pseudocode()
    for line in (
        "for (uint workgroup = 0; workgroup < 32; workgroup++)",
        "uint k_first = (for_tile + 384*workgroup) % 512;",
        "acc += A tile * B tile;",
        "// store partial tile to workspace slot workgroup",
        "while (flags[partial_slot] == 0);",
        "// if (read_c) acc = acc + C[m, n] * beta;",
    ):
        assert line in text


class Unsigned(int):
    """C's `uint`: arithmetic is modulo 2^32."""

    def __new__(cls, value: int) -> Unsigned:
        return super().__new__(cls, int(value) % 2**32)


def wrapping(name: str) -> Callable[[int, int], Unsigned]:
    return lambda a, b: Unsigned(getattr(int, name)(Unsigned(a), Unsigned(b)))


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    for _side in ("__", "__r"):
        setattr(Unsigned, f"{_side}{_name}__", wrapping(f"{_side}{_name}__"))
Unsigned.__neg__ = lambda self: Unsigned(2**32 - int(self))  # type: ignore[method-assign]


def signed(value: int) -> int:
    """The signed 32-bit integer whose bits are those of the unsigned integer `value`."""
    return (int(value) + 2**31) % 2**32 - 2**31


C_NAMES = {
    "Unsigned": Unsigned,
    "floor_div": lambda a, b: Unsigned(signed(a) // signed(b)),
    "floor_mod": lambda a, b: Unsigned(signed(a) % signed(b)),
}


@dataclass(frozen=True)
class Backwards(Pass):
    """A pass after which output tiles are visited from the last to the first."""

    name = "test-pseudocode-backwards"
    establishes = ("problem",)

    def apply(self, graph: KernelGraph) -> KernelGraph:
        row, column = graph.dangling
        with graph.edit(str(self)) as e:
            c, count = e.coordinates, row.size * column.size  # type: ignore[operator]
            flat = c.add(MacroTileNumber("flat", count))
            turned = c.add(MacroTileNumber("turned", count))
            c.connect(Flatten((row.id, column.id), flat.id))
            c.connect(Swizzle(flat.id, turned.id, function="reflect"))
        return e.graph


def as_python(text: str) -> str:
    """The loops, branches and assignments of pseudocode as Python code.

    The load of a B tile becomes code that appends its tile numbers to `visits`.
    """
    lines, steps = list[str](), dict[int, str]()
    for line in text.splitlines():
        depth = len(line) - len(line.lstrip())
        indent, code = " " * depth, line.split("//")[0].strip().rstrip(";")
        if "// load B tile" in line:
            lines.append(f"{indent}visits.append((tile_m, tile_n, tile_k))")
        elif loop := re.fullmatch(r"for \(uint (\w+) = (.*); (.*); (.*)\)", code):
            name, start, condition, step = loop.groups()
            lines += [f"{indent}{name} = Unsigned({start})", f"{indent}while {condition}:"]
            steps[depth] = step.replace("++", " += 1")
        elif branch := re.fullmatch(r"if \((.*)\)", code):
            lines.append(f"{indent}if {branch[1].replace('&&', 'and')}:")
        elif code == "else":
            lines.append(f"{indent}else:")
        elif code == "{":
            # Braces without `for` or `if` only limit the scope of a variable.
            if not lines or not lines[-1].endswith(":") or lines[-1].startswith(indent + " "):
                lines.append(f"{indent}if True:")
            lines.append(f"{indent}    pass")
        elif code == "}":
            lines.append(f"{indent}    {steps.pop(depth, 'pass')}")
        elif assigned := re.fullmatch(r"(?:uint |auto )?(\w+) = (.*)", code):
            lines.append(f"{indent}{assigned[1]} = Unsigned({assigned[2]})")
    return "\n".join(lines).replace("/", "//")


@quick_cases(9)
@pytest.mark.parametrize(
    "pipeline",
    [
        "data-parallel",
        "data-parallel{persistent=true,workgroups=5}",
        "reorder{swap=true},stream-k{workgroups=7}",
        "stream-k{workgroups=5,owner=last}",
        "two-tile-stream-k{workgroups=5}",
        "two-tile-stream-k{workgroups=5,owner=last,first=dp}",
        f"{Backwards.name},stream-k{{workgroups=5}}",
        f"{Backwards.name},data-parallel{{persistent=true,workgroups=5}}",
    ],
)
@pytest.mark.parametrize(("m", "n", "k"), [(5, 3, 4), (4, 7, 3), (1, 1, 9)])
def test_what_it_says_is_right(pipeline: str, m: int, n: int, k: int):
    """Run as a program, the pseudocode visits every k tile of every output tile exactly once."""
    graph = scheduled(Gemm(m=128 * m, n=128 * n, k=32 * k), pipeline)
    visits: list[tuple[int, int, int]] = []
    exec(as_python(graph.pseudocode()), {"visits": visits, **C_NAMES})
    every = {(i, j, x) for i in range(m) for j in range(n) for x in range(k)}
    assert len(visits) == len(every)
    assert set(visits) == every


def test_what_may_be_negative_is_divided_by_a_function():
    """A dividend that may be negative is divided by `floor_div`, because C rounds towards 0."""
    text = scheduled(Gemm(), f"{Backwards.name},stream-k").pseudocode()
    tile = r"uint tile_m = floor_div\(-.*, tiles_n\) \+ tiles_m;"
    assert re.search(tile, text)
    assert text.splitlines()[1].startswith("int floor_div(int a, int b) { return a / b - (a % b")
    assert "floor_" not in scheduled(Gemm(), "stream-k").pseudocode()


def test_a_variable_is_written_again_where_a_loop_changes_its_value():
    load = LoadTile("A", ("A.tile.0", "A.tile.1"))
    graph = around(For("k_tile", 0, 4, 1, (load, For("k_tile", 0, 2, 1, (load,)))))
    assert graph.pseudocode().count("tile_k = k_tile;") == 2
    assert graph.pseudocode().count("tile_m = workgroup / tiles_n;") == 1


def test_a_counter_is_a_variable_that_is_moved_on():
    text = around(Counter("k_tile", (For("A.index.1", 0, 2, 1, (Advance("k_tile", 3),)),)))
    assert text.pseudocode().split("workgroup++)\n")[1] == (
        "{\n    {\n        uint k_tile = 0;\n"
        "        for (uint A_index_1 = 0; A_index_1 < 2; A_index_1++)\n"
        "        {\n            k_tile += 3;\n        }\n    }\n}\n"
    )


def test_what_is_not_scheduled_is_said():
    text = scheduled(Gemm(), "").pseudocode()
    assert "// for one tile: A_tile_0, B_tile_1 are not scheduled yet" in text


def test_a_tile_that_nothing_gives_is_said():
    graph = replace(
        scheduled(Gemm(), ""),
        control=ControlGraph(Kernel((LoadTile("A", ("A.tile.0", "A.0")),))),
    )
    assert "// tile of A: no reverse path leads to 'A.0'" in graph.pseudocode()


def around(*operations) -> KernelGraph:
    graph = scheduled(Gemm(), "data-parallel")
    return replace(graph, control=ControlGraph(Kernel(operations, "workgroup")))


def test_other_operations_show_fields_and_indices():
    copy = CopyElements("A", "D", 8)
    at = SetCoordinate("A.index.0", 5, (SetCoordinate("A.index.1", 1, (copy,)),))
    text = around(SetCoordinate("k_tile", 2, (at,)), Prefetch("p", (Barrier(),)), copy).pseudocode()
    assert "CopyElements A[k*(128*(workgroup / tiles_n) + 5) + 65] -> D (width 8);" in text
    assert "    Prefetch (name p)\n    {\n        Barrier;\n    }\n" in text
    assert "    CopyElements A -> D (width 8);" in text


def test_a_step_counts_from_an_ordinal_and_unrolling_is_said():
    loop = For("k_tile", 4, size_symbol("tiles_k"), 3, (Barrier(),), unroll=True)
    assert around(loop).pseudocode().split("workgroup++)\n")[1] == (
        "{\n    #pragma unroll\n"
        "    for (uint k_tile_ordinal = 0; k_tile_ordinal < (tiles_k + 1) / 3 - 1; "
        "k_tile_ordinal++)\n"
        "    {\n        uint k_tile = 3*k_tile_ordinal + 4;\n        Barrier;\n    }\n}\n"
    )


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (lambda a, b: FloorDiv(FloorDiv(a, b), 3), "(a / b) / 3"),
        (lambda a, b: FloorMod(FloorDiv(a + b, 2), b), "((a + b) / 2) % b"),
        (lambda a, b: Minimum(a, FloorDiv(b, 2)), "min(a, b / 2)"),
        (lambda a, b: Select(Lt(a, b), a, b), "a < b ? a : b"),
        (lambda a, b: Select(Lt(a, b), a, b) * 2, "2*(a < b ? a : b)"),
        (lambda a, b: Select(Lt(a, b), Select(Lt(a, 1), 1, a), b), "a < b ? (a < 1 ? 1 : a) : b"),
        (lambda a, b: Lt(BitXor(a, b), 3), "(a ^ b) < 3"),
        (lambda a, b: BitXor(a + 1, b) + 1, "(a + 1 ^ b) + 1"),
        (lambda a, b: And(Lt(a, 3), Eq(b, 1)), "a < 3 && b == 1"),
        (lambda a, b: Or(And(Lt(a, 3), Lt(b, 3)), Eq(b, 9)), "(a < 3 && b < 3) || b == 9"),
        (lambda a, b: And(Or(Lt(a, 3), Lt(b, 3)), Eq(b, 9)), "(a < 3 || b < 3) && b == 9"),
        (lambda a, b: Not(And(Lt(a, 3), Lt(b, 3))), "!(a < 3 && b < 3)"),
        (lambda a, b: index_symbol("partial.slot") + a, "a + partial_slot"),
    ],
)
def test_expressions_have_operators_of_c(expr, text):
    assert to_c(expr(index_symbol("a"), size_symbol("b"))) == text


@pytest.mark.slow
def test_nested_selects_are_proved_once(monkeypatch: pytest.MonkeyPatch):
    """A proof in one branch of a select is not repeated in the other branch.

    Each branch has its own ranges, but most proofs hold in both.
    """
    proofs: list[Expr] = []
    prove = Ranges.prove_nonnegative

    def counted(ranges: Ranges, expr: Expr) -> bool:
        proofs.append(expr)
        return prove(ranges, expr)

    graph = Pipeline.parse("rasterize{order=hilbert},data-parallel")(Gemm("f32").graph((4, 4, 4)))
    monkeypatch.setattr(Ranges, "prove_nonnegative", counted)
    text = graph.pseudocode()
    assert "floor_div(" not in text
    assert len(proofs) < 400
    monkeypatch.setattr(ccode, "MOST_PROOFS", 3)
    proofs.clear()
    assert "floor_div(" in graph.pseudocode()
