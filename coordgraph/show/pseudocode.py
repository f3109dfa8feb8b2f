"""Print the loop nest of a kernel graph as C-like text, with every index as an expression.

Parameters that the host computes come first, then a loop over workgroups, whose iterations run
concurrently on a GPU. The coordinate graph computes every index in the scope of its operation, in
the same way as for the interpreter and for code generation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sympy import Expr, Integer, Symbol
from sympy.core.basic import Basic
from sympy.logic.boolalg import And, false, true

from coordgraph.control.asynchronous import Advance, Counter
from coordgraph.control.operations import (
    AccumulatePartial,
    AddPartial,
    Assign,
    AwaitPartial,
    Body,
    CollectPartial,
    Epilogue,
    For,
    If,
    InitAccumulator,
    Inside,
    Kernel,
    LoadTile,
    Locate,
    MultiplyAccumulate,
    Operation,
    ReceivePartial,
    Scope,
    SendPartial,
    SetCoordinate,
    StoreTile,
)
from coordgraph.control.scope import Scoped
from coordgraph.control.tickets import DynamicFor, TakeTicket, following
from coordgraph.epilogue import ALPHA_BETA
from coordgraph.epilogue.operand import ACCUMULATOR
from coordgraph.epilogue.stages import stages_of
from coordgraph.epilogue.text import statements
from coordgraph.errors import EvaluationError
from coordgraph.foreign_graphs import faults_named
from coordgraph.gemm import TENSORS, read_of, tensor_of
from coordgraph.integers import Ranges
from coordgraph.kernel import PSEUDOCODE, KernelGraph
from coordgraph.show.ccode import FLOOR_HELPERS, identifier, to_c
from coordgraph.show.fields import shown, written
from coordgraph.tables import SORTS

__all__ = ["pseudocode"]

INDENT = "    "
TILE_OPERATIONS = (LoadTile, Epilogue, StoreTile)


@PSEUDOCODE.implement
def pseudocode(graph: KernelGraph) -> str:
    """The loop nest of a kernel graph as C-like text, which is for people and does not compile."""
    with faults_named("printing the pseudo-code", graph):
        headline, *lines = _Writer(graph).lines()
    body = "\n".join(lines)
    helpers = [code for name, code in FLOOR_HELPERS.items() if f"{name}(" in body]
    return "\n".join([headline, *helpers, body]) + "\n"


class _Writer:
    def __init__(self, graph: KernelGraph) -> None:
        self._graph = graph

    def lines(self) -> Iterator[str]:
        """The lines of the whole pseudo-code, beginning with its headline."""
        graph, root = self._graph, self._graph.control.root
        known = graph.parameters.ranges()
        yield f"// {_headline(graph)}"
        for table in graph.parameters.tables:
            note = f"  // {table.note}" if table.note else ""
            if table.step is None:
                yield f"const int {identifier(table.name)}[{to_c(table.length, known)}];{note}"
                continue
            name, at = identifier(table.name), identifier(table.place.name)
            length, step = to_c(table.length, known), to_c(table.step, known)
            each = f"for (uint {at} = 0; {at} < {to_c(table.steps, known)}; {at}++)"
            yield f"int {name}[{length}] = {{0}};{note}"
            if table.rule == SORTS:
                keys = identifier(f"{table.name}.keys")
                yield f"int {keys}[{length}] = {{0}};"
                yield from (each, f"{INDENT}{keys}[{at}] = {step};")
                yield f"argsort_descending({name}, {keys}, {length});  // equal keys in their order"
            else:
                yield from (each, f"{INDENT}{name}[{at} + 1] = {name}[{at}] + {step};")
        derived = [p for p in graph.parameters.items if p.value is not None]
        for p in derived:
            note = f"  // {p.note}" if p.note else ""
            yield f"auto {identifier(p.name)} = {to_c(p.value or Integer(0), known)};{note}"
        if derived:
            yield ""
        if not root.workgroup:
            yield from self._unscheduled()
            return
        body = self.body(root.body, graph.scope(), {})
        size = graph.coordinates[root.workgroup].size
        yield _loop(root.workgroup, Integer(0), size, Integer(1), known)
        yield from _braces(body)

    def _unscheduled(self) -> Iterator[str]:
        """The lines of a graph without a schedule: operations that compute one output tile."""
        dangling = [d.id for d in self._graph.dangling]
        if dangling:
            yield f"// for one tile: {', '.join(map(identifier, dangling))} are not scheduled yet"
        scope = self._graph.scope().hardware(dangling)
        yield from self.body(self._graph.control.root.body, scope, {})

    def body(self, ops: Body, scope: Scoped, seen: dict[str, Expr]) -> Iterator[str]:
        """The lines of the operations `ops`, in order.

        Args:
            ops: the operations.
            scope: the scope of the first operation.
            seen: by variable name of a tile number, the expression that was last assigned to it.
        """
        seen = dict(seen)
        for position, op in enumerate(ops):
            match op:
                case Assign():
                    before, (value, scope) = scope.ranges, scope.assign(op)
                    seen = _without(seen, op.symbol)
                    yield f"uint {identifier(op.name)} = {to_c(value, before)};"
                case If() | Inside():
                    yield from self._branch(op, scope, seen)
                case For() | DynamicFor():
                    yield from self._for(op, scope, seen)
                case Counter():
                    counted = self.body(op.body, scope.enter_counter(op), seen)
                    yield from _braces([f"uint {identifier(op.dim)} = 0;", *counted])
                case Advance():
                    yield f"{identifier(op.dim)} += {to_c(scope.resolve(op.by), scope.ranges)};"
                case Locate():
                    yield from self._locate(op, scope, seen)
                case SetCoordinate():
                    yield from self._set(op, scope, seen)
                case Scope():
                    yield f"// {op.name}"
                    yield from self.body(op.body, scope, seen)
                case LoadTile() | Epilogue() | StoreTile():
                    if position == 0 or not isinstance(ops[position - 1], TILE_OPERATIONS):
                        # Consecutive operations on tiles share one group of assignments to tile
                        # numbers.
                        tiles = list(_leading_tiles(ops[position:]))
                        yield from self._tile_numbers(tiles, scope, seen)
                    yield from self._tile(op)
                case _:
                    yield from self._other(op, scope, seen)

    def _for(self, op: For | DynamicFor, scope: Scoped, seen: dict[str, Expr]) -> Iterator[str]:
        if isinstance(op, DynamicFor):
            yield from self._dynamic(op, scope, seen)
            return
        loop, inside = scope.enter_for(op)
        if op.unroll:
            yield "#pragma unroll"
        yield _loop(loop.symbol.name, loop.start, loop.stop, loop.step, inside.ranges)
        body = self.body(op.body, inside, _without(seen, loop.symbol))
        if loop.symbol == op.symbol:
            yield from _braces(body)
            return
        index = f"uint {identifier(op.dim)} = {to_c(inside.known[op.dim], inside.ranges)};"
        yield from _braces([index, *body])

    def _dynamic(self, op: DynamicFor, scope: Scoped, seen: dict[str, Expr]) -> Iterator[str]:
        loop, inside = scope.enter_dynamic(op)
        i, known = identifier(op.dim), inside.ranges
        start, stop = to_c(loop.start, known), to_c(loop.stop, known)
        yield f"for (uint {i} = {start}; {i} < {stop}; {i} = {identifier(following(op.dim).name)})"
        yield from _braces(self.body(op.body, inside, _without(seen, loop.symbol)))

    def _locate(self, op: Locate, scope: Scoped, seen: dict[str, Expr]) -> Iterator[str]:
        values, inside = scope.enter_locate(op)
        lines: list[str] = []
        for dim, value in zip(op.dims, values, strict=True):
            seen = _without(seen, scope.coordinates.symbol(dim))
            lines.append(f"uint {identifier(dim)} = {to_c(value, scope.ranges)};")
        yield from _braces([*lines, *self.body(op.body, inside, seen)])

    def _set(self, op: SetCoordinate, scope: Scoped, seen: dict[str, Expr]) -> Iterator[str]:
        """The lines of a `SetCoordinate`: a computed value is assigned to a variable in a block.

        A constant is substituted in the body instead.
        """
        value, inside = scope.enter_set(op)
        if value is None:
            yield f"// {op.dim} = {to_c(inside.known[op.dim], inside.ranges)}"
            yield from self.body(op.body, inside, seen)
            return
        seen = _without(seen, scope.coordinates.symbol(op.dim))
        assignment = f"uint {identifier(op.dim)} = {to_c(value, scope.ranges)};"
        yield from _braces([assignment, *self.body(op.body, inside, seen)])

    def _branch(self, op: If | Inside, scope: Scoped, seen: dict[str, Expr]) -> Iterator[str]:
        condition = scope.condition(op)
        if condition in (true, false):  # print only the body that every launch executes
            yield from self.body(op.body if condition == true else op.orelse, scope, seen)
            return
        yield f"if ({to_c(condition, scope.ranges)})"
        yield from _braces(self.body(op.body, scope.enter_if(condition), seen))
        if op.orelse:
            yield "else"
            yield from _braces(self.body(op.orelse, scope, seen))

    def _tile_numbers(
        self, ops: Iterable[LoadTile | Epilogue | StoreTile], scope: Scoped, seen: dict[str, Expr]
    ) -> Iterator[str]:
        """Assignments such as `tile_m = …;` to variables of tile numbers.

        A variable that already has the value, according to `seen`, is not assigned again.
        """
        values: dict[str, Expr] = {}
        guards: list[Basic] = []
        for op in ops:
            try:
                solution = scope.reverse(*op.tile)
            except EvaluationError as error:
                yield f"// tile of {_tensor(op)}: {str(error).splitlines()[0]}"
                continue
            values.update(zip(_names(op), solution.values, strict=True))
            # Read `guard.args`: `And.make_args` returns a set, whose order changes between runs.
            guard = solution.guard
            guards += guard.args if isinstance(guard, And) else (guard,)
        for name in sorted(values, key=_axis_order):
            if seen.get(name) != values[name] and identifier(str(values[name])) != name:
                value = to_c(values[name], scope.ranges)
                yield f"{'' if name in seen else 'uint '}{name} = {value};"
                seen[name] = values[name]
        for guard in dict.fromkeys(guards):
            if guard != true:
                yield f"// padding unless {to_c(guard, scope.ranges)}"

    def _tile(self, op: LoadTile | Epilogue | StoreTile) -> Iterator[str]:
        place = f"{_tensor(op)} tile ({', '.join(_names(op))})"
        match op:
            case LoadTile():
                yield f"// load {place}"
            case Epilogue():
                yield from self._epilogue(op)
            case StoreTile():
                yield f"// store {op.accumulator} into {place}"

    def _epilogue(self, op: Epilogue) -> Iterator[str]:
        """The statements of an epilogue for one element; operands have their axes as subscripts."""
        gemm, function = self._graph.gemm, op.function
        names = {ACCUMULATOR: op.accumulator}
        if len(function.sums) > 1:
            names |= {name: f"{op.accumulator}[{i}]" for i, name in enumerate(function.sums)}
        for tensor in op.operands:
            axes = [gemm.leading] * gemm.is_apart(tensor) + [*gemm.axes[tensor]]
            names[gemm.operands[tensor].name] = f"{tensor}[{', '.join(axes or '0')}]"
        for tensor in op.stores:
            axes = [gemm.leading] * gemm.is_apart(tensor) + [*gemm.axes[tensor]]
            named = ("tile_n" if axis == "t" else axis for axis in axes)
            names[tensor] = f"{tensor}[{', '.join(named)}]"
        for stage in stages_of(function, gemm.accumulator, gemm.out_dtype or gemm.dtype):
            given = f"if ({read_of(tensor_of(stage.optional))}) " if stage.optional else ""
            yield from (f"// {given}{line}" for line in statements(stage.function, names))

    def _other(self, op: Operation, scope: Scoped, seen: dict[str, Expr]) -> Iterator[str]:
        match op:
            case InitAccumulator():
                yield f"{op.accumulator} = 0;"
            case MultiplyAccumulate():
                yield f"{op.accumulator} += {op.a} tile * {op.b} tile;"
            case TakeTicket():
                counter = f"{identifier(op.counter)}[{_index(scope, op.counter)}]"
                ticket = f"{_resolved(scope, op.first)} + atomicInc(&{counter}, "
                ticket += f"{_resolved(scope, op.count - 1)})"
                yield f"{identifier(following(op.dim).name)} = {ticket};"
            case SendPartial():
                slot = _index(scope, op.slot)
                yield f"// store partial tile to workspace slot {slot}"
                raised = _raised(scope, op.turn) if op.turn else _resolved(scope, op.readers)
                yield f"flags[{slot}] = {raised};"
            case ReceivePartial():
                slot = _index(scope, op.slot)
                down = f"!= {_raised(scope, op.turn)}" if op.turn else "== 0"
                yield f"while (flags[{slot}] {down});"
                yield f"// load partial tile from workspace slot {slot}, add it to {op.accumulator}"
                yield f"flags[{slot}] = 0;"
            case AccumulatePartial():
                slot = _index(scope, op.slot)
                yield f"// add {op.accumulator} to workspace slot {slot}, element by element"
                yield f"flags[{slot}]++;  // atomic, like the additions above"
            case CollectPartial():
                slot = _index(scope, op.slot)
                yield f"while (flags[{slot}] != {_resolved(scope, op.senders)});"
                yield f"// load sums from workspace slot {slot}, add them to {op.accumulator}"
                yield f"// store zeros to workspace slot {slot}"
                yield f"flags[{slot}] = 0;"
            case AwaitPartial():
                slot = _index(scope, op.slot)
                yield f"while (flags[{slot}] == 0);"
                yield f"flags[{slot}]--;  // atomic: the flag counts the readers that are left"
            case AddPartial():
                slot = _index(scope, op.slot)
                yield f"// load partial tile from workspace slot {slot}, add it to {op.accumulator}"
            case _:
                yield from self._generic(op, scope, seen)

    def _generic(self, op: Operation, scope: Scoped, seen: dict[str, Expr]) -> Iterator[str]:
        """The lines of an operation without special syntax: its fields and the indices it uses."""
        bound = op.bindings
        # A register dimension has no single index: it enumerates the elements of a fragment.
        spread = [n for role, names in bound.items() if role.endswith("registers") for n in names]
        inside = scope.hardware([n for n in spread if n not in scope.known])
        places = {
            role: ", ".join(_indexed(inside, name) for name in names)
            for role, names in bound.items()
            if not role.endswith("registers")
        }
        arrow = ""
        if places.keys() >= {"source", "destination"}:
            arrow = f"{places.pop('source')} -> {places.pop('destination')}"
        parts = [f"{role} {place}" for role, place in places.items()]
        parts += [
            f"{name} {written(value, lambda expr: to_c(expr, scope.ranges))}"
            for name, value in shown(op).items()
            if name not in bound or name.endswith("registers")
        ]
        text = " ".join(filter(None, (op.kind, arrow)))
        text += f" ({'; '.join(parts)})" if parts else ""
        bodies = [(name, getattr(op, name)) for name in op.BODIES]
        if isinstance(op, Kernel) or not any(body for _, body in bodies):
            yield f"{text};"
            return
        for name, body in bodies:
            yield f"{text}{'' if name == 'body' else f' {name}'}"
            yield from _braces(self.body(body, scope, seen))


def _headline(graph: KernelGraph) -> str:
    gemm = graph.gemm
    a, b = "A" + "ᵀ" * gemm.transpose_a, "B" + "ᵀ" * gemm.transpose_b
    steps = f": {', '.join(graph.log)}" if graph.log else ""
    what = f"alpha * {a} * {b} + beta * C"
    if gemm.epilogue != ALPHA_BETA:
        what = f"{gemm.epilogue.name}({', '.join([f'{a} * {b}', *gemm.operands])})"
    outputs = ", ".join(gemm.stored)
    return f"{outputs} = {what}, {gemm.dtype} to {gemm.out_dtype}{steps}"


def _loop(name: str, start: Expr, stop: Expr | None, step: Expr, known: Ranges) -> str:
    i = identifier(name)
    advance = f"{i}++" if step == 1 else f"{i} += {to_c(step, known)}"
    condition = "" if stop is None else f"{i} < {to_c(stop, known)}"
    return f"for (uint {i} = {to_c(start, known)}; {condition}; {advance})"


def _braces(lines: Iterable[str]) -> Iterator[str]:
    yield "{"
    for line in lines:
        yield INDENT + line
    yield "}"


def _leading_tiles(ops: Body) -> Iterator[LoadTile | Epilogue | StoreTile]:
    for op in ops:
        if not isinstance(op, LoadTile | Epilogue | StoreTile):
            return
        yield op


def _tensor(op: LoadTile | Epilogue | StoreTile) -> str:
    return op.output if isinstance(op, Epilogue) else op.tensor


def _names(op: LoadTile | Epilogue | StoreTile) -> list[str]:
    """The variable names for the tile numbers of an operation, such as `tile_m` and `tile_k`."""
    axes = TENSORS.get(_tensor(op), "")
    if len(axes) == len(op.tile):
        return [f"tile_{axis}" for axis in axes]
    return [identifier(name) for name in op.tile]


def _axis_order(name: str) -> tuple[int, str]:
    order = ("tile_m", "tile_n", "tile_k")
    return (order.index(name) if name in order else len(order), name)


def _without(seen: dict[str, Expr], symbol: Symbol) -> dict[str, Expr]:
    """The entries of `seen` (expressions by variable name) that do not contain `symbol`.

    These entries stay valid when the value of the symbol changes.
    """
    return {name: value for name, value in seen.items() if symbol not in value.free_symbols}


def _resolved(scope: Scoped, expr: Expr) -> str:
    return to_c(scope.resolve(expr), scope.ranges)


def _index(scope: Scoped, name: str) -> str:
    try:
        return to_c(scope.reverse(name).values[0], scope.ranges)
    except EvaluationError:
        return f"<{name}>"


def _raised(scope: Scoped, turn: str) -> str:
    """C text of a flag's new value: 1 + the index along dimension `turn`; 1 if `turn` is ''."""
    if not turn:
        return "1"
    try:
        return _resolved(scope, scope.reverse(turn).values[0] + 1)
    except EvaluationError:
        return f"<{turn}> + 1"


def _indexed(scope: Scoped, name: str) -> str:
    """The text `name[index]`, or only `name` if the scope does not determine the index."""
    try:
        return f"{name}[{to_c(scope.reverse(name).values[0], scope.ranges)}]"
    except EvaluationError:
        return name
