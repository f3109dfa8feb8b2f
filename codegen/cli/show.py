"""`coordgraph show`: a graph at any stage, as a picture, mermaid, text, a loop nest or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import unified_diff
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from codegen.cli.drawing import PICTURES
from codegen.cli.option_groups import takes_groups
from codegen.cli.options import (
    Import,
    Json,
    Problem,
    Scheduling,
    Source,
    StageName,
    output_option,
)
from codegen.cli.output import print_json, stdout, working, write_document

if TYPE_CHECKING:
    from codegen.cli.stages import Stage
    from coordgraph import KernelGraph

__all__ = ["Form", "Part", "render", "show"]

TEXTS = (".txt", ".mmd", ".md", ".json", ".graph")
"""Suffixes of files that `coordgraph show` writes as text."""


class Form(StrEnum):
    """The forms in which `coordgraph show` writes a graph."""

    MERMAID = "mermaid"
    TEXT = "text"
    PSEUDOCODE = "pseudocode"
    JSON = "json"


class Part(StrEnum):
    """The coordinate graph and the control graph of a kernel; a diagram shows one of them."""

    COORDINATES = "coordinates"
    CONTROL = "control"


@takes_groups(without=("plan",), target="cpu")
def show(
    form: Annotated[
        Form | None,
        typer.Argument(
            help="The form; by default pseudocode, or mermaid where --output ends in .svg or .png.",
            metavar="FORM",
            show_default=False,
        ),
    ] = None,
    *,
    part: Annotated[
        Part, typer.Option("--part", "-p", help="The graph that a diagram shows.")
    ] = Part.COORDINATES,
    stage: StageName = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="Show what changed since the stage before.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="NAME,…",
            help="Draw only these coordinates and the edges among them; may be repeated. With "
            "--provenance: list these coordinates and their edges.",
        ),
    ] = None,
    provenance: Annotated[
        bool,
        typer.Option(
            "--provenance",
            help="List which pass made each coordinate, edge and operation, and from what. With "
            "text or json: write the origin of each record into the document.",
        ),
    ] = False,
    source: Source = None,
    scheduling: Scheduling,
    problem: Problem,
    output: Annotated[
        Path | None,
        output_option(
            "The file to write to; by default stdout. A name that ends in .svg or .png is drawn."
        ),
    ] = None,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Show a graph at any stage of its pipeline: as a diagram, text, a loop nest or JSON.

    Sizes that are not given stay symbols. Mermaid diagrams are drawn where --output ends in .svg or
    .png; drawing needs the extra "draw" of the distribution coordgraph.

    [bold]Examples[/]

      coordgraph show                                            # the loop nest of 2-tile Stream-K
      coordgraph show mermaid --schedule stream-k --diff         # what the schedule added
      coordgraph show mermaid -p control --stage 0               # before any schedule
      coordgraph show -s stream-k --diff -o stream-k.svg         # the same, drawn
      coordgraph show text --stage lowered --target sm_80
      coordgraph show text -s stream-k | coordgraph show pseudocode --from -
      coordgraph show mermaid --groups k --schedule stream-k
      coordgraph show mermaid --only A.tile.0,B.tile.1,k_tile,global,selector
      coordgraph show --provenance -s stream-k --only global,sk.local
      coordgraph show text --provenance -s stream-k -o origins.txt
    """
    from codegen.cli.stages import choose, staged

    _check_suffix(output)
    listed = provenance and form is None
    form = _form(form, output)
    if provenance and (diff or form in (Form.MERMAID,) or (form is Form.PSEUDOCODE and not listed)):
        raise typer.BadParameter(
            "--provenance does not work with this form (mermaid or pseudocode) or with --diff; "
            "leave out the form and --diff, or use 'show text' or 'show json'"
        )
    with working("applying passes"):
        found = staged(problem, scheduling, source, stage)
    chosen = choose(found, stage)
    before = found[chosen.number - 1] if diff and chosen.number else None
    if diff and before is None:
        raise typer.BadParameter(
            "--diff compares a stage with the stage before, and no stage is before stage 0; choose "
            "a later --stage"
        )
    names = [name.strip() for text in only or () for name in text.split(",") if name.strip()]
    if listed:
        _print_provenance(chosen.graph, names, as_json=as_json)
        return
    if names and (form, part) != (Form.MERMAID, Part.COORDINATES):
        raise typer.BadParameter(
            "--only selects coordinates of a diagram of the coordinate graph, or of --provenance; "
            "use it as 'show mermaid --only NAMES' or 'show --provenance --only NAMES'"
        )
    if as_json:
        _print_json(chosen, before, form, part, [s.name for s in found], names, provenance)
        return
    with working("writing the graph"):
        text = render(chosen, before, form, part, names, provenance=provenance)
    if output is not None and _is_picture(output):
        from codegen.cli.drawing import draw

        with working("drawing"):
            draw(text, output)
    elif before is not None and form is not Form.MERMAID and output is None:
        _print_diff(text)
    else:
        write_document(text, output)


