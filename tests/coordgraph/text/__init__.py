"""Tests of graphs in writing."""
