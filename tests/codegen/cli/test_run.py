"""`run`, `compile` and `doctor` make kernels, check them, and explain wrong arguments."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import codegen.architectures
from codegen import explain
from codegen.call import measured
from codegen.cli import check as checking
from codegen.cli import doctor, timing
from codegen.kernel import Kernel
from codegen.targets.nvptx import driver
from codegen.toolchain import find_ptxas
from passes.choosing import Plan
from passes.lowering import MMA_SYNC, Architecture
from passes.lowering.sm_80.architecture import MmaSync
from tests.codegen.cli.commands import coordgraph, process
from tests.support.gpu import require_gpu
from tests.support.sampling import quick_cases

SIZES = ("--m", "40", "--n", "33", "--k", "50")
SMALL = (*SIZES, "--tile", "16x16x16", "--repeat", "1")
BETTER = "64x64x32 stream-k{owner=last} on 7"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the default folder of the cache be in `tmp_path`, and use it."""
    monkeypatch.delenv("COORDGRAPH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_run_in_json(tmp_path: Path):
    done = coordgraph(
        *("run", *SMALL, "--dtype", "f32", "-s", "stream-k", "-w", "5", "-t", "interpreter"),
        *("--beta", "0.5", "--alpha", "2", "--check", "--json", "--mermaid-dir", str(tmp_path)),
    )
    assert done.code == 0
    found = done.json
    assert found["problem"]["dtype"] == "f32"
    assert (found["target"], found["pipeline"]) == ("interpreter", "stream-k{workgroups=5}")
    assert found["tile"] == [16, 16, 16]
    schedule = found["schedule"]
    assert schedule["tiles"] == [3, 3, 4]
    assert schedule["iterations"] == 36
    assert schedule["iterations_per_workgroup"] == [4, 8]
    # Each workgroup has 8 iterations, which are two whole tiles of 4 iterations, so no tile is
    # divided between workgroups.
    assert (schedule["segments"], schedule["fix_ups"]) == ({"whole": 9}, 0)
    assert schedule["utilisation"] == 36 / 40
    assert found["repeats"] == 1
    assert found["seconds"] > 0
    check = found["check"]
    assert check["passed"]
    assert 0 < check["error"] < check["tolerance"] < 1e-4
    assert (check["wrong_elements"], check["unwritten_elements"]) == (0, 0)
    for path in found["diagrams"].values():
        assert Path(path).parent == tmp_path
        assert Path(path).read_text().startswith("graph TD")


@pytest.mark.slow
def test_a_run_of_the_plan_that_is_chosen():
    words = ("--m", "300", "--n", "200", "--k", "100", "--dtype", "f32")
    chosen = explain(300, 200, 100, "f32", device="cpu").best.plan
    done = coordgraph("run", *words, "--plan", "auto", "-t", "cpu", "--repeat", "1", "--check")
    assert done.code == 0
    assert re.search(rf"^plan +{re.escape(str(chosen))}$", done.out, re.MULTILINE)
    slow = coordgraph(
        *("run", *SIZES, "--dtype", "f32", "--plan", "auto", "-t", "interpreter"),
        *("--repeat", "1", "--json"),
    )
    assert slow.json["plan"] == str(explain(40, 33, 50, "f32", device="cpu").best.plan)


@pytest.mark.slow
def test_compile_chooses_for_the_gpu_that_was_measured(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("codegen.targets.nvptx.driver.unavailable", lambda: "the test says so")
    for transposed in ((), ("--transpose-b",)):
        words = ("--m", "512", "--n", "768", "--k", "1024", *transposed)
        best = explain(512, 768, 1024, transpose_b=bool(transposed), device="NVIDIA H200").best
        found = coordgraph("compile", *words, "-t", "sm_90a", "--plan", "auto", "--json").json
        assert found["plan"] == str(best.plan)


@pytest.mark.slow
def test_the_gpu_here_is_chosen_for(monkeypatch: pytest.MonkeyPatch):
    here = driver.Device(0, "NVIDIA A100-SXM4-80GB", "sm_80", 108, 0)
    best = explain(512, 768, 1024, device=here.name).best
    monkeypatch.setattr(driver, "unavailable", lambda: None)
    monkeypatch.setattr(driver, "device", lambda ordinal=0: here)
    monkeypatch.setattr(measured, "remembered", lambda request: None)
    words = ("--m", "512", "--n", "768", "--k", "1024", "-t", "sm_80", "--json")
    assert coordgraph("compile", *words, "--plan", "auto").json["plan"] == str(best.plan)
    times = measured.Measured(((Plan.parse(BETTER), 1e-5),))
    monkeypatch.setattr(measured, "remembered", lambda request: times)
    assert coordgraph("compile", *words, "--plan", "auto").json["plan"] == BETTER


@quick_cases(1)
@pytest.mark.parametrize("fixed", [(), ("--fixed",)])
def test_a_run_of_a_plan(fixed: tuple[str, ...]):
    """The report of `run --plan` has the tile, passes and number of workgroups of the plan."""
    plan = "16x32x16 rasterize{width=2},stream-k{owner=last} on 5"
    words = ("run", *SIZES, "--dtype", "f32", "-t", "interpreter", "--repeat", "1", "--check")
    found = coordgraph(*words, *fixed, "--plan", plan, "--json").json
    assert found["plan"] == plan
    assert found["pipeline"] == "rasterize{width=2},stream-k{owner=last}"
    assert found["tile"] == [16, 32, 16]
    assert found["schedule"]["workgroups"] == 5
    assert found["check"]["passed"]
    assert coordgraph(*words, "-s", "stream-k", "--json").json["plan"] is None


@pytest.mark.slow
@pytest.mark.parametrize("size", [("512", "511", "513"), ("64", "64", "64")])
def test_what_is_explained_can_be_run(size: tuple[str, ...]):
    """The plan that `explain` prints can be passed to `run`, also for sizes that TMA cannot
    load.
    """
    sizes = tuple(word for pair in zip(("--m", "--n", "--k"), size, strict=True) for word in pair)
    plan = coordgraph("explain", *sizes, "--json").json["plans"][0]["plan"]
    found = coordgraph(
        "compile", *sizes, "--plan", plan, "-t", "sm_90a", "-e", "ptx", "--json"
    ).json
    assert found["plan"] == plan
    by_boxes = size == ("64", "64", "64")
    assert ("cp.async.bulk.tensor" in found["code"]["ptx"]) == by_boxes
    assert ("mma.sync" in found["code"]["ptx"]) == (not by_boxes)


@pytest.mark.slow
def test_a_plan_is_compiled_with_its_cluster():
    words = ("compile", "-t", "sm_90a", "-e", "ptx", "--json", "--plan")
    alone, two = (
        coordgraph(*words, f"128x128x64{cluster} data-parallel").json["code"]["ptx"]
        for cluster in ("", "@c2x1")
    )
    assert "cluster" in two
    assert alone != two


@quick_cases(3)
@pytest.mark.parametrize("options", [(), ("--transpose-a", "--fixed"), ("--transpose-b",)])
@pytest.mark.parametrize("dtype", ["bf16", "f64"])
def test_a_run_on_the_interpreter_passes_its_check(dtype: str, options: tuple[str, ...]):
    done = coordgraph(
        *("run", *SMALL, "--dtype", dtype, "-t", "interpreter", "--check", "--json", *options),
        *("--out-dtype", "f32", "-s", "reorder{swap=true},stream-k", "-w", "7"),
    )
    assert done.json["check"]["passed"], done.out
    assert done.code == 0


def test_a_run_on_the_cpu_for_people(tmp_path: Path):
    """Output that is piped has no colours, and standard error is empty."""
    done = process("run", *SMALL, "-t", "cpu", "--threads", "1", "--check", "-w", "7")
    assert (done.code, done.err) == (0, "")
    assert "\x1b" not in done.out
    for text in (
        "D = A x B   40 x 33 x 50, bf16 to bf16",
        "schedule     two-tile-stream-k{workgroups=7}",
        "3 x 3 = 9 of the output, 4 deep: 36 iterations",
        "passed  error",
        "GFLOP/s  (median of 1 run)",
    ):
        assert text in done.out
    assert not [line for line in done.out.splitlines() if line != line.rstrip()]
    (path,) = (line.split()[1] for line in done.out.splitlines() if line.startswith("control"))
    assert Path(path).is_relative_to(tmp_path)
    assert "ReceivePartial" in Path(path).read_text()


class _Wrong(Kernel):
    """A kernel whose last element of D is wrong: it is not stored, or stored with a wrong value."""

    def __init__(self, kernel: Kernel, value: float | None) -> None:
        super().__init__(kernel.graph, kernel.target)
        self.kernel, self.value = kernel, value

    def __call__(self, a: Any, b: Any, c: Any = None, out: Any = None, *rest: Any, **more: Any):
        left = out[-1, -1]
        self.kernel(a, b, c, out, *rest, **more)
        out[-1, -1] = left if self.value is None else self.value
        return out


@pytest.mark.parametrize(
    ("value", "found"),
    [(None, "1 elements are not written"), (99.0, "1 elements are wrong"), (np.nan, "error nan")],
)
def test_a_single_wrong_element_fails_the_check(monkeypatch, value, found):
    import codegen

    compile_well = codegen.compile
    monkeypatch.setattr(codegen, "compile", lambda *args, **_: _Wrong(compile_well(*args), value))
    words = ("run", *SMALL, "--dtype", "f32", "-t", "interpreter", "--check")
    done = coordgraph(*words)
    assert done.code == 1
    assert "FAILED" in done.out
    assert found in done.out
    again = coordgraph(*words, "--json")
    assert again.code == 1
    assert not again.json["check"]["passed"]


@pytest.mark.parametrize(("value", "passed"), [(0.0, True), (2.0, False)])
def test_a_wrong_element_is_seen_in_a_large_matrix_too(value: float, passed: bool):
    """`Check` finds one wrong element, even if the norm of the error of D is within tolerance."""
    problem = checking.Problem(512, 512, 8, "bf16", None, False, False)
    inputs = checking.make_inputs(problem, 1.0, 0.0, 0)
    d = (inputs.a.astype(np.float32) @ inputs.b.astype(np.float32)).astype(inputs.a.dtype)
    d[100, 200] += value
    check = checking.Check.of(d, inputs, problem)
    assert check.error < check.tolerance
    assert (check.passed, check.wrong) == (passed, int(not passed))


def test_inputs_depend_on_the_seed_alone():
    problem = checking.Problem(9, 8, 7, "bf16", None, True, False)
    one, same, other = (checking.make_inputs(problem, 1.0, 1.0, seed) for seed in (3, 3, 4))
    assert one.a.shape == (7, 9)
    assert one.b.shape == (7, 8)
    assert one.c is not None
    assert one.a.tobytes() == same.a.tobytes()
    assert one.a.tobytes() != other.a.tobytes()


@pytest.mark.parametrize("kind", ["bf16", "f16", "f32", "f64"])
def test_poison_is_no_number_and_no_usual_one(kind: str):
    made = checking.poisoned(2, 3, kind)
    assert np.isnan(made.astype(np.float64)).all()
    assert made.tobytes() != np.full_like(made, np.nan).tobytes()


def test_compile_reports_and_writes_into_a_folder(tmp_path: Path):
    done = coordgraph(
        *("compile", "-t", "sm_80", "--tile", "16x16x16", "-s", "stream-k", "--json"),
        *("-e", "ptx", "-e", "llvm", "-e", "index", "-e", "graph", "-o", str(tmp_path)),
    )
    found = done.json
    assert done.code == 0
    texts = {kind: Path(path).read_text() for kind, path in found["files"].items()}
    assert ".target sm_80" in texts["ptx"]
    assert "define" in texts["llvm"]
    assert "SignalFlag: flags = workgroup" in texts["index"]
    assert texts["graph"].startswith("coordgraph 1\n")
    assert found["report"]["indices"] == len(texts["index"].splitlines())
    assert "code" not in found


@pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")
def test_compile_asks_ptxas(tmp_path: Path):
    path = tmp_path / "kernel.ptx"
    done = coordgraph("compile", "-t", "sm_80", "--tile", "16x16x16", "-e", "ptx", "-o", str(path))
    assert (done.code, done.out) == (0, "")
    assert "spill stores  0" in done.err
    assert path.read_text().count(".visible .entry") == 1


def test_several_texts_need_a_folder_or_json():
    words = ("compile", "-t", "sm_80", "--tile", "16x16x16", "-e", "ptx", "-e", "index")
    done = coordgraph(*words)
    assert done.code == 2
    assert "--output DIR" in done.err
    assert set(coordgraph(*words, "--json").json["code"]) == {"ptx", "index"}


@pytest.mark.slow
def test_compile_for_the_host_prints_assembly():
    done = coordgraph("compile", "-t", "cpu", "--tile", "16x16x16", "--dtype", "f32", "-e", "asm")
    assert done.code == 0
    assert ".globl\trun" in done.out
    assert "target" in done.err


@pytest.mark.slow
def test_the_doctor_tries_what_is_here():
    done = coordgraph("doctor", "--json")
    found = done.json
    assert done.code == 0
    assert found["healthy"]
    targets = {entry["name"]: entry for entry in found["targets"]}
    for name, kind in (("interpreter", "f32"), ("cpu", "bf16")):
        assert targets[name]["status"] == "ok"
        assert f"multiplies {kind}" in targets[name]["detail"]
    # Of the architectures that prefer the same lowering, the output lists only one.
    families = {
        entry["name"]: entry["detail"].partition(":")[0]
        for entry in found["targets"]
        if entry["name"].startswith("sm_")
    }
    assert families == {"sm_80": "mma.sync + cp.async", "sm_90a": "wgmma + TMA"}
    assert {"numpy", "sympy", "llvmlite"} <= {entry["name"] for entry in found["packages"]}


@pytest.mark.slow
def test_the_doctor_says_what_is_broken(monkeypatch: pytest.MonkeyPatch):
    def broken() -> str:
        raise RuntimeError("out of order")

    monkeypatch.setattr(doctor, "_multiply", lambda target, dtype: broken())
    monkeypatch.setattr(doctor, "_assemble", lambda architecture: "not tried")
    done = coordgraph("doctor")
    assert done.code == 4
    assert re.search(r"^FAIL  cpu +RuntimeError: out of order$", done.out, re.MULTILINE)
    assert "a package, the interpreter or the CPU does not work" in done.out


@pytest.fixture
def quick_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `doctor` report the targets without making kernels."""
    monkeypatch.setattr(doctor, "_multiply", lambda target, dtype: "not tried")
    monkeypatch.setattr(doctor, "_assemble", lambda architecture: "not tried")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_doctor")
def test_the_doctor_names_what_fails_though_nothing_needed_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path / "cache"))
    done = coordgraph("doctor")
    assert done.out.splitlines()[-1] == "the packages, the interpreter and the CPU work"
    (tmp_path / "passes.py").write_text("")
    monkeypatch.chdir(tmp_path)
    done = coordgraph("doctor")
    assert done.code == 0
    assert done.out.splitlines()[-1].endswith("; this does not: import passes")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_doctor")
def test_the_doctor_tries_the_kernel_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A cache that cannot be written is never an error, so only the doctor reports it."""
    monkeypatch.setenv("COORDGRAPH_CACHE", str(tmp_path / "cache"))
    assert re.search(rf"^ok +kernel cache +{tmp_path}/cache$", coordgraph("doctor").out, re.M)
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("COORDGRAPH_CACHE", str(file))
    done = coordgraph("doctor")
    assert re.search(rf"^FAIL +kernel cache +{file} cannot be written", done.out, re.MULTILINE)
    assert done.out.splitlines()[-1].endswith("; this does not: kernel cache")
    monkeypatch.setenv("COORDGRAPH_CACHE", "off")
    assert re.search(
        r"^- +kernel cache +off, by COORDGRAPH_CACHE=off$", coordgraph("doctor").out, re.M
    )


@pytest.mark.slow
def test_the_doctor_asks_the_registry_of_architectures(monkeypatch: pytest.MonkeyPatch):
    class Own(MmaSync):
        instructions = "mma.sync.own"

    codegen.architectures.register(
        Architecture("sm_99x", 99, 101376, (Own(), MMA_SYNC)), emitters={Own.instructions: "a:b"}
    )
    tried: list[str] = []
    monkeypatch.setattr(doctor, "_multiply", lambda target, dtype: "not tried")
    monkeypatch.setattr(doctor, "_assemble", lambda architecture: tried.append(architecture) or "")
    try:
        assert coordgraph("doctor").code == 0
    finally:
        codegen.architectures.unregister("sm_99x")
    assert tried == ["sm_80", "sm_90a", "sm_99x"]


@pytest.mark.gpu
def test_a_run_on_the_gpu():
    require_gpu()
    done = coordgraph("run", "--m", "300", "--n", "200", "--k", "100", "--check", "--json")
    assert done.code == 0
    assert done.json["target"].startswith("sm_")
    assert done.json["check"]["passed"]


def test_a_graph_from_a_file(tmp_path: Path):
    """`run --from` takes schedule, types and layouts from a file, and sizes from options."""
    file = tmp_path / "graph.txt"
    graph = ("--dtype", "f32", "--transpose-b", "--n", "96", "--schedule", "stream-k", "-w", "3")
    assert coordgraph("show", "text", *graph, "--output", str(file)).code == 0
    words = ("run", "--from", str(file), "--target", "cpu", "--check", "--json", "--repeat", "1")
    found = coordgraph(*words, "--m", "64", "--k", "80").json
    problem = found["problem"]
    assert (problem["m"], problem["n"], problem["k"]) == (64, 96, 80)
    assert (problem["dtype"], problem["transpose_b"]) == ("f32", True)
    assert found["check"]["passed"]
    refused = coordgraph(*words, "--m", "64", "--k", "80", "--tile", "32x32x32")
    assert refused.code == 2
    assert "leave out --tile" in refused.json["error"]["message"]
    refused = coordgraph(*words, "--m", "64", "--k", "80", "--dtype", "f16")
    assert "--dtype contradicts the graph, which has dtype=f32" in refused.json["error"]["message"]


class Slow:
    """A fake kernel whose second launch takes 0.2 s, as if it compiled code.

    The first launch of a real kernel checks every index if the library did not make the graph; the
    second launch then compiles code without these checks.
    """

    target = "cpu"

    def __init__(self) -> None:
        self.launches = 0

    def __call__(self, *_: object, **__: object) -> None:
        self.launches += 1
        if self.launches == 2:
            time.sleep(0.2)


def test_what_is_compiled_in_the_second_launch_is_not_timed():
    nothing = np.zeros((1, 1), np.float32)
    inputs = checking.Inputs(nothing, nothing, None, 1.0, 0.0)
    found = timing.launch(cast(Kernel, Slow()), inputs, nothing, 3)
    assert len(found.seconds) == 3
    assert max(found.seconds) < 0.2
