"""Write and read kernel graphs: as a canonical text, or as plain data for JSON."""

from coordgraph.text.plain import from_json, to_json
from coordgraph.text.printer import print_graph
from coordgraph.text.raw import VERSION
from coordgraph.text.reader import parse_graph

__all__ = ["VERSION", "from_json", "parse_graph", "print_graph", "to_json"]
