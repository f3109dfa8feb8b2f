"""`coordgraph explain-index`: derives an index edge by edge, with formulas and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from codegen.cli.named_values import At, Forward, read_names
from codegen.cli.option_groups import takes_groups
from codegen.cli.options import Import, Json, Problem, Scheduling, Source, StageName
from codegen.cli.output import print_json, stdout, working

if TYPE_CHECKING:
    from coordgraph import KernelGraph
    from coordgraph.derivation import Derivation

__all__ = ["explain_index"]


@takes_groups(without=("plan",), target="cpu")
def explain_index(
    coordinate: Annotated[
        str,
        typer.Argument(
            metavar="COORDINATE",
            help="What to derive: A for the address in A's memory, A.0 for its row, or any other "
            "coordinate of the graph.",
        ),
    ],
    *,
    at: At = None,
    forward: Forward = False,
    stage: StageName = None,
    source: Source = None,
    scheduling: Scheduling,
    problem: Problem,
    modules: Import = None,
    as_json: Json = False,
) -> None:
    """Explain an index or an address: each edge of its path, with formula, numbers and guards.

    For a tensor or an allocation in shared memory, the result is an address, with the offset and
    the strides in elements and bytes. If --at lacks a value that the index depends on, the error
    says which values are needed and their ranges.

    [bold]Examples[/]

      coordgraph explain-index A.0 -s stream-k                # formulas only
      coordgraph explain-index A -s stream-k -w 32 --tile 128x128x32 --m 1280 --n 1536 --k 16384 \
--at workgroup=5,for_tile=0,for_k=3,A.index.0=7,A.index.1=1
      coordgraph explain-index A --stage 0 --at A.0=300,A.1=17,m=512,k=1024
      coordgraph explain-index workgroup --forward -s data-parallel --at A.0=300,B.1=17,n=512
      coordgraph explain-index A.shared --stage lowered -t sm_80 \
--at stage,workitem,A.copy.pass,A.copy.element
    """
    from codegen.cli.stages import choose, staged

    with working("applying passes"):
        graph = choose(staged(problem, scheduling, source, stage), stage).graph
    point = {name: _value(graph, name, text) for name, text in read_names(at or []).items()}
    with working("following the edges"):
        found = graph.explain(coordinate, point, forward=forward)
    if as_json:
        print_json(found.as_data())
        return
    print_derivation(found)


def print_derivation(found: Derivation) -> None:
    """Print the steps by which an index or an address is derived, in colours on a terminal."""
    from coordgraph.derivation.report import lines

    console = stdout()
    for line in lines(found):
        console.print(Text.assemble(*line), soft_wrap=True)


def _value(graph: KernelGraph, name: str, text: str | None) -> Any:
    """A value of --at: None, a number, an index expression, or the entries of a table.

    Raises:
        typer.BadParameter: the text is none of these.
    """
    from coordgraph.integers import ExpressionSyntaxError, parse_expression

    if text is None:
        return None
    if text.startswith("(") and text.endswith(")") and name not in graph.coordinates:
        return [_number(name, entry) for entry in text[1:-1].split(",") if entry.strip()]
    symbols: Mapping[str, Any] = {
        **{d.id: d.symbol for d in graph.coordinates},
        **{p.name: p.symbol for p in graph.parameters.items},
    }
    try:
        return parse_expression(text, symbols.__getitem__)
    except ExpressionSyntaxError as error:
        raise typer.BadParameter(f"--at {name}={text}: {error}") from None


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"--at {name}: '{text}' is not a whole number; give one") from None
