"""The control-graph walker: structure to LLVM basic blocks, whatever the schedule and the target.

A target subclasses `Walker` and gives one `emit_<Operation>` method for each operation that it
supports; loops, branches and values are the same for all.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from sympy import Expr, Integer, Symbol
from sympy.logic.boolalg import Boolean

from codegen.emit.arguments import Arguments
from codegen.emit.expressions import Bounds, Expressions, Number
from coordgraph import CodegenError, KernelGraph
from coordgraph.control.operations import Assign, For, If, Inside, Locate, SetCoordinate
from coordgraph.control.resolve import Node, resolve

__all__ = ["Fragments", "Walker"]

ONE = Integer(1)


class Fragments:
    """Registers by fragment and number; LLVM turns the stack slots into registers."""

    def __init__(self, entry: ir.IRBuilder) -> None:
        self.entry = entry
        self.slots: dict[tuple[str, int], ir.AllocaInstr] = {}

    def slot(self, name: str, number: int, kind: ir.Type) -> ir.AllocaInstr:
        """The stack slot of one register."""
        key = (name, number)
        if key not in self.slots:
            self.slots[key] = self.entry.alloca(kind, name=f"{name}.{number}")
        return self.slots[key]


class Walker:
    """Emits one function for a lowered graph."""

    widest = False
    derives = True
    """The code itself works out what is read from tables; else whoever launches it does."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        scope = graph.scope()
        self.ranges = scope.ranges
        self.nodes = resolve(graph.control.root.body, scope)
        deferred = graph.parameters.deferred if self.derives else frozenset[str]()
        self.arguments = Arguments(graph, self.ranges, deferred)
        self.values: dict[Symbol, Number] = {}
        self.bounds = Bounds()
        self.unrolling = 0
        self.builder: ir.IRBuilder
        self.expressions: Expressions
        self.fragments: Fragments

    def run(self, nodes: tuple[Node, ...]) -> None:
        """Emit operations in order."""
        for node in nodes:
            self.emit(node)

    def emit(self, node: Node) -> None:
        """Emit one operation and what it holds."""
        match node.op:
            case For():
                self._for(node, node.op)
            case If() | Inside():
                self._if(node)
            case Assign():
                assert node.value is not None
                self.values[node.op.symbol] = self.number(node.value, node)
            case SetCoordinate():
                if node.value is not None:
                    symbol = self.graph.coordinates.symbol(node.op.dim)
                    self.values[symbol] = self.number(node.value, node)
                self.run(node.body)
            case Locate():
                self._locate(node, node.op)
            case _:
                handler = getattr(self, f"emit_{node.op.kind}", None)
                if handler is not None:
                    handler(node, node.op)
                elif node.body:
                    self.run(node.body)
                else:
                    raise CodegenError(
                        f"{type(self).__name__} has no code for the operation {node.op.kind}; "
                        "lower the graph for this target first"
                    )

    # Values

    def number(self, expr: Expr, node: Node) -> Number:
        """The value of a resolved expression at a node."""
        return self.expressions.number(expr, node.scope.ranges)

    def condition(self, condition: Boolean, node: Node) -> Any:
        """A bool or an i1 value."""
        return self.expressions.condition(condition, node.scope.ranges)

    def wide(self, expr: Expr, node: Node) -> ir.Value:
        """The value as 64 bits, for addresses."""
        value = self.number(expr, node)
        return self.expressions.widen(value, 64, expr, node.scope.ranges)

    def place(self, node: Node, dim: str) -> tuple[ir.Value, Any]:
        """Index along a memory dimension in 64 bits, and the guard."""
        found = node.place(dim)
        return self.wide(found.values[0], node), self.condition(found.guard, node)

    def raised(self, node: Node, turn: str, readers: Expr = ONE) -> ir.Value:
        """What a flag is when it is up, in 32 bits: 1 more than the index along `turn`, if any.

        Else the number of its `readers`.
        """
        value = node.scope.resolve(node.place(turn).values[0] + 1 if turn else readers)
        return self.expressions.widen(self.number(value, node), 32, value, node.scope.ranges)

    def register(self, node: Node, dims: tuple[str, ...], width: int) -> int:
        """Number of the first of `width` registers: row-major over the register dimensions."""
        number = 0
        for dim in dims:
            value = self.number(node.scope.known[dim], node)
            if not isinstance(value, int):
                raise CodegenError(f"the register dimension '{dim}' must be unrolled")
            number = number * self.graph.coordinates[dim].fixed_size + value
        return number * width

    # Structure

    def _for(self, node: Node, op: For) -> None:
        assert node.loop is not None
        start, stop = self.number(node.loop.start, node), self.number(node.loop.stop, node)
        step = node.loop.step
        if op.unroll:
            if not (isinstance(start, int) and isinstance(stop, int) and step.is_Integer):
                raise CodegenError(f"the loop over '{op.dim}' cannot be unrolled: bounds unknown")
            self._unrolled(node, range(start, stop, int(step)))
            return
        inside = node.body[0].scope.ranges if node.body else node.scope.ranges
        symbol = node.loop.symbol
        bits = 32 if not self.widest and self.bounds.fits(symbol, inside) else 64
        b, kind = self.builder, ir.IntType(bits)
        # The bound may not fit where the index does; compare at the width of both.
        first = self.expressions.widen(start, bits, node.loop.start, node.scope.ranges)
        before = b.block
        head = b.append_basic_block(f"{symbol}.head")
        body = b.append_basic_block(f"{symbol}.body")
        done = b.append_basic_block(f"{symbol}.done")
        b.branch(head)
        b.position_at_end(head)
        index = b.phi(kind, str(symbol))
        index.add_incoming(first, before)
        self.values[symbol] = index
        wide = max(bits, 32 if isinstance(stop, int) else stop.type.width)
        limit = self.expressions.widen(stop, wide, node.loop.stop, node.scope.ranges)
        here = index if bits == wide else b.zext(index, ir.IntType(wide))
        b.cbranch(b.icmp_signed("<", here, limit), body, done)
        b.position_at_end(body)
        with self._branch():
            self.run(node.body)
            advance = self.expressions.number(step, inside)
        following = b.add(
            index, self.expressions.widen(advance, bits, step, inside), flags=("nsw",)
        )
        self.check_advance(node, index, following)
        index.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(done)

    def check_advance(self, node: Node, index: ir.Value, following: ir.Value) -> None:
        """Hook: called before a loop goes on from one index to the following one."""

    def _unrolled(self, node: Node, indices: range) -> None:
        assert node.loop is not None
        with self._scoped():
            outermost = not self.unrolling
            self.unrolling += 1
            for value in indices:
                with self._scoped():
                    if outermost:
                        self.enter_unrolled(node)
                    self.values[node.loop.symbol] = value
                    self.run(node.body)
            self.unrolling -= 1

    def enter_unrolled(self, node: Node) -> None:
        """Hook: called before each turn of the outermost of a nest of written-out loops."""

    def _locate(self, node: Node, op: Locate) -> None:
        for dim, value in zip(op.dims, node.values, strict=True):
            self.values[self.graph.coordinates.symbol(dim)] = self.number(value, node)
        if node.body:
            inside = node.body[0].scope
            for read in op.reads:  # what was printed here is at hand inside
                self.expressions.number(inside.resolve(read), inside.ranges)
        self.run(node.body)

    def _if(self, node: Node) -> None:
        assert node.condition is not None
        condition = self.condition(node.condition, node)
        if isinstance(condition, bool):
            self.run(node.body if condition else node.orelse)
            return
        if not node.orelse:
            with self.builder.if_then(condition), self._branch():
                self.run(node.body)
            return
        with self.builder.if_else(condition) as (yes, no):
            with yes, self._branch():
                self.run(node.body)
            with no, self._branch():
                self.run(node.orelse)

    @contextmanager
    def _scoped(self) -> Generator[None, None, None]:
        """Names given inside end here."""
        saved = dict(self.values)
        yield
        self.values.clear()
        self.values.update(saved)

    @contextmanager
    def _branch(self) -> Generator[None, None, None]:
        """What is printed inside ends here too: it does not dominate what follows."""
        with self._scoped():
            printed = dict(self.expressions.printed)
            yield
            self.expressions.printed = printed
