"""Faults that are put into correct graphs, and the named check that refutes each of them."""
