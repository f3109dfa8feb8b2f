"""An exception inside a pass becomes a PassError that names the pass; pass names are checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

import passes.lowering
import passes.timeline  # noqa: F401 - registers passes
from coordgraph import CoordGraphError, Gemm, KernelGraph, ParseError, PassError, VerifyError
from passes import PASSES, Pass, Pipeline, StreamK
from passes.base import RESERVED

PROBLEM = Gemm("f32").graph((4, 4, 4))


@dataclass(frozen=True)
class Breaks(Pass):
    """A pass whose methods `why_not` and `apply` fail; `where` selects one of several errors."""

    where: str = "apply"
    number: int = 0

    name = "test-breaks"
    establishes = ("problem",)

    def why_not(self, graph: KernelGraph) -> str | None:
        if self.where == "why_not":
            return f"{1 // self.number}"
        if self.where == "why_not of another":
            raise VerifyError("something is not there")
        return cast(Any, True) if self.where == "no words" else None

    def apply(self, graph: KernelGraph) -> KernelGraph:
        match self.where:
            case "nothing":
                return cast(Any, None)
            case "text":
                return cast(Any, graph.text())
            case "another":
                return StreamK()(StreamK()(graph))
            case "key":
                return cast(Any, {})["for_k"]
            case "own":
                raise PassError(f"{self} refuses: I say so myself")
            case "assertion":
                raise AssertionError
            case _:
                raise VerifyError("there is no dimension 'x'")


@pytest.mark.parametrize(
    ("where", "words", "cause"),
    [
        ("why_not", "failed in why_not: ZeroDivisionError: integer division", ZeroDivisionError),
        ("why_not of another", "failed in why_not: something is not there", VerifyError),
        ("no words", "failed: its method why_not returned True; return None", None),
        ("nothing", "failed: apply returned NoneType, not a KernelGraph; return the", None),
        ("text", "failed: apply returned str, not a KernelGraph", None),
        ("another", "failed in apply: stream-k cannot start: a schedule has tied", PassError),
        ("key", "failed in apply: KeyError: 'for_k'", KeyError),
        ("assertion", "failed in apply: AssertionError", AssertionError),
        ("own", "refuses: I say so myself", None),
        ("graph", "failed in apply: there is no dimension 'x'", VerifyError),
    ],
)
def test_failures_name_the_pass(where: str, words: str, cause: type[Exception] | None):
    step = Breaks(where)
    with pytest.raises(PassError) as caught:
        step(PROBLEM)
    assert str(caught.value).startswith(f"{step} {words}")
    found = caught.value.__cause__
    assert found is None if cause is None else isinstance(found, cause)
    with pytest.raises(PassError) as caught:
        Pipeline([step])(PROBLEM)
    assert str(step) in str(caught.value)
    assert "test-breaks" in (caught.value.reproducer or "")


def test_to_ask_for_a_refusal_fails_as_a_call_does():
    with pytest.raises(PassError, match="failed in why_not: ZeroDivisionError"):
        Breaks("why_not").refusal(PROBLEM)


def test_a_check_that_does_not_exist_is_an_error_of_the_pass():
    @dataclass(frozen=True)
    class Demands(Breaks):
        name = "test-demands"
        requires = ("perfect",)

    with pytest.raises(PassError, match=r"^test-demands failed in the check of what it requires: "):
        Demands()(PROBLEM)


def test_what_is_no_graph_is_refused():
    with pytest.raises(PassError, match="stream-k cannot start: it needs a KernelGraph, not a str"):
        StreamK()(cast(Any, PROBLEM.text()))


def test_what_is_no_error_goes_through():
    @dataclass(frozen=True)
    class Stops(Pass):
        name = "test-stops"

        def apply(self, graph: KernelGraph) -> KernelGraph:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Stops()(PROBLEM)


def test_a_pass_without_a_name_is_refused():
    @dataclass(frozen=True)
    class Nameless(Pass):
        def apply(self, graph: KernelGraph) -> KernelGraph:
            return graph

    with pytest.raises(PassError, match=r'Nameless has no name; write name = "…" in its class'):
        Nameless()


def test_names_are_checked_at_the_call_too():
    @dataclass(frozen=True)
    class Nameless(Pass):
        def __post_init__(self) -> None:
            pass

        def apply(self, graph: KernelGraph) -> KernelGraph:
            return graph

    with pytest.raises(PassError, match=r'Nameless has no name; write name = "…" in its class'):
        Nameless()(PROBLEM)


def test_a_name_is_a_string():
    with pytest.raises(PassError, match="Odd has the name 3 of type int; write a string"):
        type("Odd", (StreamK,), {"name": 3})


def test_names_of_lowerings_are_taken_before_they_are_imported(monkeypatch: pytest.MonkeyPatch):
    of_lowerings = {
        name
        for name, kind in PASSES.items()
        if kind.__module__.startswith(("passes.lowering.", "passes.timeline."))
    }
    assert of_lowerings == set(RESERVED)
    for name in RESERVED:
        monkeypatch.delitem(PASSES, name)
        with pytest.raises(PassError, match=f"'{name}', which a pass in passes.lowering or "):
            type("Mine", (StreamK,), {"name": name})
        assert name not in PASSES


@pytest.mark.parametrize("taken", ["stream-k", "reorder", "data-parallel"])
def test_names_of_the_library_are_taken(taken: str):
    before = PASSES[taken]
    with pytest.raises(PassError, match=f"Mine has the name '{taken}', which passes") as caught:

        class Mine(StreamK):
            name = taken

    assert "give it another name" in str(caught.value)
    assert PASSES[taken] is before


@pytest.mark.parametrize("name", ["two words", "a,b", "x{", "a=b", "é", "a\n"])
def test_names_that_text_cannot_hold_are_refused(name: str):
    before = dict(PASSES)
    with pytest.raises(PassError, match="which the text of pipelines cannot hold"):
        type("Odd", (StreamK,), {"name": name})
    assert before == PASSES


def test_a_pass_may_be_defined_again_in_its_module():
    for number in (1, 2):

        class Again(StreamK):
            name = "test-again"
            version = number

    # The class is unregistered, because other tests would find it among the schedules to choose
    # from.
    assert PASSES.pop("test-again").version == 2  # type: ignore[attr-defined]


@dataclass(frozen=True)
class HidesTheCheck(StreamK):
    """A pass whose `__post_init__` does not call `Pass.__post_init__`, which checks options."""

    name = "test-hides-the-check"

    def __post_init__(self) -> None:
        pass


# The class is unregistered, because other tests would find it among the schedules.
del PASSES[HidesTheCheck.name]


def test_options_are_checked_at_the_call_too():
    step = HidesTheCheck(workgroups=0)
    assert step.refusal(PROBLEM) == (
        "test-hides-the-check refuses: workgroups=0 is outside 1..65535"
    )
    with pytest.raises(PassError, match="outside"):
        step(PROBLEM)


def test_text_says_where_an_option_is_wrong():
    with pytest.raises(ParseError) as caught:
        Pipeline.parse("reorder,stream-k{owner=middle}")
    assert (caught.value.line, caught.value.column) == (1, 24)
    with pytest.raises(ParseError) as caught:
        Pipeline.parse("reorder,stream-k{workgroups=-1}")
    assert "workgroups=-1 is outside 1..65535" in str(caught.value)
    assert isinstance(caught.value, CoordGraphError)
