"""Benchmarks, run by `python -m benchmarks NAME`. See `benchmarks.measures` for the list."""
