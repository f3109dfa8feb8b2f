"""Tests of diagrams and pseudo-code."""
