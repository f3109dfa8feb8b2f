"""Faults that are put into correct graphs, each with the name of the check that refutes it."""
