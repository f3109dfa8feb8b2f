"""Random mutants of the library, and which tests kill them (`python -m tests.mutants`)."""
