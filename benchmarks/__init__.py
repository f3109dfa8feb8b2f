"""Benchmarks, run by `python -m benchmarks NAME`; `benchmarks.measures` lists the names."""
