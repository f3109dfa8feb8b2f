"""The control-graph walker: emits loops and branches of a graph as LLVM basic blocks.

The walker is independent of schedule and target. A target subclasses `Walker` and defines a method
`emit_<Operation>` for each kind of operation that the target supports.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from math import prod
from typing import Any

from llvmlite import ir
from sympy import Expr, Integer, Symbol
from sympy.logic.boolalg import Boolean

from codegen.emit.arguments import Arguments
from codegen.emit.expressions import Bounds, Expressions, Number
from codegen.emit.operation_lines import OperationLines
from coordgraph import CodegenError, KernelGraph
from coordgraph.control.asynchronous import Advance, Counter
from coordgraph.control.lowered import ApplyFragment
from coordgraph.control.operations import Assign, For, If, Inside, Locate, SetCoordinate
from coordgraph.control.resolve import Node, resolve
from coordgraph.control.tickets import DynamicFor, following

__all__ = ["Fragments", "Walker"]

ONE = Integer(1)
I32 = ir.IntType(32)


class Fragments:
    """The registers of matrix fragments: stack slots, which LLVM promotes to registers.

    Args:
        entry: a builder in the function's entry block, where slots are allocated.
    """

    def __init__(self, entry: ir.IRBuilder) -> None:
        self.entry = entry
        self.slots: dict[tuple[str, int], ir.AllocaInstr] = {}

    def slot(self, name: str, number: int, kind: ir.Type) -> ir.AllocaInstr:
        """The stack slot of register `number` of the fragment `name`, of LLVM type `kind`."""
        key = (name, number)
        if key not in self.slots:
            self.slots[key] = self.entry.alloca(kind, name=f"{name}.{number}")
        return self.slots[key]


class Walker:
    """Emits the code of one kernel, which is one LLVM function, from a lowered graph.

    Args:
        graph: the graph, lowered for the target.
    """

    widest = False
    """Whether all indices are computed in 64 bits; else in 32 bits where 32 provably suffice."""
    derives = True
    """Whether the kernel computes the parameters that depend on tables; else its caller does."""

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
        self.lines: OperationLines | None = None
        self.builder: ir.IRBuilder
        self.expressions: Expressions
        self.fragments: Fragments

    def run(self, nodes: tuple[Node, ...]) -> None:
        """Emit the operations `nodes` in order."""
        for node in nodes:
            self.emit(node)

    def emit(self, node: Node) -> None:
        """Emit one operation and the operations in its bodies."""
        with nullcontext() if self.lines is None else self.lines.at(self.builder, node):
            self._emit(node)

    def _emit(self, node: Node) -> None:
        match node.op:
            case For():
                self._for(node, node.op)
            case DynamicFor():
                self._dynamic(node, node.op)
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

    # The following methods emit code for the values of expressions.

    def number(self, expr: Expr, node: Node) -> Number:
        """Emit code for an index expression and return its value.

        The expression is simplified with the ranges that its symbols have at the operation `node`.
        The result is a Python int if the value is known at compile time.
        """
        return self.expressions.number(expr, node.scope.ranges)

    def condition(self, condition: Boolean, node: Node) -> Any:
        """Emit code for a condition and return its value, an LLVM i1.

        The result is a Python bool if the value is known at compile time.
        """
        return self.expressions.condition(condition, node.scope.ranges)

    def wide(self, expr: Expr, node: Node) -> ir.Value:
        """Emit code for an expression and return its value as a 64-bit integer, for addresses."""
        value = self.number(expr, node)
        return self.expressions.widen(value, 64, expr, node.scope.ranges)

    def place(self, node: Node, dim: str) -> tuple[ir.Value, Any]:
        """The 64-bit index along the memory dimension `dim`, and its guard (false for padding)."""
        found = node.place(dim)
        return self.wide(found.values[0], node), self.condition(found.guard, node)

    def raised(self, node: Node, turn: str, readers: Expr = ONE) -> ir.Value:
        """The 32-bit value to which a sender sets the flag of a workspace slot.

        Args:
            node: the operation that sends or receives a partial sum.
            turn: the dimension whose index, plus 1, is the flag's value; '' if only one partial
                sum is sent in the slot.
            readers: the number of workgroups that read the slot, which is the flag's value if
                `turn` is ''.
        """
        value = node.scope.resolve(node.place(turn).values[0] + 1 if turn else readers)
        return self.expressions.widen(self.number(value, node), 32, value, node.scope.ranges)

    def register(self, node: Node, dims: tuple[str, ...], width: int) -> int:
        """The number of the first of `width` consecutive registers of a fragment.

        Vectors of `width` registers are numbered in row-major order of the dimensions `dims`, whose
        indices must be known at compile time.
        """
        number = 0
        for dim in dims:
            value = self.number(node.scope.known[dim], node)
            if not isinstance(value, int):
                raise CodegenError(
                    f"the register dimension '{dim}' has an index unknown at compile time; unroll "
                    "the loop over it (For with unroll=True)"
                )
            number = number * self.graph.coordinates[dim].fixed_size + value
        return number * width

    def sums_of(self, node: Node, op: ApplyFragment) -> dict[str, int]:
        """For each accumulated sum that `op` reads, by name: the number of its first register.

        A sum has `op.width` consecutive registers. The i-th sum has index i along `op.part`.
        """
        first = self.register(node, op.registers, op.width)
        if not op.part:
            return dict.fromkeys(op.function.sums, first)
        inner = op.registers[op.registers.index(op.part) + 1 :]
        step = op.width * prod(self.graph.coordinates[dim].fixed_size for dim in inner)
        return {name: first + i * step for i, name in enumerate(op.function.sums)}

    def indices_of(self, node: Node, op: ApplyFragment, place: int = 0) -> dict[str, ir.Value]:
        """The values (i32), by name, of the epilogue's operands that are indices of D's element.

        Args:
            node: the node of the operation `op` in the control graph.
            op: the operation that applies the epilogue.
            place: the number of the element's register among the `op.width` registers.
        """
        found: dict[str, ir.Value] = {o.name: ir.Constant(I32, 0) for o in op.function.indices}
        scope = node.scope.binding(op.vector, Integer(place)) if op.width > 1 else node.scope
        for name, dim in zip(op.indices, op.along, strict=True):
            index = scope.reverse(dim).values[0]
            value = self.number(index, node)
            found[name] = self.expressions.widen(value, 32, index, node.scope.ranges)
        return found

    # The following methods emit counters: values in stack slots that operations increment.

    def emit_Counter(self, node: Node, op: Counter) -> None:
        """Emit a counter that starts at 0, and the node's body, whose operations may advance it."""
        slot = self.fragments.slot(op.dim, len(self.fragments.slots), I32)
        self.builder.store(ir.Constant(I32, 0), slot)
        self.values[self.graph.coordinates.symbol(op.dim)] = slot
        self.run(node.body)

    def emit_Advance(self, node: Node, op: Advance) -> None:
        """Emit the addition of `op.by` to a counter."""
        symbol = self.graph.coordinates.symbol(op.dim)
        slot = self.values[symbol]
        assert isinstance(slot, ir.AllocaInstr)
        by = self.expressions.widen(self.number(op.by, node), 32, op.by, node.scope.ranges)
        value = self.builder.add(self.builder.load(slot, typ=I32), by, flags=("nuw", "nsw"))
        self.builder.store(value, slot)

    # The following methods emit dynamic loops, whose next index is in a stack slot.

    def _dynamic(self, node: Node, op: DynamicFor) -> None:
        """Emit a dynamic loop; an operation of its body stores the next index by `follow`."""
        assert node.loop is not None
        symbol, b = node.loop.symbol, self.builder
        start, stop = self.number(node.loop.start, node), self.number(node.loop.stop, node)
        inside = node.body[0].scope.ranges if node.body else node.scope.ranges
        bits = 32 if not self.widest and self.bounds.fits(symbol, inside) else 64
        slot = self.fragments.slot(following(op.dim).name, 0, ir.IntType(bits))
        b.store(self.expressions.widen(start, bits, node.loop.start, node.scope.ranges), slot)
        limit = self.expressions.widen(stop, bits, node.loop.stop, node.scope.ranges)
        head = b.append_basic_block(f"{symbol}.head")
        body = b.append_basic_block(f"{symbol}.body")
        done = b.append_basic_block(f"{symbol}.done")
        b.branch(head)
        b.position_at_end(head)
        index = b.load(slot, typ=slot.allocated_type)
        b.cbranch(b.icmp_signed("<", index, limit), body, done)
        b.position_at_end(body)
        with self._branch():
            self.values[symbol], self.values[following(op.dim)] = index, slot
            self.enter_iteration(node)
            self.run(node.body)
        b.branch(head)
        b.position_at_end(done)

    def follow(self, node: Node, dim: str, first: Expr, ticket: ir.Value) -> None:
        """Emit the next index of the enclosing dynamic loop over `dim`: `first` + `ticket`.

        Args:
            node: the operation that took the ticket.
            dim: the dimension of the loop.
            first: the index for ticket 0.
            ticket: the value of an atomic counter before its increment, as a 32-bit integer.
        """
        slot = self.values[following(dim)]
        assert isinstance(slot, ir.AllocaInstr)
        value, kind = node.scope.resolve(first), slot.allocated_type
        base = self.expressions.widen(
            self.number(value, node), kind.width, value, node.scope.ranges
        )
        wide = ticket if kind.width == 32 else self.builder.zext(ticket, kind)
        self.builder.store(self.builder.add(base, wide), slot)

    def last_ticket(self, node: Node, count: Expr) -> ir.Value:
        """Emit `count` - 1, 32-bit: the largest value of an atomic counter that hands out tickets.

        If the counter has this value, the next increment sets the counter back to 0.
        """
        value = node.scope.resolve(count - 1)
        return self.expressions.widen(self.number(value, node), 32, value, node.scope.ranges)

    # The following methods emit loops, branches and scopes.

    def _for(self, node: Node, op: For) -> None:
        assert node.loop is not None
        start, stop = self.number(node.loop.start, node), self.number(node.loop.stop, node)
        step = node.loop.step
        if op.unroll:
            if not (isinstance(start, int) and isinstance(stop, int) and step.is_Integer):
                raise CodegenError(
                    f"the loop over '{op.dim}' cannot be unrolled, because its bounds or step are "
                    "unknown at compile time; make them numbers, or use unroll=False"
                )
            self._unrolled(node, range(start, stop, int(step)))
            return
        inside = node.body[0].scope.ranges if node.body else node.scope.ranges
        symbol = node.loop.symbol
        bits = 32 if not self.widest and self.bounds.fits(symbol, inside) else 64
        b, kind = self.builder, ir.IntType(bits)
        # `stop` may need 64 bits even if the index fits 32 bits: compare at the larger width.
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
            self.enter_iteration(node)
            self.run(node.body)
            advance = self.expressions.number(step, inside)
        flags = () if self.expressions.hazards.unproved else ("nsw",)
        following = b.add(index, self.expressions.widen(advance, bits, step, inside), flags=flags)
        self.check_advance(node, index, following)
        index.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(done)

    def enter_iteration(self, node: Node) -> None:
        """Hook for subclasses: emits code at the beginning of each iteration of a loop.

        The walker does not call this hook for unrolled loops.
        """

    def check_advance(self, node: Node, index: ir.Value, following: ir.Value) -> None:
        """Hook for subclasses: called before a loop advances from `index` to `following`."""

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
        """Hook for subclasses: called before each iteration of an outermost unrolled loop."""

    def _locate(self, node: Node, op: Locate) -> None:
        for dim, value in zip(op.dims, node.values, strict=True):
            self.values[self.graph.coordinates.symbol(dim)] = self.number(value, node)
        if node.body:
            inside = node.body[0].scope
            # Table reads are emitted here, so that operations in the body reuse the loaded values.
            for read in op.reads:
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
        """Restore the values of symbols when the `with` block ends."""
        saved = dict(self.values)
        yield
        self.values.clear()
        self.values.update(saved)

    @contextmanager
    def _branch(self) -> Generator[None, None, None]:
        """Restore the values of symbols and the expression cache when the `with` block ends.

        Code emitted in the `with` block does not dominate the code after the block, so later code
        cannot reuse its values.
        """
        with self._scoped():
            printed = dict(self.expressions.printed)
            yield
            self.expressions.printed = printed
