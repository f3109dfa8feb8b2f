"""Behaviour that all commands share: help, versions, errors, exit codes, no heavy imports."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import typer.rich_utils

from codegen.cli import app
from codegen.cli.errors import ExitCode
from coordgraph import __main__, __version__
from passes import PASSES
from tests.codegen.cli.commands import coordgraph, process
from tests.support.sampling import quick_cases

PLAN = "16x16x16 stream-k"
COMMANDS = (
    *("run", "show", "eval", "opt", "verify", "simulate", "compile", "passes", "explain"),
    "doctor",
)


@quick_cases(7)
@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_examples(command: str):
    done = coordgraph(command, "--help")
    assert done.code == 0
    assert f"coordgraph {command}" in re.sub(r"\x1b\[[0-9;]*m", "", done.out)
    assert "--json" in re.sub(r"\x1b\[[0-9;]*m", "", done.out)


def test_help_lists_every_command():
    done = process("--help")
    assert (done.code, done.err) == (0, "")
    assert all(re.search(rf"│ {name} ", done.out) for name in COMMANDS)


HEAVY = {
    *("cuda", "cupy", "jax", "llvmlite", "ml_dtypes", "networkx", "numpy", "passes", "scipy"),
    *("sympy", "torch"),
}
"""Modules that take longer to import than printing the help takes."""


def test_help_loads_nothing_heavy():
    """`--help` of every command runs without importing a module in `HEAVY`.

    The test checks which modules are loaded, because that is the same on every machine, unlike the
    time that loading takes.
    """
    script = (
        "import sys\n"
        "from codegen.cli import app\n"
        f"for words in {[['--version'], ['--help'], *([c, '--help'] for c in COMMANDS)]}:\n"
        "    try: app(words)\n"
        "    except SystemExit: pass\n"
        f"    heavy = {HEAVY} & set(sys.modules)\n"
        "    if heavy: sys.exit(f'{words}: {sorted(heavy)}')\n"
    )
    done = process(code=script)
    assert all(f"coordgraph {command} " in done.out for command in COMMANDS)
    assert (done.code, done.err) == (0, "")


def test_version():
    done = coordgraph("--version")
    assert done.code == 0
    assert done.out == f"coordgraph {__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", __version__)


EVAL = ("eval", "A.0", "-s", "data-parallel")
SIZES = ("--m", "8", "--n", "8", "--k", "8", "--target", "interpreter")


@quick_cases(3)
@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("run", "--m", "8", "--n", "8"), 2, "--k"),
        (("run", *SIZES, "--m", "0"), 2, "--m"),
        (("run", *SIZES, "--tile", "128x128"), 2, "128x128x32"),
        (("run", *SIZES, "--tile", "128x0x32"), 2, "three positive numbers"),
        (("compile", "-t", "cpu", "-o", "kernel.s"), 2, "--output is given without --emit"),
        (("run", *SIZES, "--dtype", "i32"), 2, "'i32' is not one of the types"),
        (("run", *SIZES, "--dtype", "fp4"), 2, "not one of the types bf16"),
        (("run", *SIZES, "--target", "sm_x"), 2, "is not a target; there are"),
        (("run", *SIZES, "--threads", "2"), 2, "is only for --target cpu"),
        (("run", *SIZES, "-s", "reorder", "-w", "3"), 2, "no pass of 'reorder' has the option"),
        (("run", *SIZES, "-s", "stream-k{workgroups=2}", "-w", "3"), 2, "contradict each other"),
        (("run", *SIZES, "-s", "strem-k"), 3, "did you mean 'stream-k'"),
        (("run", *SIZES, "-s", "stream-k{"), 3, "column 10"),
        (("run", *SIZES, "-s", "data-parallel", "-w", "3"), 3, "set persistent=true"),
        (("run", *SIZES, "-s", "stream-k{owner=me}"), 3, "use one of first, last"),
        (("run", *SIZES, "-s", "reorder{swap=true}"), 3, "has no schedule: end it with one"),
        (("run", *SIZES, "--plan", "16x16x16 rasterize"), 3, "as in 'rasterize,data-parallel' or"),
        (("run", *SIZES, "-s", "stream-k,lower-to-host"), 3, "leave out 'lower-to-host'"),
        (("run", *SIZES, "-s", ""), 3, "line 1, column 1: expected the name of a pass"),
        (("show", "-s", ""), 3, "line 1, column 1: expected the name of a pass"),
        (("eval", "A.0", "-s", ""), 3, "line 1, column 1: expected the name of a pass"),
        (("run", *SIZES, "-s", "nothing"), 3, "and for graphs that are scheduled lower-to-"),
        (("run", *SIZES, "-t", "sm_70"), 3, "sm_70 is too old"),
        (("compile", "--plan", "auto", "-t", "cpu", "--m", "8"), 2, "give --n, --k too"),
        (("show", "--import", "no.such.module"), 2, "ModuleNotFoundError: No module named 'no'"),
        (("show", "--import", "./my_passes.py"), 2, "give the name of its module, my_passes,"),
        (("compile", "-t", "sm_80", "--dtype", "f32"), 3, "use target='cpu'"),
        (("compile", "-t", "sm_70"), 3, "too old"),
        (("compile", "-t", "cpu", "--emit", "ptx"), 3, "there is no ptx for 'cpu'"),
        (("compile", "-t", "sm_80", "--emit", "asm"), 3, "there is no host assembly"),
        (("show", "--stage", "7"), 2, "there is no stage '7'"),
        (("show", "--stage", "strem-k", "-s", "stream-k"), 2, "did you mean 'stream-k'"),
        (("show", "--stage", "0", "--diff"), 2, "--diff compares a stage with the stage before"),
        (("show", "svg"), 2, "svg"),
        (
            ("show", "-o", "x.foo"),
            2,
            "no form is written to files that end in .foo; end the name in",
        ),
        (("compile", "-e", "indices"), 2, "'-e': 'indices' is not one of 'ptx'"),
        ((*EVAL, "--at", "A.tile.0=0,m=8", "--with", "m=9"), 2, "--at and --with both give m"),
        (("verify", "x.txt", "--from", "y.txt"), 2, "the graph is given twice"),
        (
            ("run", *SIZES, "--batches", "2", "--groups", "m", "--extents", "3,4"),
            2,
            "give one of them",
        ),
        (("show", "--from", "/no/such/file"), 2, "No such file"),
        (
            ("show", "--stage", "lowered", "-t", "interpreter"),
            2,
            "the interpreter runs scheduled graphs",
        ),
        (("opt", "/no/such/file", "-p", "stream-k"), 2, "No such file"),
        (("explain", "strem-k"), 2, "did you mean 'stream-k'"),
        (("explain",), 2, "name a pass, or give --m, --n and --k"),
        (("explain", "--n", "3"), 2, "give --m, --k too"),
        (("explain", "stream-k", "--device", "cpu"), 2, "give one of them"),
        (
            ("explain", *SIZES[:6], "--gpu", "TPU"),
            3,
            "device = 'TPU' is not known here; choose one of 'cpu', ",
        ),
        (
            ("explain", *SIZES[:6], "--dtype", "f32", "--gpu", "NVIDIA H200"),
            3,
            "no code for this problem on",
        ),
        (
            ("explain", *SIZES[:6], "--dtype", "i32"),
            2,
            "'i32' is not one of the types bf16",
        ),
        (("run", *SIZES, "--plan", "quick"), 3, "'quick' is no plan; write it like"),
        (("run", *SIZES, "--plan", "16x16x16 strem-k"), 3, "did you mean 'stream-k'"),
        (("run", *SIZES, "--plan", PLAN, "--tile", "8x8x8"), 2, "leave out --tile"),
        (("run", *SIZES, "--plan", PLAN, "-w", "3"), 2, "leave out --workgroups"),
        (
            ("run", *SIZES, "--plan", "16x16x16 data-parallel on 3", "-t", "cpu"),
            3,
            "leave out 'on 3'",
        ),
        (
            ("run", *SIZES, "--plan", "64x64x64@c2x1 stream-k", "-t", "cpu"),
            3,
            "kernels for cpu do not have",
        ),
        (("compile", "--plan", PLAN, "-s", "stream-k"), 2, "leave out --schedule"),
        (
            ("compile", "--from", "-", "--plan", PLAN),
            2,
            "--from gives a graph that is scheduled already",
        ),
        (("eval", "A.7", "--stage", "0", "-s", "reorder"), 3, "did you mean"),
        ((*EVAL, "--at", "workgruop=1"), 3, "did you mean 'workgroup'"),
        ((*EVAL, "--at", "workgroup=3"), 3, "give more indices, such as 'A.index.0'"),
        (
            (*EVAL, "--at", "workgroup=9", "--m", "9", "--n", "1"),
            3,
            "outside its dimension, whose indices are 0..0",
        ),
        (
            (*EVAL, "--at", "workgroup=1+"),
            2,
            "expected a value, such as a number or a name, found the end (column 3)",
        ),
        ((*EVAL, "--at", "workgroup=1,workgroup=2"), 2, "given twice"),
        ((*EVAL, "--with", "mm=3"), 3, "did you mean m"),
        ((*EVAL, "--with", "m=many"), 2, "whole number"),
        ((*EVAL, "--with", "m=0"), 3, "outside 1.."),
        (("nothing",), 2, "nothing"),
    ],
)
def test_what_is_wrong_is_said_once_and_decides_the_exit_code(words, code, why):
    """An error is printed once, and decides the exit code.

    The error is text on standard error, or with --json a JSON document on standard output.
    """
    done = coordgraph(*words)
    assert done.code == code
    assert why in " ".join(re.sub(r"[│\s]+", " ", done.err).split())
    assert "Traceback" not in done.err
    assert done.out == ""
    error = coordgraph(*words, "--json").json["error"]
    assert error["exit_code"] == code
    assert why in error["message"]


def test_a_target_that_is_not_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("codegen.targets.nvptx.driver.unavailable", lambda: "the test says so.")
    done = coordgraph("run", *SIZES, "--target", "sm_80")
    assert done.code == 4
    assert "sm_80 needs an NVIDIA GPU: the test says so; --target cpu" in done.err
    done = coordgraph("compile", *SIZES[:6], "--target", "sm_80", "--plan", "auto")
    assert done.code == 4
    assert "the choice for sm_80 depends on the GPU" in done.err


def test_nothing_is_pointed_at_in_an_empty_file():
    done = coordgraph("show", "--from", "-", stdin="")
    assert done.code == 3
    assert done.err.splitlines()[0].endswith("found the end")
    assert "^" not in done.err


@pytest.mark.parametrize(
    ("stage", "why"),
    [
        ("0", "the graph has no schedule: apply one, as in 'coordgraph opt -p"),
        ("lowered", "the graph is lowered already; give the scheduled graph"),
    ],
)
def test_compile_takes_scheduled_graphs(stage: str, why: str):
    graph = coordgraph("show", "text", "--stage", stage, "--tile", "16x16x16").out
    done = coordgraph("compile", "--from", "-", "-t", "cpu", stdin=graph)
    assert done.code == 3
    assert why in done.err


MODULE = """
from dataclasses import dataclass
from passes import Pass

