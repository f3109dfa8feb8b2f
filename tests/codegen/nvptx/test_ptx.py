"""Patterns that the PTX of a kernel must and must not contain."""

from __future__ import annotations

import re
from functools import cache

import networkx as nx
import pytest

from codegen.targets.nvptx.program import Vectors
from passes import DataParallel, StreamK
from tests.codegen.nvptx.configurations import Configuration
from tests.support.sampling import quick_cases

DATA_PARALLEL = Configuration((128, 128, 32))
STREAM_K = Configuration((64, 64, 64), (StreamK(),))
NARROW = Configuration((64, 64, 32), vectors=Vectors(2, 1, 1))
KERNELS = {"data-parallel": DATA_PARALLEL, "stream-k": STREAM_K, "narrow": NARROW}
every_kernel = pytest.mark.parametrize("name", KERNELS)


@cache
def ptx(configuration: Configuration) -> str:
    return configuration.program.ptx


def count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


def blocks(text: str) -> nx.DiGraph:
    """The graph of basic blocks: nodes are labels with the block's text, edges go to successors."""
    graph, name, ended = nx.DiGraph(), "entry", True
    body = text[text.index("{\n") :]
    for line in body.splitlines():
        label = re.match(r"(\$L\w+):", line)
        if label or (name == "entry" and not graph):
            if not ended:
                graph.add_edge(name, label[1] if label else name)
            name, ended = (label[1] if label else name), False
            graph.add_node(name)
            graph.nodes[name].setdefault("lines", [])
        graph.nodes[name].setdefault("lines", []).append(line)
        if jump := re.search(r"\bbra(?:\.uni)?\s+(\$L\w+);", line):
            graph.add_edge(name, jump[1])
        ended = ended or bool(re.match(r"\s*(bra|ret)\b", line))
    return graph


def accumulation_loops(text: str) -> list[str]:
    """The PTX of each innermost loop that contains a matrix multiplication."""
    graph = blocks(text)
    above = nx.immediate_dominators(graph, "entry")

    def dominators(name: str) -> set[str]:
        found = {name}
        while (name := above.get(name) or "entry") not in found:
            found.add(name)
        return found

    loops: dict[str, set[str]] = {}
    for source, head in graph.edges:
        if head in dominators(source):
            without = graph.subgraph(set(graph) - {head})
            inside = {source} & set(without)
            inside |= nx.ancestors(without, source) if inside else set()
            loops.setdefault(head, {head}).update(inside)
    multiplying = [
        nodes
        for nodes in loops.values()
        if any("mma.sync" in line for name in nodes for line in graph.nodes[name]["lines"])
    ]
    innermost = [x for x in multiplying if not any(y < x for y in multiplying)]
    return [
        "\n".join(line for n in sorted(x) for line in graph.nodes[n]["lines"]) for x in innermost
    ]


@quick_cases(1)
@every_kernel
def test_nothing_lives_in_local_memory(name: str):
    text = ptx(KERNELS[name])
    assert ".local" not in text
    assert "ld.local" not in text
    assert "st.local" not in text


@quick_cases(1)
@every_kernel
def test_shared_memory_is_addressed_with_32_bits(name: str):
    addresses = re.findall(
        r"(?:cp\.async|ldmatrix)\S*\s+(?:\{[^}]*\},\s*)?\[(%\w+?)\d+", ptx(KERNELS[name])
    )
    assert addresses
    assert set(addresses) == {"%r"}


@every_kernel
def test_the_accumulation_loop_is_free_of_what_is_slow(name: str):
    (loop,) = accumulation_loops(ptx(KERNELS[name]))
    assert not re.search(r"\b(?:div|rem)\.", loop)
    assert "st.global" not in loop
    assert "ld.param" not in loop
    assert count(r"bar\.sync|barrier\.sync", loop) == 1
    assert count(r"cp\.async\.wait_group", loop) == 1
    assert count(r"cp\.async\.commit_group", loop) == 1


