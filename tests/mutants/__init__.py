"""Mutation testing: random changes of the library's source, and which tests fail on each."""