@dataclass(frozen=True)
class Nothing(Pass):
    \"\"\"Changes nothing, `times` over.\"\"\"

    times: int = 1
    name = "test-imported-nothing"

    def apply(self, graph):
        return graph
"""


def test_a_pass_from_outside_has_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "coordgraph_test_outside.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    words = ("opt", "-p", "test-imported-nothing{times=3},stream-k", "--json")
    problem = coordgraph("show", "text", "--stage", "0").out
    assert "unknown pass" in coordgraph(*words, stdin=problem).json["error"]["message"]
    imported = ("--import", "coordgraph_test_outside")
    try:
        found = coordgraph(*words, *imported, stdin=problem).json
        listed = coordgraph("explain", "test-imported-nothing", *imported).out
    finally:
        PASSES.pop("test-imported-nothing", None)
    assert found["pipeline"] == "test-imported-nothing{times=3},stream-k"
    assert "Changes nothing" in listed
    assert "times: int = 1" in listed
    for command in ("run", "compile", "show", "eval", "passes"):
        assert "--import" in re.sub(r"\x1b\[[0-9;]*m", "", coordgraph(command, "--help").out)


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (("passes",), ("llvmlite", "networkx", "numpy")),
        (("explain", "stream-k"), ("llvmlite", "networkx", "numpy")),
        (("eval", "A.0", "-s", "stream-k"), ("llvmlite", "islpy", "z3")),
    ],
)
def test_commands_that_run_nothing_load_little(words: tuple[str, ...], heavy: tuple[str, ...]):
    """Importing one of the `heavy` modules would lengthen the command by a tenth or more."""
    code = (
        "import sys\nfrom codegen.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        f"loaded = sorted({set(heavy)} & set(sys.modules))\n"
        "sys.exit(f'loaded: {loaded}' if loaded else 0)\n"
    )
    done = process(*words, code=code)
    assert (done.code, done.err) == (0, "")


def test_an_imported_pass_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The error names the class without a name; once it has the advised one, the pass runs."""
    module = "coordgraph_test_nameless"
    file = tmp_path / f"{module}.py"
    file.write_text(MODULE.replace('    name = "test-imported-nothing"\n', ""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    problem = coordgraph("show", "text", "--stage", "0").out
    words = ("opt", "-p", "nothing", "--import", module)
    try:
        said = coordgraph(*words, stdin=problem).err
        told = coordgraph("explain", "nothing", "--import", module, "--json").json["error"]
    finally:
        del sys.modules[module]
    # Passes without a name that other tests define may be listed before it.
    for text in (said, told["message"]):
        assert re.search(rf"The pass class(es)? .*{module}\.Nothing defines? no name; write", text)
        assert "'nothing'; there are " in text
    file.write_text(MODULE.replace("test-imported-nothing", "nothing") + "\n# named\n")
    try:
        assert coordgraph(*words, stdin=problem).code == 0
    finally:
        PASSES.pop("nothing", None)
    assert f"{module}.Nothing" not in coordgraph("explain", "nothing").err


@pytest.mark.slow
def test_a_tool_that_is_not_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("codegen.toolchain.find_ptxas", lambda: None)
    words = ("compile", "-t", "sm_80", "--tile", "16x16x16")
    plain = coordgraph(*words)
    assert (plain.code, plain.out) == (0, "")
    assert re.search(r"^ptxas +ptxas is neither on PATH", plain.err, re.MULTILINE)
    done = coordgraph(*words, "--emit", "sass")
    assert done.code == 4
    assert "ptxas is neither on PATH" in done.err
    report = coordgraph(*words, "--json").json["report"]
    assert report["ptxas"] is None
    assert report["threads"] % 32 == 0


@pytest.mark.slow
def test_debug_lets_errors_through():
    done = process("--debug", "run", *SIZES, "-s", "stream-k{owner=me}")
    assert done.code == 1
    assert "Traceback" in done.err
    assert "PassError" in done.err


def test_a_bug_is_called_one(monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("codegen.compile", broken)
    done = coordgraph("run", *SIZES)
    assert done.code == 70
    assert "ZeroDivisionError: oh (a bug in coordgraph" in done.err


@pytest.mark.parametrize("why", ["", "Unable to allocate 9 TiB"])
def test_too_little_memory_is_no_bug(monkeypatch: pytest.MonkeyPatch, why: str):
    class Private(MemoryError):
        pass

    def full(*_: object, **__: object) -> None:
        raise Private(why)

    monkeypatch.setattr("codegen.compile", full)
    done = coordgraph("run", *SIZES)
    assert done.code == 4
    assert "too little memory" in done.err
    assert why in done.err
    assert "bug" not in done.err
    error = coordgraph("run", *SIZES, "--json").json["error"]
    assert (error["kind"], error["exit_code"]) == ("MemoryError", 4)


def test_help_names_every_exit_code():
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", coordgraph("--help").out).split())
    listed = text.partition("Exit codes: ")[2]
    assert all(re.search(rf"\b{int(code)} \w", listed) for code in ExitCode)


@pytest.mark.slow
def test_signs_that_an_encoding_lacks_are_replaced():
    code = (
        "import sys; sys.stdout.reconfigure(encoding='ascii'); from codegen.cli import main; main()"
    )
    done = process("passes", code=code)
    assert (done.code, done.err) == (0, "")
    assert "two-tile-stream-k" in done.out


EVERY_COMMAND = tuple(command.name or "" for command in app.registered_commands)


@quick_cases(7)
@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_help_fits_a_terminal_of_80_columns(command: str, monkeypatch: pytest.MonkeyPatch):
    """No word is cut, and a line of prose ends only where the next word does not fit."""
    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", 80)
    text = re.sub(r"\x1b\[[0-9;]*m", "", coordgraph(command, "--help").out)
    assert re.findall(r"\w+…", text) == []
    prose = [line.strip() for line in text.partition("Examples")[0].splitlines()]
    for line, after in pairwise(prose):
        if line and after:
            assert len(line) + 1 + len(after.split()[0]) > 78, line


def test_help_describes_the_output_of_that_command_only():
    for command, other in (("opt", "timeline.json"), ("show", "calibrate"), ("trace", "stdout")):
        text = coordgraph(command, "--help").out
        assert "--output" in text
        assert other not in text


def test_ctrl_c_while_the_command_line_is_loaded(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C while the command's modules are loaded ends the command without a traceback."""

    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "import_module", interrupted)
    with pytest.raises(SystemExit) as end:
        __main__.main()
    assert end.value.code == 130
