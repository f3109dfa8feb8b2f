"""Mutations of Python source: a swapped operator, a constant off by one, a dropped statement, …"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

__all__ = ["Mutation", "draw", "mutations"]

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
}
DROPPED = (ast.AugAssign, ast.Break, ast.Continue, ast.Raise)
"""Statements, besides calls, that a mutation replaces by `pass`. Assignments are left out: without
them most code only crashes.
"""

UNTOUCHED = ("annotation", "returns", "decorator_list", "exc", "keys", "type_params")
"""Fields of syntax nodes that are never mutated: types, decorators, raised errors, dict keys."""


@dataclass(frozen=True)
class Mutation:
    """A mutation: replaces the bytes from `start` to `end` of a file."""

    path: str
    line: int
    start: int
    end: int
    kind: str
    old: str
    new: str

    def apply(self, source: bytes) -> bytes:
        """The source of the file with this mutation."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}:{self.line} {self.kind}: {old} → {new}"


def draw(root: Path, packages: Sequence[str], count: int, seed: str) -> list[Mutation]:
    """Choose `count` random mutations, an equal share of each package.

    Longer files are chosen more often. In one file, every kind of mutation is equally likely. At
    most one mutation of a line is chosen. The same seed and sources give the same mutations.
    """
    random, found = Random(seed), dict[tuple[str, int], Mutation]()
    known = dict[Path, dict[str, list[Mutation]]]()
    sources = {package: sorted((root / package).rglob("*.py")) for package in packages}
    sizes = {package: [path.stat().st_size for path in sources[package]] for package in packages}
    for _ in range(100 * count):
        if len(found) == count:
            break
        package = packages[len(found) % len(packages)]
        (path,) = random.choices(sources[package], sizes[package])
        if path not in known:
            kinds = known[path] = {}
            for mutation in mutations(path.read_bytes(), path.relative_to(root).as_posix()):
                kinds.setdefault(mutation.kind, []).append(mutation)
        if known[path]:
            mutation = random.choice(known[path][random.choice(sorted(known[path]))])
            found.setdefault((mutation.path, mutation.line), mutation)
    return [*found.values()]


def mutations(source: bytes, path: str = "") -> Iterator[Mutation]:
    """All mutations of a file, except in annotations, decorators, strings and error messages."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _nodes(ast.parse(source)):
        for kind, old, new in _mutants(node):
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            text = ast.unparse(ast.fix_missing_locations(new))
            text = f"({text})" if isinstance(new, ast.expr) else text
            yield Mutation(path, old.lineno, start, end, kind, source[start:end].decode(), text)


def _nodes(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The expressions and statements below `node` that may be mutated, in source order."""
    for field, value in ast.iter_fields(node):
        if field in (
            "annotation",
            "returns",
            "decorator_list",
            "exc",
            "msg",
            "keys",
            "type_params",
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr) or _idle(child):
                continue
            if isinstance(child, ast.expr | ast.stmt):
                yield child
            yield from _nodes(child)


def _idle(node: ast.AST) -> bool:
    """Whether a statement has no effect at run time, such as a docstring."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name == "__all__"
        case ast.Expr(value=ast.Constant()) | ast.Assert():
            return True
    return False


def _mutants(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.expr | ast.stmt, ast.AST]]:
    """For each mutation of a node: (kind of mutation, node to replace, replacement)."""
    match node:
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            # A comparison or a `not` in a condition is mutated as an expression, not here.
            if not isinstance(test, ast.UnaryOp | ast.Compare):
                yield "not", test, ast.UnaryOp(ast.Not(), test)
        case ast.expr():
            yield from ((kind, node, new) for kind, new in _expressions(node))
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()):
            yield "statement", node, ast.Pass()
        case _:
            if isinstance(node, DROPPED):
                yield "statement", node, ast.Pass()


def _expressions(node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    """For each mutation of an expression: (kind of mutation, replacement)."""
    match node:
        case ast.Compare(ops=[op]):
            for other in COMPARISONS[type(op)]:
                yield "comparison", _with(node, ops=[other()])
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            yield "operator", _with(node, op=OPERATORS[type(op)]())
        case ast.BoolOp(op=op):
            yield "and/or", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", ast.Constant(value + 1)
            yield "constant", ast.Constant(value - 1)
        case ast.Call(func=called, args=[first, second, *rest]):
            if not (_unordered(called) or _never_swapped(first) or _never_swapped(second)):
                yield "arguments", _with(node, args=[second, first, *rest])
        case _:
            pass


def _unordered(called: ast.expr) -> bool:
    """Whether swapping the arguments of this function never changes the result, or always fails."""
    return isinstance(called, ast.Name) and called.id in ("min", "max", "isinstance", "cast")


def _never_swapped(argument: ast.expr) -> bool:
    """Whether swapping this argument would only give a syntax error or a type error."""
    text = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    return text or isinstance(argument, ast.Starred | ast.JoinedStr)


def _with(node: ast.AST, **changes: object) -> ast.AST:
    """A copy of a syntax node with some fields changed."""
    new = copy.copy(node)
    for name, value in changes.items():
        setattr(new, name, value)
    return new
