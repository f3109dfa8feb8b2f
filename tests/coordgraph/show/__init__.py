"""Tests of diagrams and pseudocode."""
