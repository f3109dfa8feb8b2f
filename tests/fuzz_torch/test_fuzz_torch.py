"""Random calls of `codegen.torch` agree with PyTorch, and the fuzzer finds planted defects."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402 - the fuzzer needs PyTorch

import codegen.torch as cgt  # noqa: E402
from codegen.targets.cpu import code  # noqa: E402
from codegen.torch import functions  # noqa: E402
from coordgraph import LaunchError  # noqa: E402
from tests.fuzz_torch import references, trial  # noqa: E402
from tests.fuzz_torch.cases import Case, Way, case  # noqa: E402
from tests.fuzz_torch.processes import in_processes  # noqa: E402
from tests.fuzz_torch.tensors import VIEWS, Drawn  # noqa: E402
from tests.fuzz_torch.trial import FINDINGS, Outcome, attempt  # noqa: E402


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "QUICK_LEVEL", 0)


def test_the_first_calls_agree():
    found = {number: attempt(case(5, number)) for number in range(25)}
    assert {n: (str(case(5, n)), r) for n, r in found.items() if r.outcome in FINDINGS} == {}
    assert Counter(r.outcome for r in found.values())[Outcome.SAME] > 15


def test_calls_are_repeatable_and_of_every_kind():
    made = [case(5, number) for number in range(400)]
    assert [str(each) for each in made] == [str(case(5, number)) for number in range(400)]
    assert {x.kind for each in made for x in each.tensors} == {*VIEWS}
    assert len({each.name for each in made}) == 9
    assert {each.way.transform for each in made} == {None, "vmap", "jvp", "vjp"}
    assert any(each.elsewhere for each in made)
    assert any(each.way.out for each in made)


def test_views_of_float8_are_not_negated():
    """No case has a negated view of float8, because PyTorch cannot read such views."""
    for kind, some in ((torch.bfloat16, True), (torch.float8_e4m3fn, False)):
        made = [Drawn.of(Random(number), (2,), kind) for number in range(100)]
        assert any(x.view(x.leaf("cpu")).is_neg() for x in made) is some


def planted(ours: Any, *shapes: tuple[int, ...], **changed: Any) -> Case:
    """A `Case` that compares `ours`, a wrong matmul, with `torch.matmul`; `changed`: its fields."""
    tensors = tuple(
        Drawn(shape, torch.float32, "row-major", shape, lambda x: x, True, number + 1)
        for number, shape in enumerate(shapes or ((5, 7), (7, 6)))
    )
    made = Case("matmul", ours, torch.matmul, torch.matmul, tensors, {}, Way())
    return replace(made, **changed)


def scaled_gradient(a: Any, b: Any) -> Any:
    return a @ b.detach() + a.detach() @ (b * 2 - b.detach() * 2)


def raises(error: Exception) -> Any:
    def function(*tensors: Any) -> Any:
        raise error

    return function


def copies_meta(a: Any, b: Any) -> Any:
    """Raises NotImplementedError in a function of PyTorch that modes such as `use_kernels` see."""
    return torch.empty(2, device="meta").cpu()


def changes_a(a: Any, b: Any) -> Any:
    d = a.clone() @ b
    a.data.mul_(2)
    return d


@pytest.mark.parametrize(
    ("ours", "outcome"),
    [
        (torch.matmul, Outcome.SAME),
        (lambda a, b: a @ b * 1.01, Outcome.WRONG),
        (scaled_gradient, Outcome.GRADIENT),
        (lambda a, b: (a @ b).detach(), Outcome.UNLIKE),
        (lambda a, b: (a @ b).double(), Outcome.UNLIKE),
        (lambda a, b: (b.mT @ a.mT).mT, Outcome.UNLIKE),
        (raises(KeyError("x")), Outcome.FOREIGN),
        (raises(LaunchError("no")), Outcome.WORDLESS),
        (raises(LaunchError("a is odd; pass another")), Outcome.TOO_STRICT),
        (changes_a, Outcome.CHANGED),
    ],
)
def test_planted_defects_are_found(ours: Any, outcome: Outcome):
    assert attempt(planted(ours)).outcome is outcome


def test_what_is_refused_is_compared():
    shapes = (5, 7), (5, 6)
    assert attempt(planted(lambda a, b: a.mT @ b, *shapes)).outcome is Outcome.TOO_LAX
    both = attempt(planted(raises(LaunchError("k differs; pass the same k")), *shapes))
    assert both.outcome is Outcome.BOTH_REFUSED


def test_errors_of_pytorch_are_no_findings_where_its_product_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
):
    """PyTorch refuses tangents of integers, and a product that `use_kernels` passes on to it."""
    monkeypatch.setattr(trial, "_asserts", lambda *_: True)
    integers = tuple(
        Drawn((5, 5), torch.int8, "row-major", (5, 5), lambda x: x, False, n + 1) for n in range(2)
    )
    found = attempt(planted(cgt.matmul, tensors=integers, way=Way(transform="jvp")))
    assert found.outcome is Outcome.BOTH_REFUSED
    unlike = (integers[0], replace(integers[1], dtype=torch.complex64))
    passed_on = planted(cgt.matmul, tensors=unlike, way=Way(kernels=True), theirs=copies_meta)
    assert attempt(passed_on).outcome is Outcome.BOTH_REFUSED
    monkeypatch.setattr(functions, "_product", raises(KeyError("x")))
    assert attempt(planted(cgt.matmul)).outcome is Outcome.FOREIGN


def test_a_reference_that_fails_is_counted():
    made = planted(torch.matmul, exact=raises(RuntimeError("INTERNAL ASSERT FAILED")))
    assert attempt(made).outcome is Outcome.UNCOMPARED


def of_types(*dtypes: Any, **changed: Any) -> Case:
    """`planted` with `codegen.torch.matmul` of 8 x 8 tensors of these types, without gradients."""
    tensors = tuple(
        Drawn((8, 8), dtype, "row-major", (8, 8), lambda x: x, False, number + 1)
        for number, dtype in enumerate(dtypes)
    )
    return planted(cgt.matmul, tensors=tensors, **changed)


@pytest.mark.parametrize(
    ("element", "agrees"), [(448.0, True), (float("nan"), True), (-448.0, False), (3.0, False)]
)
def test_overflows_of_float8_may_be_nan_or_the_largest_number(element: float, agrees: bool):
    found = torch.tensor([element, 1.0]).to(torch.float8_e4m3fn)
    for beyond in (1000.0, float("inf")):
        exact = torch.tensor([beyond, 1.0], dtype=torch.float64)
        wrong = trial._first_wrong(found, exact, torch.ones_like(exact), 0.125)
        assert (wrong == "") is agrees
    within = torch.tensor([100.0, 1.0], dtype=torch.float64)
    assert trial._first_wrong(found, within, torch.ones_like(within), 0.125)


def test_gradients_that_pytorch_cannot_add_are_compared_with_the_reference():
    """PyTorch cannot add up, over vmap's axis, the gradient of a float8 factor inside autocast."""
    made = of_types(torch.float16, torch.float8_e4m3fn)
    a, b = (replace(x, gradient=True, seed=4) for x in made.tensors)
    made = replace(made, tensors=(a, b), way=Way(autocast=torch.bfloat16, transform="vmap"))
    assert attempt(made).outcome is Outcome.ACCEPTED
    wrong = replace(made, ours=lambda a, b: cgt.matmul(a, b) * 2)
    assert attempt(wrong).outcome is Outcome.WRONG