@every_kernel
def test_each_step_has_its_loads_and_multiplications(name: str):
    configuration = KERNELS[name]
    program = configuration.program
    sizes = program.lowered.coordinates
    m, n, k = (sizes[f"fragment.{axis}"].fixed_size for axis in "mnk")
    (loop,) = accumulation_loops(program.ptx)
    assert count(r"ldmatrix\.sync\.aligned\.m8n8\.x4", loop) == k * (m + n)
    assert (
        count(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32", loop)
        == 2 * m * n * k
    )
    # The warps together multiply the whole tile.
    rows, columns, depth = configuration.tile
    assert 2 * m * n * k * program.threads // 32 == (rows // 16) * (columns // 8) * (depth // 16)


def test_wide_copies_are_of_16_bytes():
    (loop,) = accumulation_loops(ptx(DATA_PARALLEL))
    rows, columns, depth = DATA_PARALLEL.tile
    copies = (rows + columns) * depth // 8 // DATA_PARALLEL.program.threads
    assert count(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 16, %r\d+;", loop) == copies
    assert count(r"cp\.async\.c[ag]", loop) == copies


def test_narrow_copies_are_of_4_bytes_or_synchronous():
    (loop,) = accumulation_loops(ptx(NARROW))
    assert count(r"cp\.async\.ca\.shared\.global \[[^]]*\], \[[^]]*\], 4, %r\d+;", loop) > 0
    assert "cp.async.cg" not in loop
    assert count(r"@p ld\.global\.b16", loop) > 0
    assert count(r"st\.shared\.b16", loop) == count(r"@p ld\.global\.b16", loop)


def test_the_transposed_operand_is_transposed_by_ldmatrix():
    for layout, of_a, of_b in (("nn", False, True), ("tn", True, True), ("nt", False, False)):
        text = ptx(Configuration((32, 32, 16), layout=layout))
        transposed, plain = (
            count(r"ldmatrix\S*\.trans\.", text),
            count(r"ldmatrix\S*x4\.shared", text),
        )
        assert (transposed > 0, plain > 0) == (of_a or of_b, not (of_a and of_b)), layout


@pytest.mark.parametrize(
    ("types", "multiply", "convert"),
    [
        (("bf16", "bf16"), "f32.bf16.bf16.f32", "cvt.rn.bf16x2.f32"),
        (("f16", "f16"), "f32.f16.f16.f32", "cvt.rn.f16x2.f32"),
        (("f16", "f32"), "f32.f16.f16.f32", None),
        (("bf16", "f16"), "f32.bf16.bf16.f32", "cvt.rn.f16x2.f32"),
    ],
    ids=str,
)
def test_types(types: tuple[str, str], multiply: str, convert: str | None):
    text = ptx(Configuration((32, 32, 16), types=types))
    assert f"mma.sync.aligned.m16n8k16.row.col.{multiply}" in text
    assert count(r"cvt\.rn\.\w+x2\.f32", text) == (
        count(re.escape(convert), text) if convert else 0
    )
    assert bool(convert) == ("cvt.rn" in text)
    stored = r"st\.global\.(?:v2\.b32|b64)" if convert is None else r"st\.global\.b32"
    assert count(stored, text) > 0


def test_fix_up_releases_and_acquires():
    text = ptx(STREAM_K)
    assert count(r"st\.release\.gpu\.global\.u32", text) == 1
    assert count(r"ld\.acquire\.gpu\.global\.u32", text) == 1
    assert count(r"st\.relaxed\.gpu\.global\.u32", text) == 1
    # Every thread stores its part of the partial sums; after a barrier, one thread publishes them.
    release = text.index("st.release.gpu")
    barrier = max(m.start() for m in re.finditer(r"bar(rier)?\.sync", text[:release]))
    assert count(r"st\.global\.(?:v2|b64)", text[:barrier]) >= 1
    assert not re.search(r"st\.global", text[barrier:release])
    # One thread acquires the flag, and the others read only after a barrier.
    acquire = text.index("ld.acquire.gpu")
    following = re.search(r"bar(rier)?\.sync|ld\.global", text[acquire:])
    assert following is not None
    assert "sync" in following[0]


def test_a_schedule_without_fix_up_has_no_flags():
    text = ptx(DATA_PARALLEL)
    assert "release" not in text
    assert "acquire" not in text


def test_the_watchdog_traps_and_is_off_by_default():
    program = STREAM_K.program
    assert not re.search(r"\btrap;", program.ptx)
    watched = type(program)(program.graph, program.architecture, program.vectors, watchdog=True)
    assert count(r"\btrap;", watched.ptx) == 1


@pytest.mark.parametrize(
    ("architecture", "version"), [("sm_80", "8.0"), ("sm_89", "8.0"), ("sm_120", "8.7")]
)
def test_the_header(architecture: str, version: str):
    text = ptx(Configuration((16, 16, 16), (DataParallel(),), architecture=architecture))
    assert f".version {version}\n" in text
    assert f".target {architecture}\n" in text
    assert ".visible .entry gemm(" in text
    assert ".reqntid 32" in text
