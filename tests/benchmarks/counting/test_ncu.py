"""Hardware counters: ncu's output and error messages are parsed; a script stands in for ncu."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import launches
from benchmarks.counting import ncu
from benchmarks.counting.ncu import METRICS, Counters, NoCounters, command, parse
from coordgraph import LaunchError

NAMES = [
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC", *METRICS),
]
UNITS = [""] * 11 + ["byte", "byte", "sector"]


def quoted(cells: list[str]) -> str:
    return ",".join(f'"{cell}"' for cell in cells)


def launch(number: int, *values: str) -> list[str]:
    where = ["4711", "python3.12", "127.0.0.1", "gemm", "1", "7", "(384, 1, 1)", "(132, 1, 1)"]
    return [str(number), *where, "0", "9.0", *values]


def printed(*rows: list[str], units: list[str] = UNITS, names: list[str] = NAMES) -> str:
    """Text as ncu 2025.3 prints it: log lines, a line of names, a line of units, and `rows`."""
    return "\n".join(
        [
            "==PROF== Connected to process 4711 (/usr/bin/python3.12)",
            '==PROF== Profiling "gemm" - 0: 0%....50%....100% - 2 passes',
            "==PROF== Disconnected from process 4711",
            *map(quoted, [names, units, *rows]),
            "",
        ]
    )


def test_launches_are_read_in_order():
    text = printed(launch(0, "537395200", "134217728", "67108864"), launch(1, "64", "0", "3"))
    assert parse(text) == [
        Counters(537395200, 134217728, 32 * 67108864),
        Counters(64, 0, 96),
    ]
    assert parse(text)[1].json() == {
        "dram_read_bytes": 64,
        "dram_write_bytes": 0,
        "l2_read_bytes": 96,
    }


def test_columns_are_found_by_name_and_units_count():
    names = [*NAMES[:11], METRICS[2], "launch__waves", METRICS[0], METRICS[1]]
    units = [""] * 11 + ["sector", "", "Gbyte", "Mbyte"]
    text = printed(launch(0, "1,000", "0.5", "1.5", "2.25"), names=names, units=units)
    assert parse(text) == [Counters(1_500_000_000, 2_250_000, 32_000)]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("==WARNING== No kernels were profiled.\n", "no table: ==WARNING== No kernels"),
        ("", "it printed nothing"),
        (printed(launch(0, "1"), names=[*NAMES[:11], METRICS[0]], units=UNITS[:12]),
         "no counters dram__bytes_write.sum, lts__t_sectors_op_read.sum"),
        (printed(launch(0, "n/a", "1", "1")), "printed 'n/a byte'"),
        (printed(launch(0, "nan", "1", "1")), "printed 'nan byte'"),
        (
            printed(launch(0, "1", "1", "1"), units=[*UNITS[:12], "byte", "inch"]),
            "printed '1 inch'",
        ),
    ],
)  # fmt: skip
def test_output_without_a_table_says_why(text: str, why: str):
    with pytest.raises(NoCounters, match=why):
        parse(text)


def test_clocks_are_left_alone_and_the_cache_is_emptied():
    words = command("/opt/ncu", Path("log.csv"), ["python", "-m", "x"])
    assert words[0] == "/opt/ncu"
    assert words[-3:] == ["python", "-m", "x"]
    options = dict(pairwise(words))
    assert options["--clock-control"] == "none"
    assert options["--cache-control"] == "all"
    assert options["--kernel-name"] == "regex:^gemm"
    assert options["--metrics"].split(",") == list(METRICS)
    assert options["--log-file"] == "log.csv"
    assert "--csv" in words


def test_without_ncu_the_message_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ncu, "PATHS", ("no-such-ncu",))
    with pytest.raises(NoCounters, match="ncu is neither on PATH"):
        ncu.count({"problems": []}, 1.0)


SCRIPT = """#!{python}
import json, sys, time
words = sys.argv[1:]
log = words[words.index("--log-file") + 1]
todo, done = words[-2:]
jobs = json.load(open(todo))
pairs = [(p["size"], plan) for p in jobs["problems"] for plan in p["plans"]]
with open(done, "w") as lines:
    for size, plan in pairs:
        lines.write(json.dumps({{"size": size, "plan": plan}}) + "\\n")
"""
JOBS = {
    "problems": [
        {"size": "1x2x3", "plans": ["p", "q"]},
        {"size": "4x5x6", "plans": ["p"]},
    ]
}


def standing_in(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Replace `ncu` by a Python script that lists all launches as finished, then runs `lines`.

    Args:
        folder: the folder in which the script is written.
        monkeypatch: makes `benchmarks` find the script.
        lines: the end of the script: Python statements that decide what the fake `ncu` prints.
    """
    path = folder / "ncu"
    path.write_text(SCRIPT.format(python=sys.executable) + "\n".join(lines), encoding="utf-8")
    path.chmod(0o755)
    monkeypatch.setattr(ncu, "PATHS", (str(path),))


