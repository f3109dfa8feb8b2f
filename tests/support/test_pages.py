"""The runner of documentation pages finds outdated blocks and invalid commands."""

from __future__ import annotations

import builtins
from pathlib import Path

import pytest

from passes import PASSES
from tests.support.pages import Page, names_from_hidden_blocks, read_blocks

GOOD = """# A page
<!-- python
hidden = 2
-->

```python
x = hidden + 1
```
```python
print(x)
```

```text
3
```

<!-- generated: f"graph TD\\n  a{x}\\n" -->
```mermaid
graph TD
  a3
```
"""


def page(tmp_path: Path, source: str, **options: object) -> Page:
    path = tmp_path / "page.md"
    path.write_text(source, encoding="utf-8")
    made = Page(path, **options)  # type: ignore[arg-type]
    made.run()
    return made


def test_blocks_know_their_lines_and_marks():
    found = [(b.language, b.line, b.mark[:9]) for b in read_blocks(GOOD)]
    assert found == [
        ("python", 3, "hidden"),
        ("python", 7, ""),
        ("python", 10, ""),
        ("text", 14, ""),
        ("mermaid", 19, "generated"),
    ]
    with pytest.raises(SyntaxError, match="line 2"):
        read_blocks("\n```python\nx = 1\n")


def test_a_good_page_has_no_differences(tmp_path: Path):
    made = page(tmp_path, GOOD)
    assert made.differences == []
    assert made.updated() == GOOD


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (GOOD, ["hidden"]),
        (GOOD.replace("hidden + 1", "3").replace("a{x}", "a{hidden}"), []),
        (GOOD.replace("hidden + 1", "hidden + (hidden := 1)"), []),
        (GOOD.replace("hidden + 1", "[hidden for hidden in (3,)][0]"), []),
        (GOOD.replace("hidden = 2", "import os.path as hidden"), ["hidden"]),
        (GOOD.replace("hidden = 2", "def hidden(): pass"), ["hidden"]),
    ],
)
def test_shown_blocks_that_need_hidden_ones_are_found(source: str, names: list[str]):
    assert names_from_hidden_blocks(read_blocks(source)) == names


@pytest.mark.parametrize("change", [("\n3\n", "\n4\n"), ("\n  a3\n", "\n  a4\n  b\n")])
def test_differences_are_seen_and_mended(tmp_path: Path, change: tuple[str, str]):
    made = page(tmp_path, GOOD.replace(*change))
    assert len(made.differences) == 1
    assert made.updated() == GOOD


def test_empty_output_blocks_are_filled(tmp_path: Path):
    assert page(tmp_path, GOOD.replace("```text\n3\n", "```text\n")).updated() == GOOD


def test_errors_have_the_line_of_the_page(tmp_path: Path):
    with pytest.raises(ZeroDivisionError) as caught:
        page(tmp_path, "# Title\n\n```python\n\n1 / 0\n```\n")
    assert caught.traceback[-1].lineno == 4


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("```python\nprint(1)\n```\n", "it prints"),
        ("```text\n1\n```\n", "output of what"),
        ("```pyhton\n1\n```\n", "unknown language"),
        ("```sh\nmake everything\n```\n", "no such target"),
    ],
)
def test_what_a_page_may_not_hold(tmp_path: Path, source: str, message: str):
    with pytest.raises(AssertionError, match=message):
        page(tmp_path, source)


def test_commands_are_run(tmp_path: Path):
    source = "```sh\nmake test  # all\ncoordgraph run \\\n  --m '1 2'\n```\n```text\ndone\n```\n"
    seen: list[list[str]] = []

    def command(words: list[str]) -> str:
        seen.append(words)
        return "done\n"

    made = page(tmp_path, source, command=command, targets=frozenset({"test"}))
    assert seen == [["run", "--m", "1 2"]]
    assert made.differences == []


@pytest.mark.parametrize(("gpu", "raises"), [(False, False), (True, True)])
def test_gpu_blocks(tmp_path: Path, gpu: bool, raises: bool):
    source = "<!-- gpu -->\n```python\n1 / 0\n```\n"
    if raises:
        with pytest.raises(ZeroDivisionError):
            page(tmp_path, source, gpu=gpu)
    else:
        page(tmp_path, source, gpu=gpu)


def test_what_a_page_registers_is_forgotten(tmp_path: Path):
    code = (
        "from passes import PASSES, Pass\nclass P(Pass):\n    name = 'of-a-page'\n"
        "assert 'of-a-page' in PASSES\n"
    )
    page(tmp_path, f"```python\n{code}```\n")
    assert "of-a-page" not in PASSES


def test_what_a_page_replaces_comes_back_and_what_it_imports_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Imported(PASSES["reorder"]):  # type: ignore[name-defined,misc]
        pass

    monkeypatch.setitem(PASSES, "reorder", PASSES["reorder"])
    monkeypatch.setattr(builtins, "Imported", Imported, raising=False)
    before = PASSES["reorder"]
    code = (
        "from passes import PASSES, Reorder\nclass P(Reorder):\n    name = 'test-page'\n"
        "PASSES['reorder'] = P\nPASSES['imported'] = Imported\n"
    )
    try:
        page(tmp_path, f"```python\n{code}```\n")
        assert PASSES["reorder"] is before
        assert PASSES["imported"] is Imported
    finally:
        PASSES.pop("imported", None)
