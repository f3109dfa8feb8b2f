"""Tests that diagrams and pseudocode show what a graph contains."""
