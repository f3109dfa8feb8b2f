"""Tests of kernels that are exported for C and C++ programs."""
