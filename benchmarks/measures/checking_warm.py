"""Imports and initialises what `checking` measures; its fork server imports this module once."""

from benchmarks.measures.checking import TARGETS, warm_up

for target in TARGETS:
    warm_up(target)
