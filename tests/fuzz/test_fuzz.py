"""The fuzzer notices crashes, hangs and wrong results; 25 mutated graphs cause no failure."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from codegen.targets.cpu import HostKernel, code, workspace
from coordgraph import KernelGraph
from tests.fuzz import trial
from tests.fuzz.bases import CPU_BASES, base_data, base_graph, base_text
from tests.fuzz.memory import Overwritten, watched_workspaces
from tests.fuzz.mutants import KINDS, Mutant, mutant
from tests.fuzz.trial import FINDINGS, Outcome, attempt
from tests.fuzz.workers import Workers
from tests.support.sampling import quick_cases

pytestmark = [
    pytest.mark.timeout(200),
    # JAX warns of forks if another test imported it; the children here do not use JAX.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "QUICK_LEVEL", 0)
    monkeypatch.setattr(trial, "GUARDED_SHARE", 1.0)


def of(make: Callable[[], KernelGraph]) -> Callable[[int, int], Mutant]:
    return lambda seed, number: Mutant("text", "", make, Random(0))


def segfault() -> KernelGraph:
    ctypes.string_at(0)
    raise AssertionError


def endless() -> KernelGraph:
    while True:
        time.sleep(0.01)


def foreign() -> KernelGraph:
    raise KeyError("flags")


@quick_cases(3)
@pytest.mark.parametrize(
    ("make", "outcome", "detail"),
    [
        (segfault, Outcome.CRASH, "SIGSEGV"),
        (endless, Outcome.HANG, "endless"),
        (foreign, Outcome.FOREIGN, "KeyError: 'flags'"),
        (lambda: base_graph(CPU_BASES[0]), Outcome.RIGHT, ""),
    ],
)
def test_what_becomes_of_a_mutant(make: Callable[[], KernelGraph], outcome: Outcome, detail: str):
    limit = 0.2 if make is endless else 60
    with Workers(limit, of(make)) as workers:
        found = workers.try_mutant(0, 0)
    assert found.outcome is outcome, found
    assert detail in found.detail


def test_a_wrong_product_is_noticed(monkeypatch: pytest.MonkeyPatch):
    call = HostKernel.__call__

    def spoiled(self: object, *args: object, out: np.ndarray, **options: object) -> np.ndarray:
        call(self, *args, out=out, **options)  # type: ignore[arg-type]
        out.reshape(-1)[0] += 1
        return out

    monkeypatch.setattr(HostKernel, "__call__", spoiled)
    found = attempt(of(lambda: base_graph(CPU_BASES[0]))(0, 0), lambda _: None)
    assert (found.outcome, found.stage) == (Outcome.WRONG, "guarded run")


@pytest.mark.parametrize("at", [-1, 64])
def test_a_write_beside_a_workspace_is_noticed(at: int):
    def write() -> None:
        with watched_workspaces():
            made = workspace.aligned(64)
            ctypes.memset(made.ctypes.data + at, 0, 1)

    with pytest.raises(Overwritten, match="beside a workspace"):
        write()


def test_a_write_before_a_tensor_is_noticed():
    made = trial._fences.array((3, 5), np.dtype(np.float32))
    made[...] = 1
    trial._fences.check()
    made = trial._fences.array((3, 5), np.dtype(np.float32))
    ctypes.memset(made.ctypes.data - 1, 0, 1)
    with pytest.raises(Overwritten, match="before a tensor"):
        trial._fences.check()


def test_a_write_past_a_tensor_ends_the_process():
    def past() -> KernelGraph:
        made = trial._fences.array((3, 5), np.dtype(np.float32))
        ctypes.memset(made.ctypes.data + made.nbytes, 0, 1)
        raise AssertionError

    with Workers(60, of(past)) as workers:
        assert workers.try_mutant(0, 0).outcome is Outcome.CRASH


def test_mutants_are_repeatable_and_of_every_kind():
    made = [mutant(5, number) for number in range(40)]
    assert [m.shown for m in made] == [mutant(5, number).shown for number in range(40)]
    assert {m.kind for m in made} == {*KINDS}
    assert len({m.shown for m in made}) > 35


@pytest.mark.slow
def test_the_first_mutants_show_no_defect():
    for base in CPU_BASES:
        base_text(base)
        base_data(base)
    with Workers(100) as workers:
        found = [workers.try_mutant(2, number) for number in range(25)]
    assert [(n, r) for n, r in enumerate(found) if r.outcome in FINDINGS] == []
    assert {Outcome.REFUSED, Outcome.RIGHT} <= {r.outcome for r in found}
