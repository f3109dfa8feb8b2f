"""Atoms (factors of a polynomial's terms): equal ones must be one object, or proofs would fail."""

from __future__ import annotations

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from sympy import Symbol

from coordgraph.integers import FloorDiv, floor_div, index_symbol, nodes_of, size_symbol
from coordgraph.integers.polynomials import (
    add,
    atom_of,
    atoms_of,
    order_key,
    to_expression,
    to_polynomial,
)

INDEX, N = index_symbol("i"), size_symbol("n")


def test_equal_expressions_have_one_atom():
    again = FloorDiv(Symbol("i", integer=True, nonnegative=True), N)
    assert atom_of(again) is atom_of(floor_div(INDEX, N))
    assert atom_of(INDEX) is not atom_of(Symbol("i"))
    assert add(to_polynomial(again * N), to_polynomial(N * floor_div(INDEX, N)), -1) == {}


def test_copies_are_the_same_atom():
    atom = atom_of(floor_div(INDEX, N))
    assert copy.deepcopy(atom) is atom
    assert pickle.loads(pickle.dumps(atom)) is atom


def test_threads_agree():
    for turn in range(20):
        name, together = Symbol(f"of.turn.{turn}"), Barrier(4)

        def meet(name: Symbol = name, together: Barrier = together) -> object:
            together.wait()
            return atom_of(name)

        with ThreadPoolExecutor(4) as pool:
            found = [f.result() for f in [pool.submit(meet) for _ in range(4)]]
        assert len({id(atom) for atom in found}) == 1


def test_an_atom_that_nobody_has_is_forgotten():
    from coordgraph.integers.polynomials import _ATOMS

    name = Symbol("nobody.has.this")
    atom = atom_of(name)
    assert name in _ATOMS
    del atom
    gc.collect()
    assert name not in _ATOMS


def test_atoms_come_in_the_order_of_their_keys():
    p = to_polynomial((INDEX + N) * floor_div(INDEX, N) + INDEX * N)
    keys = [atom.key for atom in atoms_of(p)]
    assert keys == sorted(map(order_key, (INDEX, N, floor_div(INDEX, N))))
    assert all(list(m) == sorted(m, key=lambda atom: atom.key) for m in p)
    assert to_expression(p) == ((INDEX + N) * floor_div(INDEX, N) + INDEX * N).expand()


def test_nodes_are_those_of_sympy():
    expr = floor_div(INDEX + N, N) * floor_div(INDEX, N) + floor_div(floor_div(INDEX, N), 3)
    assert nodes_of(expr, FloorDiv) == expr.atoms(FloorDiv)
    assert nodes_of(expr, Symbol) == {INDEX, N}
    assert nodes_of(N, Symbol) == {N}
    assert nodes_of(N, FloorDiv) == set()


def test_shared_nodes_are_visited_once():
    expr = floor_div(INDEX, N)
    for _ in range(60):  # each step doubles the tree, up to 2**60 nodes
        expr = floor_div(expr + 1, expr + 2)
    assert len(nodes_of(expr, FloorDiv)) == 61
