"""Warm-up of `benchmarks checking`: its fork server imports this module once, before it forks."""

from benchmarks.measures.checking import TARGETS, warm_up

for target in TARGETS:
    warm_up(target)
