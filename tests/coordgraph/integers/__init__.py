"""Tests of index arithmetic: expressions are simplified, bounded and evaluated correctly."""
