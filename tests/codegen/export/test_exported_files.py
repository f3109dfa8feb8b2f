"""The files of an exported kernel: header, C source, example and recipe; and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import codegen
from codegen.export import export
from codegen.targets.nvptx.facts import Facts
from codegen.toolchain import find_ptxas
from coordgraph import CodegenError, Gemm
from passes import DataParallel, StreamK
from tests.codegen.export.cases import TILE, exported
from tests.codegen.export.compiled import compile_c
from tests.support.sampling import chosen, quick_cases

pytestmark = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")


@quick_cases(1)
@pytest.mark.parametrize(
    "name",
    chosen(
        ("reductions", "gated, batch, gaps"),
        [
            *("data-parallel", "batch", "gaps", "constant sizes", "int8", "epilogue"),
            *("reductions", "reductions, constant sizes", "gated", "gated, batch, gaps"),
            *("interleaved", "without D"),
        ],
    ),
)
def test_the_example_compiles(name: str, tmp_path: Path):
    found, _ = exported(name, tmp_path)
    compile_c("-std=c++17", "-c", found.files["example.cpp"], "-o", tmp_path / "example.o",
              compiler="c++")  # fmt: skip
    compile_c("-std=c++17", "-x", "c++", "-c", found.files["gemm.c"], "-o", tmp_path / "gemm.o",
              compiler="c++")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "reductions",
            (
                "D = relu((A @ B)); total = sum(A @ B); pre = A @ B",
                "D and total and pre overlap no other matrix",
                "total has a column for each tile along n",
                "CUdeviceptr total; /* m x (n + 127) / 128, f32",
            ),
        ),
        (
            "gated, batch, gaps",
            (
                "D = silu((A @ B_gate)) * (A @ B_up)",
                "transpose(B) has the n columns of B_gate, then those of B_up.",
            ),
        ),
        ("interleaved", ("The columns of B belong to B_gate, B_up in turn.",)),
        ("without D", ("   top = max(A @ B)\n", "top overlaps no other matrix")),
    ],
)  # fmt: skip
def test_the_header_has_the_formulas_of_all_outputs(
    name: str, lines: tuple[str, ...], tmp_path: Path
):
    found, _ = exported(name, tmp_path)
    text = found.files["gemm.h"].read_text()
    for line in lines:
        assert line in text
    assert ("CUdeviceptr D;" in text) == (name != "without D")


@pytest.mark.slow
def test_the_program_in_the_guide_compiles(tmp_path: Path):
    found, _ = exported("data-parallel", tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "deploy.md").read_text("utf-8")
    (block,) = re.findall(r"```c\n(.*?)```", page, re.DOTALL)
    source = found.files["gemm.h"].with_name("guide.c")
    source.write_text(
        '#include "gemm.h"\n'
        "void guide(CUdeviceptr a, CUdeviceptr b, CUdeviceptr d, CUdeviceptr workspace,\n"
        "           CUstream stream)\n"
        f"{{\nsize_t bytes;\n{block}\n(void)problem;\n}}\n"
    )
    compile_c("-std=c11", "-c", source, "-o", tmp_path / "guide.o")


def test_the_recipe_is_the_launch(tmp_path: Path):
    found, _ = exported("clusters", tmp_path, name="layer", reads_c=True)
    assert set(found.files) == {
        "layer.cubin", "layer.h", "layer.c", "example.cpp", "Makefile", "launch.json",
    }  # fmt: skip
    assert found.files["layer.cubin"].read_bytes().startswith(b"\x7fELF")
    recipe = json.loads(found.files["launch.json"].read_text())
    assert recipe["architecture"] == "sm_90a"
    assert Facts.from_json(recipe["launch"]) == found.recipe.facts
    assert "layer.cubin" in found.files["example.cpp"].read_text()


@quick_cases(1)
@pytest.mark.parametrize(
    ("kernel", "options", "text"),
    [
        (lambda: codegen.compile(DataParallel()(Gemm("f32").graph(tile=(32, 32, 32))), "cpu"), {},
         "cannot be exported; export a kernel that codegen.compile"),
        (lambda: codegen.compile(StreamK()(Gemm("bf16", grouped=True).graph(tile=TILE)),
                                 "sm_80"), {}, "grouped products cannot be exported"),
        (lambda: codegen.compile(DataParallel()(Gemm("bf16").graph(tile=TILE)), "sm_80"),
         {"name": "2x"}, "cannot start C identifiers"),
        (lambda: codegen.compile(DataParallel()(Gemm("bf16").graph(tile=TILE)), "sm_80"),
         {"alignment": 32}, "alignment = 32 is neither 16 nor 1"),
        (lambda: codegen.compile(DataParallel()(Gemm("bf16").graph(tile=TILE)), "sm_80",
                                 timeline=True), {}, "a timeline cannot be exported"),
    ],
)  # fmt: skip
def test_refusals(kernel: Any, options: dict[str, Any], text: str, tmp_path: Path):
    with pytest.raises(CodegenError, match=text):
        export(kernel(), tmp_path / "folder", **options)
    assert not (tmp_path / "folder").exists()
