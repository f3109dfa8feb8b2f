from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from codegen.targets.cpu import host_build
from codegen.targets.cpu.code import host_code
from codegen.toolchain import find_ptxas
from tests.support.golden import Golden
from tests.support.ptxas import HAS_WHEEL
from tests.support.sampling import Slow, mark_slow_cases, sample

# Matrices in tests are small. Threads of OpenBLAS that share two cores with other workers spin
# while they wait for each other, which takes ten times as long as the product. NumPy reads this
# variable when it is first imported, which no import above does.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Constants that `coordgraph calibrate` has stored on this machine would change the chosen plans.
os.environ["COORDGRAPH_DEVICES"] = str(Path(__file__).parent / "no-devices")
# Checks of a graph add up to 30 % to the time of its first build. Tests build thousands of kernels
# of graphs that the library's passes make; tests/coordgraph/verification and tests/faults test the
# checks.
os.environ["COORDGRAPH_VERIFY"] = "0"
_QUIET = [HealthCheck.too_slow]
settings.register_profile(
    "ci",
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=_QUIET,
)
settings.register_profile(
    "dev", max_examples=30, deadline=None, print_blob=True, suppress_health_check=_QUIET
)
_IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if _IN_CI else "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("coordgraph")
    group.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )
    group.addoption(
        "--sample", type=int, metavar="N", help="run N of the selected tests, some of each file"
    )
    group.addoption(
        "--sample-seed", metavar="SEED", help="seed of the sample; by default a new one every day"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Graphs and kernels in caches are many objects that stay: Python's default, a collection every
    # 700 new objects, spends a sixth of the time of the tests on walking them.
    gc.set_threshold(100_000, 20, 100)
    Slow.updating = bool(config.getoption("--update-golden"))
    Slow.collected = "not slow" not in str(config.getoption("markexpr"))
    # pytest-xdist copies the options to its workers, so the seed is set before they start.
    if config.getoption("--sample-seed") is None:
        config.option.sample_seed = datetime.now(UTC).date().isoformat()


def pytest_report_header(config: pytest.Config) -> list[str]:
    count, seed = config.getoption("--sample"), config.getoption("--sample-seed")
    if count is None:
        return []
    return [f"sample: {count} tests; --sample {count} --sample-seed {seed} repeats it"]


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(obj: object) -> list[pytest.Item] | None:
    """In a run without slow tests, return [] for functions marked `slow`, so none is collected.

    None lets pytest collect the object.
    """
    marks = getattr(obj, "pytestmark", ())
    slow = any(getattr(mark, "name", "") == "slow" for mark in marks)
    return [] if slow and not Slow.collected else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Mark slow cases, let -m and -k select tests, then keep only a random --sample of them."""
    mark_slow_cases(items)
    yield
    count = config.getoption("--sample")
    if count is None:
        return
    seed = str(config.getoption("--sample-seed"))
    picked = sample([item.nodeid for item in items], count, seed)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in picked])
    items[:] = [item for item in items if item.nodeid in picked]


def pytest_collection_finish() -> None:
    """Exclude the objects that exist after collection from garbage collection, since they stay."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def frozen() -> Iterator[None]:
    """Exclude the graphs and kernels that a test module leaves in caches from garbage collection.

    Cached graphs and kernels take gigabytes and stay to the end; every full collection would walk
    them again. Frozen garbage is never freed, so the youngest generation is collected before
    freezing.
    """
    yield
    gc.collect(0)
    gc.freeze()


# Objects that are still frozen at exit would be reported as leaks of extension modules. pytest
# collects garbage several times before it exits, so nothing is unfrozen earlier.
atexit.register(gc.unfreeze)


@pytest.fixture(autouse=True)
def optimised_less(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile CPU kernels at a low level of LLVM's optimisation, but at the highest in slow tests.

    The low level saves a quarter of the CPU time of tests/codegen/cpu.
    """
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(host_build, "host_code", partial(host_code, quick=True))


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    """The `Golden` that compares text with a file: `golden(str(graph), "coordgraph/gemm.txt")`."""
    return Golden(
        Path(__file__).parent / "goldens", bool(request.config.getoption("--update-golden"))
    )


@pytest.fixture(scope="session")
def ptxas() -> Path:
    """Path of ptxas.

    If ptxas is missing, the test is skipped; it fails on platforms where the test extra installs
    ptxas.
    """
    path = find_ptxas()
    if path is None and HAS_WHEEL:
        pytest.fail("ptxas is missing: install the test extra, which has nvidia-cuda-nvcc")
    if path is None:
        pytest.skip("no ptxas: nvidia-cuda-nvcc has no wheel for this platform")
    return path