def _check_suffix(output: Path | None) -> None:
    """Refuse an unknown suffix of --output, so that a misspelt `.svgg` is not written as text.

    Raises:
        typer.BadParameter: the suffix is unknown.
    """
    if output is None or output.suffix.lower() in ("", *PICTURES, *TEXTS):
        return
    raise typer.BadParameter(
        f"no form is written to files that end in {output.suffix}; end the name in "
        f"{', '.join(PICTURES)} for a picture, or in {', '.join(TEXTS)} for text",
        param_hint="--output",
    )


def _is_picture(output: Path) -> bool:
    return output.suffix.lower() in PICTURES


def _form(form: Form | None, output: Path | None) -> Form:
    """The form that the caller gave, else mermaid for a picture and the loop nest otherwise.

    Raises:
        typer.BadParameter: the file is a picture, and the form is not mermaid.
    """
    if output is None or not _is_picture(output):
        return form or Form.PSEUDOCODE
    if form not in (None, Form.MERMAID):
        raise typer.BadParameter(
            f"--output {output} is a picture, and only mermaid is drawn; leave out '{form}', or "
            "give the file another suffix"
        )
    return Form.MERMAID


def render(
    stage: Stage,
    before: Stage | None,
    form: Form,
    part: Part,
    only: Sequence[str] = (),
    *,
    provenance: bool = False,
) -> str:
    """The graph after a stage of the pipeline, as text in one of the forms.

    Args:
        stage: the graph to show.
        before: the stage to compare with, or None for the whole graph.
        form: the form of the text.
        part: which graph a diagram shows: the coordinate graph or the control graph.
        only: the coordinates that a diagram shows; empty for all.
        provenance: whether text and JSON name the pass that made each dimension, edge, and so on.
    """
    if form is Form.MERMAID:
        drawn = getattr(stage.graph, part.value)
        kept = {"only": only} if only else {}
        old = getattr(before.graph, part.value) if before else None
        return drawn.mermaid(compare_to=old, **kept)
    if before is None:
        return _written(stage, form, provenance=provenance)
    old, new = (_written(s, form).splitlines() for s in (before, stage))
    return "\n".join(unified_diff(old, new, before.name, stage.name, lineterm="")) + "\n"


def _written(stage: Stage, form: Form, *, provenance: bool = False) -> str:
    match form:
        case Form.TEXT:
            return stage.graph.text(provenance=provenance)
        case Form.PSEUDOCODE:
            return stage.graph.pseudocode()
        case _:
            import json

            return json.dumps(stage.graph.json(provenance=provenance), indent=2) + "\n"


def _print_json(
    stage: Stage,
    before: Stage | None,
    form: Form,
    part: Part,
    names: list[str],
    only: Sequence[str],
    provenance: bool,
) -> None:
    """Print a JSON document that has the graph as data (form `json`), or as text (other forms)."""
    found = {"stages": names, "stage": stage.number, "name": stage.name, "form": form.value}
    if form is Form.JSON and before is None:
        print_json({**found, "graph": stage.graph.json(provenance=provenance)})
        return
    if form is Form.MERMAID:
        found["part"] = part.value
    print_json({**found, "text": render(stage, before, form, part, only, provenance=provenance)})


def _print_provenance(graph: KernelGraph, only: Sequence[str], *, as_json: bool) -> None:
    """Print which pass made each dimension, edge, operation and other part of a graph."""
    if as_json:
        origins = graph.json(provenance=True)["origins"]
        kept = [o for o in origins if o["part"] == "dimension" and o["key"] in only]
        print_json({"log": graph.log, "origins": kept if only else origins})
        return
    from coordgraph.show.provenance import provenance

    console = stdout()
    for text, style in provenance(graph, only):
        console.print(Text(text, style), soft_wrap=True)


def _print_diff(text: str) -> None:
    """Print a unified diff, with added lines in green and removed lines in red."""
    styles = {"+": "green", "-": "red", "@": "cyan"}
    console = stdout()
    for line in text.splitlines():
        console.print(Text(line, styles.get(line[:1], "")), soft_wrap=True)
