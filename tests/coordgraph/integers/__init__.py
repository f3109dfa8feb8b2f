"""Tests of index arithmetic."""