def test_gradients_of_views_of_float8_are_no_findings_where_pytorch_refuses_the_product():
    kinds = (torch.float8_e4m3fn,) * 2
    made = of_types(*kinds, theirs=raises(RuntimeError("x")), way=Way(autocast=torch.bfloat16))
    a, b = made.tensors
    base, view = (1, 8), lambda x: x.expand(8, 8)
    a = replace(a, kind="expanded", base=base, view=view, gradient=True)
    assert attempt(replace(made, tensors=(a, b))).outcome is Outcome.BOTH_REFUSED
    dense = replace(
        made, ours=raises(NotImplementedError("\"sum\" not implemented for 'Float8_x'"))
    )
    assert attempt(dense).outcome is Outcome.FOREIGN


def test_what_pytorch_leaves_uninitialized_is_not_compared():
    """PyTorch's `grouped_mm` writes no element if there are no groups; coordgraph writes zeros."""

    def unwritten(*factors: Any, **options: Any) -> Any:
        return F.grouped_mm(*factors, **options).fill_(3)

    fields: Any = {"name": "grouped_mm", "theirs": unwritten, "exact": references.one_by_one}
    made = of_types(torch.float32, torch.float16, way=Way(kernels=True), ends=(), **fields)
    a, b = made.tensors
    a = replace(a, shape=(0, 8, 8), base=(0, 8, 8))
    assert attempt(replace(made, tensors=(a, b))).outcome is Outcome.UNCOMPARED
    alike = replace(made, tensors=(a, replace(b, dtype=torch.float32)))
    assert attempt(alike).outcome is Outcome.WRONG
    assert attempt(replace(alike, theirs=F.grouped_mm)).outcome is Outcome.SAME


def named(seed: int, number: int) -> Case:
    """A case whose name is `number`."""
    return planted(torch.matmul, name=str(number))


def fails(case: Case, device: str) -> Any:
    """Stands for `attempt` in a test: call 2 ends the process, and call 3 raises an exception."""
    number = int(case.name)
    if number == 2:
        os._exit(3)
    if number == 3:
        raise KeyError("x")
    return trial.Result(Outcome.SAME)


@pytest.mark.slow
def test_a_process_that_ends_loses_no_other_call(capfd: pytest.CaptureFixture[str]):
    """Its end is printed at once, and another process tries the calls that it left."""
    given = argparse.Namespace(seed=1, count=7, seconds=60, jobs=1, device="cpu")
    assert in_processes(given, named, fails) == 1
    output = capfd.readouterr().out
    assert "--seed 1: the process ended (--only 2: status 3)" in output
    assert "6 calls in" in output
    assert "1  an exception in the fuzzer" in output
    assert "5  the same result" in output
