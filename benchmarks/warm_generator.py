"""Warm-up of `benchmarks generation`: its fork server imports this module once, before it forks."""

from benchmarks.measures.generation import TARGETS, warm_up

for target in TARGETS:
    warm_up(target)
