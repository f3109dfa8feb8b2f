"""Tests of the text form of graphs."""
