"""Print a difference of graphs for readers: a summary, then the changes of each part."""

from __future__ import annotations

from collections.abc import Iterator

from coordgraph.difference.record import LINES, PARTS, Change, Difference, Kind, Row

__all__ = ["lines"]

STYLES = {Kind.ADDED: "green", Kind.REMOVED: "red", Kind.CHANGED: "yellow", Kind.MOVED: "cyan"}


@LINES.implement
def lines(difference: Difference) -> list[tuple[str, str]]:
    """The lines of a difference, each with the name of its style."""
    return list(_lines(difference))


def _lines(difference: Difference) -> Iterator[tuple[str, str]]:
    yield _summary(difference), "bold"
    if difference.renamed:
        names = ", ".join(f"{old} -> {new}" for old, new in difference.renamed.items())
        yield f"renamed: {names}", "dim"
    if difference.reordered:
        yield "the same dimensions and edges are declared in another order", "dim"
    if difference.logs is not None:
        first, second = (", ".join(log) or "no passes" for log in difference.logs)
        yield f"passes: {first} -> {second}", "dim"
    for part, plural in PARTS.items():
        changes = difference.of_part(part)
        if changes:
            yield "", ""
            yield plural, "bold"
            if part == "operation":
                yield from _control(difference.control)
                continue
            for change in changes:
                yield from _change(change)


def _summary(difference: Difference) -> str:
    if difference.equal:
        up_to = " up to names of dimensions" if difference.renamed else ""
        return f"the graphs are equal{up_to}"
    counts: list[str] = []
    for part, kinds in difference.counts.items():
        total = sum(kinds.values())
        what = PARTS[part] if total > 1 else part
        numbers = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        counts.append(f"{what}: {numbers}" if part != "problem" else "problem: changed")
    return "; ".join(counts)


def _change(change: Change) -> Iterator[tuple[str, str]]:
    mark, style = f"  {change.kind.value} ", STYLES[change.kind]
    if change.part == "problem":
        for name, (old, new) in change.fields.items():
            yield f"{mark}{name}: {old} -> {new}", style
        return
    if change.kind is not Kind.CHANGED:
        yield mark + (change.after or change.before), style
        return
    yield mark + change.before, style
    yield from _fields(change, "      ")


def _fields(change: Change, indent: str) -> Iterator[tuple[str, str]]:
    for name, (old, new) in change.fields.items():
        yield f"{indent}{name}: {old} -> {new}", STYLES[change.kind]


def _control(rows: tuple[Row, ...]) -> Iterator[tuple[str, str]]:
    """The lines of the operation tree: changed operations and the operations that enclose them."""
    shown = [row.change is not None for row in rows]
    depths: list[int] = []
    for position in reversed(range(len(rows))):
        depth = rows[position].depth
        # A row is shown if it encloses a shown row. The loop runs from the last row to the first;
        # `depths` has the depths of shown rows whose enclosing row is still to come.
        shown[position] = shown[position] or bool(depths and depths[-1] > depth)
        while depths and depths[-1] > depth:
            depths.pop()
        if shown[position] and (not depths or depths[-1] < depth):
            depths.append(depth)
    skipped = False
    for row, show in zip(rows, shown, strict=True):
        if not show:
            if not skipped:
                yield f"         {'  ' * row.depth}…", "dim"
            skipped = True
            continue
        skipped = False
        change, indent = row.change, "  " * row.depth
        branch = f"{row.branch}: " if row.branch else ""
        mark, style = (" ", "dim") if change is None else (change.kind.value, STYLES[change.kind])
        yield f"  {mark} {f'#{row.id}':5}{indent}{branch}{row.line}", style
        if change is not None:
            yield from _fields(change, f"         {indent}  ")