def test_counters_go_with_launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = [launch(i, str(100 * i), str(i), str(10 * i)) for i in range(3)]
    standing_in(tmp_path, monkeypatch, f"open(log, 'w').write({printed(*rows)!r})")
    assert ncu.count(JOBS, 20.0) == {
        ("1x2x3", "p"): Counters(0, 0, 0),
        ("1x2x3", "q"): Counters(100, 1, 320),
        ("4x5x6", "p"): Counters(200, 2, 640),
    }


DENIED = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
    "Performance Counters on the target device 0."
)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (f"open(log, 'w').write({DENIED!r})", "permits only administrators"),
        (f"print({DENIED!r}); sys.exit(1)", "permits only administrators"),
        ("print('==ERROR== LibraryNotLoaded'); sys.exit(3)", "==ERROR== LibraryNotLoaded"),
        ("open(done, 'w').write('')", "it printed nothing"),
        (
            f"open(log, 'w').write({printed(launch(0, '1', '1', '1'))!r})",
            "counted 1 kernels, but 3 were",
        ),
    ],
)
def test_failures_say_why(line: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    standing_in(tmp_path, monkeypatch, line)
    with pytest.raises(NoCounters, match=why):
        ncu.count(JOBS, 20.0)


def test_what_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    standing_in(tmp_path, monkeypatch, "time.sleep(100)")
    monkeypatch.setattr(ncu, "GRACE", 0.3)
    with pytest.raises(NoCounters, match="longer than"):
        ncu.count(JOBS, 0.2)


class Device:
    """A fake GPU: its kernels record their launches, and each launch advances its clock by 1 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.launched, self.built = 0.0, [], []
        self.waited = 0
        monkeypatch.setattr(launches, "build", self.build)
        monkeypatch.setattr(launches, "operands", lambda shape, layout, dtype: (shape.name, 0, 1))

    def build(self, plan: Any, gemm: Any, target: str) -> Any:
        self.built.append((plan.kernel, gemm.transpose_b, target))

        def kernel(a: Any, b: Any, *, out: Any, workgroups: int | None) -> None:
            if "split-k" in plan.pipeline:
                raise LaunchError("it does not fit")
            self.now += 1
            self.launched.append((a, plan.pipeline, workgroups))

        return kernel

    def synchronize(self) -> None:
        self.waited += 1


def test_plans_are_launched_once_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch):
    device, reported = Device(monkeypatch), []
    plans = ["64x64x64 stream-k on 6", "64x64x64 split-k{splits=3}", "64x64x64 stream-k on 5"]
    size = {"m": 64, "n": 64, "k": 64}
    jobs = {
        "dtype": "bf16",
        "layout": "nt",
        "target": "native",
        "until": 2.5,
        "problems": [
            {"size": "a", **size, "plans": plans},
            {"size": "b", **size, "plans": plans},
            {"size": "c", **size, "plans": plans},
        ],
    }
    launches.launch_all(jobs, reported.append, device.synchronize, clock=lambda: device.now)
    assert device.launched == [
        ("a", "stream-k", 6),
        ("a", "stream-k", 5),
        ("b", "stream-k", 6),
    ]
    assert device.waited == 3
    assert [one["plan"] for one in reported] == [plans[0], plans[2], plans[0]]
    assert [one["size"] for one in reported] == ["a", "a", "b"]
    kernels = [kernel for kernel, _, _ in device.built]
    assert kernels == ["64x64x64 stream-k", "64x64x64 split-k{splits=3}"]
    assert {(turned, target) for _, turned, target in device.built} == {(True, "native")}


def test_the_child_writes_each_launch_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    todo, done = tmp_path / "jobs.json", tmp_path / "done.jsonl"
    todo.write_text('{"problems": []}', encoding="utf-8")
    seen: list[str] = []

    def launch_all(jobs: Any, report: Any, synchronize: Any) -> None:
        assert jobs == {"problems": []}
        report({"size": "a", "plan": "p"})
        seen.append(done.read_text(encoding="utf-8"))

    cuda = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(launches, "launch_all", launch_all)
    monkeypatch.setattr(sys, "argv", ["launches", str(todo), str(done)])
    launches.main()
    assert [json.loads(line) for line in seen] == [{"size": "a", "plan": "p"}]
