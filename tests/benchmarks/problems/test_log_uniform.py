"""Random sizes have a log-uniform distribution and are the same on every machine."""

from __future__ import annotations

from benchmarks.problems.log_uniform import log_uniform_shapes


def test_the_corpus_is_log_uniform_and_the_same_every_time():
    shapes = log_uniform_shapes(400)
    assert shapes == log_uniform_shapes(400)
    assert shapes[:7] == log_uniform_shapes(7)
    assert shapes != log_uniform_shapes(400, seed=1)
    extents = [extent for found in shapes for extent in (found.m, found.n, found.k)]
    assert all(128 <= extent <= 8192 and extent % 8 == 0 for extent in extents)
    # Extents are log-uniform, and half of the octaves of their range are below 1024.
    below = sum(extent < 1024 for extent in extents) / len(extents)
    assert 0.45 < below < 0.55


def test_the_corpus_is_the_documented_one():
    """The first random sizes never change, so that documented results stay comparable."""
    sizes = ["4288x2992x736", "376x1072x688", "3336x448x928", "1448x5592x1048"]
    assert [found.size for found in log_uniform_shapes(4)] == sizes
    assert [found.size for found in log_uniform_shapes(2, step=1)] == [
        "4289x2994x736",
        "376x1073x690",
    ]
