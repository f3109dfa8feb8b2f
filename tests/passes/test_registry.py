"""Installed packages offer passes as entry points; naming a pass in a pipeline imports it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from codegen.cli import app
from coordgraph import Gemm, ParseError, PassError
from passes import PASSES, Pipeline
from passes.registry import GROUP, all_passes, find_pass, offered

SOURCE = '''
from dataclasses import dataclass
from passes import DataParallel

@dataclass(frozen=True)
class Plugged(DataParallel):
    """A schedule of a plug-in."""

    name = "test-plugged"
'''
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """A function that puts a distribution with a module on the path, as an installer would."""
    before, modules = dict(PASSES), set(sys.modules)

    def put(entries: str, *, source: str = SOURCE, name: str = "test-plug-in") -> None:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")
        info = tmp_path / f"{module}-1.5.dist-info"
        info.mkdir()
        info.joinpath("METADATA").write_text(f"Name: {name}\nVersion: 1.5\n", encoding="utf-8")
        points = f"[{GROUP}]\n{entries}\n"
        info.joinpath("entry_points.txt").write_text(points, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        offered.cache_clear()

    yield put
    offered.cache_clear()
    for added in PASSES.keys() - before.keys():
        del PASSES[added]
    for added in {*sys.modules} - modules:
        if added.startswith("test_plug"):
            del sys.modules[added]


def test_a_pass_is_loaded_when_a_text_names_it(install: Install):
    install("test-plugged = test_plug_in:Plugged")
    Pipeline.parse("stream-k")
    assert "test_plug_in" not in sys.modules
    graph = Pipeline.parse("reorder{swap=true},test-plugged")(Gemm("f32").graph((4, 4, 4)))
    assert graph.log == ("reorder{swap=true}", "test-plugged")
    assert "test_plug_in" in sys.modules
    assert find_pass("test-plugged") is PASSES["test-plugged"]


def test_the_command_line_lists_it(install: Install):
    install("test-plugged = test_plug_in:Plugged")
    assert "test-plugged" in all_passes()
    done = CliRunner().invoke(app, ["passes"])
    assert done.exit_code == 0
    assert "A schedule of a plug-in." in done.output


def test_what_is_offered_helps_where_a_name_is_misspelt(install: Install):
    install("test-plugged = test_plug_in:Plugged")
    with pytest.raises(ParseError, match="did you mean 'test-plugged'"):
        Pipeline.parse("test-pluged")
    assert "test_plug_in" not in sys.modules


@pytest.mark.parametrize(
    ("entries", "source", "why"),
    [
        ("a-pass = test_plug_in:Nothing", SOURCE, "cannot be loaded: AttributeError: "),
        ("a-pass = test_plug_in:Plugged", "import no_such_module", "ModuleNotFoundError: "),
        ("a-pass = test_plug_in:Plugged", "1 / 0", "cannot be loaded: ZeroDivisionError: "),
        (
            "a-pass = test_plug_in:Plugged",
            SOURCE,
            "has the name 'test-plugged'; give the entry point and",
        ),
        ("a-pass = test_plug_in:dataclass", SOURCE, "is no subclass of passes.Pass"),
        (
            "a-pass = test_plug_in:Plugged",
            SOURCE.replace("test-plugged", "stream-k"),
            "PassError: test_plug_in.Plugged has the name 'stream-k', which passes.schedules",
        ),
    ],
)
def test_errors_name_the_distribution(install: Install, entries: str, source: str, why: str):
    install(entries, source=source)
    whose = "the pass 'a-pass' of the distribution 'test-plug-in 1.5'"
    for find in (lambda: find_pass("a-pass"), lambda: Pipeline.parse("a-pass"), all_passes):
        with pytest.raises(PassError) as caught:
            find()
        assert str(caught.value).startswith(f"{whose} ({GROUP}: {entries.partition(' = ')[2]})")
        assert why in str(caught.value)


def test_two_distributions_may_not_offer_one_name(install: Install):
    install("a-pass = test_plug_in:Plugged")
    install("a-pass = test_plug_other:Plugged", name="test-plug-other")
    with pytest.raises(PassError, match=r"is offered by the distribution .* and the distribution"):
        find_pass("a-pass")


def test_a_pass_of_the_library_is_not_replaced(install: Install):
    install("stream-k = test_plug_in:Plugged")
    assert find_pass("stream-k") is all_passes()["stream-k"]
    assert "test_plug_in" not in sys.modules
