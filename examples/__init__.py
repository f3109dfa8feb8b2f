"""Schedules that are written outside the library, with its public kit alone."""
