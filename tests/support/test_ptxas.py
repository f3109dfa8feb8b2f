"""ptxas reports are parsed correctly, for kernels with known registers, spills and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen import toolchain
from codegen.toolchain import AssemblyError, ToolNotFound, WrongTool, disassemble, find_cuobjdump
from tests.support.ptxas import assemble, assert_clean

HEADER = ".version 8.0\n.target sm_90a\n.address_size 64\n"

SMALL = (
    HEADER
    + """
.visible .entry small(.param .u64 out) {
  .reg .b64 %rd<3>;
  .shared .align 4 .b8 tile[1024];
  ld.param.u64 %rd1, [out];
  cvta.to.global.u64 %rd2, %rd1;
  st.volatile.shared.u32 [tile], 1;
  st.global.u32 [%rd2], 7;
  ret;
}
.visible .entry empty() { ret; }
"""
)

# ptxas ignores setmaxnreg in a kernel without a declared block size, and warns with C7508.
ADVICE = HEADER + ".visible .entry roles() { setmaxnreg.dec.sync.aligned.u32 40; ret; }"


def spilling(values: int, registers: int) -> str:
    """A kernel that needs `values` f32 registers at the same time but may use only `registers`."""
    loads = "\n".join(f"ld.volatile.global.f32 %f{i}, [%rd2+{4 * i}];" for i in range(values))
    stores = "\n".join(
        f"st.volatile.global.f32 [%rd2+{8 * i}], %f{i};" for i in reversed(range(values))
    )
    return (
        f"{HEADER}.visible .entry spilling(.param .u64 data)\n.maxnreg {registers}\n{{\n"
        f".reg .b64 %rd<3>;\n.reg .f32 %f<{values}>;\n"
        "ld.param.u64 %rd1, [data];\ncvta.to.global.u64 %rd2, %rd1;\n"
        f"{loads}\n{stores}\nret;\n}}\n"
    )


@pytest.mark.usefixtures("ptxas")
class TestAssemble:
    def test_reads_registers_and_shared_memory_of_each_kernel(self):
        report = assemble(SMALL, "sm_90a")
        assert set(report.registers) == {"small", "empty"}
        assert 1 <= report.registers["small"] <= 32
        assert report.functions["small"].shared == 1024
        assert report.functions["empty"].shared == 0
        assert report.shared == 1024
        assert (report.spill_stores, report.spill_loads, report.stack_frame) == (0, 0, 0)
        assert report.warnings == ()
        assert report.cubin.startswith(b"\x7fELF")
        assert_clean(report)

    def test_reads_spills(self):
        report = assemble(spilling(values=48, registers=24), "sm_90a")
        assert report.registers == {"spilling": 24}
        assert report.spill_stores >= 4 * (48 - 24)
        assert report.spill_loads >= 4 * (48 - 24)
        assert report.stack_frame >= report.spill_stores
        assert any("spilled" in line for line in report.warnings)
        with pytest.raises(AssertionError, match="registers are spilled"):
            assert_clean(report)

    def test_the_same_kernel_with_registers_enough_is_clean(self):
        assert_clean(assemble(spilling(values=48, registers=128), "sm_90a"))

    def test_advice_printed_as_info_counts(self):
        report = assemble(ADVICE, "sm_90a")
        assert any("C75" in line and "setmaxnreg" in line for line in report.warnings)
        with pytest.raises(AssertionError, match="setmaxnreg"):
            assert_clean(report)

    def test_broken_text_raises_with_the_log(self):
        with pytest.raises(AssemblyError, match=r"kernel\.ptx, line 5") as caught:
            assemble(f"{HEADER}.visible .entry k() {{\n  frobnicate;\n  ret;\n}}\n", "sm_90a")
        assert "frobnicate" in caught.value.log

    def test_options_reach_ptxas(self):
        report = assemble(spilling(values=48, registers=128), "sm_90a", ["-O0"])
        assert report.registers["spilling"] <= 128

    def test_disassembles(self):
        if find_cuobjdump() is None:
            pytest.skip("no cuobjdump")
        sass = disassemble(assemble(SMALL, "sm_90a").cubin)
        assert "Function : small" in sass
        assert "STG.E" in sass


def test_serialized_wgmma_is_read_as_a_warning():
    line = (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to insufficient register resources for the wgmma pipeline in function 'k'"
    )
    report = toolchain._report(f"ptxas info    : 0 bytes gmem\n{line}\n", b"")
    assert report.warnings == (line,)


class TestFinding:
    def test_the_variable_comes_first(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        tool = tmp_path / "my-ptxas"
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
        monkeypatch.setenv("COORDGRAPH_PTXAS", str(tool))
        assert toolchain.find_ptxas() == tool

    def test_a_variable_that_names_no_program_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("COORDGRAPH_PTXAS", str(tmp_path / "none"))
        with pytest.raises(WrongTool, match=r"COORDGRAPH_PTXAS is .*none, which is no program"):
            toolchain.find_ptxas()

    def test_a_variable_that_names_another_program_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        other = tmp_path / "true"
        other.write_text("#!/bin/sh\n")
        other.chmod(0o755)
        monkeypatch.setenv("COORDGRAPH_PTXAS", str(other))
        with pytest.raises(
            WrongTool, match=r"wrote no cubin, .* \(COORDGRAPH_PTXAS gave its path\)"
        ):
            assemble(SMALL, "sm_90a")
        monkeypatch.setenv("COORDGRAPH_CUOBJDUMP", str(other))
        with pytest.raises(WrongTool, match=r"no SASS, .* \(COORDGRAPH_CUOBJDUMP gave its path\)"):
            disassemble(b"")

    def test_toolkit_then_wheel_once_path_has_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        for variable in ("COORDGRAPH_PTXAS", "CUDA_HOME", "CUDA_PATH"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("PATH", "")
        wheel, toolkit = tmp_path / "wheel", tmp_path / "toolkit"
        for folder in (wheel, toolkit / "bin"):
            folder.mkdir(parents=True)
            (folder / "ptxas").write_text("#!/bin/sh\n")  # the file is not executable yet
        monkeypatch.setattr(toolchain, "_wheel_folders", lambda: iter([wheel]))
        assert toolchain.find_ptxas() == wheel / "ptxas"
        assert (wheel / "ptxas").stat().st_mode & 0o111
        monkeypatch.setenv("CUDA_HOME", str(toolkit))
        assert toolchain.find_ptxas() == toolkit / "bin" / "ptxas"

    def test_none_says_where_it_looked(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(toolchain, "find_ptxas", lambda: None)
        with pytest.raises(ToolNotFound, match=r"CUDA_HOME.*hint: pip install nvidia-cuda-nvcc"):
            assemble(SMALL, "sm_90a")
