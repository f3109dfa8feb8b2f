"""Write and read kernel graphs: as a canonical text, or as plain data for JSON."""

from typing import TYPE_CHECKING

from coordgraph.late import late_names

if TYPE_CHECKING:
    from coordgraph.text.plain import from_json, to_json
    from coordgraph.text.printer import print_graph
    from coordgraph.text.raw import VERSION
    from coordgraph.text.reader import parse_graph
else:
    __getattr__, __dir__ = late_names(
        __name__,
        {
            "VERSION": "coordgraph.text.raw:VERSION",
            "from_json": "coordgraph.text.plain:from_json",
            "parse_graph": "coordgraph.text.reader:parse_graph",
            "print_graph": "coordgraph.text.printer:print_graph",
            "to_json": "coordgraph.text.plain:to_json",
        },
        modules=(
            "build",
            "collector",
            "lexer",
            "origins",
            "plain",
            "printer",
            "raw",
            "reader",
            "shapes",
            "symbols",
        ),
    )

__all__ = ["VERSION", "from_json", "parse_graph", "print_graph", "to_json"]
